"""Plans and profiles as objects."""
import json

from . import _core, _params

_GIB = 1 << 30


def _bytes(count):
    for unit, size in (("TiB", 1 << 40), ("GiB", _GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{int(count)} B"


def _names(value):
    return _params.path(value, "hardware") if value is not None else ""


class ModelPlan:
    """Where everything of an open model lies. `print(model.plan)` shows every use of every tier."""

    def __init__(self, plan, model):
        self._plan = plan
        self.memory_bytes = plan.memory_bytes  # of the host's
        self.memory_budget_bytes = plan.memory_budget_bytes  # what that had to fit in
        self.device_bytes = plan.device_bytes
        self.disk_bytes = plan.disk_bytes  # of files for KV and activations
        self.weight_bytes = model.weight_bytes
        self.streamed_bytes = plan.streamed_bytes  # of weights, read from disk in every pass
        self.context = plan.context_tokens
        self.sequences = plan.sequences  # that run together, at most
        self.tokens_per_second = plan.tokens_per_second  # expected; None where nothing had to be predicted
        self.policy = json.loads(plan.policy)

    @property
    def resident_bytes(self):
        """Of weights, in memory all the time."""
        return self.weight_bytes - self.streamed_bytes

    def __repr__(self):
        rate = f", {self.tokens_per_second:.3g} tokens/s expected" if self.tokens_per_second else ""
        streamed = f", {_bytes(self.streamed_bytes)} of weights stream in every pass" if self.streamed_bytes else ""
        return (f"<sluice plan: {_bytes(self.memory_bytes)} of {_bytes(self.memory_budget_bytes)} memory, "
                f"{self.sequences} sequences of {self.context} tokens{streamed}{rate}>")

    def __str__(self):
        return self._plan.table


class Plan:
    """What a model would do on a machine. `print(plan)` is what `sluice plan` shows."""

    def __init__(self, rate, latency, bottleneck, details, text):
        self.details = json.loads(details)  # all of `sluice plan --json`
        self.tokens_per_second = rate  # generated, over the whole job
        self.latency_seconds = latency  # of a block, from its start to its last token
        self.bottleneck = bottleneck
        self.model = self.details["model"]
        self.hardware = self.details["hardware"]
        self.bytes = self.details["peak_bytes"]  # by tier: "device", "host", "disk"
        self.limits = self.details["limits_bytes"]
        self.policy = self.details["policy_file"]
        self.lifts = {lift["twice"]: lift["factor"] for lift in self.details["lifts"] or ()}
        self._text = text

    def __repr__(self):
        return (f"<sluice plan: {self.model} on {self.hardware}: {self.tokens_per_second:.3g} tokens/s, "
                f"limited by {self.bottleneck}>")

    def __str__(self):
        return self._text


_PLAN_NAMES = ("hardware", "cpu_mem", "gpu_mem", "disk_mem", "prompt_tokens", "new_tokens", "sequences", "objective",
               "latency_bound", "weights", "kv_dtype", "lifts")


def plan(model, **options):
    """What a model (a name such as "opt-175b", a folder, a store or a config.json) would do on a machine (`hardware`:
    a shipped profile's name, a file; this machine if it is left out). Neither has to be here."""
    _params.refuse_unknown(options, _PLAN_NAMES, "plan")
    take = options.get
    values = {"hardware": _names(take("hardware")),
              "memory_budget_bytes": _params.size(take("cpu_mem"), "cpu_mem"),
              "device_budget_bytes": _params.size(take("gpu_mem"), "gpu_mem"),
              "disk_budget_bytes": _params.size(take("disk_mem"), "disk_mem"),
              "lifts": _params.truth(options.get("lifts", True), "lifts")}
    for name in ("prompt_tokens", "new_tokens"):
        if take(name) is not None:
            values[name] = _params.number(take(name), name)
    if take("latency_bound") is not None:
        values["latency_bound_seconds"] = _params.number(take("latency_bound"), "latency_bound")
    if take("sequences") is not None:
        values["sequences"] = _params.integer(take("sequences"), "sequences", 1, (1 << 31) - 1)
    for name in ("objective", "weights", "kv_dtype"):
        if take(name) is not None:
            values[name] = _params.text(take(name), name)
    return Plan(*_core.forecast(_params.path(model, "model"), values, _core.Log()))


plan.models = _core.forecast_models  # names of the built-in shapes


class Profile:
    """What a machine can do, as measured numbers. Rates are bytes a second."""

    _FIGURES = ("name", "description", "date", "memory_bytes", "device_bytes", "disk_bytes", "memory_read",
                "disk_read", "disk_write", "processor", "device", "threads")

    def __init__(self, profile):
        for name in self._FIGURES:
            setattr(self, name, getattr(profile, name))
        self.details = json.loads(profile.json)  # docs/formats/profile.md

    def save(self, path):
        """Writes what `hardware=` of plan() and Model() takes."""
        with open(_params.path(path, "path"), "w", encoding="utf-8") as file:
            json.dump(self.details, file, indent=1)

    def __repr__(self):
        device = f"{self.device} with {_bytes(self.device_bytes)}, " if self.device else ""
        disk = f"disk {_bytes(self.disk_read)}/s" if self.disk_read else "no disk"
        return (f"<sluice profile {self.name}: {device}{_bytes(self.memory_bytes)} memory at "
                f"{_bytes(self.memory_read)}/s, {disk}>")


_PROFILE_NAMES = ("offload_dir", "threads", "quick", "again", "keep")


def profile(name=None, **options):
    """This machine's profile (measured once, in ten seconds, and kept), or the one of that name or file."""
    _params.refuse_unknown(options, _PROFILE_NAMES, "profile")
    if name is not None:
        if options:
            raise _params.UserError(f"{next(iter(options))} is for measuring, and {name!r} is measured already")
        return Profile(_core.Profile.load(_params.path(name, "name")))
    values = {"offload_dir": _params.path(options.get("offload_dir") or "", "offload_dir"),
              "threads": _params.integer(options.get("threads") or 0, "threads", 0, (1 << 31) - 1),
              "quick": _params.truth(options.get("quick", True), "quick"),
              "again": _params.truth(options.get("again", False), "again"),
              "keeps": _params.truth(options.get("keep", True), "keep")}
    return Profile(_core.Profile.of_this_machine(values, _core.Log()))


profile.names = _core.Profile.names  # of the shipped ones
