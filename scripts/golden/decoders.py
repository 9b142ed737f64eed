#!/usr/bin/env python3
"""Writes the tiny checkpoints of the families that are traits of one decoder, and their golden
outputs: two of each, one of which has odd sizes.

    python scripts/golden/decoders.py --out tests/fixtures/models [--only NAME ...]

scripts/golden/models.py says what is in a folder and what is needed. Names and shapes of the
weights are transformers' own; what they hold is drawn here."""

import copy

import numpy as np
import transformers

import models
import phi3  # enters its family

# Gains that are stored less one.
STORED_LESS_ONE = ("gemma", "gemma2", "gemma3_text", "nemotron", "qwen3_5_text", "qwen3_5_moe_text",
                   "qwen3_next")


def is_norm(name):
    parts = name.split(".")
    return any("norm" in part or part.startswith("ln_") for part in parts)


def draw(config, seed):
    """Tensors of the model that transformers makes of `config`, its buffers and tied ones left out."""
    made = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**copy.deepcopy(config)))
    w = models.Weights(seed)
    less = config["model_type"] in STORED_LESS_ONE
    tied = made.config.tie_word_embeddings
    for name, parameter in made.named_parameters():
        shape = tuple(parameter.shape)
        if tied and name.startswith(("lm_head", "embed_out")):
            continue
        if any(part in name for part in ("linear_attn.", "mixer.", ".mamba.")) and \
                draw_recurrence(w, name, shape):
            continue
        if is_norm(name):
            is_gain = name.endswith(".weight")
            # Scores that nothing scales are to stay as soft as elsewhere.
            is_soft = config["model_type"] == "gemma4_text" and name.endswith(
                ("q_norm.weight", "k_norm.weight"))
            w.normal(name, shape, 0.1 if is_soft else 0.2,
                     mean=0.5 if is_soft else 1.0 if is_gain and not less else 0.0)
        elif name.endswith(".bias"):
            w.normal(name, shape, 0.3)
        elif len(shape) == 1:
            # Gains and factors of Gemma 4's routers, which see rows divided by the root of their width.
            mean = shape[0] ** 0.5 if name.endswith("router.scale") else 1.0
            w.normal(name, shape, 0.3 * mean, mean=mean)
        elif "embed" in name or "wte" in name or "wpe" in name:
            # What is scaled ends up as large as elsewhere: else tokens repeat themselves.
            scale = np.sqrt(config.get("hidden_size_per_layer_input", 1)) if "per_layer" in name \
                else np.sqrt(shape[1]) if config["model_type"].startswith("gemma") else \
                config.get("embedding_multiplier", config.get("scale_emb", 1.0))
            w.normal(name, shape, 0.4 / scale)
        else:
            transposed = any(part in name for part in ("c_attn", "c_proj", "c_fc")) and \
                config["model_type"] == "gpt2"
            w.normal(name, shape, 1.6 / np.sqrt(shape[0] if transposed else shape[1]))
    # What is no parameter, but stored.
    for name, buffer in made.named_buffers():
        if name.endswith("layer_scalar"):
            w.normal(name, tuple(buffer.shape), 0.2, mean=0.8)
    return w.tensors


def draw_recurrence(w, name, shape):
    """What a gated delta net or a state space has of its own: gates that keep some of a state for dozens of tokens, a
    gain that is stored as it is. Whether `name` was one of these."""
    if name.endswith("A_log"):
        w.normal(name, shape, 0.5)
    elif name.endswith("dt_bias"):
        w.normal(name, shape, 0.7, mean=-2.5)
    elif name.endswith("norm.weight"):
        w.normal(name, shape, 0.2, mean=1.0)
    elif name.endswith("conv1d.weight"):
        w.normal(name, shape, 0.7)
    else:
        return False
    return True


def sizes(model_type, **changes):
    """A config of 16 columns, two heads; what `changes` does not say is alike for all."""
    config = {"model_type": model_type, "hidden_size": 16, "intermediate_size": 24,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "vocab_size": 61, "max_position_embeddings": 256, "tie_word_embeddings": False,
              "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config.update(changes)
    return {key: value for key, value in config.items() if value != "none"}


def odd(model_type, **changes):
    """Sizes that are no multiple of anything; heads wider than their share."""
    return sizes(model_type, **{"hidden_size": 21, "intermediate_size": 29, "head_dim": 10,
                                "num_attention_heads": 3, "num_key_value_heads": 1,
                                "num_hidden_layers": 3, "vocab_size": 53, **changes})


def fixture(name, config, **options):
    return models.Fixture(name, config, prompt_lengths=(9, 140), greedy_tokens=64,
                          min_margin=0.0005, **options)


def pair(name, architecture, plain, strange, fine=False):
    models.FAMILIES[plain["model_type"]] = models.Family(architecture, draw)
    return fixture(f"{name}-tiny", plain, fine=fine), fixture(f"{name}-odd", strange, dtype="bf16")


def old(model_type, **changes):
    """Sizes as the first decoders call them."""
    config = {"model_type": model_type, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 256,
              "vocab_size": 61, "bos_token_id": 1, "eos_token_id": 2}
    return {**config, **changes}


GEMMA = {"tie_word_embeddings": True, "head_dim": 6, "rms_norm_eps": 1e-6}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
QK_ODD = {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 18, "head_dim": "none"}

QWEN3_5 = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
           "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "head_dim": 8,
           "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                               "partial_rotary_factor": 0.25}}
QWEN3_5_ODD = {"linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_key_head_dim": 5,
               "linear_value_head_dim": 7, "linear_conv_kernel_dim": 3, "head_dim": 12,
               "layer_types": ["linear_attention", "full_attention", "linear_attention"],
               "rope_parameters": {"rope_type": "default", "rope_theta": 300.0,
                                   "partial_rotary_factor": 0.5}}

# State spaces, and nothing else.
MAMBA2 = {"num_heads": 4, "head_dim": 8, "expand": 2, "n_groups": 2, "state_size": 8,
          "conv_kernel": 4, "chunk_size": 16, "intermediate_size": "none",
          "num_attention_heads": "none", "num_key_value_heads": "none",
          "max_position_embeddings": "none"}
MAMBA2_ODD = {**MAMBA2, "hidden_size": 18, "num_heads": 3, "head_dim": 12, "n_groups": 1,
              "state_size": 5, "conv_kernel": 3, "use_conv_bias": False,
              "time_step_limit": [0.05, 0.15], "num_hidden_layers": 3, "vocab_size": 53}
# Beside attention.
GRANITE4 = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8,
            "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 16,
            "shared_intermediate_size": 24, "attention_multiplier": 0.7,
            "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.5,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
GRANITE4_ODD = {**GRANITE4, "hidden_size": 18, "num_attention_heads": 3, "num_key_value_heads": 1,
                "mamba_n_heads": 6, "mamba_d_head": 6, "mamba_n_groups": 2, "mamba_d_state": 5,
                "mamba_d_conv": 3, "mamba_conv_bias": False, "shared_intermediate_size": 29,
                "vocab_size": 53, "position_embedding_type": "rope", "rope_theta": 300.0,
                "layer_types": ["full_attention", "linear_attention", "linear_attention"]}

# Latent attention; queries by way of a row of their own in the first.
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
          "qk_rope_head_dim": 4, "v_head_dim": 8, "rope_theta": 10000.0}
LATENT_ODD = {"hidden_size": 18, "num_key_value_heads": 3, "head_dim": "none", "q_lora_rank": None,
              "kv_lora_rank": 11, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
              "rope_theta": 300.0}
LATENT_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
               "beta_fast": 32, "beta_slow": 1, "mscale": 0.7, "mscale_all_dim": 1.0}

# Of six layers the last three read what the second and the third keep.
GEMMA4 = {"head_dim": 6, "global_head_dim": 8, "num_hidden_layers": 6, "sliding_window": 32,
          "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
          "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "final_logit_softcapping": 1.5,
          "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 61,
          "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
          "rms_norm_eps": 1e-6, "pad_token_id": None,
          "rope_parameters": {
              "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5,
                                 "rope_theta": 10000.0},
              "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}
GEMMA4_ODD = {**GEMMA4, "hidden_size": 24, "head_dim": 10, "global_head_dim": 14,
              "num_hidden_layers": 5, "num_key_value_heads": 3, "num_global_key_value_heads": 1,
              "layer_types": ["sliding_attention", "full_attention", "full_attention",
                              "sliding_attention", "full_attention"],
              "attention_k_eq_v": True, "num_kv_shared_layers": 3, "use_double_wide_mlp": False,
              "hidden_size_per_layer_input": 11, "vocab_size_per_layer_input": 53,
              "sliding_window": 17, "final_logit_softcapping": None,
              "rope_parameters": {
                  "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.4,
                                     "rope_theta": 900.0, "factor": 2.0},
                  "sliding_attention": {"rope_type": "default", "rope_theta": 70.0}}}
# As the largest dense one: none is shared, keys are the values of layers without a window.
GEMMA4_K_EQ_V = {**GEMMA4, "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
                 "attention_k_eq_v": True, "num_key_value_heads": 4,
                 "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0}

FIXTURES = (
    # No padding token: transformers 5.24 makes its row of the table zeros whenever it loads one.
    *pair("youtu", "YoutuForCausalLM",
          sizes("youtu", pad_token_id="none", **{**LATENT, "tie_word_embeddings": True}),
          odd("youtu", rope_interleave=False, tie_word_embeddings=True, pad_token_id="none",
              **{**LATENT_ODD, "q_lora_rank": 13})),
    *pair("minicpm3", "MiniCPM3ForCausalLM",
          sizes("minicpm3", scale_emb=12, scale_depth=1.4, dim_model_base=8, rms_norm_eps=1e-5,
                **{**LATENT, "tie_word_embeddings": True}),
          odd("minicpm3", scale_emb=3, scale_depth=2.5, dim_model_base=None, rms_norm_eps=1e-4,
              **LATENT_ODD)),
    *pair("deepseek-v2", "DeepseekV2ForCausalLM",
          sizes("deepseek_v2", first_k_dense_replace=2,
                rope_scaling=LATENT_YARN, **LATENT),
          # transformers takes heads of an even width only.
          odd("deepseek_v2", first_k_dense_replace=3,
              **{**LATENT_ODD, "qk_nope_head_dim": 6, "kv_lora_rank": 12})),
    *pair("deepseek-v3", "DeepseekV3ForCausalLM",
          sizes("deepseek_v3", first_k_dense_replace=2, rope_scaling=LATENT_YARN, **LATENT),
          odd("deepseek_v3", first_k_dense_replace=4, **{**LATENT_ODD, "q_lora_rank": 13})),
    *pair("qwen3-5", "Qwen3_5ForCausalLM",
          sizes("qwen3_5_text", num_hidden_layers=4, full_attention_interval=4, **QWEN3_5),
          odd("qwen3_5_text", attention_bias=True, tie_word_embeddings=True, **QWEN3_5_ODD),
          fine=True),
    *pair("gemma", "GemmaForCausalLM", sizes("gemma", hidden_act="gelu", **GEMMA),
          odd("gemma", hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True)),
    *pair("gemma2", "Gemma2ForCausalLM",
          sizes("gemma2", sliding_window=32, query_pre_attn_scalar=6,
                attn_logit_softcapping=3.0, final_logit_softcapping=1.5, num_hidden_layers=3,
                **GEMMA),
          odd("gemma2", sliding_window=17, query_pre_attn_scalar=5, attn_logit_softcapping=None,
              final_logit_softcapping=1.1, tie_word_embeddings=True, hidden_size=24,
              layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
    *pair("gemma3", "Gemma3ForCausalLM",
          sizes("gemma3_text", sliding_window=32, query_pre_attn_scalar=6, num_hidden_layers=7,
                sliding_window_pattern=6, rope_theta=1000000.0, rope_local_base_freq=500.0,
                rope_scaling={"rope_type": "linear", "factor": 8.0}, **GEMMA),
          odd("gemma3_text", sliding_window=17, query_pre_attn_scalar=5, tie_word_embeddings=True,
              hidden_size=24, layer_types=["sliding_attention", "full_attention",
                                           "sliding_attention"],
              rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 900.0},
                               "sliding_attention": {"rope_type": "default",
                                                     "rope_theta": 70.0}})),
    *pair("gemma4", "Gemma4ForCausalLM", sizes("gemma4_text", **GEMMA4),
          odd("gemma4_text", **GEMMA4_ODD)),
    fixture("gemma4-k-eq-v", sizes("gemma4_text", **GEMMA4_K_EQ_V)),
    *pair("glm", "GlmForCausalLM",
          sizes("glm", head_dim=8, attention_bias=True, partial_rotary_factor=0.5,
                rms_norm_eps=1.5625e-7),
          odd("glm", head_dim=12, attention_bias=False, partial_rotary_factor=0.5)),
    *pair("glm4", "Glm4ForCausalLM",
          sizes("glm4", head_dim=8, attention_bias=True, partial_rotary_factor=0.5),
          odd("glm4", head_dim=12, attention_bias=False, partial_rotary_factor=0.5,
              rope_theta=300.0)),
    *pair("granite", "GraniteForCausalLM",
          sizes("granite", attention_multiplier=0.7, embedding_multiplier=3.0,
                residual_multiplier=0.4, logits_scaling=2.5, tie_word_embeddings=True),
          sizes("granite", attention_multiplier=0.3, embedding_multiplier=0.5,
                residual_multiplier=1.3, logits_scaling=0.5, attention_bias=True, mlp_bias=True,
                intermediate_size=29, num_attention_heads=3, num_key_value_heads=1, hidden_size=18,
                vocab_size=53)),
    *pair("mamba2", "Mamba2ForCausalLM", sizes("mamba2", **MAMBA2),
          sizes("mamba2", tie_word_embeddings=True, **MAMBA2_ODD)),
    *pair("granitemoehybrid", "GraniteMoeHybridForCausalLM",
          sizes("granitemoehybrid", num_local_experts=0, tie_word_embeddings=True,
                pad_token_id=None, **GRANITE4),
          sizes("granitemoehybrid", num_local_experts=0, **GRANITE4_ODD)),
    *pair("cohere", "CohereForCausalLM",
          sizes("cohere", logit_scale=0.25, tie_word_embeddings=True, rope_theta=10000.0),
          sizes("cohere", logit_scale=1.5, tie_word_embeddings=True, attention_bias=True,
                num_hidden_layers=3, intermediate_size=29, num_attention_heads=3,
                num_key_value_heads=1, hidden_size=18, vocab_size=53, rope_theta=300.0)),
    *pair("cohere2", "Cohere2ForCausalLM",
          sizes("cohere2", logit_scale=0.25, tie_word_embeddings=True, sliding_window=32,
                sliding_window_pattern=4, num_hidden_layers=4, rope_theta=10000.0),
          sizes("cohere2", logit_scale=1.5, tie_word_embeddings=True, num_hidden_layers=3,
                intermediate_size=29, num_attention_heads=3, num_key_value_heads=1, hidden_size=18,
                vocab_size=53, sliding_window=17, rope_theta=300.0,
                layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
    *pair("olmo2", "Olmo2ForCausalLM", sizes("olmo2", rms_norm_eps=1e-6),
          sizes("olmo2", attention_bias=False, num_hidden_layers=3, intermediate_size=29,
                num_attention_heads=3, num_key_value_heads=1, hidden_size=18, vocab_size=53,
                rope_theta=300.0)),
    *pair("olmo3", "Olmo3ForCausalLM",
          sizes("olmo3", rms_norm_eps=1e-6, sliding_window=32, num_hidden_layers=4,
                rope_theta=500000.0, rope_scaling=YARN),
          sizes("olmo3", num_hidden_layers=3, intermediate_size=29, num_attention_heads=3,
                num_key_value_heads=1, hidden_size=18, vocab_size=53, sliding_window=17,
                layer_types=["full_attention", "sliding_attention", "sliding_attention"],
                rope_theta=300.0)),
    *pair("smollm3", "SmolLM3ForCausalLM",
          sizes("smollm3", num_hidden_layers=4, tie_word_embeddings=True, rope_theta=5000000.0),
          sizes("smollm3", num_hidden_layers=3, intermediate_size=29, num_attention_heads=3,
                num_key_value_heads=1, hidden_size=18, vocab_size=53, attention_bias=True,
                mlp_bias=True, no_rope_layers=[0, 1, 0], rope_theta=300.0)),
    *pair("seed-oss", "SeedOssForCausalLM",
          sizes("seed_oss", head_dim=8, attention_bias=True, attention_out_bias=False,
                rope_theta=10000.0, attention_dropout=0.0, residual_dropout=0.0),
          odd("seed_oss", attention_bias=True, attention_out_bias=True, mlp_bias=True,
              rope_theta=300.0)),
    # Tied, so no padding token, as above.
    *pair("ernie4-5", "Ernie4_5ForCausalLM",
          sizes("ernie4_5", head_dim=8, use_bias=False, rms_norm_eps=1e-5, rope_theta=10000.0,
                tie_word_embeddings=True, pad_token_id=None),
          odd("ernie4_5", hidden_size=18, head_dim=None, num_key_value_heads=None, use_bias=True,
              rope_theta=300.0, pad_token_id=None)),
    *pair("exaone4", "Exaone4ForCausalLM",
          sizes("exaone4", num_hidden_layers=4, sliding_window=32, sliding_window_pattern="LLLG",
                layer_types=["sliding_attention"] * 3 + ["full_attention"], rope_theta=1000000.0),
          odd("exaone4", hidden_size=18, sliding_window=17, rope_theta=300.0,
              layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
    *pair("starcoder2", "Starcoder2ForCausalLM",
          sizes("starcoder2", sliding_window=32, use_bias=True, tie_word_embeddings=True,
                hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-5),
          sizes("starcoder2", sliding_window=None, use_bias=False, num_hidden_layers=3,
                intermediate_size=29, num_attention_heads=3, num_key_value_heads=1, hidden_size=18,
                vocab_size=53, hidden_act="gelu", rope_theta=300.0)),
    *pair("nemotron", "NemotronForCausalLM",
          sizes("nemotron", hidden_act="relu2", norm_eps=1e-5, partial_rotary_factor=0.5),
          odd("nemotron", hidden_act="relu2", head_dim=12, attention_bias=True, mlp_bias=True,
              partial_rotary_factor=0.5, rope_theta=300.0)),
    *pair("stablelm", "StableLmForCausalLM",
          sizes("stablelm", hidden_size=32, partial_rotary_factor=0.25, use_qkv_bias=True,
                num_key_value_heads=4),
          sizes("stablelm", num_hidden_layers=3, intermediate_size=29, num_attention_heads=3,
                num_key_value_heads=1, hidden_size=36, vocab_size=53, use_parallel_residual=True,
                partial_rotary_factor=0.5, rope_theta=300.0)),
    *pair("phi", "PhiForCausalLM",
          sizes("phi", hidden_size=32, hidden_act="gelu_new", partial_rotary_factor=0.5,
                num_key_value_heads=4),
          sizes("phi", num_hidden_layers=3, intermediate_size=29, num_attention_heads=3,
                num_key_value_heads=1, hidden_size=30, vocab_size=53, partial_rotary_factor=0.4,
                hidden_act="gelu_new", rope_theta=300.0)),
    *pair("ministral3", "Ministral3ForCausalLM",
          sizes("ministral3", head_dim=8, rope_parameters={
              "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
              "original_max_position_embeddings": 48, "beta_fast": 32.0, "beta_slow": 1.0,
              "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}),
          odd("ministral3", sliding_window=17, rope_parameters={
              "rope_type": "yarn", "rope_theta": 300.0, "factor": 2.5,
              "original_max_position_embeddings": 30, "llama_4_scaling_beta": 0.7})),
    *pair("falcon", "FalconForCausalLM",
          sizes("falcon", intermediate_size="none", num_key_value_heads="none", bias=False,
                new_decoder_architecture=False, multi_query=True, parallel_attn=True, alibi=False,
                tie_word_embeddings=True),
          sizes("falcon", intermediate_size="none", num_key_value_heads="none",
                ffn_hidden_size=29, hidden_size=36, num_attention_heads=6, num_kv_heads=2,
                new_decoder_architecture=True, bias=True, alibi=False, num_hidden_layers=3,
                vocab_size=53, rope_theta=300.0)),
    fixture("falcon-serial-tiny",
            sizes("falcon", intermediate_size="none", num_key_value_heads="none", bias=True,
                  new_decoder_architecture=False, multi_query=False, parallel_attn=False,
                  alibi=False, tie_word_embeddings=True)),
    *pair("falcon-rw", "FalconForCausalLM",
          sizes("falcon", intermediate_size="none", num_key_value_heads="none", bias=True,
                new_decoder_architecture=False, multi_query=False, parallel_attn=False,
                alibi=True, tie_word_embeddings=True),
          sizes("falcon", intermediate_size="none", num_key_value_heads="none", ffn_hidden_size=29,
                hidden_size=36, num_attention_heads=6, num_kv_heads=3, bias=False,
                new_decoder_architecture=True, num_hidden_layers=3, vocab_size=53, alibi=True)),
    *pair("bloom", "BloomForCausalLM",
          {**old("bloom", hidden_size=16, seq_length=256, tie_word_embeddings=True), },
          {**old("bloom", hidden_size=18, n_head=3, n_layer=3, seq_length=256, vocab_size=53,
                 tie_word_embeddings=True)}),
    *pair("gpt2", "GPT2LMHeadModel", old("gpt2", tie_word_embeddings=True),
          old("gpt2", n_embd=18, n_head=3, n_layer=3, n_inner=29, vocab_size=53,
              activation_function="relu", tie_word_embeddings=True), fine=True),
    *pair("gpt-neox", "GPTNeoXForCausalLM",
          sizes("gpt_neox", hidden_size=32, num_key_value_heads="none", rotary_pct=0.25,
                use_parallel_residual=True, hidden_act="gelu"),
          sizes("gpt_neox", hidden_size=30, num_attention_heads=3, num_key_value_heads="none",
                intermediate_size=29, num_hidden_layers=3, vocab_size=53, rotary_pct=0.6,
                use_parallel_residual=False, hidden_act="gelu_new", rotary_emb_base=300)),
    *pair("gptj", "GPTJForCausalLM",
          old("gptj", n_embd=32, rotary_dim=4, tie_word_embeddings=False),
          old("gptj", n_embd=18, n_head=3, n_layer=3, n_inner=29, vocab_size=53, rotary_dim=6,
              tie_word_embeddings=False)),
    # Kinds of rotary positions.
    fixture("llama-tiny-yarn", sizes("llama", attention_bias=False, mlp_bias=False,
                                     rope_theta=10000.0, rope_scaling=YARN)),
    fixture("llama-tiny-dynamic", sizes("llama", attention_bias=False, mlp_bias=False,
                                        rope_theta=10000.0,
                                        rope_scaling={"rope_type": "dynamic", "factor": 2.0})),
    fixture("phi3-tiny-longrope",
            sizes("phi3", hidden_size=32, max_position_embeddings=1024,
                  original_max_position_embeddings=256, partial_rotary_factor=0.75,
                  rope_theta=10000.0, sliding_window=None, attention_dropout=0.0, embd_pdrop=0.0,
                  resid_pdrop=0.0,
                  rope_scaling={"type": "longrope", "short_factor": [1.0, 1.3, 2.1],
                                "long_factor": [1.5, 4.0, 9.0]})),
)

if __name__ == "__main__":
    models.main(FIXTURES, __doc__)
