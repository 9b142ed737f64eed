#!/usr/bin/env python3
"""Makes tests/fixtures/models/*-gguf: the tiny mixtures of experts of mixtures.py as their converters write
them, with the gguf package's names, beside goldens that point at the logits of the checkpoint. Those of f32
stay f32; of bf16 ones routers, norms and biases become f32. And tests/fixtures/gguf/experts.gguf, a random
Qwen3-MoE whose stacks have a type each, with some rows of each in experts.safetensors; newer.gguf likewise.

    pip install gguf numpy safetensors
    scripts/golden/gguf_mixtures.py [FIXTURE ...]
"""
import json
import pathlib
import re
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from safetensors.numpy import save_file

import gguf_files

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures"
# Fixture: architecture, and whether files leave out that weights add up to one.
ARCHITECTURES = {"qwen3-moe": ("qwen3moe", True), "qwen2-moe": ("qwen2moe", False), "mixtral": ("llama", True),
                 "olmoe": ("olmoe", False), "granitemoe": ("granitemoe", True), "glm4-moe": ("glm4moe", True),
                 "minimax-m2": ("minimax-m2", True), "gpt-oss": ("gpt-oss", True),
                 "deepseek-v2-moe": ("deepseek2", False), "deepseek-v3-moe": ("deepseek2", False),
                 "glm4-moe-lite": ("deepseek2", False), "kimi-k2": ("deepseek2", False), "qwen3-next": ("qwen3next", True),
                 "qwen3-5-moe": ("qwen35moe", True), "qwen3-5": ("qwen35", True), "llama4": ("llama4", False),
                 "gemma4-moe": ("gemma4", True), "gemma4": ("gemma4", True), "mamba2": ("mamba2", True),
                 "granitemoehybrid": ("granitehybrid", True), "granitemoehybrid-moe": ("granitehybrid", True)}
DELTA = ("qwen3-next", "qwen3-5-moe", "qwen3-5")
GEMMA4 = ("gemma4-moe", "gemma4")
GRANITE4 = ("granitemoehybrid", "granitemoehybrid-moe")
SPACES = ("mamba2", *GRANITE4)
LATENT = ("deepseek-v2-moe", "deepseek-v3-moe", "glm4-moe-lite", "kimi-k2")
SIGMOIDS = ("glm4-moe", "minimax-m2", "deepseek-v3-moe", "glm4-moe-lite", "kimi-k2")
# The others' rotary positions or clamps are none that such files can say.
SIZES = {"gpt-oss": ("tiny",), "deepseek-v2-moe": ("odd",), "deepseek-v3-moe": ("odd",),
         "glm4-moe-lite": ("tiny",), "kimi-k2": ("tiny",), "qwen3-5-moe": ("thirds", "odd"), "qwen3-5": ("tiny",),
         "llama4": ("released",), "gemma4": ("tiny",),
         "mamba2": ("tiny",), "granitemoehybrid": ("tiny",), "granitemoehybrid-moe": ("odd",)}
PAIRED = ("mixtral", "granitemoe", *GRANITE4)  # rows of q and k
EXPERT = re.compile(r"model\.layers\.(\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


def load(path):
    """Tensors in f32, and whether they were bf16."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    out, is_bf16 = {}, False
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + at for at in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            is_bf16 = True
            values = (np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            assert entry["dtype"] == "F32", entry
            values = np.frombuffer(data[begin:end], np.float32)
        out[name] = values.reshape(entry["shape"])
    return out, is_bf16


def write_sizes(out, fixture, config):
    if fixture == "mamba2":
        write_mamba2(out, config)
        return
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // heads
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(hidden)
    if width := config.get("intermediate_size_mlp") or config.get("intermediate_size"):
        out.add_feed_forward_length(width)
    out.add_head_count(heads)
    if fixture in GEMMA4:
        write_gemma4(out, config)
    elif fixture in LATENT:
        write_latent(out, fixture, config)
    elif fixture in GRANITE4:
        write_granite4(out, config)
    else:
        out.add_head_count_kv(config["num_key_value_heads"])
        out.add_key_length(head_dim)
        out.add_value_length(head_dim)
        share = rope_of(config).get("partial_rotary_factor", 1)
        out.add_rope_dimension_count(config.get("rotary_dim") or int(head_dim * share))
    has_large_eps = fixture in ("mixtral", "olmoe", "glm4-moe", "gpt-oss", "llama4")
    out.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-5 if has_large_eps else 1e-6))
    out.add_rope_freq_base(rope_of(config).get("rope_theta", 1e6 if fixture == "mixtral" else 10000.0))
    out.add_bos_token_id(config["bos_token_id"])
    out.add_eos_token_id(config["eos_token_id"])


def rope_of(config):
    rope = config.get("rope_parameters") or {}
    return {**config, **rope.get("full_attention", rope)}


def write_gemma4(out, config):
    """What differs from layer to layer is a list."""
    layers, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    windows = [kind == "sliding_attention" for kind in config["layer_types"]]
    if config.get("num_global_key_value_heads"):
        out.add_head_count_kv([config["num_key_value_heads" if window else "num_global_key_value_heads"]
                               for window in windows])
    else:
        out.add_head_count_kv(config["num_key_value_heads"])
    if config["use_double_wide_mlp"]:
        del out.kv_data[0]["gemma4.feed_forward_length"]
        out.add_feed_forward_length([config["intermediate_size"] * (1 + (i >= layers - shared)) for i in range(layers)])
    for add, width in ((out.add_key_length, "global_head_dim"), (out.add_value_length, "global_head_dim"),
                       (out.add_key_length_swa, "head_dim"), (out.add_value_length_swa, "head_dim"),
                       (out.add_rope_dimension_count, "global_head_dim"),
                       (out.add_rope_dimension_count_swa, "head_dim")):
        add(config[width])
    out.add_float32("gemma4.rope.freq_base_swa", config["rope_parameters"]["sliding_attention"]["rope_theta"])
    if config["final_logit_softcapping"]:
        out.add_final_logit_softcapping(config["final_logit_softcapping"])
    out.add_sliding_window(config["sliding_window"])
    out.add_sliding_window_pattern(windows)
    out.add_shared_kv_layers(shared)
    out.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])


def write_space(out, config, prefix, heads, width, groups, state, taps):
    size = lambda name: config[prefix + name]
    out.add_ssm_conv_kernel(size(taps))
    out.add_ssm_state_size(size(state))
    out.add_ssm_group_count(size(groups))
    out.add_ssm_inner_size(size(heads) * size(width))
    out.add_ssm_time_step_rank(size(heads))


def write_mamba2(out, config):
    out.add_context_length(2**20)
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(0)
    out.add_head_count(0)
    out.add_block_count(config["num_hidden_layers"])
    write_space(out, config, "", "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
    out.add_layer_norm_rms_eps(config.get("layer_norm_epsilon", 1e-5))
    out.add_bos_token_id(config["bos_token_id"])
    out.add_eos_token_id(config["eos_token_id"])


def write_granite4(out, config):
    """Layers without KV heads have a state space; a key about scaling says whether positions turn."""
    attends = [kind in ("attention", "full_attention") for kind in config["layer_types"]]
    out.add_head_count_kv([config["num_key_value_heads"] if attend else 0 for attend in attends])
    out.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    out.add_rope_scaling_finetuned(config.get("position_embedding_type") == "rope")
    out.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    write_space(out, config, "mamba_", "n_heads", "d_head", "n_groups", "d_state", "d_conv")
    write_granite(out, config)


def write_granite(out, config):
    out.add_attention_scale(config["attention_multiplier"])
    out.add_embedding_scale(config["embedding_multiplier"])
    out.add_residual_scale(config["residual_multiplier"])
    out.add_logit_scale(config["logits_scaling"])


def write_delta(out, config):
    out.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    out.add_ssm_state_size(config["linear_key_head_dim"])
    out.add_ssm_group_count(config["linear_num_key_heads"])
    out.add_ssm_time_step_rank(config["linear_num_value_heads"])
    out.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
    out.add_full_attention_interval(config.get("full_attention_interval", 4))
    if types := config.get("layer_types"):
        out.add_array(f"{out.arch}.attention.recurrent_layers", [kind == "linear_attention" for kind in types])
    if out.arch != "qwen3next":
        out.add_rope_dimension_sections([11, 11, 10, 0])


def write_latent(out, fixture, config):
    """V2's and Kimi's as older files have it, with heads' widths; V3's as newer ones, with those of what is kept."""
    turned, rank, value = config["qk_rope_head_dim"], config["kv_lora_rank"], config["v_head_dim"]
    key = config["qk_nope_head_dim"] + turned
    is_newer = fixture in ("deepseek-v3-moe", "glm4-moe-lite")
    out.add_head_count_kv(1 if is_newer else config["num_attention_heads"])
    out.add_key_length(rank + turned if is_newer else key)
    out.add_value_length(rank if is_newer else value)
    if is_newer:
        out.add_key_length_mla(key)
        out.add_value_length_mla(value)
    out.add_kv_lora_rank(rank)
    if config["q_lora_rank"]:
        out.add_q_lora_rank(config["q_lora_rank"])
    out.add_rope_dimension_count(turned)
    if fixture == "kimi-k2":
        rope = config["rope_scaling"]
        out.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        out.add_rope_scaling_factor(rope["factor"])
        out.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        out.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        out.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        out.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def write_experts(out, fixture, config):
    if fixture in DELTA:
        write_delta(out, config)
    if fixture in ("qwen3-5", "gemma4", "mamba2", "granitemoehybrid"):
        return
    out.add_expert_count(config.get("num_experts") or config.get("num_local_experts") or config["n_routed_experts"])
    out.add_expert_used_count(config.get("num_experts_per_tok") or config["top_k_experts"])
    if width := config.get("moe_intermediate_size"):
        out.add_expert_feed_forward_length(width)
    if width := config.get("shared_expert_intermediate_size"):
        out.add_expert_shared_feed_forward_length(width)
    usual = ARCHITECTURES[fixture][1]
    if config.get("norm_topk_prob", usual) != usual:
        out.add_expert_weights_norm(not usual)
    if fixture in SIGMOIDS:
        out.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if fixture == "llama4":
        out.add_vocab_size(config["vocab_size"])
        out.add_expert_feed_forward_length(config["intermediate_size"])
        out.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
    if fixture == "minimax-m2":
        out.add_expert_feed_forward_length(config["intermediate_size"])
    if fixture == "gpt-oss":
        out.add_sliding_window(config["sliding_window"])
        out.add_expert_feed_forward_length(config["intermediate_size"])
        out.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        out.add_rope_scaling_factor(config["rope_scaling"]["factor"])
        out.add_rope_scaling_orig_ctx_len(config["rope_scaling"]["original_max_position_embeddings"])
    if fixture in LATENT or fixture == "glm4-moe":
        out.add_leading_dense_block_count(config.get("first_k_dense_replace", 1))
        out.add_expert_shared_count(config["n_shared_experts"])
        out.add_expert_weights_scale(config.get("routed_scaling_factor", 1.0))
        out.add_nextn_predict_layers(0)
        if config.get("n_group") and fixture != "kimi-k2":  # older files don't say
            out.add_expert_group_count(config["n_group"])
            out.add_expert_group_used_count(config["topk_group"])
    if fixture == "granitemoe":
        write_granite(out, config)


def stacked(tensors):
    """{file's name: tensor} of all experts' matrices, and what else there is."""
    stacks, others = {}, {}
    for name, tensor in tensors.items():
        if match := EXPERT.fullmatch(name):
            layer, expert, part = match.groups()
            stacks.setdefault(f"blk.{layer}.ffn_{PARTS[part]}_exps.weight", {})[int(expert)] = tensor
        else:
            others[name] = tensor
    out = {name: np.stack([experts[i] for i in range(len(experts))]) for name, experts in stacks.items()}
    for name in [name for name in others if "input_linear" in name or "output_linear" in name]:  # Granite's
        layer, tensor = name.split(".")[2], others.pop(name)
        if "output" in name:
            out[f"blk.{layer}.ffn_down_exps.weight"] = tensor
        else:
            gate, up = np.split(tensor, 2, axis=1)
            out[f"blk.{layer}.ffn_gate_exps.weight"], out[f"blk.{layer}.ffn_up_exps.weight"] = gate, up
    return out, others


def unturned(tensors):
    """gpt-oss's [experts, inputs, outputs], of which gate's and up's take turns, as others have them."""
    for name in [name for name in tensors if ".mlp.experts." in name]:
        layer, tensor = name.split(".")[2], tensors.pop(name)
        end = "bias" if name.endswith("_bias") else "weight"
        parts = {"down": tensor} if "down_proj" in name else {"gate": tensor[..., 0::2], "up": tensor[..., 1::2]}
        for part, rows in parts.items():
            tensors[f"blk.{layer}.ffn_{part}_exps.{end}"] = rows if end == "bias" else rows.swapaxes(1, 2)
    return {name.replace("self_attn.sinks", "self_attn.sinks.weight"): tensor for name, tensor in tensors.items()}


def split_heads(tensors, config):
    """DeepSeek's kv_b as newer files have it: keys' part turned, values' apart."""
    for name in [name for name in tensors if "kv_b_proj" in name]:
        layer, tensor = name.split(".")[2], tensors.pop(name)
        heads, key, value = config["num_attention_heads"], config["qk_nope_head_dim"], config["v_head_dim"]
        tensor = tensor.reshape(heads, key + value, -1)
        tensors[f"blk.{layer}.attn_k_b.weight"] = tensor[:, :key].swapaxes(1, 2)
        tensors[f"blk.{layer}.attn_v_b.weight"] = tensor[:, key:]


def by_turns(tensor, config, first=0):
    """Rows behind the first ones: heads that share a key head lie one beside the other, in the file the first
    of each key head comes first."""
    heads = config["linear_num_key_heads"]
    tail = tensor[first:]
    each = config["linear_num_value_heads"] // heads
    turned = tail.reshape(heads, each, -1, *tail.shape[1:]).swapaxes(0, 1).reshape(tail.shape)
    return np.concatenate([tensor[:first], turned])


def delta(tensors, fixture, config):
    """Qwen3-Next's q, k, v and z of each key head as all q, then all k, all v, and z apart; Qwen3.5's value heads
    by turns."""
    out, keys = {}, config["linear_num_key_heads"] * config["linear_key_head_dim"]
    for name, tensor in tensors.items():
        if name.endswith("A_log"):
            tensor = -np.exp(tensor)
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            tensor = tensor + np.float32(1)
        part = name.rpartition("linear_attn.")[2]
        if part == "in_proj_qkvz.weight":
            groups = tensor.reshape(config["linear_num_key_heads"], -1, tensor.shape[1])
            width, values = config["linear_key_head_dim"], groups.shape[1] // 2 - config["linear_key_head_dim"]
            parts = np.split(groups, [width, 2 * width, 2 * width + values], axis=1)
            q, k, v, z = (rows.reshape(-1, tensor.shape[1]) for rows in parts)
            out[name.replace("qkvz", "qkv")] = np.concatenate([q, k, v])
            out[name.replace("qkvz", "z")] = z
            continue
        if part != name and fixture != "qwen3-next":
            if part in ("in_proj_qkv.weight", "conv1d.weight"):
                tensor = by_turns(tensor, config, 2 * keys)
            elif part in ("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
                tensor = by_turns(tensor, config)
            elif part == "out_proj.weight":
                tensor = np.ascontiguousarray(by_turns(tensor.T, config).T)
        if name.endswith("A_log"):
            name = f"blk.{name.split('.')[2]}.ssm_a"
        out[name.replace(".dt_bias", ".dt_proj.bias")] = tensor.squeeze() if "conv1d" in name else tensor
    return out


def spaces(tensors, fixture, config):
    """State spaces: decays and what is passed by as columns of one, norms in groups; and the gates and ups of Granite's
    MLPs apart."""
    out = {}
    groups = config["n_groups" if fixture == "mamba2" else "mamba_n_groups"]
    for name, tensor in tensors.items():
        part = name.rpartition("mixer." if fixture == "mamba2" else "mamba.")[2]
        layer = name.split(".")[2] if ".layers." in name else ""
        if part == "A_log":
            name, tensor = f"blk.{layer}.ssm_a", -np.exp(tensor).reshape(-1, 1)
        elif part == "D":
            name, tensor = f"blk.{layer}.ssm_d", tensor.reshape(-1, 1)
        elif part == "norm.weight" and part != name and ("mixer." in name or "mamba." in name):
            tensor = tensor.reshape(groups, -1)
        elif part == "conv1d.weight":
            tensor = tensor.squeeze()
        elif name.endswith("shared_mlp.input_linear.weight"):
            end = "_shexp" if fixture.endswith("moe") else ""
            gate, up = np.split(tensor, 2)
            out[f"blk.{layer}.ffn_gate{end}.weight"], out[f"blk.{layer}.ffn_up{end}.weight"] = gate, up
            continue
        elif name.endswith("shared_mlp.output_linear.weight"):
            name = f"blk.{layer}.ffn_down{'_shexp' if fixture.endswith('moe') else ''}.weight"
        out[name.replace(".dt_bias", ".dt_proj.bias")] = tensor
    return out


def qwen_stacks(tensors):
    """Stacks whose gates lie above the ups."""
    for name in [name for name in tensors if ".experts.gate_up_proj" in name or ".experts.down_proj" in name]:
        layer, tensor = name.split(".")[2], tensors.pop(name)
        rows = tensor.shape[1] // 2
        parts = ({"down": tensor} if "down_proj" in name else {"gate": tensor[:, :rows], "up": tensor[:, rows:]})
        for part, values in parts.items():
            tensors[f"blk.{layer}.ffn_{part}_exps.weight"] = values


def llama4_stacks(tensors, config):
    """[experts, inputs, outputs], gates before ups; and the factors of the rule that scales positions."""
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name].swapaxes(1, 2)
    qwen_stacks(tensors)
    rule, count = config["rope_scaling"], config["head_dim"] // 2
    lengths = 2 * np.pi * config["rope_theta"] ** (np.arange(count) / count)
    assert rule["high_freq_factor"] == rule["low_freq_factor"] == 1
    tensors["rope_freqs.weight"] = np.where(lengths > rule["original_max_position_embeddings"], rule["factor"],
                                            1).astype(np.float32)


def gemma4(tensors, config):
    """Gates and ups stay one stack; what full layers turn of a head is said by factors."""
    out = {}
    for name, tensor in tensors.items():
        layer = name.split(".")[2] if ".layers." in name else ""
        for theirs, ours in (("router.scale", "ffn_gate_inp.scale"),
                             ("router.per_expert_scale", "ffn_down_exps.scale"),
                             ("layer_scalar", "layer_output_scale.weight"),
                             ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
                             ("experts.down_proj", "ffn_down_exps.weight")):
            if name.endswith(theirs):
                name = f"blk.{layer}.{ours}"
        out[name] = tensor
    rope, pairs = config["rope_parameters"]["full_attention"], config["global_head_dim"] // 2
    turned = int(config["global_head_dim"] * rope["partial_rotary_factor"] / 2)
    out["rope_freqs.weight"] = np.array([rope.get("factor", 1)] * turned + [1e30] * (pairs - turned), np.float32)
    return out


def add(out, name, tensor, is_bf16):
    tensor = np.ascontiguousarray(tensor)
    is_small = tensor.ndim == 1 or "conv1d" in name or name.endswith((".bias", ".ssm_a", ".ssm_d", "ssm_norm.weight"))
    if not is_bf16 or is_small or "ffn_gate_inp" in name:
        # What keeps its dimensions.
        is_row = (out.arch.startswith(("qwen35", "qwen3next")) and "shexp" in name
                  or out.arch in ("mamba2", "granitehybrid") and ".ssm_" in name)
        out.add_tensor(name, (tensor if is_row or tensor.ndim == 1 else tensor.squeeze()).astype(np.float32))
        return
    raw = (tensor.view(np.uint32) >> 16).astype(np.uint16)
    out.add_tensor(name, raw.view(np.uint8), raw_dtype=T.BF16)


def write(fixture, kind):
    source = FIXTURES / "models" / f"{fixture}-{kind}"
    folder = FIXTURES / "models" / f"{source.name}-gguf"
    folder.mkdir(exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    architecture, _ = ARCHITECTURES[fixture]
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    out = gguf.GGUFWriter(folder / "model.gguf", architecture)
    write_sizes(out, fixture, config)
    write_experts(out, fixture, config)
    tensors, is_bf16 = load(source / "model.safetensors")
    if fixture == "gpt-oss":
        tensors = unturned(tensors)
    if fixture in ("deepseek-v3-moe", "glm4-moe-lite"):
        split_heads(tensors, config)
    if fixture in DELTA:
        tensors = delta(tensors, fixture, config)
        qwen_stacks(tensors)
    if fixture in SPACES:
        tensors = spaces(tensors, fixture, config)
    if fixture == "llama4":
        llama4_stacks(tensors, config)
    if fixture in GEMMA4:
        tensors = gemma4(tensors, config)
    stacks, others = stacked(tensors)
    for name, tensor in others.items():
        if name.startswith(("blk.", "rope_freqs")):
            add(out, name, tensor, is_bf16)
            continue
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        # Dense layers among others have llama's names.
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias")) or gguf_files.gguf_name(name)
        if fixture in PAIRED and (heads := gguf_files.heads_of(name, config)):
            tensor = gguf_files.to_pairs(tensor, heads)
        add(out, theirs, tensor, is_bf16)
    for name, tensor in stacks.items():
        add(out, name, tensor, is_bf16)
    gguf_files.finish(out)
    goldens = json.loads((source / "goldens.json").read_text())
    goldens.update(model=folder.name, made_by="scripts/golden/gguf_mixtures.py")
    goldens.pop("half", None)  # the checkpoint's
    for case in goldens["cases"]:
        if case.get("logits"):
            case["logits"] = f"../{source.name}/{case['logits']}"
    (folder / "goldens.json").write_text(json.dumps(goldens) + "\n")


def make_experts():
    """3 experts of 32 columns, whose stacks have other types; the router is f32 as files have it."""
    rng = np.random.default_rng(5)
    hidden, width, experts, vocabulary = 256, 32, 3, 40
    kinds = [(T.Q4_K, T.Q6_K, T.Q8_0), (T.Q4_0, T.Q8_0, T.Q4_0), (T.MXFP4, T.Q5_K, T.Q5_0), (T.F16, T.Q3_K, T.MXFP4)]
    config = dict(num_hidden_layers=len(kinds), max_position_embeddings=128, hidden_size=hidden, intermediate_size=64,
                  num_attention_heads=2, num_key_value_heads=1, head_dim=16, bos_token_id=1, eos_token_id=2,
                  num_experts=experts, num_experts_per_tok=2)  # widths are told by tensors alone
    out = gguf.GGUFWriter(FIXTURES / "gguf" / "experts.gguf", "qwen3moe")
    write_sizes(out, "qwen3-moe", config)
    write_experts(out, "qwen3-moe", config)
    goldens = {}

    def stack(layer, part, kind, rows, cols):
        name = f"blk.{layer}.ffn_{part}_exps.weight"
        if kind == T.F16:
            raw = (np.round(rng.normal(0, 0.05, (experts, rows, cols)) * 64) / 64).astype(np.float16)
            values = raw.astype(np.float32)
            out.add_tensor(name, raw)
        else:
            per_block, _ = gguf.GGML_QUANT_SIZES[kind]
            blocks = gguf_files.repeated_blocks(rng, kind, experts * rows * cols // per_block)
            raw = blocks.reshape(experts, rows, -1)
            values = gguf.quants.dequantize(raw.reshape(experts * rows, -1), kind).astype(np.float32)
            values = values.reshape(experts, rows, cols)
            out.add_tensor(name, raw, raw_dtype=kind)
        for e in range(experts):
            goldens[f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"] = np.ascontiguousarray(
                values[e][[0, 1, rows // 2, rows - 1]])

    def plain(name, *shape):  # of few bits, which packs keep in little room
        values = rng.normal(0, 1 / shape[-1] ** 0.5, shape)
        out.add_tensor(name, (np.round(values * 32) / 32).astype(np.float16))

    def vector(name, size):
        out.add_tensor(name, rng.uniform(0.5, 1.5, size).astype(np.float32))

    plain("token_embd.weight", vocabulary, hidden)
    plain("output.weight", vocabulary, hidden)
    vector("output_norm.weight", hidden)
    for layer, (gate, up, down) in enumerate(kinds):
        plain(f"blk.{layer}.attn_q.weight", 32, hidden)
        plain(f"blk.{layer}.attn_k.weight", 16, hidden)
        plain(f"blk.{layer}.attn_v.weight", 16, hidden)
        plain(f"blk.{layer}.attn_output.weight", hidden, 32)
        for name, size in (("attn_norm", hidden), ("ffn_norm", hidden), ("attn_q_norm", 16), ("attn_k_norm", 16)):
            vector(f"blk.{layer}.{name}.weight", size)
        out.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", rng.normal(0, 0.1, (experts, hidden)).astype(np.float32))
        stack(layer, "gate", gate, width, hidden)
        stack(layer, "up", up, width, hidden)
        stack(layer, "down", down, hidden, width)
    gguf_files.finish(out)
    save_file(goldens, FIXTURES / "gguf" / "experts.safetensors")


def make_newer_types():
    """tests/fixtures/gguf/newer.gguf: NVFP4, with a scale of each tensor or expert beside some, and Q1_0."""
    rng = np.random.default_rng(8)
    hidden, width, experts, vocabulary = 128, 128, 3, 16
    config = dict(num_hidden_layers=1, max_position_embeddings=128, hidden_size=hidden, intermediate_size=64,
                  num_attention_heads=2, num_key_value_heads=2, head_dim=64, bos_token_id=1, eos_token_id=2,
                  num_experts=experts, num_experts_per_tok=2)
    out = gguf.GGUFWriter(FIXTURES / "gguf" / "newer.gguf", "qwen3moe")
    write_sizes(out, "qwen3-moe", config)
    write_experts(out, "qwen3-moe", config)
    goldens = {}

    def blocks(name, ours, kind, shape, scales=()):
        count = int(np.prod(shape)) // gguf.GGML_QUANT_SIZES[kind][0]
        few = gguf_files.random_blocks(rng, kind, 5)
        if kind == T.NVFP4:  # scales of ordinary size
            few[:, :4] = rng.integers(40, 60, (5, 4))
        few = few[rng.integers(0, 5, count)]
        values = gguf_files.values_of(few, kind).astype(np.float32).reshape(-1, *shape[-2:])
        out.add_tensor(f"blk.0.{name}.weight", few.reshape(*shape[:-1], -1), raw_dtype=kind)
        if scales:
            out.add_tensor(f"blk.0.{name}.scale", np.array(scales, np.float32))
        for e, one in enumerate(values):
            factor = np.float32(scales[e]) if scales else np.float32(1)
            goldens[f"model.layers.0.{ours.format(e)}.weight"] = (one * factor)[[0, 1, shape[-2] // 2, shape[-2] - 1]]

    plain = lambda *shape: (np.round(rng.normal(0, 1 / shape[-1] ** 0.5, shape) * 256) / 256)
    out.add_tensor("token_embd.weight", plain(vocabulary, hidden).astype(np.float16))
    out.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for name, size in (("attn_norm", hidden), ("ffn_norm", hidden), ("attn_q_norm", 64), ("attn_k_norm", 64)):
        out.add_tensor(f"blk.0.{name}.weight", np.ones(size, np.float32))
    out.add_tensor("blk.0.ffn_gate_inp.weight", plain(experts, hidden).astype(np.float32))
    blocks("attn_q", "self_attn.q_proj", T.NVFP4, (128, hidden), (0.0037,))
    blocks("attn_k", "self_attn.k_proj", T.Q1_0, (128, hidden))
    blocks("attn_v", "self_attn.v_proj", T.NVFP4, (128, hidden))
    blocks("attn_output", "self_attn.o_proj", T.Q1_0, (hidden, 128))
    blocks("ffn_gate_exps", "mlp.experts.{}.gate_proj", T.NVFP4, (experts, width, hidden), (0.01, 0.02, 0.005))
    blocks("ffn_up_exps", "mlp.experts.{}.up_proj", T.NVFP4, (experts, width, hidden))
    blocks("ffn_down_exps", "mlp.experts.{}.down_proj", T.Q1_0, (experts, hidden, width))
    gguf_files.finish(out)
    save_file(goldens, FIXTURES / "gguf" / "newer.safetensors")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ARCHITECTURES:
        for size in SIZES.get(wanted, ("tiny", "odd")):
            write(wanted, size)
    if not sys.argv[1:]:
        make_experts()
        make_newer_types()
