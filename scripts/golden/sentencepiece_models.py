#!/usr/bin/env python3
"""Trains tiny SentencePiece models of every kind and writes what the library says of them.

Usage: sentencepiece_models.py --out tests/fixtures/tokenizers/sentencepiece
Trained on the lines of Shakespeare in tests/fixtures/tokenizers/goldens.json; goldens.json beside the models has ids of
texts and texts of lists of ids. Needs: sentencepiece (0.2.3 made what is committed), protobuf.
"""
import argparse
import json
import os
import random
import tempfile

import sentencepiece

import tokenizer_reference

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PLAIN = dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
MODELS = {
    "bpe": dict(model_type="bpe", byte_fallback=True, **PLAIN),
    "bpe_no_prefix": dict(model_type="bpe", byte_fallback=True, add_dummy_prefix=False, **PLAIN),
    "bpe_suffix": dict(model_type="bpe", treat_whitespace_as_suffix=True, normalization_rule_name="identity"),
    "unigram": dict(model_type="unigram", normalization_rule_name="identity"),
    "unigram_bytes": dict(model_type="unigram", byte_fallback=True, allow_whitespace_only_pieces=True, **PLAIN),
    "unigram_user_defined": dict(model_type="unigram", user_defined_symbols=[",", "(", "<sep>", "th", "  "],
                                 control_symbols=["[INST]", "[/INST]"], add_dummy_prefix=False, **PLAIN),
    "word": dict(model_type="word", normalization_rule_name="identity"),
}


def even_scores(path):
    """Makes a piece's score the sum of its characters': all cuts of a text then have one score, but for rounding."""
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(open(path, "rb").read())
    for piece in proto.pieces:
        if piece.type == 1:
            piece.score = -sum(2 + ord(character) * 0.137 % 3 for character in piece.piece)
    open(path, "wb").write(proto.SerializeToString())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    corpus = json.load(open(os.path.join(ROOT, "tests/fixtures/tokenizers/goldens.json"), encoding="utf-8"))["texts"][30:60]
    goldens = {"sentencepiece": sentencepiece.__version__, "models": {}}
    with tempfile.TemporaryDirectory() as folder:
        lines = os.path.join(folder, "corpus.txt")
        open(lines, "w", encoding="utf-8").write("\n".join(corpus * 6 + ["日本語のテキスト", "naïve café", "привет мир"] * 9))
        for name, kind in MODELS.items():
            prefix = os.path.join(folder, name)
            sentencepiece.SentencePieceTrainer.train(input=lines, model_prefix=prefix, minloglevel=2, num_threads=1,
                                                     vocab_size=420 if kind.get("byte_fallback") else 240,
                                                     hard_vocab_limit=kind["model_type"] == "bpe",
                                                     character_coverage=0.99, **kind)
            path = os.path.join(options.out, name + ".model")
            os.replace(prefix + ".model", path)
            if name in ("unigram_bytes", "unigram_user_defined"):
                even_scores(path)
            reference = tokenizer_reference.load(path)
            rng = random.Random(name)
            texts = tokenizer_reference.FIXED + corpus[:16] + rng.sample(tokenizer_reference.wide_texts(60, reference.special), 50)
            ids = [reference.encode(text) for text in texts]
            lists = ids[:40] + [[rng.randrange(reference.size) for _ in range(rng.randint(1, 12))] for _ in range(80)]
            goldens["models"][name] = {"texts": texts, "ids": ids, "lists": lists,
                                       "decoded": [reference.decode(one) for one in lists]}
    with open(os.path.join(options.out, "goldens.json"), "w", encoding="utf-8") as file:
        json.dump(goldens, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
