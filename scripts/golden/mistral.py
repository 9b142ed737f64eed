#!/usr/bin/env python3
"""Writes the tiny checkpoints of Mistral and their golden outputs.

    python scripts/golden/mistral.py --out tests/fixtures/models [--only NAME ...]

scripts/golden/models.py says what is in a folder and what is needed."""

import models

models.FAMILIES["mistral"] = models.Family("MistralForCausalLM", models.gated_weights)


def mistral(**changes):
    config = {"model_type": "mistral", "hidden_size": 32, "intermediate_size": 56,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "vocab_size": 101, "max_position_embeddings": 256, "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "initializer_range": 0.02, "use_cache": True,
              "attention_dropout": 0.0, "tie_word_embeddings": False, "rope_theta": 10000.0,
              "sliding_window": 16, "bos_token_id": 1, "eos_token_id": 2}
    return {**config, **changes}


FIXTURES = (
    models.Fixture("mistral-tiny", mistral()),
    models.Fixture("mistral-tiny-bf16", mistral(head_dim=24, sliding_window=None,
                                                rope_theta=1000000.0), dtype="bf16"),
)

if __name__ == "__main__":
    models.main(FIXTURES, __doc__)
