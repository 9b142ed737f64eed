#!/usr/bin/env python3
"""Writes a GGUF model of random weights, for speed beside other engines.

    pip install gguf numpy
    scripts/random_gguf.py SHAPE TYPE VOCABULARY.gguf OUT.gguf

SHAPE: tinyllama-1.1b, llama-2-7b, qwen3-30b-a3b (a mixture of experts), or layers:hidden:ffn:heads:kv_heads. TYPE: Q4_0, Q8_0,
Q4_K, Q6_K, F16, BF16 (tables and norms are F16 and F32), or Q4_K_M (most in Q4_K; values, down projections of the layers that
llama.cpp gives more bits, and the head in Q6_K). VOCABULARY.gguf brings the tokens: scripts/fixtures.py unpack lays
tests/fixtures/gguf/ggml-vocab-llama-spm.gguf there. One tensor is in memory at a time.

A mixture is routed by its tokens: layers add little to the table's rows, and these have so much in common that a token has
three of ten experts from the one before it, as in trained models (docs/mixtures.md). Each token is followed by another one, so
that what is generated does not go round among a few; the head is in F16.
"""
import dataclasses
import sys

import gguf
import numpy as np

TYPES = gguf.GGMLQuantizationType


@dataclasses.dataclass
class Shape:
    layers: int
    hidden: int
    ffn: int  # of one expert, in a mixture
    heads: int
    kv_heads: int
    head: int = 0  # width of a head; 0: hidden / heads
    experts: int = 0
    chosen: int = 0
    arch: str = "llama"


SHAPES = {"tinyllama-1.1b": Shape(22, 2048, 5632, 32, 4), "llama-2-7b": Shape(32, 4096, 11008, 32, 32),
          "qwen3-30b-a3b": Shape(48, 2048, 768, 32, 4, head=128, experts=128, chosen=8, arch="qwen3moe")}

# Bytes of a block that hold a float16 each, the share of the block's step that each is, and the deviation of a block's codes.
FACTORS = {TYPES.Q4_0: ({0: 1}, 4.6), TYPES.Q8_0: ({0: 1}, 73.6), TYPES.Q4_K: ({0: 1, 2: 7.5}, 260), TYPES.Q6_K: ({208: 1}, 1369)}


COMMON, OWN = 0.8, 0.6  # of a mixture's rows in the table: what all have, and each row's own


def own_rows(rows, cols):
    return np.random.default_rng(2).standard_normal((rows, cols), dtype=np.float32)


def table(rng, rows, cols):
    """Rows of deviation 1 that have much in common."""
    common = COMMON * rng.standard_normal(cols, dtype=np.float32)
    return (common + OWN * own_rows(rows, cols)).astype(np.float16)


def head(rows, cols):
    """A token's row is what the row of the token before it has of its own."""
    return (np.roll(own_rows(rows, cols), 7919, axis=0) / np.float32(cols**0.5)).astype(np.float16)


def matrix(rng, kind, rows, cols, scale=1):
    """Raw data of random elements with variance scale**2 / cols; F16 and BF16 have scale 1."""
    if kind == TYPES.F16:
        return (rng.random((rows, cols), dtype=np.float32) - 0.5).astype(np.float16) * np.float16((12 / cols) ** 0.5)
    if kind == TYPES.BF16:
        values = (rng.random((rows, cols), dtype=np.float32) - 0.5) * np.float32((12 / cols) ** 0.5)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(rows, -1)
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * cols // per_block, size), dtype=np.uint8)
    factors, deviation = FACTORS[kind]
    for at, share in factors.items():
        blocks[:, at:at + 2] = np.full(len(blocks), scale * share / (deviation * cols**0.5), np.float16).view(np.uint8).reshape(-1, 2)
    if kind == TYPES.Q4_0:  # no code of -8: a mean that is not 0 would grow from layer to layer
        codes = blocks[:, 2:]
        codes[codes & 0x0F == 0] |= 0x08
        codes[codes & 0xF0 == 0] |= 0x80
    if kind == TYPES.Q8_0:
        blocks[:, 2:][blocks[:, 2:] == 128] = 129
    return blocks.reshape(rows, -1)


def kind_of(name, layer, layers, kind):
    """The type of one matrix: of TYPE Q4_K_M as llama.cpp's quantiser gives them, else TYPE."""
    if kind != "Q4_K_M":
        return TYPES[kind]
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    return TYPES.Q6_K if name == "output" or more and name in ("attn_v", "ffn_down", "ffn_down_exps") else TYPES.Q4_K


def tensors(shape, vocab, kind):
    """(name, experts or 0, rows, columns, type) of each tensor; norms have rows 0."""
    width = shape.head or shape.hidden // shape.heads
    yield "token_embd.weight", 0, vocab, shape.hidden, TYPES.F16
    for layer in range(shape.layers):
        def one(name, rows, cols, experts=0):
            return f"blk.{layer}.{name}.weight", experts, rows, cols, kind_of(name, layer, shape.layers, kind)

        yield f"blk.{layer}.attn_norm.weight", 0, 0, shape.hidden, TYPES.F32
        yield one("attn_q", width * shape.heads, shape.hidden)
        yield one("attn_k", width * shape.kv_heads, shape.hidden)
        yield one("attn_v", width * shape.kv_heads, shape.hidden)
        yield one("attn_output", shape.hidden, width * shape.heads)
        if shape.experts:
            for norm in ("attn_q_norm", "attn_k_norm"):
                yield f"blk.{layer}.{norm}.weight", 0, 0, width, TYPES.F32
            yield f"blk.{layer}.ffn_gate_inp.weight", 0, shape.experts, shape.hidden, TYPES.F32
        yield f"blk.{layer}.ffn_norm.weight", 0, 0, shape.hidden, TYPES.F32
        stack = "_exps" if shape.experts else ""
        yield one("ffn_gate" + stack, shape.ffn, shape.hidden, shape.experts)
        yield one("ffn_up" + stack, shape.ffn, shape.hidden, shape.experts)
        yield one("ffn_down" + stack, shape.hidden, shape.ffn, shape.experts)
    yield "output_norm.weight", 0, 0, shape.hidden, TYPES.F32
    yield "output.weight", 0, vocab, shape.hidden, TYPES.F16 if shape.experts else kind_of("output", 0, shape.layers, kind)


def data_of(rng, shape, name, experts, rows, cols, kind):
    if shape.experts and name == "token_embd.weight":
        return table(rng, rows, cols)
    if shape.experts and name == "output.weight":
        return head(rows, cols)
    if rows == 0:
        return np.ones(cols, dtype=np.float32)
    if kind == TYPES.F32:
        return rng.standard_normal((rows, cols), dtype=np.float32)
    is_added = "attn_output" in name or "ffn_down" in name
    data = matrix(rng, kind, max(experts, 1) * rows, cols, 0.05 if shape.experts and is_added else 1)
    return data.reshape(experts, rows, -1) if experts else data


def bytes_of(experts, rows, cols, kind):
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    return max(experts, 1) * max(rows, 1) * (cols // per_block * size)


def settings(out, shape, source):
    out.add_block_count(shape.layers)
    out.add_context_length(4096)
    out.add_embedding_length(shape.hidden)
    out.add_feed_forward_length(shape.ffn)
    out.add_head_count(shape.heads)
    out.add_head_count_kv(shape.kv_heads)
    out.add_layer_norm_rms_eps(1e-5)
    head = shape.head or shape.hidden // shape.heads
    out.add_rope_dimension_count(head)
    if shape.head:
        out.add_key_length(head)
        out.add_value_length(head)
    if shape.experts:
        out.add_expert_count(shape.experts)
        out.add_expert_used_count(shape.chosen)
        out.add_expert_feed_forward_length(shape.ffn)
    for key, field in source.fields.items():
        if key.startswith("tokenizer."):
            of = field.types[0]
            out.add_key_value(key, field.contents(), of, field.types[-1] if of == gguf.GGUFValueType.ARRAY else None)


def main(name, kind, vocabulary, path):
    shape = SHAPES.get(name) or Shape(*(int(part) for part in name.split(":")))
    source = gguf.GGUFReader(vocabulary)
    out = gguf.GGUFWriter(path, shape.arch)
    settings(out, shape, source)
    all_of = list(tensors(shape, len(source.fields["tokenizer.ggml.tokens"].data), kind))
    for tensor, experts, rows, cols, of in all_of:
        dims = [experts] * (experts > 0) + [rows] * (rows > 0) + [cols]
        out.add_tensor_info(tensor, dims, np.dtype(np.float32), bytes_of(experts, rows, cols, of), of)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    rng = np.random.default_rng(1)
    for of in all_of:
        out.write_tensor_data(data_of(rng, shape, *of))
    out.close()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
