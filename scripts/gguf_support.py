#!/usr/bin/env python3
"""Which architectures and tensor types of the newest gguf package sluice reads, and which it refuses by name.

    scripts/gguf_support.py [PROGRAM]   asks the program about each name, prints what it says, and counts
    scripts/gguf_support.py --write     renews the table of docs/gguf.md
    scripts/gguf_support.py --check     fails where it is not that of tests/fixtures/gguf_support.json
    scripts/gguf_support.py --names     renews the names of that file from the gguf package that Python finds: what is
                                        new counts as refused until it is moved

The file says which are read: a test of src/model holds it against the families.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import textwrap

import page_tables

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "fixtures" / "gguf_support.json"
PAGE = ROOT / "docs" / "gguf.md"
BEGIN, END = "<!-- scripts/gguf_support.py --write -->\n", "<!-- end of scripts/gguf_support.py -->\n"
KINDS = (("architectures", "architecture"), ("types", "tensor type"))


def read_list():
    return json.loads(LIST.read_text())


def tables():
    known = read_list()
    lines = ["| | read | refused by name |", "| --- | --- | --- |"]
    for kind, title in KINDS:
        parts = [", ".join(f"`{name}`" for name in known[kind][what]) for what in ("read", "refused")]
        lines.append(f"| {title} | {parts[0]} | {parts[1]} |")
    counts = [f"{len(known[kind]['read'])} of {sum(map(len, known[kind].values()))} {kind}" for kind, _ in KINDS]
    about = (f"{counts[0]} and {counts[1]} are read. Source: {known['source']}. What is refused among the types holds no "
             "weights of models: whole numbers, doubles, and what products are made of.")
    lines += ["", *textwrap.wrap(about, 120, break_on_hyphens=False)]
    return "\n".join(lines) + "\n"


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def ask(program, architecture, number, elements):
    """A file with a vector of one block; what is read fails later, for its keys."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tiny.gguf"
        data = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
        data += text("general.architecture") + struct.pack("<I", 8) + text(architecture)
        data += text("output_norm.weight") + struct.pack("<IQIQ", 1, elements, number, 0)
        path.write_bytes(data + bytes(-len(data) % 32 + 2048))
        done = subprocess.run([program, "run", path, "--prompt-ids", "1"], capture_output=True, text=True)
    return next((line for line in done.stderr.splitlines() if "is not read" in line), "").replace(str(path), "FILE")


def renew_names():
    import gguf
    old = read_list() if LIST.exists() else {kind: {"read": [], "refused": []} for kind, _ in KINDS}
    names = {"architectures": sorted(gguf.MODEL_ARCH_NAMES.values()),
             "types": [kind.name for kind in gguf.GGMLQuantizationType]}
    out = {"source": old.get("source", "")}
    for kind, _ in KINDS:
        out[kind] = {"read": [name for name in names[kind] if name in old[kind]["read"]],
                     "refused": [name for name in names[kind] if name not in old[kind]["read"]]}
    out["numbers"] = {t.name: [int(t), gguf.GGML_QUANT_SIZES[t][0]] for t in gguf.GGMLQuantizationType}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in out.items()]
    LIST.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    if sys.argv[1:] == ["--names"]:
        renew_names()
        return
    if sys.argv[1:] in (["--write"], ["--check"]):
        page_tables.keep(sys.argv[1], PAGE, (BEGIN, END), tables(), "gguf_support.py")
        return
    program = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "release" / "bin" / "sluice"
    known, wrong = read_list(), 0
    for kind, _ in KINDS:
        count = 0
        for name in known[kind]["read"] + known[kind]["refused"]:
            number, elements = known["numbers"][name] if kind == "types" else (0, 8)
            answer = ask(program, name if kind == "architectures" else "llama", number, elements)
            print(f"{kind} {name:20} {answer or 'read'}")
            count += not answer
            wrong += (not answer) != (name in known[kind]["read"])
        print(f"{kind}: {count} of {sum(map(len, known[kind].values()))} read")
    if wrong:
        sys.exit(f"{wrong} are not as {LIST.name} says")


if __name__ == "__main__":
    main()
