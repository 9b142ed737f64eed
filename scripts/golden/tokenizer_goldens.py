#!/usr/bin/env python3
"""Makes token-id goldens with Hugging Face tokenizers (and the sentencepiece library).

Usage: tokenizer_goldens.py --tokenizer NAME=FILE_OR_FOLDER ... --text FILE ... --out goldens.json
FILE: tokenizer.json or a sentencepiece .model; FOLDER: vocab.json + merges.txt (gpt2-*.json too).
Texts: the lines of the given files (a sample), fixed cases, and random Unicode with a fixed seed.
Needs: tokenizers, transformers, sentencepiece.
"""
import argparse
import json
import random

import tokenizer_reference

def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", action="append", required=True)
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("--lines", type=int, default=60)
    parser.add_argument("--random", type=int, default=150)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    rng = random.Random(20260101)
    texts = list(tokenizer_reference.FIXED)
    for path in options.text:
        lines = [line for line in open(path, encoding="utf-8").read().splitlines() if line.strip()]
        texts += rng.sample(lines, min(options.lines, len(lines)))
    texts += [tokenizer_reference.random_text(rng) for _ in range(options.random)]
    goldens = {"texts": texts, "tokenizers": {}}
    for entry in options.tokenizer:
        name, path = entry.split("=", 1)
        reference = tokenizer_reference.load(path)
        goldens["tokenizers"][name] = [reference.encode(text) for text in texts]
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(goldens, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")
    print(f"{options.out}: {len(texts)} texts, {len(goldens['tokenizers'])} tokenizers")


if __name__ == "__main__":
    main()
