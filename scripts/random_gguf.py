#!/usr/bin/env python3
"""Writes a GGUF model of random weights, for speed beside other engines.

    pip install gguf numpy
    scripts/random_gguf.py SHAPE TYPE VOCABULARY.gguf OUT.gguf

SHAPE: tinyllama-1.1b, llama-2-7b, or layers:hidden:ffn:heads:kv_heads. TYPE: Q4_0, Q8_0, F16, BF16 (tables and norms stay
F16 and F32). VOCABULARY.gguf brings the tokens (tests/fixtures/gguf/ggml-vocab-llama-spm.gguf).
"""
import sys

import gguf
import numpy as np

SHAPES = {"tinyllama-1.1b": (22, 2048, 5632, 32, 4), "llama-2-7b": (32, 4096, 11008, 32, 32)}


def matrix(rng, kind, rows, cols):
    """Raw data of random elements with variance 1 / cols."""
    if kind == gguf.GGMLQuantizationType.F16:
        return (rng.random((rows, cols), dtype=np.float32) - 0.5).astype(np.float16) * np.float16((12 / cols) ** 0.5)
    if kind == gguf.GGMLQuantizationType.BF16:
        values = (rng.random((rows, cols), dtype=np.float32) - 0.5) * np.float32((12 / cols) ** 0.5)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(rows, -1)
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * cols // per_block, size), dtype=np.uint8)
    step = {"Q4_0": 4.6, "Q8_0": 73.6}[kind.name]  # deviation of codes
    blocks[:, :2] = np.full(len(blocks), 1 / (step * cols**0.5), dtype=np.float16).view(np.uint8).reshape(-1, 2)
    if kind.name == "Q8_0":
        blocks[:, 2:][blocks[:, 2:] == 128] = 129
    return blocks.reshape(rows, -1)


def main(shape, kind, vocabulary, path):
    layers, hidden, ffn, heads, kv_heads = SHAPES.get(shape) or tuple(int(part) for part in shape.split(":"))
    kind = gguf.GGMLQuantizationType[kind]
    source = gguf.GGUFReader(vocabulary)
    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(layers)
    out.add_context_length(4096)
    out.add_embedding_length(hidden)
    out.add_feed_forward_length(ffn)
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(hidden // heads)
    for key, field in source.fields.items():
        if key.startswith("tokenizer."):
            kind_of = field.types[0]
            out.add_key_value(key, field.contents(), kind_of, field.types[-1] if kind_of == gguf.GGUFValueType.ARRAY else None)
    rng = np.random.default_rng(1)
    vocab = len(source.fields["tokenizer.ggml.tokens"].data)
    norm = np.ones(hidden, dtype=np.float32)

    def add(name, rows, cols, of=kind):
        data = matrix(rng, of, rows, cols)
        out.add_tensor(name, data, raw_dtype=None if data.dtype == np.float16 else of)

    add("token_embd.weight", vocab, hidden, gguf.GGMLQuantizationType.F16)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        out.add_tensor(prefix + "attn_norm.weight", norm)
        add(prefix + "attn_q.weight", hidden, hidden)
        add(prefix + "attn_k.weight", hidden // heads * kv_heads, hidden)
        add(prefix + "attn_v.weight", hidden // heads * kv_heads, hidden)
        add(prefix + "attn_output.weight", hidden, hidden)
        out.add_tensor(prefix + "ffn_norm.weight", norm)
        add(prefix + "ffn_gate.weight", ffn, hidden)
        add(prefix + "ffn_up.weight", ffn, hidden)
        add(prefix + "ffn_down.weight", hidden, ffn)
    out.add_tensor("output_norm.weight", norm)
    add("output.weight", vocab, hidden)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
