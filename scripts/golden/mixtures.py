#!/usr/bin/env python3
"""Writes the tiny checkpoints of families with mixtures of experts, and their golden outputs: two of
each, one of which has odd sizes.

    python scripts/golden/mixtures.py --out tests/fixtures/models [--only NAME ...]

scripts/golden/models.py says what is in a folder and what is needed. What is drawn has
transformers' names, which stack an expert's matrices on those of the others; files have the names
of released checkpoints, a tensor each. goldens.json has the experts that transformers' routers
chose for each prompt: [layer][token], a layer without a router being empty."""

import re

import torch
import transformers
from transformers import conversion_mapping

import decoders
import models

EXPERTS = re.compile(r"(.*)\.experts\.(gate_up_proj|down_proj)")
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# What files call an expert's gate, up and down, and the block that they are in.
PLAIN = ("mlp", "{e}.gate_proj", "{e}.up_proj", "{e}.down_proj")
MIXTRAL = ("block_sparse_moe", "{e}.w1", "{e}.w3", "{e}.w2")


class KimiK2Config(transformers.DeepseekV3Config):
    """Kimi-K2 has DeepSeek-V3's layers; transformers does not know its name."""
    model_type = "kimi_k2"


class KimiK2ForCausalLM(transformers.DeepseekV3ForCausalLM):
    config_class = KimiK2Config


transformers.AutoConfig.register("kimi_k2", KimiK2Config)
transformers.AutoModelForCausalLM.register(KimiK2Config, KimiK2ForCausalLM)
conversion_mapping.register_checkpoint_conversion_mapping(
    "kimi_k2", conversion_mapping.get_checkpoint_conversion_mapping("deepseek_v3"))


def draw(config, seed):
    """As decoders.py draws, and the buffers that correct scores: so that they change choices."""
    plain = without_quantisation(config)
    tensors = decoders.draw(plain, seed)
    made = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**plain))
    w = models.Weights(seed + 1)
    for name, buffer in made.named_buffers():
        if name.endswith("e_score_correction_bias"):
            w.normal(name, tuple(buffer.shape), 0.4)
    for name in tensors:
        if EXPERTS.match(name):  # as wide as a row of one expert
            tensors[name] = tensors[name] * (tensors[name].shape[1] ** 0.5 / tensors[name].shape[2] ** 0.5)
        if is_fp8(config, name):
            codes, scales = fp8(config, tensors[name])
            tensors[name] = fp8_values(config, codes, scales)
    return {**tensors, **w.tensors}


def is_fp8(config, name):
    """Of transformers' tensors or those of files: all products but routers and tables."""
    return config.get("quantization_config", {}).get("quant_method") == "fp8" and "_proj" in name


def fp8(config, matrices):
    """[..., rows, cols] as codes and a scale for each block, whole ones: as DeepSeek-V3's files."""
    high, wide = config["quantization_config"]["weight_block_size"]
    blocks = matrices.float().unflatten(-1, (-1, wide)).unflatten(-3, (-1, high))
    scales = blocks.abs().amax((-3, -1)) / 448
    if config["quantization_config"].get("scale_fmt") == "ue8m0":  # powers of two
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    codes = (blocks / scales[..., :, None, :, None]).to(torch.float8_e4m3fn)
    return codes.flatten(-4, -3).flatten(-2), scales


def fp8_values(config, codes, scales):
    high, wide = config["quantization_config"]["weight_block_size"]
    return codes.float() * scales.repeat_interleave(high, -2).repeat_interleave(wide, -1)


def fp8_on_disk(config, weights):
    out = {}
    for name, tensor in weights.items():
        out[name] = tensor
        if is_fp8(config, name):
            out[name], scales = fp8(config, tensor)
            if config["quantization_config"].get("scale_fmt") == "ue8m0":
                scales = (torch.log2(scales) + 127).to(torch.uint8)
            out[name + "_scale_inv"] = scales
    return out


def draw_llama4(config, seed):
    """As draw(); stacks are [experts, inputs, outputs]."""
    tensors = draw(config, seed)
    for name in tensors:
        if EXPERTS.match(name):  # as wide as a row of one expert
            tensors[name] = tensors[name] * tensors[name].shape[2] ** 0.5 / tensors[name].shape[1] ** 0.5
    return tensors


def draw_gpt_oss(config, seed):
    """As draw(); stacks are [experts, inputs, outputs], biases and sinks matter, gates and ups are
    beyond their clamps here and there. What is to be stored in MXFP4 is what that can hold."""
    made = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**without_quantisation(config)))
    w = models.Weights(seed)
    for name, parameter in made.named_parameters():
        shape = tuple(parameter.shape)
        if name.endswith("norm.weight"):
            w.normal(name, shape, 0.2, mean=1.0)
        elif name.endswith(("bias", "sinks")):
            w.normal(name, shape, 1.0 if name.endswith("sinks") else 0.3)
        elif EXPERTS.match(name):
            w.normal(name, shape, 1.6 / shape[1] ** 0.5)
            if "quantization_config" in config:
                values = mxfp4_values(*mxfp4(w.tensors[name].transpose(1, 2)))
                w.tensors[name] = values.transpose(1, 2).contiguous()
        else:
            w.normal(name, shape, 0.4 if "embed" in name else 1.6 / shape[1] ** 0.5)
    return w.tensors


def without_quantisation(config):
    return {key: value for key, value in config.items() if key != "quantization_config"}


def mxfp4(rows):
    """[..., cols] as blocks u8 [..., cols / 32, 16] and scales u8 [..., cols / 32] (OCP Microscaling
    1.0; nearest, of two the first)."""
    groups = rows.reshape(*rows.shape[:-1], -1, 32)
    exponents = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True))) - 2
    scaled = groups / torch.exp2(exponents)
    codes = (scaled.abs().unsqueeze(-1) - E2M1).abs().argmin(-1) + 8 * (scaled < 0)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    return blocks.to(torch.uint8), (exponents.squeeze(-1) + 127).to(torch.uint8)


def mxfp4_values(blocks, scales):
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).long()
    signed = torch.cat((E2M1, -E2M1))[codes]
    return (signed * torch.exp2(scales.float() - 127).unsqueeze(-1)).flatten(-2)


def gpt_oss_on_disk(weights):
    """Stacks in MXFP4 where nothing is lost by it, as they are elsewhere."""
    stacks = {name: tensor for name, tensor in weights.items() if EXPERTS.fullmatch(name)}
    packed = {}
    for name, tensor in stacks.items():
        if tensor.shape[1] % 32:
            return weights
        rows = tensor.float().transpose(1, 2)
        blocks, scales = mxfp4(rows)
        if not torch.equal(mxfp4_values(blocks, scales), rows):
            return weights
        packed[name] = {f"{name}_blocks": blocks.contiguous(), f"{name}_scales": scales.contiguous()}
    out = {}
    for name, tensor in weights.items():
        out.update(packed.get(name, {name: tensor}))
    return out


def on_disk(block, gate, up, down):
    """What turns transformers' tensors into those of released files."""

    def convert(weights):
        out = {}
        for name, tensor in weights.items():
            found = EXPERTS.fullmatch(name)
            name = name.replace(".mlp.", f".{block}.")
            if not found:
                out[name] = tensor
                continue
            stem = found[1].replace(".mlp", f".{block}") + ".experts."
            for e, matrix in enumerate(tensor):
                parts = {down: matrix}
                if found[2] == "gate_up_proj":
                    parts = dict(zip((gate, up), matrix.chunk(2)))
                for part, rows in parts.items():
                    out[f"{stem}{part.format(e=e)}.weight"] = rows.clone()
        return out

    return convert


def granite_on_disk(weights):
    """Stacks of all experts, gate above up."""
    renamed = (("experts.gate_up_proj", "input_linear.weight"),
               ("experts.down_proj", "output_linear.weight"),
               ("router.weight", "router.layer.weight"))
    out = {}
    for name, tensor in weights.items():
        for old, new in renamed:
            name = name.replace(f"block_sparse_moe.{old}", f"block_sparse_moe.{new}")
        out[name] = tensor
    return out


def qwen3_5_on_disk(weights):
    """Stacks, or where there are five experts one by one: both are read."""
    stack = next(tensor for name, tensor in weights.items() if EXPERTS.fullmatch(name))
    return weights if stack.shape[0] != 5 else on_disk(*PLAIN)(weights)


def chosen_experts(model, prompt):
    """[layer][token] rising lists."""
    out = [[] for _ in model.model.layers]
    hooks = []

    def keep(layer):
        def hook(_module, _inputs, outputs):
            out[layer] = [sorted(row) for row in outputs[2].tolist()]
        return hook

    for layer, block in enumerate(model.model.layers):
        for name, module in block.named_modules():
            if type(module).__name__.lower().endswith(("topkrouter", "topkgating", "textrouter")):
                hooks.append(module.register_forward_hook(keep(layer)))
    models.logits_of(model, prompt)
    for hook in hooks:
        hook.remove()
    return out


def pair(name, architecture, plain, strange, convert=on_disk(*PLAIN), fine=False):
    models.FAMILIES[plain["model_type"]] = models.Family(
        architecture, draw, on_disk=convert, describe=chosen_experts, quantise=fp8_on_disk)
    return (decoders.fixture(f"{name}-tiny", plain, fine=fine),
            decoders.fixture(f"{name}-odd", strange, dtype="bf16"))


SHARED = {"moe_intermediate_size": 12, "n_routed_experts": 8, "num_experts_per_tok": 3,
          "n_shared_experts": 1, "first_k_dense_replace": 1}
V3 = {**SHARED, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True}
V3_ODD = {**SHARED, "moe_intermediate_size": 7, "n_routed_experts": 9, "n_group": 3, "topk_group": 2,
          "n_shared_experts": 2, "routed_scaling_factor": 0.8, "norm_topk_prob": False}
GPT_OSS_YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "truncate": False, "original_max_position_embeddings": 64}
# Both ends of the ramp are one.
KIMI_YARN = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 64,
             "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
HEADS_ODD = {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 18,
             "intermediate_size": 29, "num_hidden_layers": 3, "vocab_size": 53,
             "rope_theta": 300.0}

FIXTURES = (
    *pair("mixtral", "MixtralForCausalLM",
          decoders.sizes("mixtral", num_local_experts=4, num_experts_per_tok=2,
                         sliding_window=None, rope_theta=1000000.0),
          decoders.odd("mixtral", num_local_experts=5, num_experts_per_tok=3, sliding_window=None),
          on_disk(*MIXTRAL), fine=True),
    *pair("qwen3-moe", "Qwen3MoeForCausalLM",
          decoders.sizes("qwen3_moe", head_dim=8, num_experts=8, num_experts_per_tok=2,
                         moe_intermediate_size=12, norm_topk_prob=True, mlp_only_layers=[],
                         decoder_sparse_step=1, rope_theta=1000000.0),
          decoders.odd("qwen3_moe", num_experts=3, num_experts_per_tok=3, moe_intermediate_size=13,
                       mlp_only_layers=[0], decoder_sparse_step=1, norm_topk_prob=False,
                       attention_bias=True)),
    *pair("olmoe", "OlmoeForCausalLM",
          decoders.sizes("olmoe", num_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5),
          decoders.sizes("olmoe", num_experts=7, num_experts_per_tok=5, norm_topk_prob=True,
                         **HEADS_ODD)),
    *pair("qwen2-moe", "Qwen2MoeForCausalLM",
          decoders.sizes("qwen2_moe", num_experts=6, num_experts_per_tok=2,
                         moe_intermediate_size=12, shared_expert_intermediate_size=20,
                         decoder_sparse_step=1),
          decoders.sizes("qwen2_moe", num_experts=7, num_experts_per_tok=3,
                         moe_intermediate_size=13, shared_expert_intermediate_size=11,
                         decoder_sparse_step=2, norm_topk_prob=True, **HEADS_ODD)),
    *pair("deepseek-v2-moe", "DeepseekV2ForCausalLM",
          decoders.sizes("deepseek_v2", topk_method="group_limited_greedy",
                         rope_scaling=decoders.LATENT_YARN,
                         **{**decoders.LATENT, **SHARED, "n_group": 4, "topk_group": 2,
                            "routed_scaling_factor": 1.7}),
          decoders.odd("deepseek_v2", topk_method="greedy",
                       **{**decoders.LATENT_ODD, **SHARED, "qk_nope_head_dim": 6,
                          "kv_lora_rank": 12, "n_routed_experts": 5, "moe_intermediate_size": 7})),
    *pair("deepseek-v3-moe", "DeepseekV3ForCausalLM",
          decoders.sizes("deepseek_v3", rope_scaling=decoders.LATENT_YARN,
                         **{**decoders.LATENT, **V3}),
          decoders.odd("deepseek_v3", **{**decoders.LATENT_ODD, **V3_ODD, "q_lora_rank": 13}), fine=True),
    *pair("kimi-k2", "DeepseekV3ForCausalLM",
          decoders.sizes("kimi_k2", rope_scaling=KIMI_YARN,
                         **{**decoders.LATENT, **V3, "rope_theta": 50000.0, "n_group": 1,
                            "topk_group": 1, "routed_scaling_factor": 2.827}),
          decoders.odd("kimi_k2", rope_scaling={**KIMI_YARN, "factor": 8.0},
                       **{**decoders.LATENT_ODD, **V3_ODD, "q_lora_rank": 13, "n_group": 1,
                          "topk_group": 1, "n_routed_experts": 6, "num_experts_per_tok": 6})),
    *pair("glm4-moe", "Glm4MoeForCausalLM",
          decoders.sizes("glm4_moe", head_dim=8, attention_bias=True, use_qk_norm=True,
                         partial_rotary_factor=0.5, **{**V3, "n_group": 1, "topk_group": 1}),
          decoders.odd("glm4_moe", head_dim=12, attention_bias=False, use_qk_norm=False,
                       partial_rotary_factor=0.5, rope_theta=300.0, **V3_ODD)),
    *pair("minimax-m2", "MiniMaxM2ForCausalLM",
          decoders.sizes("minimax_m2", head_dim=8, num_local_experts=8, num_experts_per_tok=3,
                         rotary_dim=4, rope_theta=5000000.0),
          decoders.odd("minimax_m2", head_dim=12, num_local_experts=5, num_experts_per_tok=2,
                       rotary_dim=6, rope_theta=300.0),
          on_disk(*MIXTRAL)),
    *pair("granitemoe", "GraniteMoeForCausalLM",
          decoders.sizes("granitemoe", num_local_experts=8, num_experts_per_tok=2,
                         attention_multiplier=0.7, embedding_multiplier=3.0,
                         residual_multiplier=0.4, logits_scaling=2.5, tie_word_embeddings=True),
          decoders.sizes("granitemoe", num_local_experts=5, num_experts_per_tok=3,
                         attention_multiplier=0.3, embedding_multiplier=0.5,
                         residual_multiplier=1.3, logits_scaling=0.5, attention_bias=True,
                         **HEADS_ODD),
          granite_on_disk),
)

# Delta nets and experts; files have the experts in stacks or, as the odd ones, one by one.
SHARED_GATED = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
                "shared_expert_intermediate_size": 10}
SHARED_GATED_ODD = {"num_experts": 5, "num_experts_per_tok": 5, "moe_intermediate_size": 7,
                    "shared_expert_intermediate_size": 11}
NO_DENSE = {"intermediate_size": "none"}
models.FAMILIES["qwen3_5_moe_text"] = models.Family(
    "Qwen3_5MoeForCausalLM", draw, on_disk=qwen3_5_on_disk, describe=chosen_experts)
FIXTURES += (
    decoders.fixture("qwen3-5-moe-tiny", decoders.sizes(
        "qwen3_5_moe_text", num_hidden_layers=4, full_attention_interval=4,
        **{**decoders.QWEN3_5, **SHARED_GATED, **NO_DENSE})),
    decoders.fixture("qwen3-5-moe-odd", decoders.odd(
        "qwen3_5_moe_text", attention_bias=True, tie_word_embeddings=True,
        **{**decoders.QWEN3_5_ODD, **SHARED_GATED_ODD, **NO_DENSE}), dtype="bf16"),
)
# Three value heads share each of two key heads: in GGUF files they are in another order.
FIXTURES += (decoders.fixture("qwen3-5-moe-thirds", decoders.sizes(
    "qwen3_5_moe_text", num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
    **{**decoders.QWEN3_5, **SHARED_GATED, **NO_DENSE, "linear_num_value_heads": 6})),)
# Some layers are dense; in the odd ones heads of keys are narrower than those of values.
FIXTURES += pair(
    "qwen3-next", "Qwen3NextForCausalLM",
    decoders.sizes("qwen3_next", num_hidden_layers=4, mlp_only_layers=[1], norm_topk_prob=True,
                   **{**decoders.QWEN3_5, **SHARED_GATED}),
    decoders.odd("qwen3_next", decoder_sparse_step=2, norm_topk_prob=False,
                 **{**decoders.QWEN3_5_ODD, **SHARED_GATED_ODD, "num_experts_per_tok": 3,
                    "linear_num_key_heads": 2, "linear_num_value_heads": 6}))

# Experts beside the MLP of each layer, behind a state space or attention.
FIXTURES += pair(
    "granitemoehybrid-moe", "GraniteMoeHybridForCausalLM",
    decoders.sizes("granitemoehybrid", num_local_experts=6, num_experts_per_tok=2,
                   **{**decoders.GRANITE4, "intermediate_size": 10}),
    decoders.sizes("granitemoehybrid", num_local_experts=5, num_experts_per_tok=3,
                   **{**decoders.GRANITE4_ODD, "intermediate_size": 7}),
    granite_on_disk)

# Flash: what "first_k_dense_replace" says is not what layers are.
FLASH = {key: value for key, value in V3.items() if key != "first_k_dense_replace"}
FIXTURES += pair(
    "glm4-moe-lite", "Glm4MoeLiteForCausalLM",
    decoders.sizes("glm4_moe_lite", rms_norm_eps=1e-3,
                   **{**decoders.LATENT, **FLASH, "n_group": 1, "topk_group": 1}),
    decoders.odd("glm4_moe_lite", mlp_layer_types=["sparse", "dense", "sparse"],
                 first_k_dense_replace=3, rope_interleave=False, rms_norm_eps=1e-3,
                 **{**decoders.LATENT_ODD, **FLASH, "moe_intermediate_size": 7, "n_routed_experts": 9,
                    "n_group": 3, "topk_group": 2, "n_shared_experts": 2,
                    "routed_scaling_factor": 0.8, "q_lora_rank": 13}))

# Experts beside the MLP of each layer, in stacks.
models.FAMILIES["gemma4_text"] = models.Family("Gemma4ForCausalLM", draw, describe=chosen_experts)
GEMMA4_EXPERTS = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2,
                  "moe_intermediate_size": 10}
FIXTURES += (
    decoders.fixture("gemma4-moe-tiny", decoders.sizes(
        "gemma4_text", **{**decoders.GEMMA4_K_EQ_V, **GEMMA4_EXPERTS, "num_hidden_layers": 3,
                          "layer_types": decoders.GEMMA4["layer_types"][:3]}), fine=True),
    decoders.fixture("gemma4-moe-odd", decoders.odd(
        "gemma4_text", **{**decoders.GEMMA4_ODD, **GEMMA4_EXPERTS, "num_experts": 5,
                          "top_k_experts": 3, "moe_intermediate_size": 7}), dtype="bf16"),
)


def llama4_choices(model, prompt):
    """As chosen_experts(); its routers give scores of which those that are not chosen are 0."""
    out = [[] for _ in model.model.layers]
    hooks = []
    for layer, block in enumerate(model.model.layers):
        for module in block.modules():
            if type(module).__name__ == "Llama4Router":
                hooks.append(module.register_forward_hook(
                    lambda _module, _inputs, outputs, layer=layer: out.__setitem__(
                        layer, [row.nonzero().flatten().tolist() for row in outputs[0]])))
    models.logits_of(model, prompt)
    for hook in hooks:
        hook.remove()
    return out


# Chunks end within prompts; stacks are [experts, inputs, outputs].
models.FAMILIES["llama4_text"] = models.Family("Llama4ForCausalLM", draw_llama4,
                                               describe=llama4_choices)
LLAMA4 = {"intermediate_size": 12, "intermediate_size_mlp": 24, "num_local_experts": 6,
          "num_experts_per_tok": 1, "attention_chunk_size": 32, "floor_scale": 16,
          "attn_scale": 0.3, "rope_theta": 500.0, "head_dim": 8}
FIXTURES += (
    decoders.fixture("llama4-tiny", decoders.sizes(
        "llama4_text", num_hidden_layers=4, rope_scaling=models.LLAMA3_ROPE,
        **{**LLAMA4, "interleave_moe_layer_step": 2})),
    decoders.fixture("llama4-odd", decoders.odd(
        "llama4_text", use_qk_norm=False, attention_bias=True, tie_word_embeddings=True,
        no_rope_layers=[0, 1, 1],
        **{**LLAMA4, "intermediate_size": 7, "num_local_experts": 5, "num_experts_per_tok": 2,
           "attention_chunk_size": 37}), dtype="bf16"),
)

# What GGUF files do not say is as in released ones; so is the rule that scales positions.
LLAMA4_RELEASED = {key: value for key, value in LLAMA4.items()
                   if key not in ("attention_chunk_size", "floor_scale", "attn_scale", "rope_theta")}
FIXTURES += (decoders.fixture("llama4-released", decoders.sizes(
    "llama4_text", num_hidden_layers=4, rope_theta=500000.0,
    rope_scaling={"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 1.0, "original_max_position_embeddings": 8192},
    **{**LLAMA4_RELEASED, "interleave_moe_layer_step": 2, "num_local_experts": 3})),)

models.FAMILIES["gpt_oss"] = models.Family("GptOssForCausalLM", draw_gpt_oss,
                                           on_disk=gpt_oss_on_disk, describe=chosen_experts)
FIXTURES += (
    decoders.fixture("gpt-oss-tiny", decoders.odd(
        "gpt_oss", hidden_size=22, intermediate_size=26, num_local_experts=5, num_experts_per_tok=3,
        num_attention_heads=6, num_key_value_heads=2, head_dim=12, num_hidden_layers=3,
        sliding_window=128, rope_theta=1000.0, rope_scaling=GPT_OSS_YARN), fine=True),
    decoders.fixture("gpt-oss-mxfp4", decoders.sizes(
        "gpt_oss", hidden_size=96, intermediate_size=64, num_local_experts=6, num_experts_per_tok=4,
        num_attention_heads=4, num_key_value_heads=1, head_dim=16, num_hidden_layers=3, vocab_size=97,
        sliding_window=128, swiglu_limit=1.5, rope_theta=150000.0, rope_scaling=GPT_OSS_YARN,
        quantization_config={"quant_method": "mxfp4",
                             "modules_to_not_convert": ["model.layers.*.self_attn",
                                                        "model.layers.*.mlp.router",
                                                        "model.embed_tokens", "lm_head"]}),
        dtype="bf16"),
)

FP8 = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                               "weight_block_size": [8, 32]}}
FIXTURES += (
    decoders.fixture("deepseek-v3-fp8", decoders.sizes(
        "deepseek_v3", hidden_size=64, intermediate_size=96,
        **{**decoders.LATENT, **V3, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 8,
           "qk_rope_head_dim": 8, "v_head_dim": 8, "moe_intermediate_size": 32}, **FP8)),
    decoders.fixture("qwen3-moe-fp8", decoders.sizes(
        "qwen3_moe", hidden_size=64, intermediate_size=96, head_dim=16, num_experts=6,
        num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True, mlp_only_layers=[1],
        decoder_sparse_step=1, rope_theta=1000000.0,
        quantization_config={**FP8["quantization_config"], "scale_fmt": "ue8m0"}), dtype="bf16"),
)

if __name__ == "__main__":
    models.main(FIXTURES, __doc__)
