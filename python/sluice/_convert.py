"""Checkpoints rewritten as packed stores."""
from . import _core, _params

_NAMES = ("weights", "bits", "calibrate", "calibrate_tokens", "imatrix", "cpu_mem", "lora", "pretokenizer", "overwrite", "threads",
          "allow_requantise")


def convert(model, destination, **options):
    """Writes a model (a folder, a store or a GGUF file) to the folder `destination` as a packed store, quantised to
    `weights` ("int4", "int8-g128", "q3_k", ...), or to so many `bits` a weight (4.5: a format for each matrix), and with a PEFT
    adapter merged into it (`lora`: its folder) where asked for. `calibrate`, a file of text, or `imatrix`, llama.cpp's
    importance matrix, says what the weights are multiplied with, so that less is lost: of the text the first
    `calibrate_tokens` (16384) are run, in `cpu_mem` bytes of memory or what is free. A store that is quantised
    already becomes other `weights` with `allow_requantise` alone. Broken off, it goes on when it is called again. Returns the
    destination."""
    _params.refuse_unknown(options, _NAMES, "convert")
    values = {"weights": _params.text(options.get("weights") or "", "weights"),
              "bits": _params.number(options.get("bits") or 0.0, "bits"),
              "calibrate": _params.path(options.get("calibrate") or "", "calibrate"),
              "calibrate_tokens": _params.integer(options.get("calibrate_tokens") or 16384, "calibrate_tokens", 1, 1 << 28),
              "imatrix": _params.path(options.get("imatrix") or "", "imatrix"),
              "memory_budget_bytes": _params.size(options.get("cpu_mem"), "cpu_mem"),
              "lora": _params.path(options.get("lora") or "", "lora"),
              "pretokenizer": _params.text(options.get("pretokenizer") or "", "pretokenizer"),
              "allow_requantise": _params.truth(options.get("allow_requantise", False), "allow_requantise"),
              "overwrite": _params.truth(options.get("overwrite", False), "overwrite"),
              "threads": _params.integer(options.get("threads") or 0, "threads", 0, (1 << 31) - 1)}
    destination = _params.path(destination, "destination")
    _core.convert(_params.path(model, "model"), destination, values)
    return destination
