#!/usr/bin/env python3
"""Writes the tiny checkpoints of Qwen3 and their golden outputs.

    python scripts/golden/qwen3.py --out tests/fixtures/models [--only NAME ...]

scripts/golden/models.py says what is in a folder and what is needed."""

import functools

import models

models.FAMILIES["qwen3"] = models.Family(
    "Qwen3ForCausalLM", functools.partial(models.gated_weights, head_norms=True))


def qwen3(**changes):
    config = {"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 56,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "head_dim": 24, "vocab_size": 101, "max_position_embeddings": 256,
              "hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.02,
              "use_cache": True, "attention_bias": False, "attention_dropout": 0.0,
              "tie_word_embeddings": False, "rope_theta": 1000000.0, "rope_scaling": None,
              "use_sliding_window": False, "sliding_window": None, "max_window_layers": 2,
              "bos_token_id": 3, "eos_token_id": 5}
    return {**config, **changes}


FIXTURES = (
    models.Fixture("qwen3-tiny", qwen3()),
    models.Fixture("qwen3-tiny-bf16", qwen3(tie_word_embeddings=True, num_key_value_heads=4),
                   dtype="bf16"),
    # Layers with and without a window, in no simple order.
    models.Fixture("qwen3-windows", qwen3(
        num_hidden_layers=4, use_sliding_window=True, sliding_window=13,
        layer_types=["sliding_attention", "full_attention", "sliding_attention",
                     "sliding_attention"])),
)

if __name__ == "__main__":
    models.main(FIXTURES, __doc__)
