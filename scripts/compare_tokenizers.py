#!/usr/bin/env python3
"""Holds sluice's tokenizers against Hugging Face tokenizers, sentencepiece and tiktoken.

Usage: compare_tokenizers.py [--sluice PROGRAM] [--count N] FILE_OR_FOLDER ...
FILE: tokenizer.json, or a sentencepiece or tiktoken .model; FOLDER: vocab.json + merges.txt.
Compares the ids of some thousand texts (every block of Unicode in its normal forms, white space, control pieces, emoji,
random bytes) and the texts of lists of ids (those of the texts, and random ones). Prints a line a tokenizer and the first
differences; exit 1 when there are any. Needs: pip install tokenizers sentencepiece protobuf tiktoken.
"""
import argparse
import json
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden"))
import tokenizer_reference  # noqa: E402


def ask(program, path, lines):
    """Sluice's answer to each line."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([program, "tokenize", path, "--jsonl", "-", "--no-special"], input=text, capture_output=True,
                          text=True, encoding="utf-8")
    if done.returncode:
        raise SystemExit(f"{path}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def compare(what, asked, ours, theirs, shown):
    different = [i for i in range(len(asked)) if ours[i] != theirs[i]]
    for i in different[:shown]:
        print(f"  {what} of {asked[i]!r}\n    sluice    {ours[i]!r}\n    reference {theirs[i]!r}")
    return len(different)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--count", type=int, default=400, help="texts of each random kind")
    parser.add_argument("--show", type=int, default=3, help="differences shown of each kind")
    parser.add_argument("paths", nargs="+")
    options = parser.parse_args()
    total = 0
    for path in options.paths:
        reference = tokenizer_reference.load(path)
        texts = tokenizer_reference.wide_texts(options.count, reference.special)
        ids = [reference.encode(text) for text in texts]
        rng = random.Random(7)
        lists = ids + [[rng.randrange(reference.size) for _ in range(rng.randint(1, 30))] for _ in range(options.count)]
        lists += [[i] for i in range(min(reference.size, 2000))]
        print(f"{path} against {reference.name}")
        wrong_ids = compare("ids", texts, ask(options.sluice, path, texts), ids, options.show)
        wrong_texts = compare("text", lists, ask(options.sluice, path, lists), [reference.decode(i) for i in lists],
                              options.show)
        print(f"  ids {len(texts) - wrong_ids} of {len(texts)}, texts {len(lists) - wrong_texts} of {len(lists)}")
        total += wrong_ids + wrong_texts
    raise SystemExit(1 if total else 0)


if __name__ == "__main__":
    main()
