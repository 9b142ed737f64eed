#!/usr/bin/env python3
"""Writes the tiny checkpoints of Phi-3 and their golden outputs.

    python scripts/golden/phi3.py --out tests/fixtures/models [--only NAME ...]

scripts/golden/models.py says what is in a folder and what is needed."""

import torch

import models


def phi3_weights(config, seed):
    """q, k, v in one tensor, gate and up in another."""
    parts = {"q_proj": ("qkv_proj", ["q_proj", "k_proj", "v_proj"]),
             "gate_proj": ("gate_up_proj", ["gate_proj", "up_proj"])}
    weights = models.gated_weights(config, seed)
    out = {}
    for name, tensor in weights.items():
        stem = name.split(".")[-2]
        if stem in parts:
            whole, names = parts[stem]
            out[name.replace(stem, whole)] = torch.cat([weights[name.replace(stem, n)] for n in names])
        elif stem not in ("k_proj", "v_proj", "up_proj"):
            out[name] = tensor
    return out


models.FAMILIES["phi3"] = models.Family("Phi3ForCausalLM", phi3_weights)


def phi3(**changes):
    config = {"model_type": "phi3", "hidden_size": 32, "intermediate_size": 56,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "vocab_size": 101, "max_position_embeddings": 256,
              "original_max_position_embeddings": 256, "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "initializer_range": 0.02, "use_cache": True,
              "attention_dropout": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
              "tie_word_embeddings": False, "rope_theta": 10000.0, "rope_scaling": None,
              "sliding_window": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    return {**config, **changes}


FIXTURES = (
    models.Fixture("phi3-tiny", phi3()),
    models.Fixture("phi3-tiny-bf16-bin", phi3(num_key_value_heads=4, sliding_window=None),
                   dtype="bf16", layout="bin"),
)

if __name__ == "__main__":
    models.main(FIXTURES, __doc__)
