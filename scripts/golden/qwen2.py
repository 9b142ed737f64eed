#!/usr/bin/env python3
"""Writes the tiny checkpoints of Qwen2 and Qwen2.5 and their golden outputs.

    python scripts/golden/qwen2.py --out tests/fixtures/models [--only NAME ...]

scripts/golden/models.py says what is in a folder and what is needed."""

import functools

import models

models.FAMILIES["qwen2"] = models.Family(
    "Qwen2ForCausalLM", functools.partial(models.gated_weights, qkv_bias=True))


def qwen2(**changes):
    config = {"model_type": "qwen2", "hidden_size": 32, "intermediate_size": 56,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "vocab_size": 101, "max_position_embeddings": 256, "hidden_act": "silu",
              "rms_norm_eps": 1e-6, "initializer_range": 0.02, "use_cache": True,
              "attention_dropout": 0.0, "tie_word_embeddings": False, "rope_theta": 1000000.0,
              "use_sliding_window": False, "sliding_window": 16, "max_window_layers": 2,
              "bos_token_id": 3, "eos_token_id": 3}
    return {**config, **changes}


FIXTURES = (
    models.Fixture("qwen2-tiny", qwen2()),
    models.Fixture("qwen2-tiny-bf16", qwen2(tie_word_embeddings=True), dtype="bf16"),
    models.Fixture("qwen2-tiny-window", qwen2(use_sliding_window=True, max_window_layers=0)),
)

if __name__ == "__main__":
    models.main(FIXTURES, __doc__)
