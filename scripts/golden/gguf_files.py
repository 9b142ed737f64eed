#!/usr/bin/env python3
"""Makes tests/fixtures/gguf/: GGUF files and what is in them by the gguf package's own formulas.

    pip install gguf numpy safetensors sentencepiece
    scripts/golden/gguf_files.py

  blocks.json        two random blocks of every type and their elements
  plain.gguf         the fixture llama-tiny-gqa as its converter would write it, f32; qwen2.gguf and
                     qwen3.gguf: qwen2-tiny and qwen3-tiny
  mixed.gguf         a random model whose matrices have a type each; codebooks.gguf: likewise, of the IQ and TQ types
                     and, with scales of 0, below every normal number and of either sign, Q4_1 and Q5_1
  stories260k.gguf   the fixture of that name in Q8_0 (what does not fit its blocks in F16), with its tokenizer and a template
  ../checkpoints/made/tiny.gguf  three tensors, for tests that break it byte by byte
  mixed.safetensors, codebooks.safetensors  some rows of each of their matrices, under Hugging Face's names and in that order
"""
import json
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from safetensors.numpy import load_file, save_file
from sentencepiece import SentencePieceProcessor

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures"
OUT = FIXTURES / "gguf"
TYPES = [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K]
# Whole numbers of codebooks times scales.
GRID_TYPES = [T.IQ1_S, T.IQ1_M, T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.IQ3_XXS, T.IQ3_S, T.IQ4_NL, T.IQ4_XS, T.TQ1_0, T.TQ2_0,
              T.MXFP4, T.NVFP4, T.Q1_0]
# Where the f16 scales of a block are; what else is in it may be any bits.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82],
          T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ1_S: [0], T.IQ1_M: [], T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0], T.IQ3_XXS: [0],
          T.IQ3_S: [0], T.IQ4_NL: [0], T.IQ4_XS: [0], T.TQ1_0: [52], T.TQ2_0: [64], T.MXFP4: [],
          T.NVFP4: [], T.Q1_0: [0]}
PARTS = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
GLOBALS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}


def random_blocks(rng, kind, count):
    """[count, bytes] of random blocks with scales of ordinary size, of either sign."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if kind == T.Q8_0:  # -128 is made by no quantiser
        blocks[:, 2:][blocks[:, 2:] == 128] = 129
    if kind == T.MXFP4:  # powers of two of ordinary size
        blocks[:, 0] = rng.integers(110, 130, count)
    if kind == T.IQ1_M:  # the nibbles of the f16 scale
        scale = (rng.uniform(0.002, 0.02, count) * rng.choice([-1, 1], count)).astype(np.float16).view(np.uint16)
        for i in range(4):
            words = blocks[:, 48 + 2 * i:50 + 2 * i].copy().view(np.uint16)[:, 0]
            words = (words & 0x0FFF) | ((scale >> (4 * i)) & 15) << 12
            blocks[:, 48 + 2 * i:50 + 2 * i] = words.astype(np.uint16)[:, None].view(np.uint8)
    for at in SCALES[kind]:
        scale = (rng.uniform(0.002, 0.02, count) * rng.choice([-1, 1], count)).astype(np.float16)
        if kind in (T.Q2_K, T.Q4_K, T.Q5_K):  # of these both signs are plus
            scale = np.abs(scale)
        blocks[:, at:at + 2] = scale.view(np.uint8).reshape(count, 2)
    return blocks


def values_of(blocks, kind):
    """The package knows Q1_0, but not its formula: the lowest bit of a byte is the first, and says that an element is
    the scale and not its opposite."""
    if kind != T.Q1_0:
        return gguf.quants.dequantize(blocks, kind)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return scales * (2 * np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32) - 1)


def gguf_name(name):
    if name in GLOBALS:
        return GLOBALS[name]
    _, _, layer, part = name.split(".", 3)
    part, kind = part.rsplit(".", 1)
    return f"blk.{layer}.{PARTS[part]}.{kind}"


def to_pairs(rows, heads):
    """Hugging Face's rows of q or k in the file's order."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def from_pairs(rows, heads):
    shape = rows.shape
    return rows.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def heads_of(name, config):
    if ".q_proj." in name:
        return config["num_attention_heads"]
    if ".k_proj." in name:
        return config["num_key_value_heads"]
    return 0


def writer(path, config):
    out = gguf.GGUFWriter(path, config.get("model_type", "llama"))
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_freq_base(config["rope_theta"])
    out.add_rope_dimension_count(config["head_dim"])
    return out


def finish(out):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def add_vocabulary(out):
    """A SentencePiece vocabulary of bytes and a few pieces."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581", "a", "b", "ab", "\u2581ab"]
    kinds = [2, 3, 3] + [6] * 256 + [1] * 5
    scores = [0.0] * 259 + [-1.0, -2.0, -3.0, -0.5, -0.25]
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores(scores)
    out.add_token_types(kinds)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)
    out.add_add_bos_token(True)
    return len(tokens)


def make_blocks():
    rng = np.random.default_rng(1)
    goldens = {}
    for kind in TYPES + GRID_TYPES:
        blocks = random_blocks(rng, kind, 2)
        values = values_of(blocks, kind).reshape(2, -1).astype(np.float32)
        goldens[kind.name.lower()] = [{"bytes": block.tobytes().hex(), "values": [float(v) for v in row]}
                                      for block, row in zip(blocks, values)]
    (OUT / "blocks.json").write_text(json.dumps(goldens) + "\n")


def make_tiny():
    rng = np.random.default_rng(3)
    out = gguf.GGUFWriter(FIXTURES / "checkpoints" / "made" / "tiny.gguf", "tiny")
    out.add_uint32("tiny.number", 7)
    out.add_array("tiny.list", ["a", "bc"])
    out.add_tensor("vector", np.arange(4, dtype=np.float32))
    out.add_tensor("half", np.ones((2, 3), dtype=np.float16))
    out.add_tensor("blocks", random_blocks(rng, T.Q8_0, 2).reshape(2, -1), raw_dtype=T.Q8_0)
    finish(out)


def make_plain(file, fixture):
    source = FIXTURES / "models" / fixture
    config = json.loads((source / "config.json").read_text())
    config.setdefault("rope_theta", (config.get("rope_parameters") or {}).get("rope_theta", 10000.0))
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    out = writer(OUT / file, config)
    for name, tensor in sorted(load_file(source / "model.safetensors").items()):
        heads = heads_of(name, config) if config["model_type"] == "llama" else 0
        out.add_tensor(gguf_name(name), to_pairs(tensor, heads) if heads else tensor)
    finish(out)


def repeated_blocks(rng, kind, count):
    """As random_blocks, but of 61 blocks in random order, which packs keep once. Rows that are alike add up: with the
    types of mixed.gguf, to more than f16 holds."""
    return random_blocks(rng, kind, 61)[rng.integers(0, 61, count)]


def twice_each(rng, kind, count):
    """As random_blocks, but each block is there twice, in random order: packs keep half, and rows stay unlike."""
    most = -(-count // 2)
    return random_blocks(rng, kind, most)[rng.permutation(np.arange(count) % most)]


def put_odd_scales(rng, kind, blocks):
    """Scales and offsets of every third block: zeros of either sign, next to nothing, or negative."""
    odd = np.array([0.0, -0.0, 2.0 ** -24, -3 * 2.0 ** -24, -0.01, 0.02], dtype=np.float16)
    for at in SCALES[kind]:
        chosen = rng.choice(odd, len(blocks[::3]))
        blocks[::3, at:at + 2] = chosen.view(np.uint8).reshape(-1, 2)


def make_mixed(name, seed, head, layers, odd=(), blocks=random_blocks):
    rng = np.random.default_rng(seed)
    config = dict(num_hidden_layers=2, max_position_embeddings=128, hidden_size=256, intermediate_size=256,
                  num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, rope_theta=10000.0)
    out = writer(OUT / f"{name}.gguf", config)
    vocabulary = add_vocabulary(out)
    rows_of = {"q_proj": 64, "k_proj": 32, "v_proj": 32}
    kinds = {"model.embed_tokens.weight": T.Q8_0, "lm_head.weight": head}
    for layer, chosen in enumerate(layers):
        names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
                 "mlp.up_proj", "mlp.down_proj"]
        kinds |= {f"model.layers.{layer}.{part}.weight": kind for part, kind in zip(names, chosen)}
    file, goldens = name, {}
    for name, kind in kinds.items():
        part = name.split(".")[-2]
        rows = rows_of.get(part, vocabulary if "layers" not in name else 256)
        cols = 64 if part == "o_proj" else 256
        if kind == T.F16:
            raw = (np.round(rng.normal(0, 0.05, (rows, cols)) * 64) / 64).astype(np.float16)
            values = raw.astype(np.float32)
            out.add_tensor(gguf_name(name), raw)
        else:
            per_block, _ = gguf.GGML_QUANT_SIZES[kind]
            raw = blocks(rng, kind, rows * cols // per_block)
            if kind in odd:
                put_odd_scales(rng, kind, raw)
            raw = raw.reshape(rows, -1)
            values = gguf.quants.dequantize(raw, kind).astype(np.float32)
            out.add_tensor(gguf_name(name), raw, raw_dtype=kind)
        if heads := heads_of(name, config):
            values = from_pairs(values, heads)
        goldens[name] = np.ascontiguousarray(values[[0, 1, rows // 2, rows - 1]])
    for layer in range(2):
        for name in ("input_layernorm", "post_attention_layernorm"):
            out.add_tensor(gguf_name(f"model.layers.{layer}.{name}.weight"),
                           rng.uniform(0.5, 1.5, 256).astype(np.float32))
    out.add_tensor("output_norm.weight", rng.uniform(0.5, 1.5, 256).astype(np.float32))
    finish(out)
    save_file(goldens, OUT / f"{file}.safetensors")


def make_stories():
    folder = FIXTURES / "models" / "stories260k"
    config = json.loads((folder / "config.json").read_text())
    config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    out = writer(OUT / "stories260k.gguf", config)
    for name, rows in load_file(folder / "model.safetensors").items():
        if (heads := heads_of(name, config)):
            rows = to_pairs(rows, heads)
        kind = T.F32 if rows.ndim == 1 else T.Q8_0 if rows.shape[1] % 32 == 0 else T.F16
        data = rows if kind == T.F32 else gguf.quants.quantize(rows.astype(np.float32), kind)
        out.add_tensor(gguf_name(name), data, raw_dtype=None if kind == T.F32 else kind)
    pieces = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ids = range(pieces.vocab_size())
    kinds = [2 if pieces.is_unknown(i) else 3 if pieces.is_control(i) else 6 if pieces.is_byte(i) else 1 for i in ids]
    out.add_tokenizer_model("llama")
    out.add_token_list([pieces.id_to_piece(i) for i in ids])
    out.add_token_scores([pieces.get_score(i) for i in ids])
    out.add_token_types(kinds)
    out.add_bos_token_id(pieces.bos_id())
    out.add_eos_token_id(pieces.eos_id())
    out.add_chat_template("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    finish(out)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    make_blocks()
    make_tiny()
    make_plain("plain.gguf", "llama-tiny-gqa")
    make_plain("qwen2.gguf", "qwen2-tiny")
    make_plain("qwen3.gguf", "qwen3-tiny")
    make_mixed("mixed", 2, T.Q6_K, [[T.Q4_0, T.Q4_K, T.Q8_0, T.Q5_0, T.Q4_K, T.Q5_K, T.Q6_K],
                                    [T.Q4_1, T.Q5_1, T.Q2_K, T.F16, T.Q3_K, T.Q4_0, T.Q8_0]],
               blocks=twice_each)
    make_mixed("codebooks", 4, T.IQ2_S, [[T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.Q5_1, T.IQ1_S, T.IQ1_M, T.Q4_1],
                                         [T.IQ3_XXS, T.IQ3_S, T.TQ1_0, T.Q4_1, T.IQ4_XS, T.Q5_1, T.TQ2_0]],
               odd=(T.Q4_1, T.Q5_1, T.IQ2_XS), blocks=repeated_blocks)
    make_stories()
