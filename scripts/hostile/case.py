"""One hostile case: files, the command that reads them, and how it may end."""
import dataclasses
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import model_files as made  # noqa: E402

REFUSED = frozenset({2, 3, 4})    # bad use, a bad file, not enough memory or disk
ANYHOW = REFUSED | {0}            # where a reader may as well make sense of it


@dataclasses.dataclass(frozen=True)
class Link:
    """A symbolic link."""
    to: str


@dataclasses.dataclass(frozen=True)
class Sparse:
    """A file that begins with `head` and is `size` bytes long, zeros that take no disk."""
    head: bytes
    size: int


class Fifo:
    """A pipe that nobody writes to."""


class Folder:
    """A folder where a file should be."""


@dataclasses.dataclass
class Case:
    name: str            # "config/hidden_size=-1": the format, then what is wrong
    files: dict          # path in the case's folder -> bytes, or one of the above
    command: list        # arguments; {} stands for the folder
    codes: frozenset = ANYHOW
    input: bytes = b""   # standard input


# What the commands read; cheap ones first.
INSPECT = ["inspect", "{}", "--tensors"]
RUN = ["run", "{}", "--prompt-ids", "1,3,2", "-n", "2", "--cpu-mem", "64MiB", "--ignore-eos"]
RUN_TEXT = ["run", "{}", "-p", "lo lo", "-n", "2", "--cpu-mem", "64MiB", "--ignore-eos"]
CONVERT = ["convert", "{}", "{}/out", "--weights", "int4-g32", "--cpu-mem", "256MiB"]
TOKENIZE = ["tokenize", "{}", "-p", "lo  hello \u00e9\u4f60 12<|end|>", "--json"]


def llama(config=None, **files):
    """The files of a tiny model that runs; by keyword others or changed ones, dots written as __ (None: left out)."""
    out = {"config.json": json.dumps(config or made.LLAMA).encode(), "model.safetensors": made.safetensors(made.llama_tensors()),
           "tokenizer.json": json.dumps(made.bpe_json()).encode()}
    for name, content in files.items():
        out[name.replace("__", ".")] = content
    return {name: content for name, content in out.items() if content is not None}


def spoiled(content, step):
    """(what, bytes): the file cut short, made longer and with single bytes changed, every `step` bytes."""
    size = len(content)
    for cut in sorted({0, 1, 7, 8, 9, size // 2, size - 1} & set(range(size))):
        yield f"cut-to-{cut}", content[:cut]
    yield "longer-by-1", content + b"\0"
    yield "twice", content + content
    for at in range(0, size, max(step, 1)):
        for mask in (0x01, 0x80, 0xFF):
            yield f"byte-{at}-xor-{mask:02x}", content[:at] + bytes([content[at] ^ mask]) + content[at + 1:]


# What goes wrong in every JSON text, whatever it is for.
BROKEN_JSON = {
    "empty": b"", "a-space": b" ", "null": b"null", "number": b"3", "text": b'"text"', "list": b"[]", "object": b"{}", "open": b"{",
    "comma": b'{"a":1,}', "comment": b'{} // no', "nan": b'{"a":NaN}', "two": b"{}{}", "zero-bytes": b"\0" * 100, "bom": b"\xef\xbb\xbf{}",
    "latin1": b'{"a":"caf\xe9"}', "utf16": '{"a":1}'.encode("utf-16"), "surrogate": b'{"a":"\\ud800"}', "control": b'{"a":"\x01"}',
    "deep-lists": b"[" * 100000, "deep-objects": b'{"a":' * 100000, "deep-closed": b"[" * 5000 + b"]" * 5000, "huge-number": b'{"a":1e999}',
    "long-digits": b'{"a":' + b"9" * 100000 + b"}", "many-keys": json.dumps({f"k{i}": i for i in range(20000)}).encode(),
    "long-key": b'{"' + b"k" * 200000 + b'":1}', "escapes": b'{"\\u001b[31m\\u0007":1}', "gzip": b"\x1f\x8b\x08" + bytes(20), "zip": b"PK\3\4" + bytes(30)}
NOT_FILES = {"folder": Folder(), "fifo": Fifo(), "loop": Link("loop-back"), "nowhere": Link("nowhere"), "endless": Link("/dev/zero"),
             "random": Link("/dev/urandom"), "null": Link("/dev/null"), "huge": Sparse(b"{", 1 << 40), "process": Link("/proc/self/mem")}


def not_files(path, files, command, codes=REFUSED, name=None, may_wait=False):
    """The file at `path` (cases are called `name`, or the same) replaced by what is none. may_wait: a pipe may be given."""
    for what, thing in NOT_FILES.items():
        if what == "fifo" and may_wait:
            continue
        more = {"loop-back": Link(path)} if what == "loop" else {}
        yield Case(f"{name or path}/is-{what}", {**files, path: thing, **more}, command, codes)


# Values that a number, a text or a list of a JSON file is replaced by.
WRONG_VALUES = [None, True, "x", "", [], {}, [1], -1, 0, 1, 1.5, -0.0, 2**31, 2**53, 2**63, 2**64, 1e308, -1e308, 1e-320, "\u001b[2J", [[]]]


def label(value):
    text = json.dumps(value)
    return text if len(text) < 40 else text[:37] + "..."
