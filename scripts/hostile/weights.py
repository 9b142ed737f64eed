"""safetensors and its index, PyTorch files, GGUF, the packed store."""
import json
import pickle
import struct
import zipfile

from .case import (ANYHOW, BROKEN_JSON, CONVERT, INSPECT, REFUSED, RUN, WRONG_VALUES, Case, Link, Sparse, label, llama, made, not_files, spoiled)

NAN, INFINITY = struct.pack("<f", float("nan")), struct.pack("<f", float("inf"))


def weights(content, command=RUN, codes=ANYHOW, name="model.safetensors"):
    return llama(model__safetensors=None) | {name: content}, command, codes


def safetensors_cases():
    tensors = made.llama_tensors()
    whole = made.safetensors(tensors)
    header, data = made.header_of(whole)
    entries = json.loads(header)

    def case(what, content, command=INSPECT, codes=ANYHOW):
        return Case(f"safetensors/{what}", *weights(content, command, codes))

    def headed(what, entries, command=INSPECT, codes=ANYHOW):
        return case(what, made.safetensors({}, header=json.dumps(entries).encode(), data=data), command, codes)

    for what, text in BROKEN_JSON.items():
        yield case(f"header-{what}", made.safetensors({}, header=text, data=data), INSPECT, REFUSED)
    yield from not_files("model.safetensors", llama(), INSPECT)
    for size in (0, 1, len(header) - 1, len(header) + 1, len(whole), 2**31, 2**32, 2**62, 2**63 - 8, 2**63, 2**64 - 8, 2**64 - 1):
        yield case(f"header-size={size}", struct.pack("<Q", size) + header + data, INSPECT, REFUSED)
    for what, content in spoiled(whole, len(whole)):
        if not what.startswith("byte"):
            yield case(what, content, RUN)
    for at in range(0, 700, 23):
        yield case(f"header-byte-{at}", whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1:])
    name = "model.norm.weight"
    for field in ("dtype", "shape", "data_offsets"):
        yield headed(f"no-{field}", {**entries, name: {k: v for k, v in entries[name].items() if k != field}}, INSPECT, REFUSED)
        for value in WRONG_VALUES + ["F64", "I32", "BF16", "BOOL", "F4", "F8_E4M3", [2**32, 2**32], [-1, 32], [0, 2**62], [0] * 10000, [1] * 10000, [2**63, 0]]:
            yield headed(f"{field}={label(value)}", {**entries, name: {**entries[name], field: value}})
    begin, end = entries[name]["data_offsets"]
    for what, offsets in {"backwards": [end, begin], "past-end": [begin, len(data) + 4], "overlap": [begin - 64, end - 64], "shifted": [begin + 1, end + 1],
                          "one": [begin], "three": [begin, end, end], "empty": [begin, begin], "float": [begin + 0.0, end + 0.5]}.items():
        yield headed(f"offsets-{what}", {**entries, name: {**entries[name], "data_offsets": offsets}}, INSPECT, REFUSED)
    yield headed("extra-field", {**entries, name: {**entries[name], "surprise": 1}})
    yield headed("a-gap", {k: v for k, v in entries.items() if k != name})
    for value in ({"a": 1}, {"a": None}, [], "x", {"a": "b" * 10**6}, {f"k{i}": "v" for i in range(20000)}):
        yield headed(f"metadata={label(value)}", {"__metadata__": value, **entries})
    for bad in ("", "../x", "/etc/passwd", "a\nb", "\u001b[31mred", "\u202egpj", "x" * 10**6, "a\u0000b"):
        yield headed(f"name-{label(bad)}", {**entries, bad: entries[name]})
    repeated = header[:-1] + b", " + json.dumps({name: entries[name]}).encode()[1:]
    yield case("repeated-name", made.safetensors({}, header=repeated, data=data))
    yield case("no-tensors", made.safetensors({}, header=b"{}", data=b""), RUN, REFUSED)
    many = {f"t{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(50000)}
    yield case("50000-empty-tensors", made.safetensors({}, header=json.dumps(many).encode(), data=b""))
    yield case("header-of-100-MB", Sparse(struct.pack("<Q", 100 << 20) + b"{" + b" " * 1000, (100 << 20) + 8), INSPECT, REFUSED)
    yield case("header-of-1-TB", Sparse(struct.pack("<Q", 1 << 40) + b"{", 1 << 40), INSPECT, REFUSED)
    for missing in ("model.norm.weight", "model.layers.0.mlp.up_proj.weight", "lm_head.weight", "model.embed_tokens.weight"):
        yield case(f"without-{missing}", made.safetensors({k: v for k, v in tensors.items() if k != missing}), RUN, REFUSED)
    for shape in ((32, 1), (1, 32), (31,), (33,), ()):
        changed = {**tensors, name: ("F32", shape, made.floats(shape))}
        yield case(f"norm-of-shape-{list(shape)}", made.safetensors(changed), RUN, REFUSED)
    for value, what in ((NAN, "nan"), (INFINITY, "infinity"), (struct.pack("<f", 3e38), "huge"), (bytes(4), "zero"), (struct.pack("<f", 1e-42), "denormal")):
        for of in ("model.norm.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"):
            dtype, shape, content = tensors[of]
            changed = made.safetensors({**tensors, of: (dtype, shape, value * (len(content) // 4))})
            yield case(f"{what}-in-{of}", changed, RUN)
            yield case(f"{what}-in-{of}-converted", changed, CONVERT)
            yield case(f"{what}-in-{of}-to-f16", changed, ["convert", "{}", "{}/out", "--weights", "f16"])


def index_cases():
    tensors = made.llama_tensors()
    half = dict(list(tensors.items())[:6])
    rest = {name: value for name, value in tensors.items() if name not in half}
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    where = {name: first if name in half else second for name in tensors}
    shards = {first: made.safetensors(half), second: made.safetensors(rest)}

    def case(what, index, command=INSPECT, codes=ANYHOW, **files):
        text = index if not isinstance(index, (dict, list)) else json.dumps(index).encode()
        return Case(f"index/{what}", llama(model__safetensors=None) | shards | {"model.safetensors.index.json": text} | files, command, codes)

    good = {"metadata": {"total_size": 1}, "weight_map": where}
    yield case("good", good, RUN, frozenset({0}))
    for what, text in BROKEN_JSON.items():
        yield case(what, text, INSPECT, REFUSED)
    yield from not_files("model.safetensors.index.json", llama(model__safetensors=None) | shards, INSPECT)
    for value in WRONG_VALUES:
        yield case(f"weight_map={label(value)}", {"weight_map": value})
        yield case(f"file={label(value)}", {"weight_map": {**where, "model.norm.weight": value}})
        yield case(f"metadata={label(value)}", {**good, "metadata": value})
    for name in ("../model.safetensors", "/etc/passwd", "a/b", ".", "..", first + "\u0000", "nowhere.safetensors", "x" * 5000, "\u001b[31m", "config.json"):
        yield case(f"file-{label(name)}", {"weight_map": {**where, "model.norm.weight": name}}, INSPECT, REFUSED)
    yield case("swapped", {"weight_map": {name: second if name in half else first for name in tensors}}, INSPECT, REFUSED)
    yield case("unnamed-shard", {"weight_map": {name: first for name in half}})
    yield case("tensor-that-is-not-there", {"weight_map": {**where, "ghost": first}}, INSPECT, REFUSED)
    yield case("shard-is-folder", good, INSPECT, REFUSED, **{first: Link(".")})
    yield case("shard-is-itself", good, INSPECT, REFUSED, **{first: Link(first)})
    yield case("shards-are-one", good, INSPECT, REFUSED, **{second: Link(first)})


class Runs:
    """What a hostile pickle would call."""

    def __reduce__(self):
        import os
        return os.system, ("touch ran; echo HARM",)


def torch_cases():
    shapes = made.llama_shapes(made.LLAMA)
    good = made.torch_pickle(shapes)
    storages = {str(i): made.floats(shape) for i, shape in enumerate(shapes.values())}

    def case(what, content, command=INSPECT, codes=ANYHOW):
        return Case(f"torch/{what}", *weights(content, command, codes, "pytorch_model.bin"))

    def pickled(what, content, codes=ANYHOW):
        return case(what, made.torch_zip(content, storages), INSPECT, codes)

    whole = made.torch_zip(good, storages)
    yield case("good", whole, RUN, frozenset({0}))
    yield from not_files("pytorch_model.bin", llama(model__safetensors=None), INSPECT)
    for what, content in spoiled(whole[-1500:], 97):
        yield case(f"directory-{what}", whole[:-1500] + content)
    for what, content in spoiled(good[:600], 41):
        yield pickled(f"pickle-{what}", content if what.startswith("cut") else content + good[600:])
    yield pickled("runs-a-command", pickle.dumps(Runs()), REFUSED)
    yield pickled("runs-a-command-within", pickle.dumps({"a": Runs()}, protocol=2), REFUSED)
    for protocol in range(6):
        yield pickled(f"plain-protocol-{protocol}", pickle.dumps({"a": [1, 2.5, "x", None, (1,), {1: 2}]}, protocol=protocol))
    for name in (b"cos\nsystem\n", b"cbuiltins\neval\n", b"ctorch\nload\n", b"c__builtin__\ngetattr\n", b"ctorch._utils\n_rebuild_tensor_v3\n"):
        yield pickled(f"global-{name.split()[0].decode()}", b"\x80\x02" + name + b"X\1\0\0\0a\x85R.", REFUSED)
    for what, content in {"memo": b"\x80\x02" + b"N\x94" * 200000 + b".", "marks": b"\x80\x02" + b"(" * 200000 + b".", "nested": b"\x80\x02" + b"]" * 100000 + b"a" * 99999 + b".",
                          "get-nothing": b"\x80\x02h\xff.", "long-text": b"\x80\x02X\xff\xff\xff\xff.", "long-bytes": b"\x80\x04\x8d" + b"\xff" * 8 + b".",
                          "frame": b"\x80\x04\x95" + b"\xff" * 8 + b".", "empty": b"", "stop": b".", "pop": b"\x80\x020.", "duplicate": b"\x80\x02" + b"N2" * 100000 + b".",
                          "tuples-of-tuples": b"\x80\x02N" + b"2\x86" * 60 + b".", "itself": b"\x80\x02]q\x00h\x00a.", "huge-int": b"\x80\x02\x8b\xff\xff\xff\x7f.",
                          "setitems-on-none": b"\x80\x02N(NNu.", "persistent": b"\x80\x02NQ.", "text-int": b"I" + b"9" * 100000 + b"\n."}.items():
        yield pickled(what, content, REFUSED)
    for shape in ((2**31, 2**31), (0,), (33, 33), (2**40,), ()):
        yield pickled(f"shape-{list(shape)}", made.torch_pickle({**shapes, "model.norm.weight": shape}))
    yield case("deflated", made.torch_zip(good, storages, zipfile.ZIP_DEFLATED), RUN)
    yield case("bomb", made.torch_zip(good, {"0": bytes(50 << 20)}, zipfile.ZIP_DEFLATED))
    yield case("no-storages", made.torch_zip(good, {}), RUN, REFUSED)
    yield case("climbing-names", made.torch_zip(good, storages, prefix="../../x"))
    yield case("two-pickles", made.torch_zip(good, {**storages, "../data.pkl": good}))
    yield case("not-a-zip", b"PK\3\4" + bytes(1000), INSPECT, REFUSED)
    yield case("end-record-alone", b"PK\5\6" + bytes(18), INSPECT, REFUSED)
    yield case("end-record-lies", b"PK\5\6" + b"\xff" * 16 + bytes(2), INSPECT, REFUSED)
    yield case("old-pickle", pickle.dumps({"a": 1}, protocol=2), INSPECT, REFUSED)


def gguf_cases():
    whole = made.gguf_llama()
    run = RUN[:1] + ["{}/m.gguf"] + RUN[2:]
    inspect = ["inspect", "{}/m.gguf", "--tensors"]
    convert = ["convert", "{}/m.gguf", "{}/out", "--cpu-mem", "256MiB"]

    def case(what, content, command=inspect, codes=ANYHOW):
        return Case(f"gguf/{what}", {"m.gguf": content}, command, codes)

    yield case("good", whole, convert, frozenset({0}))
    yield from not_files("m.gguf", {}, inspect, name="gguf")
    for what, content in spoiled(whole[:5000], 149):
        yield case(what, content if what.startswith("cut") else content + whole[5000:])
    yield case("cut-data", whole[:-40], convert, REFUSED)
    for version in (0, 1, 2, 4, 2**31, 3 << 24):
        yield case(f"version-{version}", made.gguf([], version=version))
    for counts in ((0, 0), (2**31, 0), (0, 2**31), (2**63, 2**63), (1, 0), (0, 1), (2**64 - 1, 1)):
        yield case(f"counts-{counts}", made.gguf([], counts=counts), inspect, REFUSED)
    key = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    for what, tail in {"key-length": struct.pack("<Q", 2**63), "key-length-1": struct.pack("<Q", 2**64 - 1), "kind-99": made.gguf_text("a") + struct.pack("<I", 99),
                       "text-length": made.gguf_text("a") + struct.pack("<IQ", 8, 2**62), "list-length": made.gguf_text("a") + struct.pack("<IIQ", 9, 0, 2**63),
                       "list-of-texts": made.gguf_text("a") + struct.pack("<IIQ", 9, 8, 2**40), "list-of-99": made.gguf_text("a") + struct.pack("<IIQ", 9, 99, 1),
                       "lists": made.gguf_text("a") + struct.pack("<IIQ", 9, 9, 1) * 50000}.items():
        yield case(what, key + tail + bytes(64), inspect, REFUSED)
    numbers = ["llama.block_count", "llama.context_length", "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count",
               "llama.attention.head_count_kv", "llama.rope.dimension_count", "llama.vocab_size"]
    for name in numbers + ["llama.attention.key_length", "llama.expert_count", "general.file_type", "general.alignment", "split.count"]:
        for kind, value in ((made.U32, 0), (made.U32, 1), (made.U32, 2**32 - 1), (made.I64, -1), (made.U64, 2**63), (made.F32, float("nan")), (made.STRING, "x"), (made.ARRAY, (made.U32, [])),
                            (made.ARRAY, (made.U32, [1, 2]))):
            yield case(f"{name}={kind}:{value}", made.gguf_llama(keys={name: (kind, value)}))
        yield case(f"no-{name}", made.gguf_llama(keys={name: None}))
    for name in ("llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base", "llama.rope.scaling.factor", "llama.rope.scale_linear"):
        for value in (0.0, -1.0, float("nan"), float("inf"), 1e38):
            yield case(f"{name}={value}", made.gguf_llama(keys={name: (made.F32, value)}))
    for name in ("gpt2", "", "llama\0", "x" * 10**6, "\u001b[31m"):
        yield case(f"architecture-{label(name)}", made.gguf_llama(keys={"general.architecture": (made.STRING, name)}))
    tensor = ("token_embd.weight", (32, 265), 0, b"")
    for what, one in {"dimension-0": (*tensor[:1], (0, 265), 0, b""), "dimensions-huge": (*tensor[:1], (2**40, 2**40), 0, b""), "no-dimensions": (*tensor[:1], (), 0, b""),
                      "9-dimensions": (*tensor[:1], (1,) * 9, 0, b"1234"), "type-99": (*tensor[:2], 99, b""), "type-4": (*tensor[:2], 4, b""), "odd-columns": (*tensor[:1], (33, 2), 2, bytes(36)),
                      "no-name": ("", (1,), 0, b"1234"), "not-utf8": (b"\xff\xfe", (1,), 0, b"1234")}.items():
        yield case(f"tensor-{what}", made.gguf([("general.architecture", made.STRING, "llama")], [one]), inspect)
    yield case("tensor-twice", made.gguf([("general.architecture", made.STRING, "llama")], [("a", (1,), 0, b"1234")] * 2), inspect, REFUSED)
    for ids in ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.unknown_token_id"):
        for kind, value in ((made.U32, 2**32 - 1), (made.I32, -1), (made.STRING, "x"), (made.F32, 0.5)):
            keys = [row for row in made.gguf_vocabulary("llama") if row[0] != ids] + [(ids, kind, value)]
            yield case(f"{ids}={value}", made.gguf_llama(keys={row[0]: row[1:] for row in keys}, tokens=False), convert)
    for what, changes in {"scores-short": {"tokenizer.ggml.scores": (made.ARRAY, (made.F32, [0.0]))}, "types-short": {"tokenizer.ggml.token_type": (made.ARRAY, (made.I32, [1]))},
                          "scores-nan": {"tokenizer.ggml.scores": (made.ARRAY, (made.F32, [float("nan")] * 265))}, "tokens-numbers": {"tokenizer.ggml.tokens": (made.ARRAY, (made.U32, [1] * 265))},
                          "types-wild": {"tokenizer.ggml.token_type": (made.ARRAY, (made.I32, [-2**31] * 265))}, "model-bert": {"tokenizer.ggml.model": (made.STRING, "bert")},
                          "tokens-alike": {"tokenizer.ggml.tokens": (made.ARRAY, (made.STRING, ["a"] * 265))}, "tokens-empty": {"tokenizer.ggml.tokens": (made.ARRAY, (made.STRING, [""] * 265))},
                          "tokens-not-utf8": {"tokenizer.ggml.tokens": (made.ARRAY, (made.STRING, [bytes([255, i % 256, i // 256]) for i in range(265)]))}}.items():
        keys = {row[0]: row[1:] for row in made.gguf_vocabulary("llama")} | changes
        yield case(what, made.gguf_llama(keys=keys, tokens=False), convert)
    yield case("runs-as-it-is", whole, run)


def store_cases(store):
    """A packed store that the program has just made of a good model: {name: content}."""
    index = json.loads(store["sluice-store.json"])
    verify = ["inspect", "{}", "--verify"]

    def case(what, files, command=INSPECT, codes=ANYHOW):
        return Case(f"store/{what}", {**store, **files}, command, codes)

    def indexed(what, changed, command=INSPECT, codes=ANYHOW):
        return case(what, {"sluice-store.json": json.dumps(changed).encode()}, command, codes)

    yield case("good", {}, RUN, frozenset({0}))
    for what, text in BROKEN_JSON.items():
        yield case(what, {"sluice-store.json": text}, INSPECT, REFUSED)
    yield from not_files("sluice-store.json", store, INSPECT, name="store")
    for key in index:
        yield indexed(f"no-{key}", {k: v for k, v in index.items() if k != key})
        for value in WRONG_VALUES:
            yield indexed(f"{key}={label(value)}", {**index, key: value})
    first = index["groups"][0]
    for key in first:
        for value in WRONG_VALUES + ["../x", "/etc/passwd", "layer-00000.safetensors", "crc32c:00000000"]:
            yield indexed(f"group.{key}={label(value)}", {**index, "groups": [{**first, key: value}] + index["groups"][1:]}, verify)
    tensor = first["tensors"][0]
    for key in tensor:
        for value in WRONG_VALUES + ["f64", "int4-g32", "int4-g7", [2**40, 2**40], [0], 4095, 2**40]:
            changed = {**first, "tensors": [{**tensor, key: value}] + first["tensors"][1:]}
            yield indexed(f"tensor.{key}={label(value)}", {**index, "groups": [changed] + index["groups"][1:]})
    yield indexed("groups-twice", {**index, "groups": index["groups"] * 2}, INSPECT, REFUSED)
    yield indexed("groups-backwards", {**index, "groups": index["groups"][::-1]}, RUN)
    yield indexed("repeats-itself", {**index, "groups": [{**first, "repeats": first["name"]}] + index["groups"][1:]}, INSPECT, REFUSED)
    for name in [name for name in store if name.endswith(".safetensors")]:
        for what, content in spoiled(store[name], len(store[name]) // 5):
            yield case(f"{name}-{what}", {name: content}, verify)
        yield case(f"{name}-is-folder", {name: Link(".")}, INSPECT, REFUSED)
    files = {name: content for name, content in store.items() if name != "sluice-store.json"}
    for what, text in {**BROKEN_JSON, "lines": b"\n" * 100000, "begun": b'{"sluice-convert":1,"identity":"x"}\n'}.items():
        yield Case(f"journal/{what}", {**files, "sluice-store.journal": text}, INSPECT, REFUSED)
        yield Case(f"journal-converted/{what}", llama() | {"out/sluice-store.journal": text}, ["convert", "{}", "{}/out"], frozenset({0, 2, 3}))


def cases():
    for make in (safetensors_cases, index_cases, torch_cases, gguf_cases):
        yield from make()
