#!/usr/bin/env python3
"""Prints the logits that tests/engine/written_models_test.cc wants of the models that it writes.

    scripts/golden/written.py

The elements are that test's formula, by the places of tensors in its lists: top-level tensors by name, then each
layer's by name. Needs transformers and torch; made with transformers 5.24.
"""
import numpy
import torch
import transformers

MODELS = {
    "cohere": dict(hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2, vocab_size=37, max_position_embeddings=64, use_qk_norm=True, logit_scale=0.5),
    "gpt2": dict(n_embd=16, n_layer=3, n_head=4, n_positions=64, vocab_size=37, scale_attn_by_inverse_layer_idx=True),
    "bloom": dict(hidden_size=16, n_layer=2, n_head=4, vocab_size=37, apply_residual_connection_post_layernorm=True),
}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def elements(name, shape, index):
    i = numpy.arange(1, int(numpy.prod(shape)) + 1, dtype=numpy.uint64)
    mixed = (i * 2654435761 + (index + 1) * 2246822519) % 2**32
    value = (((mixed >> 8) * 3266489917) % 2**32 >> 16).astype(numpy.float32) / numpy.float32(32768) - numpy.float32(1)
    if name.endswith(".bias"):
        out = numpy.float32(0.25) * value
    elif "norm" in name or "ln_" in name:
        out = 1 + numpy.float32(0.25) * value
    else:
        out = numpy.float32(0.5) * value
    return torch.from_numpy(out.reshape(shape).astype(numpy.float32))


for model_type, sizes in MODELS.items():
    config = transformers.AutoConfig.for_model(model_type, **sizes, **IDS)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    names = [name for name, _ in model.named_parameters() if name != "lm_head.weight"]
    of_layers = [name for name in names if any(part.isdigit() for part in name.split("."))]
    order = sorted(set(names) - set(of_layers)) + sorted(of_layers)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for index, name in enumerate(order):
            parameters[name].copy_(elements(name, tuple(parameters[name].shape), index))
        model.tie_weights()
        logits = model(torch.tensor([[3 + 5 * i % 29 for i in range(12)]])).logits[0, -1, :8]
    print(model_type, ", ".join(f"{value:.7g}f" for value in logits.tolist()))
