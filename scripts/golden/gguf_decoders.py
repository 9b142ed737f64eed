#!/usr/bin/env python3
"""Makes tests/fixtures/gguf/FAMILY.gguf: tiny models of the families in decoders.py as their
converters write them, f32, with the gguf package's names.

    pip install gguf numpy safetensors
    scripts/golden/gguf_decoders.py [FAMILY ...]
"""
import json
import pathlib
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures"
# Family: architecture, fixture, and what its converter does beside names.
FAMILIES = {
    "gemma": ("gemma", "gemma-tiny"), "gemma2": ("gemma2", "gemma2-tiny"),
    "gemma3": ("gemma3", "gemma3-tiny"), "granite": ("granite", "granite-tiny"),
    "cohere": ("command-r", "cohere-tiny"), "cohere2": ("cohere2", "cohere2-tiny"),
    "olmo2": ("olmo2", "olmo2-tiny"), "smollm3": ("smollm3", "smollm3-tiny"),
    "seed_oss": ("seed_oss", "seed-oss-tiny"), "exaone4": ("exaone4", "exaone4-tiny"),
    "ernie4_5": ("ernie4_5", "ernie4-5-tiny"),
    "starcoder2": ("starcoder2", "starcoder2-tiny"), "nemotron": ("nemotron", "nemotron-tiny"),
    "stablelm": ("stablelm", "stablelm-tiny"), "phi": ("phi2", "phi-tiny"),
    "gpt2": ("gpt2", "gpt2-tiny"), "gpt_neox": ("gptneox", "gpt-neox-tiny"),
    "bloom": ("bloom", "bloom-tiny"), "falcon": ("falcon", "falcon-tiny")}
PAIRED = ("granite", "smollm3")  # rows of q and k
ADDED = ("gemma", "gemma2", "gemma3", "nemotron")  # one to gains


def of(config, *names, default=None):
    for name in names:
        if config.get(name) is not None:
            return config[name]
    return default


def rope_of(config):
    return {**config, **(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}


def write_sizes(out, family, config):
    hidden, heads = of(config, "hidden_size", "n_embd"), of(config, "num_attention_heads", "n_head")
    head_dim = config.get("head_dim") or hidden // heads
    one_kv = family == "falcon" and config.get("multi_query")
    out.add_block_count(of(config, "num_hidden_layers", "n_layer"))
    out.add_context_length(of(config, "max_position_embeddings", "n_positions", "seq_length"))
    out.add_embedding_length(hidden)
    out.add_feed_forward_length(of(config, "intermediate_size", "n_inner", default=4 * hidden))
    out.add_head_count(heads)
    out.add_head_count_kv(1 if one_kv else of(config, "num_key_value_heads", default=heads))
    out.add_key_length(head_dim)
    out.add_value_length(head_dim)
    if family in ("cohere", "cohere2", "starcoder2", "nemotron", "stablelm", "phi", "gpt2",
                  "gpt_neox", "bloom", "falcon"):
        out.add_layer_norm_eps(of(config, "layer_norm_eps", "layer_norm_epsilon", "norm_eps",
                                  "norm_epsilon", default=1e-5))
    else:
        out.add_layer_norm_rms_eps(config.get("rms_norm_eps",
                                              1e-5 if family in ("olmo2", "exaone4") else 1e-6))
    if family in ("gpt2", "bloom"):
        return
    share = of(config, "partial_rotary_factor", "rotary_pct", default=1)
    out.add_rope_dimension_count(int(head_dim * share))
    out.add_rope_freq_base(of(rope_of(config), "rope_theta", default=10000.0))


def write_features(out, family, config):
    if family == "falcon":
        out.add_tensor_data_layout("jploski")
    if family == "gemma2":
        out.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        out.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("sliding_window"):
        out.add_sliding_window(config["sliding_window"])
    if family == "gemma3":
        out.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        out.add_rope_scaling_factor(config["rope_scaling"]["factor"])
        out.add_float32("gemma3.rope.freq_base_swa", config["rope_local_base_freq"])
    if family == "granite":
        out.add_attention_scale(config["attention_multiplier"])
        out.add_embedding_scale(config["embedding_multiplier"])
        out.add_residual_scale(config["residual_multiplier"])
        out.add_logit_scale(config["logits_scaling"])
    if family.startswith("cohere"):
        out.add_logit_scale(config["logit_scale"])
    if family == "gpt_neox":
        out.add_parallel_residual(config["use_parallel_residual"])
    if family == "stablelm":
        out.add_parallel_residual(config.get("use_parallel_residual", False))


def to_pairs(rows, heads):
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def in_order(fused, groups, head_dim):
    """Rows of q, k and v in groups of heads as all of q, then k, then v."""
    shape = fused.shape
    parts = fused.reshape(groups, -1, head_dim, *shape[1:])
    return np.concatenate([parts[:, :-2].reshape(-1, *shape[1:]),
                           parts[:, -2].reshape(-1, *shape[1:]),
                           parts[:, -1].reshape(-1, *shape[1:])])


def converted(family, name, tensor, config):
    heads = of(config, "num_attention_heads", "n_head")
    hidden = of(config, "hidden_size", "n_embd")
    if family in PAIRED and ".q_proj." in name:
        return to_pairs(tensor, heads)
    if family in PAIRED and ".k_proj." in name:
        return to_pairs(tensor, config["num_key_value_heads"])
    if family in ADDED and "norm" in name and name.endswith(".weight"):
        return tensor + np.float32(1)
    if "query_key_value" in name:
        return in_order(tensor, 1 if family == "falcon" else heads, hidden // heads)
    if family == "gpt2" and name.endswith(".weight") and any(
            part in name for part in ("c_attn", "c_proj", "c_fc")):
        return np.ascontiguousarray(tensor.T)
    return tensor


def write(family):
    architecture, fixture = FAMILIES[family]
    source = FIXTURES / "models" / fixture
    config = json.loads((source / "config.json").read_text())
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    layers = of(config, "num_hidden_layers", "n_layer")
    names = gguf.get_tensor_name_map(kind, layers)
    out = gguf.GGUFWriter(FIXTURES / "gguf" / f"{family}.gguf", architecture)
    write_sizes(out, family, config)
    write_features(out, family, config)
    for name, tensor in sorted(load_file(source / "model.safetensors").items()):
        theirs = names.get_name(name.removeprefix("transformer.") if family == "bloom" else name,
                                try_suffixes=(".weight", ".bias"))
        assert theirs, name
        out.add_tensor(theirs, converted(family, name, tensor, config))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    for wanted in sys.argv[1:] or FAMILIES:
        write(wanted)
