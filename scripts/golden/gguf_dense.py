#!/usr/bin/env python3
"""Makes tests/fixtures/models/FIXTURE-gguf: tiny models of decoders.py, phi3.py and qwen*.py as llama.cpp's converter
writes them, with the gguf package's names, beside goldens that point at the logits of the checkpoint. What was bf16
becomes f32 here where it is a vector. Keys are those that the converter's class of the family writes, no others.

    pip install gguf numpy safetensors
    scripts/golden/gguf_dense.py [FIXTURE ...]
"""
import json
import math
import sys

import gguf
import numpy as np

import gguf_files
import gguf_mixtures
from gguf_mixtures import FIXTURES, load, split_heads

# Name of the new folder without "-gguf": the checkpoint's fixture, and the architecture.
MODELS = {
    "phi3-tiny": ("phi3-tiny", "phi3"), "phi3-tiny-longrope": ("phi3-tiny-longrope", "phi3"),
    "glm4-tiny": ("glm4-tiny", "glm4"), "glm4-halves": ("glm4-tiny", "glm4"), "glm4-odd": ("glm4-odd", "glm4"),
    "glm-tiny": ("glm-tiny", "chatglm"), "glm-joined": ("glm-tiny", "chatglm"),
    "ministral3-tiny": ("ministral3-tiny", "mistral3"),
    "qwen2vl": ("qwen2-tiny", "qwen2vl"), "qwen3vl": ("qwen3-tiny", "qwen3vl"),
    "qwen3vlmoe": ("qwen3-moe-tiny", "qwen3vlmoe"),
    "olmo3-tiny": ("olmo3-tiny", "olmo2"), "olmo3-odd": ("olmo3-odd", "olmo2"),
    "minicpm3-tiny": ("minicpm3-tiny", "minicpm3"), "gptj-tiny": ("gptj-tiny", "gptj"),
    "youtu-tiny": ("youtu-tiny", "deepseek2"),
    "llama-yarn": ("llama-tiny-yarn", "llama"),
}
PAIRED = ("llama", "mistral3")  # rows of q and k
LATENT = ("deepseek2", "minicpm3")


def head_dim_of(config):
    return config.get("head_dim") or config.get("hidden_size", config.get("n_embd")) // (
        config.get("num_attention_heads") or config["n_head"])


def rope_of(config):
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    rope.setdefault("rope_type", rope.get("type"))
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return rope


def write_usual(out, config, eps):
    """What the converter writes of every model."""
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    rope = rope_of(config)
    if rope["rope_type"] == "yarn":
        out.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        out.add_rope_scaling_factor(rope["factor"])
        out.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key, add in (("attention_factor", "add_rope_scaling_yarn_attn_factor"),
                         ("beta_fast", "add_rope_scaling_yarn_beta_fast"),
                         ("beta_slow", "add_rope_scaling_yarn_beta_slow")):
            if rope.get(key) is not None:
                getattr(out, add)(rope[key])
    out.add_rope_freq_base(rope["rope_theta"])
    out.add_layer_norm_rms_eps(config.get("rms_norm_eps", eps))
    if config.get("num_experts"):
        out.add_expert_count(config["num_experts"])
        out.add_expert_used_count(config["num_experts_per_tok"])
    if config.get("head_dim"):
        out.add_key_length(config["head_dim"])
        out.add_value_length(config["head_dim"])
    out.add_file_type(0)


def write_phi3(out, config):
    rope, dims = rope_of(config), int(config.get("partial_rotary_factor", 1.0) * head_dim_of(config))
    original = config["original_max_position_embeddings"]
    write_usual(out, {**config, "rope_scaling": None}, 1e-5)
    out.add_rope_scaling_orig_ctx_len(original)
    out.add_rope_dimension_count(dims)
    out.add_sliding_window(config["sliding_window"] or 0)
    if rope.get("long_factor"):
        scale = config["max_position_embeddings"] / original
        out.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def write_glm(out, config, name):
    """ChatGLM's class writes keys of its own; a file of a model that sees has sections."""
    turned = int(head_dim_of(config) * config["partial_rotary_factor"])
    if out.arch == "chatglm":
        write_usual(out, {**config, "head_dim": None}, 1.5625e-7)
        out.add_key_length(config["head_dim"])  # the tiny ones' heads are not hidden size / heads wide
        out.add_value_length(config["head_dim"])
    else:
        write_usual(out, config, 1.5625e-7)
    if name == "glm4-halves":
        out.add_rope_dimension_sections([1, 1, 0, 0])
    out.add_rope_dimension_count(turned)


def write_latent(out, config):
    turned, rank, value = config["qk_rope_head_dim"], config["kv_lora_rank"], config["v_head_dim"]
    key = config["qk_nope_head_dim"] + turned
    if out.arch == "minicpm3":
        write_usual(out, {**config, "rope_theta": None}, 1e-5)
        del out.kv_data[0]["minicpm3.rope.freq_base"]
        out.add_vocab_size(config["vocab_size"])
        if config["q_lora_rank"]:
            out.add_q_lora_rank(config["q_lora_rank"])
        out.add_kv_lora_rank(rank)
        out.add_key_length(key)
        out.add_rope_dimension_count(turned)
        if value != config["hidden_size"] // config["num_attention_heads"]:
            out.add_value_length(value)
        return
    write_usual(out, {**config, "num_key_value_heads": 1}, 1e-6)
    out.add_leading_dense_block_count(config["num_hidden_layers"])
    out.add_vocab_size(config["vocab_size"])
    if config["q_lora_rank"]:
        out.add_q_lora_rank(config["q_lora_rank"])
    out.add_kv_lora_rank(rank)
    out.add_key_length(rank + turned)
    out.add_value_length(rank)
    out.add_key_length_mla(key)
    out.add_value_length_mla(value)
    out.add_expert_feed_forward_length(config["intermediate_size"])
    out.add_expert_shared_count(0)
    out.add_rope_dimension_count(turned)


def write_olmo3(out, config):
    write_usual(out, config, 1e-5)
    out.add_sliding_window(config["sliding_window"])
    layers = config["num_hidden_layers"]
    types = config.get("layer_types")
    out.add_sliding_window_pattern([types[i] == "sliding_attention" if types else (i + 1) % 4 != 0
                                    for i in range(layers)])
    if rope_of(config)["rope_theta"] != 5e5:  # the class default of layers with a window
        out.add_rope_freq_base_swa(500000.0)


def write_gptj(out, config):
    out.add_block_count(config["n_layer"])
    out.add_context_length(config["n_positions"])
    out.add_embedding_length(config["n_embd"])
    out.add_feed_forward_length(4 * config["n_embd"])
    out.add_head_count(config["n_head"])
    out.add_layer_norm_eps(1e-5)
    out.add_rope_dimension_count(config["rotary_dim"])
    out.add_file_type(0)


def write_keys(out, name, config):
    if out.arch == "phi3":
        write_phi3(out, config)
    elif out.arch in ("glm4", "chatglm"):
        write_glm(out, config, name)
    elif out.arch in LATENT:
        write_latent(out, config)
    elif out.arch == "olmo2":
        write_olmo3(out, config)
    elif out.arch == "gptj":
        write_gptj(out, config)
    else:
        write_usual(out, config, 1e-5 if out.arch == "mistral3" else 1e-6)
    if out.arch.endswith(("vl", "vlmoe")):
        half = head_dim_of(config) // 2
        out.add_rope_dimension_sections([half - 2, 1, 1, 0])
    if out.arch.startswith("qwen3vl"):
        out.add_num_deepstack_layers(3)
    if out.arch == "qwen3vlmoe":
        out.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if out.arch in PAIRED:
        out.add_vocab_size(config["vocab_size"])
        out.add_rope_dimension_count(head_dim_of(config))
    if out.arch == "mistral3":
        out.add_rope_scaling_yarn_log_mul(config["rope_parameters"]["mscale_all_dim"])
        out.add_attn_temperature_scale(config["rope_parameters"]["llama_4_scaling_beta"])
    if config.get("bos_token_id") is not None:
        out.add_bos_token_id(config["bos_token_id"])
        out.add_eos_token_id(config["eos_token_id"])


def to_halves(rows, heads, turned):
    """Pairs that lie side by side as first and second halves, of the turned part of each head."""
    shape = rows.shape
    parts = rows.reshape(heads, shape[0] // heads, -1)
    out = np.concatenate([parts[:, 0:turned:2], parts[:, 1:turned:2], parts[:, turned:]], axis=1)
    return out.reshape(shape)


def changed(tensors, name, arch, config):
    if name == "glm4-halves":
        turned = int(head_dim_of(config) * config["partial_rotary_factor"])
        for own in list(tensors):
            if ".q_proj." in own:
                tensors[own] = to_halves(tensors[own], config["num_attention_heads"], turned)
            if ".k_proj." in own:
                tensors[own] = to_halves(tensors[own], config["num_key_value_heads"], turned)
    if arch in PAIRED:
        for own in list(tensors):
            if heads := gguf_files.heads_of(own, config):
                tensors[own] = gguf_files.to_pairs(tensors[own], heads)
    # ChatGLM's own checkpoints have q, k and v in one tensor, and the converter may be asked for it.
    if name in ("glm-joined", "llama-yarn"):
        for own in [own for own in tensors if ".q_proj." in own]:
            layer, end = own.split(".")[2], own.rpartition(".")[2]
            tensors[f"blk.{layer}.attn_qkv.{end}"] = np.concatenate(
                [tensors.pop(own.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"])
    if name == "phi3-tiny-longrope":
        for kind in ("long", "short"):
            tensors[f"rope_factors_{kind}.weight"] = np.array(config["rope_scaling"][f"{kind}_factor"], np.float32)
    if arch == "deepseek2":
        split_heads(tensors, config)
    return tensors


def write(name):
    fixture, arch = MODELS[name]
    source = FIXTURES / "models" / fixture
    folder = FIXTURES / "models" / f"{name}-gguf"
    folder.mkdir(exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    kind = next(key for key, theirs in gguf.MODEL_ARCH_NAMES.items() if theirs == arch)
    names = gguf.get_tensor_name_map(kind, config.get("num_hidden_layers") or config["n_layer"])
    out = gguf.GGUFWriter(folder / "model.gguf", arch)
    write_keys(out, name, config)
    tensors, is_bf16 = load(source / "model.safetensors")
    stacks, others = gguf_mixtures.stacked(changed(tensors, name, arch, config))
    for own, tensor in others.items():
        theirs = own if own.startswith(("blk.", "rope_")) else names.get_name(own, try_suffixes=(".weight", ".bias"))
        assert theirs, own
        gguf_mixtures.add(out, theirs, tensor, is_bf16)
    for own, tensor in stacks.items():
        gguf_mixtures.add(out, own, tensor, is_bf16)
    gguf_files.finish(out)
    goldens = json.loads((source / "goldens.json").read_text())
    goldens.update(model=folder.name, made_by="scripts/golden/gguf_dense.py")
    goldens.pop("half", None)  # the checkpoint's
    # MiniCPM3's files do not say what its logits are divided by.
    scale = 256 / config["dim_model_base"] if arch == "minicpm3" else 1
    for case in goldens["cases"]:
        if case.get("logits") and scale == 1:
            case["logits"] = f"../{source.name}/{case['logits']}"
        elif case.get("logits"):
            np.save(folder / case["logits"], np.load(source / case["logits"]) * np.float32(scale))
            case["greedy_margins"] = [margin * scale for margin in case["greedy_margins"]]
            case["max_abs_logit"] *= scale
    (folder / "goldens.json").write_text(json.dumps(goldens) + "\n")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or MODELS:
        write(wanted)
