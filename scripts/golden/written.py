#!/usr/bin/env python3
"""Writes what tests/engine/written_models_test.cc wants of the models that it writes: configs, and logits of them.

    scripts/golden/written.py tests/engine/written_models.json

The elements of tensors are that test's formula, by their places among all names, sorted. Needs transformers, torch and
safetensors; made with transformers 5.24.
"""
import json
import pathlib
import sys
import tempfile

import numpy
import safetensors.torch
import torch
import transformers

SIZES = dict(hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=37, max_position_embeddings=64)
EXPERTS = dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=6, n_shared_experts=1, n_group=1,
               topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5)
LATENT = dict(SIZES, **EXPERTS, num_key_value_heads=4, q_lora_rank=10, kv_lora_rank=8, qk_nope_head_dim=6,
              qk_rope_head_dim=4, v_head_dim=5, index_n_heads=2, index_head_dim=8, first_k_dense_replace=1)
OLD = dict(n_embd=16, n_layer=3, n_head=4, n_positions=64, vocab_size=37)
MODELS = {
    "arcee": dict(SIZES, tie_word_embeddings=False),
    "bloom": dict(hidden_size=16, n_layer=2, n_head=4, vocab_size=37, apply_residual_connection_post_layernorm=True),
    "cohere": dict(SIZES, use_qk_norm=True, logit_scale=0.5),
    "cwm": dict(SIZES, head_dim=4, sliding_window=5, rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
    "deepseek_v32": dict(LATENT, index_topk=24),
    "dots1": dict(SIZES, **EXPERTS, head_dim=4, first_k_dense_replace=1, sliding_window=5, max_window_layers=1),
    "ernie4_5_moe": dict(SIZES, moe_num_experts=4, moe_k=2, moe_intermediate_size=6, moe_num_shared_experts=1),
    "exaone": dict(SIZES, tie_word_embeddings=False),
    "glm_moe_dsa": dict(LATENT, index_topk=24, mlp_layer_types=["sparse", "dense"]),
    "gpt2": dict(OLD, scale_attn_by_inverse_layer_idx=True),
    "gpt_bigcode": dict(OLD),
    "helium": dict(SIZES, head_dim=4, attention_bias=False),
    "hyperclovax": dict(SIZES, attention_multiplier=0.3, embedding_multiplier=1.5, residual_multiplier=0.7,
                        logits_scaling=0.5),
    "internlm3": dict(SIZES, head_dim=4, attention_bias=True, mlp_bias=True),
    "jais2": dict(SIZES, head_dim=4),
    "ministral": dict(SIZES, head_dim=4, sliding_window=5, layer_types=["full_attention", "sliding_attention"]),
    "olmoe": dict({k: v for k, v in SIZES.items() if k != "intermediate_size"}, intermediate_size=6, num_experts=4,
                  num_experts_per_tok=2, clip_qkv=0.5),
    # Longer than it was first trained on.
    "phi3": dict(SIZES, original_max_position_embeddings=8,
                 rope_parameters={"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 1.1],
                                  "long_factor": [1.5, 3.0], "original_max_position_embeddings": 8}),
    "stablelm": dict(SIZES, qk_layernorm=True, use_parallel_residual=True, use_qkv_bias=True, partial_rotary_factor=0.5,
                     tie_word_embeddings=False),
    "solar_open": dict({k: v for k, v in SIZES.items() if k != "intermediate_size"}, **EXPERTS, head_dim=4),
}
# Said by no class, for they would have it otherwise.
QUIET = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
PROMPT = [3 + 5 * i % 29 for i in range(12)]


def elements(name, shape, index):
    """Gains around 1, the rest around 0."""
    i = numpy.arange(1, int(numpy.prod(shape)) + 1, dtype=numpy.uint64)
    mixed = (i * 2654435761 + (index + 1) * 2246822519) % 2**32
    value = (((mixed >> 8) * 3266489917) % 2**32 >> 16).astype(numpy.float32) / numpy.float32(32768) - numpy.float32(1)
    is_bias = name.endswith("bias")
    if not is_bias and ("norm" in name or "ln_" in name):
        return 1 + numpy.float32(0.25) * value
    return numpy.float32(0.25 if is_bias else 0.5) * value


def main():
    out = {}
    for model_type, sizes in MODELS.items():
        config = transformers.AutoConfig.for_model(model_type, **sizes, **QUIET)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            at = pathlib.Path(folder, "model.safetensors")
            # What sluice does not read: with it nothing changes up to index_topk.
            names = safetensors.torch.load_file(at)
            used = sorted(name for name in names if ".indexer." not in name)
            for index, name in enumerate(used):
                shape = tuple(names[name].shape)
                names[name] = torch.from_numpy(elements(name, shape, index).reshape(shape).astype(numpy.float32))
            safetensors.torch.save_file(names, at, metadata={"format": "pt"})
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
            try:
                model.set_experts_implementation("eager")
            except Exception:  # no mixture
                pass
            with torch.no_grad():
                logits = model(torch.tensor([PROMPT])).logits[0, -1, :8]
        print(model_type, len(used), file=sys.stderr)
        out[model_type] = {"config": {"model_type": model_type, **sizes},
                           "tensors": len(used), "logits": [float(f"{value:.7g}") for value in logits.tolist()]}
    text = ",\n".join(f'"{name}": {json.dumps(model)}' for name, model in out.items())
    pathlib.Path(sys.argv[1]).write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
