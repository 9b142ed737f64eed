#!/usr/bin/env python3
"""Which names of GGUF files sluice reads: rules of cutting text (tokenizer.ggml.pre) and kinds of tokenizers.

    scripts/gguf_names.py [build/release/bin/sluice]   writes a small file for each name, has the program read it, prints both tables
    scripts/gguf_names.py --write                      renews the tables of docs/gguf.md
    scripts/gguf_names.py --check                      fails where they are not those of tests/fixtures/split_rules/cuts.json

The names are those that llama.cpp reads; the file says from which version.
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
GOLDEN = json.loads((ROOT / "tests" / "fixtures" / "split_rules" / "cuts.json").read_text())
PAGE = ROOT / "docs" / "gguf.md"
BEGIN, END = "<!-- scripts/gguf_names.py --write -->\n", "<!-- end -->\n"
U32, I32, TEXT, ARRAY = 4, 5, 8, 9
WHAT = {
    "default": "what llama.cpp falls back to: runs of signs, GPT-2's words, digits by threes",
    "gpt2": "GPT-2's words", "gpt2/nfc": "GPT-2's words, text in form C",
    "digits": "each digit apart, then GPT-2's words", "digits/nfc": "the same, text in form C",
    "llama3": "Llama 3's words, digits by threes", "minicpm5": "digits by threes first, then Llama 3's words",
    "jais2": "Llama 3's words, spaces by powers of two", "k2": "Llama 3's words with marks and joiners",
    "qwen2": "Qwen 2's words, each digit apart", "qwen2/nfc": "the same, text in form C",
    "qwen35/nfc": "Qwen 3.5's words with marks, text in form C", "ufakzeka": "Qwen 2's without English contractions",
    "laguna": "lines, then Qwen 2's words", "bailing": "Qwen 2's words in other terms", "seed": "Qwen 2's, signs without line ends",
    "o200k": "OpenAI's o200k: words by their capitals", "tekken": "Mistral's: o200k's without contractions, each digit apart",
    "tiny_aya": "digits by threes from the right, then o200k's words", "kimi": "o200k's with Han apart",
    "youtu": "Asian scripts first, then o200k's words, each digit apart", "deepseek-llm": "lines, letters with case, signs, Han",
    "deepseek-coder": "lines, letters, signs, Han, each digit apart", "deepseek-v3": "digits by threes, Han, words with marks",
    "spark": "DeepSeek V3's, each line end apart", "afmoe": "digits by threes from the right, Asian scripts, DeepSeek V3's words",
    "falcon": "runs of signs, GPT-2's words, digits by threes", "bloom": "all but spaces and stops", "viking": "BLOOM's, each digit apart",
    "chameleon": "image tokens, pairs of spaces, each digit and sign apart", "superbpe": "runs of digits, by threes from the right",
    "exaone-moe": "runs of words", "pieces": "lines alone: pieces as SentencePiece has them"}


def tables():
    by_rule = {}
    for name, about in GOLDEN["names"].items():
        by_rule.setdefault(about["rule"], []).append(name)
    lines = ["| text is cut | names |", "| --- | --- |"]
    lines += [f"| {WHAT[rule]} | {', '.join(f'`{name}`' for name in names)} |"
              for rule, names in sorted(by_rule.items(), key=lambda item: (-len(item[1]), item[0]))]
    lines += [f"| refused by name | {', '.join(f'`{name}`' for name in GOLDEN['refused'])} |", ""]
    read, refused = len(GOLDEN["names"]), len(GOLDEN["refused"])
    lines += textwrap.wrap(f"{read} of {read + refused} names are read. Source: {GOLDEN['source']}; "
                           f"{', '.join(GOLDEN['later'])} are of later copies.", 120) + [""]
    lines += ["| `tokenizer.ggml.model` | |", "| --- | --- |"]
    lines += [f"| {', '.join(f'`{kind}`' for kind, is_read in GOLDEN['kinds'].items() if is_read == what)} | {what} |"
              for what in ("read", "no tokenizer", "refused")]
    return "\n".join(lines) + "\n"


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def tiny_file(path, kind, rule):
    tokens = ["a", "<s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    keys = [("general.architecture", TEXT, text("llama")), ("tokenizer.ggml.model", TEXT, text(kind)),
            ("tokenizer.ggml.pre", TEXT, text(rule)), ("tokenizer.ggml.bos_token_id", U32, struct.pack("<I", 1)),
            ("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", TEXT, 259) + b"".join(map(text, tokens))),
            ("tokenizer.ggml.token_type", ARRAY, struct.pack("<IQ259i", I32, 259, 1, 3, 2, *[6] * 256)),
            ("tokenizer.ggml.merges", ARRAY, struct.pack("<IQ", TEXT, 0))]
    data = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys))
    data += b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in keys)
    data += text("output_norm.weight") + struct.pack("<IQIQ", 1, 8, 0, 0)  # a vector of 8 numbers, F32
    path.write_bytes(data + bytes(-len(data) % 32 + 32))


def ask(program, kind, rule):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tiny.gguf"
        tiny_file(path, kind, rule)
        done = subprocess.run([program, "tokenize", path, "-p", "a"], capture_output=True, text=True)
    return "read" if done.returncode == 0 else done.stderr.strip().splitlines()[0].replace(str(path), "FILE")


def main():
    if sys.argv[1:] in (["--write"], ["--check"]):
        page_tables.keep(sys.argv[1], PAGE, (BEGIN, END), tables(), "gguf_names.py")
        return
    program = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "release" / "bin" / "sluice"
    counts = {}
    for what, names, kind_of in (("rules", [*GOLDEN["names"], *GOLDEN["refused"]], lambda name: ("gpt2", name)),
                                 ("kinds", GOLDEN["kinds"], lambda name: (name, "gpt-2"))):
        for name in names:
            answer = ask(program, *kind_of(name))
            print(f"{what} {name:26} {answer}")
            counts.setdefault(what, []).append(answer == "read")
    for what, answers in counts.items():
        print(f"{what}: {sum(answers)} of {len(answers)} read")


if __name__ == "__main__":
    main()
