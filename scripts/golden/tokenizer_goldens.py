#!/usr/bin/env python3
"""Makes token-id goldens with Hugging Face tokenizers (and the sentencepiece library).

Usage: tokenizer_goldens.py --tokenizer NAME=FILE_OR_FOLDER ... --text FILE ... --out goldens.json
FILE: tokenizer.json or a sentencepiece .model; FOLDER: vocab.json + merges.txt (gpt2-*.json too).
Texts: the lines of the given files (a sample), fixed cases, and random Unicode with a fixed seed.
Needs: tokenizers, transformers, sentencepiece.
"""
import argparse
import json
import os
import random

FIXED = [
    "", " ", "  ", "\n", "\t\n ", "Hello world", " Hello world", "Hello  world ", "don't you've I'LL we're",
    "1234567890 12,345.67 -3e10", "naïve café déjà vu", "Ünïcödé", "日本語のテキスト", "한국어 텍스트", "مرحبا بالعالم",
    "שלום עולם", "👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈", "e\u0301 vs é", "\u200b zero\u200dwidth", "a\u0000b", "\r\n\r\n  x\r",
    "def f(x):\n    return x**2  # square\n", "    \n   indented\n\t\ttabs", "...!!!???", "<s> </s> <unk> <|endoftext|>",
    "ﬁ ligature ½ ² Å", "ＦＵＬＬ ｗｉｄｔｈ", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ABC" * 40, "\u3000ideographic space",
]


def random_text(rng):
    ranges = [(32, 126)] * 4 + [(160, 591), (768, 879), (880, 1279), (1424, 1791), (2304, 2431), (8192, 8303),
                                (12288, 12543), (19968, 40959), (44032, 55203), (127744, 129791), (9, 13)]
    out = []
    for _ in range(rng.randint(1, 40)):
        low, high = rng.choice(ranges)
        out.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 5))))
        if rng.random() < 0.4:
            out.append(" " * rng.randint(1, 3))
    return "".join(out)


def load(path):
    if os.path.isfile(path) and path.endswith(".json"):
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(path)
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    if os.path.isfile(path):
        import sentencepiece
        model = sentencepiece.SentencePieceProcessor(model_file=path)
        return lambda text: model.encode(text)
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    config = {}
    if os.path.exists(os.path.join(path, "tokenizer_config.json")):
        config = json.load(open(os.path.join(path, "tokenizer_config.json"), encoding="utf-8"))
    prefix = "gpt2-" if os.path.exists(os.path.join(path, "gpt2-vocab.json")) else ""
    model = models.BPE.from_file(os.path.join(path, prefix + "vocab.json"), os.path.join(path, prefix + "merges.txt"))
    tokenizer = Tokenizer(model)
    if config.get("tokenizer_class", "").startswith("Qwen2"):
        from tokenizers import Regex
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(
                r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""),
                behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    vocab = tokenizer.get_vocab()
    from tokenizers import AddedToken
    special = [t for t in ("<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>") if t in vocab]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    for key, entry in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        tokenizer.add_special_tokens([AddedToken(entry["content"], special=True, normalized=False)])
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", action="append", required=True)
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("--lines", type=int, default=60)
    parser.add_argument("--random", type=int, default=150)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    rng = random.Random(20260101)
    texts = list(FIXED)
    for path in options.text:
        lines = [line for line in open(path, encoding="utf-8").read().splitlines() if line.strip()]
        texts += rng.sample(lines, min(options.lines, len(lines)))
    texts += [random_text(rng) for _ in range(options.random)]
    goldens = {"texts": texts, "tokenizers": {}}
    for entry in options.tokenizer:
        name, path = entry.split("=", 1)
        encode = load(path)
        goldens["tokenizers"][name] = [encode(text) for text in texts]
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(goldens, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")
    print(f"{options.out}: {len(texts)} texts, {len(goldens['tokenizers'])} tokenizers")


if __name__ == "__main__":
    main()
