"""What the tokenizers that sluice is held against say: ids of texts and texts of ids, and texts to ask them about.

Used by tokenizer_goldens.py and compare_tokenizers.py. Needs: tokenizers, sentencepiece (with protobuf), tiktoken.
"""
import base64
import json
import os
import random
import re
import unicodedata

FIXED = [
    "", " ", "  ", "\n", "\t\n ", "Hello world", " Hello world", "Hello  world ", "don't you've I'LL we're",
    "1234567890 12,345.67 -3e10", "naïve café déjà vu", "Ünïcödé", "日本語のテキスト", "한국어 텍스트", "مرحبا بالعالم",
    "שלום עולם", "👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈", "e\u0301 vs é", "\u200b zero\u200dwidth", "a\u0000b", "\r\n\r\n  x\r",
    "def f(x):\n    return x**2  # square\n", "    \n   indented\n\t\ttabs", "...!!!???", "<s> </s> <unk> <|endoftext|>",
    "ﬁ ligature ½ ² Å", "ＦＵＬＬ ｗｉｄｔｈ", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ABC" * 40, "\u3000ideographic space",
]
PARTS = [
    "hello", "World", "the", "a", "x=y;", "é", "e\u0301", "日本", "한국", "\u1112\u1161\u11ab", "नमस्ते", "สวัสดี", "😀",
    "👩‍👩‍👧", "\u200b", "\u00a0", "\u3000", "\t", "\n", "\r\n", " ", "  ", "    ", "▁", "▁▁", "ﬁ", "Å", "½", "\x00", "\x01",
    "\x1f", "\x7f", "\x85", "\u2028", "\ufeff", "\ufffd", "123", "4567890", "1,234.5", "...", "==", "don't", "I'LL", "ſ", "İ", "ß",
    "Σς", "\u0300", "\u0345", "(", ")", ",", "/", "http://a.b/c?d=e", "camelCaseWord", "SHOUTING",
]
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = (r"[%s\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]" % case for case in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
KIMI = "|".join([r"[\p{Han}]+", *(r"[^\r\n\p{L}\p{N}]?" + letters + r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                                 for letters in (f"{UPPER}*{LOWER}+", f"{UPPER}+{LOWER}*")),
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TIKTOKEN_PATTERNS = {128000: LLAMA3, 200000: O200K, 163584: KIMI}  # by the number of ranks


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


def wide_texts(count, special, seed=25):
    """Fixed cases, a text from every block of Unicode in all four normal forms, and `count` of each random kind:
    characters, words and white space (with the texts in `special` among them), bytes."""
    rng = random.Random(seed)
    texts = list(FIXED)
    for base in range(0, 0x32000, 0x100):
        codes = [c for c in range(base, base + 0x100) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]
        sample = "".join(chr(c) for c in rng.sample(codes, min(12, len(codes))))
        texts += sorted({sample} | {unicodedata.normalize(form, sample) for form in ("NFC", "NFD", "NFKC", "NFKD")})
    parts = PARTS + list(special)
    texts += [random_text(rng) for _ in range(count)]
    texts += ["".join(rng.choice(parts) for _ in range(rng.randint(1, 14))) for _ in range(count)]
    texts += [bytes(rng.randrange(256) for _ in range(rng.randint(1, 40))).decode("utf-8", "replace") for _ in range(count)]
    return texts


class Reference:
    """encode(text) and decode(ids); `special`: texts that are tokens of their own; `size`: number of ids."""

    def __init__(self, name, encode, decode, special, size):
        self.name, self.encode, self.decode, self.special, self.size = name, encode, decode, special, size


def _of_tokenizers(tokenizer):
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    return Reference("tokenizers", lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
                     lambda ids: tokenizer.decode(ids, skip_special_tokens=False), special,
                     tokenizer.get_vocab_size(with_added_tokens=True))


def _of_sentencepiece(path):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(open(path, "rb").read())
    begins = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    proto.normalizer_spec.add_dummy_prefix = False
    goes_on = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    proto.normalizer_spec.remove_extra_whitespaces = False
    keeps_spaces = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    # Control pieces are read and written as Hugging Face does it: tokens, and what stands behind one continues the text.
    control = {piece.piece: i for i, piece in enumerate(proto.pieces) if piece.type in (2, 3)}
    cut = re.compile("(" + "|".join(re.escape(p) for p in sorted(control, key=len, reverse=True)) + ")")

    def encode(text):
        ids = []
        for index, part in enumerate(cut.split(text)):
            if index % 2 == 1:
                ids.append(control[part])
            elif part:
                ids += (goes_on if ids else begins).encode(part)
        return ids

    names = {i: piece for piece, i in control.items() if begins.is_control(i)}

    def decode(ids):
        out, run = "", []
        for i in [*ids, None]:
            if i is not None and i not in names:
                run.append(i)
                continue
            out += (keeps_spaces if out else begins).decode(run)
            out, run = out + names.get(i, ""), []
        return out

    return Reference("sentencepiece " + sentencepiece.__version__, encode, decode, list(control), len(proto.pieces))


def _of_tiktoken(path):
    import tiktoken
    ranks = {}
    for line in open(path, "rb").read().split(b"\n"):
        if line.strip():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    encoding = tiktoken.Encoding(os.path.basename(path), pat_str=TIKTOKEN_PATTERNS[len(ranks)], mergeable_ranks=ranks,
                                 special_tokens={})
    return Reference("tiktoken", encoding.encode_ordinary, encoding.decode, [], len(ranks))


def _of_vocab_merges(path):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    config = {}
    if os.path.exists(os.path.join(path, "tokenizer_config.json")):
        config = json.load(open(os.path.join(path, "tokenizer_config.json"), encoding="utf-8"))
    prefix = "gpt2-" if os.path.exists(os.path.join(path, "gpt2-vocab.json")) else ""
    model = models.BPE.from_file(os.path.join(path, prefix + "vocab.json"), os.path.join(path, prefix + "merges.txt"))
    tokenizer = Tokenizer(model)
    if config.get("tokenizer_class", "").startswith("Qwen2"):
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    vocab = tokenizer.get_vocab()
    special = [t for t in ("<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>") if t in vocab]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    for _, entry in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        tokenizer.add_special_tokens([AddedToken(entry["content"], special=True, normalized=False)])
    return _of_tokenizers(tokenizer)


def load(path):
    """tokenizer.json; a sentencepiece or tiktoken .model; a folder with vocab.json and merges.txt (gpt2-*.json too)."""
    if os.path.isdir(path):
        return _of_vocab_merges(path)
    if path.endswith(".json"):
        from tokenizers import Tokenizer
        return _of_tokenizers(Tokenizer.from_file(path))
    first = open(path, "rb").read(200).split(b"\n")[0].split()
    is_tiktoken = len(first) == 2 and first[1].isdigit()
    return _of_tiktoken(path) if is_tiktoken else _of_sentencepiece(path)
