"""Bytes of small model files, by the published formats and Python's own library alone: what scripts/fuzz_seeds.py seeds with
and scripts/hostile_files.py spoils."""
import functools
import io
import json
import struct
import zipfile


def safetensors(tensors, metadata=None, header=None, data=None):
    """A file of {name: (dtype, shape, bytes)}; `header` and `data` replace what would be written."""
    entries, end = {}, 0
    if metadata is not None:
        entries["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(content)]}
        end += len(content)
    if header is None:
        header = json.dumps(entries).encode()
    if data is None:
        data = b"".join(content for _, _, content in tensors.values())
    return struct.pack("<Q", len(header)) + header + data


def header_of(file):
    """The header's bytes, and the tensor data, of a safetensors file."""
    size = struct.unpack_from("<Q", file)[0]
    return file[8:8 + size], file[8 + size:]


# GGUF's types of values, by name.
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_PACKED = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q", I64: "<q", F64: "<d"}


def gguf_text(text):
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text


def gguf_value(kind, value):
    if kind == STRING:
        return gguf_text(value)
    if kind == ARRAY:
        element, values = value
        return struct.pack("<IQ", element, len(values)) + b"".join(gguf_value(element, one) for one in values)
    return struct.pack(_PACKED[kind], value)


def gguf(keys, tensors=(), version=3, alignment=32, counts=None):
    """A file of [(key, kind, value)] and [(name, dimensions as GGUF orders them, type, bytes)]."""
    out = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(keys))))
    for key, kind, value in keys:
        out += gguf_text(key) + struct.pack("<I", kind) + gguf_value(kind, value)
    at = 0
    for name, dimensions, kind, data in tensors:
        out += gguf_text(name) + struct.pack("<I", len(dimensions)) + b"".join(struct.pack("<Q", one) for one in dimensions)
        out += struct.pack("<IQ", kind, at)
        at += (len(data) + alignment - 1) // alignment * alignment
    out += bytes(-len(out) % alignment)
    for _, _, _, data in tensors:
        out += data + bytes(-len(data) % alignment)
    return out


def gguf_vocabulary(kind, more=()):
    """The keys of a small tokenizer: "llama" (SentencePiece) or "gpt2" (byte-level BPE)."""
    if kind == "llama":
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + ["\u2581", "l", "o", "\u2581l", "lo", "\u2581lo"]
        types = [2, 3, 3] + [6] * 256 + [1] * 6
        extra = [("tokenizer.ggml.scores", ARRAY, (F32, [0.0] * 259 + [-float(i) for i in range(6)]))]
    else:
        tokens = [chr(c) for c in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))]
        tokens += [chr(256 + i) for i in range(68)] + ["lo", "<|end|>"]
        types = [1] * (len(tokens) - 1) + [3]
        extra = [("tokenizer.ggml.merges", ARRAY, (STRING, ["l o"])), ("tokenizer.ggml.pre", STRING, "llama-bpe")]
    ids = [("tokenizer.ggml.bos_token_id", U32, 1 if kind == "llama" else len(tokens) - 1),
           ("tokenizer.ggml.eos_token_id", U32, 2 if kind == "llama" else len(tokens) - 1)]
    return [("tokenizer.ggml.model", STRING, kind), ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
            ("tokenizer.ggml.token_type", ARRAY, (I32, types))] + extra + ids + list(more)


def gguf_llama(hidden=32, layers=1, heads=2, ffn=64, vocab=265, kind=0, block=None, keys=None, tokens=True):
    """A whole tiny Llama. `kind`: GGML's number of the matrices' type, `block` = (elements, bytes) of its blocks."""
    elements, size = block or {0: (1, 4), 1: (1, 2), 30: (1, 2)}[kind]

    def matrix(name, rows, cols):
        return (name, (cols, rows), kind, b"\x11" * (rows * cols // elements * size))

    def norm(name):
        return (name, (hidden,), 0, struct.pack("<f", 1.0) * hidden)

    plain = {"general.architecture": (STRING, "llama"), "llama.block_count": (U32, layers), "llama.context_length": (U32, 64),
             "llama.embedding_length": (U32, hidden), "llama.feed_forward_length": (U32, ffn), "llama.attention.head_count": (U32, heads),
             "llama.attention.head_count_kv": (U32, heads), "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
             "llama.rope.dimension_count": (U32, hidden // heads), "llama.vocab_size": (U32, vocab)}
    plain.update(keys or {})
    rows = [(key, *value) for key, value in plain.items() if value is not None]
    if tokens:
        rows += gguf_vocabulary("llama")
    tensors = [matrix("token_embd.weight", vocab, hidden), norm("output_norm.weight"), matrix("output.weight", vocab, hidden)]
    for layer in range(layers):
        at = f"blk.{layer}."
        tensors += [norm(at + "attn_norm.weight"), norm(at + "ffn_norm.weight"), matrix(at + "ffn_down.weight", hidden, ffn)]
        tensors += [matrix(at + f"attn_{part}.weight", hidden, hidden) for part in ("q", "k", "v", "output")]
        tensors += [matrix(at + f"ffn_{part}.weight", ffn, hidden) for part in ("gate", "up")]
    return gguf(rows, tensors)


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 265, "rms_norm_eps": 1e-5,
         "max_position_embeddings": 64, "hidden_act": "silu", "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2,
         "tie_word_embeddings": False, "rope_theta": 10000.0}


def llama_shapes(config):
    """{name: shape} of every tensor that the config asks for."""
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes.update({at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,),
                       at + "self_attn.q_proj.weight": (hidden, hidden), at + "self_attn.k_proj.weight": (kv, hidden),
                       at + "self_attn.v_proj.weight": (kv, hidden), at + "self_attn.o_proj.weight": (hidden, hidden),
                       at + "mlp.gate_proj.weight": (ffn, hidden), at + "mlp.up_proj.weight": (ffn, hidden),
                       at + "mlp.down_proj.weight": (hidden, ffn)})
    return shapes


def elements(shape):
    count = 1
    for one in shape:
        count *= one
    return count


@functools.lru_cache(None)
def floats(shape, seed=1):
    """Small f32 values, the same every time."""
    out, state = bytearray(), seed * 2654435761 % 2**32 or 1
    for _ in range(elements(shape)):
        state = (state * 1664525 + 1013904223) % 2**32
        out += struct.pack("<f", (state / 2**32 - 0.5) / 4)
    return bytes(out)


def llama_tensors(config=None):
    shapes = llama_shapes(config or LLAMA)
    return {name: ("F32", shape, floats(shape, i + 1)) for i, (name, shape) in enumerate(shapes.items())}


def torch_pickle(tensors):
    """The pickle of {name: shape} of f32 tensors, each with a storage of its own, as torch.save writes it (protocol 2)."""
    def text(value):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()

    def integer(value):
        return b"J" + struct.pack("<i", value) if value < 2**31 else b"\x8a\x08" + struct.pack("<q", value)

    out = b"\x80\x02}("
    for i, (name, shape) in enumerate(tensors.items()):
        strides = [elements(shape[at + 1:]) for at in range(len(shape))]
        out += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(("
        out += text("storage") + b"ctorch\nFloatStorage\n" + text(str(i)) + text("cpu") + integer(elements(shape)) + b"tQ" + integer(0)
        out += b"(" + b"".join(map(integer, shape)) + b"t(" + b"".join(map(integer, strides)) + b"t"
        out += b"\x89ccollections\nOrderedDict\n)RtR"
    return out + b"u."


def torch_zip(pickle, storages, compression=zipfile.ZIP_STORED, prefix="archive"):
    """A PyTorch file: data.pkl, the storages by their keys, version and byte order."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        archive.writestr(f"{prefix}/data.pkl", pickle)
        archive.writestr(f"{prefix}/byteorder", "little")
        for key, data in storages.items():
            archive.writestr(f"{prefix}/data/{key}", data)
        archive.writestr(f"{prefix}/version", "3\n")
    return out.getvalue()


def npy(rows, columns, header=None, data=None):
    """An f32 matrix of zeros as a NumPy file, version 1.0."""
    text = header or f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}"
    text = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + (bytes(4 * rows * columns) if data is None else data)


def varint(value):
    out = b""
    while value >= 128:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def sentencepiece(pieces, model_type=2, trainer=b"", normalizer=b""):
    """A SentencePiece model of [(text, score, type)]; model_type 1 is Unigram, 2 BPE."""
    out = b""
    for text, score, kind in pieces:
        text = text.encode() if isinstance(text, str) else text
        body = b"\x0a" + varint(len(text)) + text + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind)
        out += b"\x0a" + varint(len(body)) + body
    has_bytes = any(kind == 6 for _, _, kind in pieces)
    trainer = b"\x18" + varint(model_type) + (b"\x98\x02\x01" if has_bytes else b"") + trainer  # byte_fallback
    return out + b"\x12" + varint(len(trainer)) + trainer + b"\x1a" + varint(len(normalizer)) + normalizer


def small_pieces():
    """Pieces of a model that reads every byte."""
    letters = ["\u2581", "h", "e", "l", "o", "he", "\u2581he", "lo", "\u2581hello"]
    return ([("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)] + [(f"<0x{i:02X}>", 0.0, 6) for i in range(256)] +
            [(text, -float(i), 1) for i, text in enumerate(letters)])


def bpe_json(**parts):
    """A tokenizer.json of a byte-level BPE over ASCII."""
    vocabulary = {chr(33 + i): i for i in range(94)}
    vocabulary.update({"\u0120": 94, "lo": 95, "\u0120lo": 96})
    out = {"version": "1.0", "added_tokens": [{"id": 97, "content": "<|end|>", "special": True, "single_word": False, "lstrip": False,
                                               "rstrip": False, "normalized": False}],
           "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
           "post_processor": None, "decoder": {"type": "ByteLevel"},
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                     "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": ["l o", "\u0120 lo"]}}
    out.update(parts)
    return out


def processor(**changes):
    out = {"name": "plain", "threads": 8, "memory_read_bytes_per_second": 1e11,
           "matmul": [{"weights": "bf16", "m": 1, "n": 1024, "k": 1024, "flops": 1e11},
                      {"weights": "bf16", "m": 512, "n": 1024, "k": 1024, "flops": 1e12},
                      {"weights": "int4-g64", "m": 8, "n": 1024, "k": 1024, "flops": 5e11, "eight_bit_activations": True}],
           "attention": [{"kv": "bf16", "decode_bytes_per_second": 5e10, "prefill_flops": 1e12, "decode_flops": 1e12}],
           "launch_seconds": 1e-6, "synchronise_seconds": 1e-6}
    out.update(changes)
    return out


def profile(**changes):
    """A machine without a device (docs/formats/profile.md)."""
    disk = {"path": "", "read_bytes_per_second": {"value": 2.1e9, "spread": 0.04, "source": "measured", "note": "fio"},
            "write_bytes_per_second": 1e9, "mixed_read_bytes_per_second": 1e9, "mixed_write_bytes_per_second": 5e8,
            "busy_read_bytes_per_second": 2e9, "latency_seconds": 1e-4}
    out = {"name": "plain", "description": "a machine", "date": "2026-01-01", "host": processor(), "disks": [disk],
           "host_memory_bytes": 2**36, "disk_bytes": 2**40, "host_memory": [{"threads": 1, "read_bytes_per_second": 2e10}]}
    out.update(changes)
    return out


POLICY = {"weights": {"device": 0.25, "host": 0, "disk": 0.75}, "kv": {"device": 1, "host": 0, "disk": 0},
          "activations": {"device": 1, "host": 0, "disk": 0}, "attention": "device", "inplace_host_fraction": 0,
          "micro_batch_sequences": 32, "micro_batches": 1, "micro_batch_tokens": 512, "pass_tokens": 0, "page_tokens": 16}
