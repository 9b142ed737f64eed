"""Checkpoints rewritten as packed stores."""
from . import _core, _params

_NAMES = ("weights", "lora", "overwrite", "threads")


def convert(model, destination, **options):
    """Writes a model (a folder, a store or a GGUF file) to the folder `destination` as a packed store, quantised to
    `weights` ("int4", "int8-g128", ...) and with a PEFT adapter merged into it (`lora`: its folder) where asked for.
    Broken off, it goes on when it is called again. Returns the destination."""
    _params.refuse_unknown(options, _NAMES, "convert")
    values = {"weights": _params.text(options.get("weights") or "", "weights"),
              "lora": _params.path(options.get("lora") or "", "lora"),
              "overwrite": _params.truth(options.get("overwrite", False), "overwrite"),
              "threads": _params.integer(options.get("threads") or 0, "threads", 0, (1 << 31) - 1)}
    destination = _params.path(destination, "destination")
    _core.convert(_params.path(model, "model"), destination, values)
    return destination
