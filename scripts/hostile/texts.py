"""Tokenizers, prompts, batch lines, results, schemas, NumPy files."""
import base64
import json

from .case import (ANYHOW, BROKEN_JSON, REFUSED, RUN, RUN_TEXT, TOKENIZE, WRONG_VALUES, Case, Sparse, label, llama, made, not_files, spoiled)


def tokenizer_json_cases():
    def case(what, value, codes=ANYHOW, command=TOKENIZE, **files):
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        return Case(f"tokenizer.json/{what}", {"tokenizer.json": text, **files}, command, codes)

    good = made.bpe_json()
    yield case("good", good, frozenset({0}))
    for what, text in BROKEN_JSON.items():
        yield case(what, text, REFUSED)
    yield from not_files("tokenizer.json", {}, TOKENIZE)
    for key in good:
        yield case(f"no-{key}", {k: v for k, v in good.items() if k != key})
        for value in WRONG_VALUES:
            yield case(f"{key}={label(value)}", {**good, key: value})
    for key in good["model"]:
        yield case(f"no-model.{key}", {**good, "model": {k: v for k, v in good["model"].items() if k != key}})
        for value in WRONG_VALUES + ["WordPiece", "Unigram", {"a": -1}, {"a": 2**31}, {"a": 2**63}, {"a": 1.5}, {"": 0}, {"a": 0, "b": 0}, [["l"]], [["l", "o", "x"]], ["l"], ["l o l"],
                                     [["z\u00e9", "q"]]]:
            yield case(f"model.{key}={label(value)}", {**good, "model": {**good["model"], key: value}})
    token = good["added_tokens"][0]
    for key in token:
        for value in WRONG_VALUES + [2**31 - 1, 5, "lo", "\u0000"]:
            yield case(f"added.{key}={label(value)}", {**good, "added_tokens": [{**token, key: value}]})
    for number in (-5, 2**31 - 1, 10**9, 1 << 25):  # of a token that the vocabulary has, too
        yield case(f"added-again-as-{number}", {**good, "added_tokens": [{**token, "content": "lo", "id": number}]}, REFUSED)
    for number in (-1, 98, 5000, 2**31 - 1):
        around = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
                  "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [number], "tokens": ["<|end|>"]}}}
        yield case(f"template-token-{number}", {**good, "post_processor": around}, REFUSED)
    yield case("added-many", {**good, "added_tokens": [{**token, "id": 98 + i, "content": f"<|{i}|>"} for i in range(50000)]})
    yield case("vocabulary-gap", {**good, "model": {**good["model"], "vocab": {**good["model"]["vocab"], "zz": 2**30}}})
    steps = {"normalizer": ["Replace", "Prepend", "NFC", "Strip", "Sequence", "Precompiled", "BertNormalizer", "Nope", ""],
             "pre_tokenizer": ["Split", "ByteLevel", "Metaspace", "Sequence", "Digits", "Whitespace", "CharDelimiterSplit", "UnicodeScripts", "Nope"],
             "decoder": ["ByteLevel", "ByteFallback", "Fuse", "Strip", "Replace", "Metaspace", "Sequence", "WordPiece", "Nope"],
             "post_processor": ["TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing", "Sequence", "Nope"]}
    fields = {"pattern": {"Regex": "("}, "content": "x" * 1000, "prepend": "y" * 1000, "behavior": "Isolated", "replacement": "long", "normalizers": [], "pretokenizers": [], "decoders": [],
              "single": [{"Sequence": {"id": "A"}}], "special_tokens": {"a": 3}, "start": 2**40, "stop": -1, "individual_digits": 3, "sep": ["a", 2**40], "cls": ["a", -1],
              "precompiled_charsmap": "AAAA", "prepend_scheme": "sometimes"}
    for part, kinds in steps.items():
        for kind in kinds:
            yield case(f"{part}-{kind}-bare", {**good, part: {"type": kind}})
            yield case(f"{part}-{kind}-odd", {**good, part: {"type": kind, **fields}})
    for what, pattern in {"open": "(", "backtracking": "(a+)+$", "backtracking-spaces": "(\\s*)*(lo)*x", "empty": "", "lookbehind": "(?<=a+)b", "recursion": "(?R)", "huge": "(a{1000}){1000}{1000}",
                          "nothing": "|", "everything": "(?s).*", "callout": "(?C255)", "verb": "(*ACCEPT)", "nul": "\u0000", "property": "\\p{Nope}", "deep": "(" * 5000 + ")" * 5000}.items():
        for part, field in (("normalizer", {"type": "Replace", "content": "z"}), ("pre_tokenizer", {"type": "Split", "behavior": "Isolated", "invert": False})):
            step = {**field, "pattern": {"Regex": pattern}}
            yield case(f"regex-{part}-{what}", {**good, part: step}, ANYHOW, ["tokenize", "{}", "-p", "a" * 3000 + "!" + " " * 3000 + "lo"])
    replace = {"type": "Replace", "pattern": {"String": "l"}, "content": "l" * 1000}
    yield case("replace-chain", {**good, "normalizer": {"type": "Sequence", "normalizers": [replace] * 5}})
    nested = {"type": "NFC"}
    for _ in range(300):
        nested = {"type": "Sequence", "normalizers": [nested]}
    yield case("sequences-nested", {**good, "normalizer": nested})
    for value in WRONG_VALUES:
        for key in ("bos_token", "eos_token", "add_bos_token", "added_tokens_decoder", "tokenizer_class", "add_prefix_space", "clean_up_tokenization_spaces"):
            yield case(f"config.{key}={label(value)}", good, **{"tokenizer_config.json": json.dumps({key: value}).encode()})
    for what, text in BROKEN_JSON.items():
        yield case(f"config-{what}", good, ANYHOW, **{"tokenizer_config.json": text})


def model_file_cases():
    def case(what, content, codes=ANYHOW):
        return Case(f"tokenizer.model/{what}", {"tokenizer.model": content}, TOKENIZE, codes)

    bpe, unigram = made.sentencepiece(made.small_pieces()), made.sentencepiece(made.small_pieces(), 1)
    yield case("good-bpe", bpe, frozenset({0}))
    yield case("good-unigram", unigram, frozenset({0}))
    yield from not_files("tokenizer.model", {}, TOKENIZE)
    for what, content in spoiled(bpe[:400], 37):
        yield case(f"bpe-{what}", content if what.startswith("cut") else content + bpe[400:])
    for what, content in spoiled(unigram[-200:], 23):
        yield case(f"unigram-{what}", unigram[:-200] + content)
    for kind in (0, 3, 4, 99):
        yield case(f"model-type-{kind}", made.sentencepiece(made.small_pieces(), kind))
    pieces = made.small_pieces()
    for what, changed in {"none": [], "no-unknown": pieces[1:], "two-unknowns": [("<u>", 0.0, 2)] + pieces, "alike": pieces + pieces[-1:], "empty-piece": pieces + [("", 0.0, 1)],
                          "nan-score": pieces + [("q", float("nan"), 1)], "infinite-score": pieces + [("q", float("inf"), 1)], "not-utf8": pieces + [(b"\xff\xfe", 0.0, 1)],
                          "few-bytes": pieces[:100] + pieces[259:], "byte-lies": pieces[:3] + [("<0xZZ>", 0.0, 6)] + pieces[4:], "type-77": pieces + [("q", 0.0, 77)], "long": pieces + [("q" * 100000, 0.0, 1)]}.items():
        yield case(f"pieces-{what}", made.sentencepiece(changed))
        yield case(f"unigram-pieces-{what}", made.sentencepiece(changed, 1))
    for what, charsmap in {"short": b"\1\0", "size-lies": b"\xff\xff\xff\x7f" + bytes(8), "wild": bytes(range(256)) * 4}.items():
        yield case(f"charsmap-{what}", made.sentencepiece(made.small_pieces(), 1, normalizer=b"\x12" + made.varint(len(charsmap)) + charsmap))

    def ranks(rows):
        return b"".join(base64.b64encode(text) + b" " + str(rank).encode() + b"\n" for text, rank in rows)

    bytes_alone = [(bytes([i]), i) for i in range(256)]
    yield case("tiktoken-of-nobody", ranks(bytes_alone + [(b"lo", 256)]))
    for what, content in {"missing-bytes": ranks(bytes_alone[:100]), "repeated": ranks(bytes_alone + bytes_alone[:1]), "rank-twice": ranks(bytes_alone + [(b"lo", 5)]), "rank-huge": ranks(bytes_alone + [(b"lo", 2**31 - 1)]),
                          "rank-larger": ranks(bytes_alone + [(b"lo", 2**40)]), "rank-negative": ranks(bytes_alone + [(b"lo", -1)]), "rank-gap": ranks(bytes_alone + [(b"lo", 100000)]), "not-base64": b"!!!! 0\n",
                          "no-rank": b"YQ==\n", "words": b"YQ== 0 1\n", "long-token": ranks(bytes_alone + [(b"a" * 10**6, 256)]), "blank-lines": b"\n" * 1000 + ranks(bytes_alone), "one": b"YQ== 0", "empty-token": b" 0\n" + ranks(bytes_alone)}.items():
        yield case(f"tiktoken-{what}", content)


def vocabulary_cases():
    vocabulary = {chr(33 + i): i for i in range(94)} | {"\u0120": 94, "lo": 95}
    good = json.dumps(vocabulary).encode()
    for what, text in BROKEN_JSON.items():
        yield Case(f"vocab.json/{what}", {"vocab.json": text, "merges.txt": b"l o\n"}, TOKENIZE)
    for what, text in {"empty": b"", "header": b"#version: 0.2\n", "one-word": b"lo\n", "three-words": b"l o l\n", "unknown": b"q z\u00c3\n", "long": b"l o\n" * 200000, "not-utf8": b"\xff \xfe\n",
                       "no-newline": b"l o", "crlf": b"l o\r\n", "spaces": b"   \n", "nul": b"l\0o\n"}.items():
        yield Case(f"merges.txt/{what}", {"vocab.json": good, "merges.txt": text}, TOKENIZE)
    yield from not_files("merges.txt", {"vocab.json": good, "merges.txt": b""}, TOKENIZE)


def prompt_cases():
    ask = RUN[:2] + RUN[4:]
    for what, content in {"empty": b"", "not-utf8": b"caf\xe9", "nul": b"a\0b", "long": b"lo " * 200000, "bom": b"\xef\xbb\xbflo", "large": b"x" * (40 << 20)}.items():
        yield Case(f"prompt/{what}", llama(p=content), ask + ["-f", "{}/p"])
    yield from not_files("p", llama(), ask + ["-f", "{}/p"], ANYHOW, name="prompt", may_wait=True)
    for flag in ("--json-schema-file",):
        for what, text in BROKEN_JSON.items():
            yield Case(f"schema/{what}", llama(s=text), RUN_TEXT + [flag, "{}/s"])
        yield from not_files("s", llama(), RUN_TEXT + [flag, "{}/s"], ANYHOW, name="schema", may_wait=True)
    schemas = {"itself": {"$ref": "#"}, "nowhere": {"$ref": "#/no"}, "outside": {"$ref": "file:///etc/passwd"}, "chain": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
               "min-over-max": {"type": "array", "minItems": 5, "maxItems": 2}, "many": {"type": "string", "minLength": 10**9}, "enum-empty": {"enum": []}, "enum-large": {"enum": list(range(100000))},
               "pattern": {"type": "string", "pattern": "(a{1000}){1000}"}, "deep": json.loads('{"items":' * 400 + "{}" + "}" * 400), "properties": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(5000)}},
               "range": {"type": "integer", "minimum": 10**300, "maximum": -10**300}, "false": False, "all": {"allOf": [{"type": "string"}, {"type": "integer"}]}, "types": {"type": ["string", 3]}}
    for what, schema in schemas.items():
        yield Case(f"schema/{what}", llama(s=json.dumps(schema).encode()), RUN_TEXT + ["--json-schema-file", "{}/s"])


def batch_cases():
    batch = ["batch", "{}", "{}/in.jsonl", "-o", "{}/out.jsonl", "--cpu-mem", "64MiB", "-n", "2"]
    good = json.dumps({"prompt": "lo"}).encode() + b"\n"

    def case(what, content, codes=ANYHOW, **files):
        return Case(f"batch/{what}", llama(**{"in__jsonl": content}, **files), batch, codes)

    yield case("good", good, frozenset({0}))
    for one in not_files("in.jsonl", llama(), batch, ANYHOW, name="batch", may_wait=True):
        if one.name != "batch/is-random":  # lines without end: a job without end
            yield one
    for what, text in BROKEN_JSON.items():
        yield case(what, good + text + b"\n" + good, ANYHOW)
    for key in ("prompt", "custom_id", "max_tokens", "temperature", "top_p", "top_k", "n", "stop", "seed", "logprobs", "logit_bias", "stop_token_ids", "body", "url", "method", "beams", "nope"):
        rows = [json.dumps({"prompt": "lo", key: value}) for value in WRONG_VALUES + ["x" * 10**6, [2**40], {"1": 200}, {"-1": 1}, ["a"] * 1000, [""]]]
        yield case(f"field-{key}", "\n".join(rows).encode())
    yield case("one-long-line", b'{"prompt":"' + b"x" * (20 << 20) + b'"}')
    yield case("never-ending-line", Sparse(b'{"prompt":"', 3 << 30))
    yield case("same-ids", (json.dumps({"prompt": "lo", "custom_id": "a"}) + "\n").encode() * 3)
    yield case("empty-lines", b"\n" * 10000 + good)
    for what, text in {**BROKEN_JSON, "lines": b"\n\n", "torn": b'{"id":"batch_req_', "other": b'{"id":"x"}\n', "binary": bytes(range(256)) * 10}.items():
        yield Case(f"results/{what}", llama(**{"in__jsonl": good, "out__jsonl": text}), batch)
    yield from not_files("out.jsonl", llama(in__jsonl=good), batch, ANYHOW, name="results")
    for what, text in BROKEN_JSON.items():
        yield Case(f"accuracy/{what}", llama(a=text + b"\n"), ["eval", "{}", "--accuracy", "{}/a", "--cpu-mem", "64MiB"])


def npy_cases():
    evaluate = ["eval", "{}", "--text", "{}/t", "--against", "{}/l.npy", "--window", "8", "--cpu-mem", "64MiB"]
    good = made.npy(8, 265)

    def case(what, content, codes=ANYHOW):
        return Case(f"npy/{what}", llama(**{"l__npy": content, "t": b"lo lo lo lo lo lo lo lo"}), evaluate, codes)

    yield from not_files("l.npy", llama(t=b"lo lo lo lo"), evaluate, name="npy", may_wait=True)
    for what, content in spoiled(good[:160], 11):
        yield case(what, content if what.startswith("cut") else content + good[160:])
    for shape in ("(0, 265)", "(8,)", "()", "(8, 265, 1)", "(-8, 265)", "(9999999999999, 265)", "(8, 0)", "(9223372036854775807, 9223372036854775807)", "(8, 265", "8, 265", "(8.5, 265)", "(0x8, 265)"):
        yield case(f"shape-{shape}", made.npy(8, 265, f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"))
    for text in ("{'descr': '>f4', 'fortran_order': False, 'shape': (8, 265), }", "{'descr': '<f8', 'fortran_order': False, 'shape': (8, 265), }", "{'descr': '<f4', 'fortran_order': True, 'shape': (8, 265), }", "{}", "x", "{" * 60000,
                 "__import__('os').system('touch ran')"):
        yield case(f"header-{label(text)}", made.npy(8, 265, text), REFUSED)


def cases():
    for make in (tokenizer_json_cases, model_file_cases, vocabulary_cases, prompt_cases, batch_cases, npy_cases):
        yield from make()
