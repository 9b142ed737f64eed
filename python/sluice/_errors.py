"""The exceptions of sluice: one for each kind of error, each also one of Python's own kinds."""
import re


class Error(Exception):
    """Something that could not be done. `text`: what and where; `mend`: what to do about it, or ""."""

    def __init__(self, text, mend=""):
        super().__init__(f"{text}; {mend}" if mend else text)
        self.text = text
        self.mend = mend


class UserError(Error, ValueError):
    """A parameter or a prompt that makes no sense; names it."""


class FileError(Error, OSError):
    """A file or a checkpoint that is not there, damaged, or of a kind that is not read."""


class ResourceError(Error, MemoryError):
    """Something does not fit in memory or on disk; says what is short by how much."""


class DeviceError(Error, RuntimeError):
    """A GPU, or a build without one."""


class ClosedError(Error, RuntimeError):
    """The model has been closed, or was when its answer was still to come."""


class CancelledError(Error, RuntimeError):
    """The work was called off."""


class InternalError(Error, RuntimeError):
    """A fault of sluice's own: please report it."""


_KINDS = {"user": UserError, "file": FileError, "resource": ResourceError, "device": DeviceError,
          "cancelled": CancelledError, "internal": InternalError}

# The library's parameters by the names that they have in Python.
NAMES = {"memory_budget_bytes": "cpu_mem", "disk_budget_bytes": "disk_mem", "device_budget_bytes": "gpu_mem",
         "context_tokens": "context", "predicts_lengths": "predict_lengths", "keeps_prefixes": "prefix_cache",
         "latency_bound_seconds": "latency_bound"}


def in_python(text):
    """The text with parameters as Python has them."""
    return re.sub(r"`(\w+)`", lambda found: NAMES.get(found[1], found[1]), text)


def made(kind, text, mend):
    """The exception of a kind, as the library tells it."""
    return _KINDS[kind](in_python(text), in_python(mend))
