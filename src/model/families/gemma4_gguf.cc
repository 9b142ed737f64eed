#include "src/model/families/gemma4_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {
constexpr const char* kGemma4Damaged = "download the file again";
constexpr const char* kGemma4NotRead = "such models are not read";

struct Gemma4Name {
  std::string_view name, gguf;
};
constexpr Gemma4Name kOfModel[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
    {"norm.weight", "output_norm.weight"}};
// Without ".weight" or ".bias".
constexpr Gemma4Name kOfLayer[] = {{"input_layernorm", "attn_norm"},
                                   {"self_attn.q_proj", "attn_q"},
                                   {"self_attn.k_proj", "attn_k"},
                                   {"self_attn.v_proj", "attn_v"},
                                   {"self_attn.o_proj", "attn_output"},
                                   {"self_attn.q_norm", "attn_q_norm"},
                                   {"self_attn.k_norm", "attn_k_norm"},
                                   {"post_attention_layernorm", "post_attention_norm"},
                                   {"pre_feedforward_layernorm", "ffn_norm"},
                                   {"post_feedforward_layernorm", "post_ffw_norm"},
                                   {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
                                   {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
                                   {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
                                   {"mlp.gate_proj", "ffn_gate"},
                                   {"mlp.up_proj", "ffn_up"},
                                   {"mlp.down_proj", "ffn_down"},
                                   {"per_layer_input_gate", "inp_gate"},
                                   {"per_layer_projection", "proj"},
                                   {"post_per_layer_input_norm", "post_norm"},
                                   {"router.proj", "ffn_gate_inp"},
                                   {"experts.{e}.gate_proj", "ffn_gate_exps.{e}"},
                                   {"experts.{e}.up_proj", "ffn_up_exps.{e}"},
                                   {"experts.{e}.down_proj", "ffn_down_exps.{e}"}};
constexpr Gemma4Name kWholeOfLayer[] = {{"router.scale", "ffn_gate_inp.scale"},
                                        {"router.per_expert_scale", "ffn_down_exps.scale"},
                                        {"layer_scalar", "layer_output_scale.weight"}};

std::string_view gemma4_found_in(std::span<const Gemma4Name> names, std::string_view name) {
  for (const Gemma4Name& one : names)
    if (one.name == name) return one.gguf;
  return {};
}

// Columns of full layers' heads that are turned: the file has a factor for each pair, and one that
// no position turns.
nlohmann::json gemma4_full_rope(const GgufKeys& keys, int64_t head_dim) {
  nlohmann::json out{{"rope_type", "proportional"},
                     {"rope_theta", keys.number(keys.prefix() + "rope.freq_base").value_or(1e6)},
                     {"partial_rotary_factor", 1.0}};
  const io::TensorEntry* tensor = keys.tensor("rope_freqs.weight");
  if (!tensor) return out;
  constexpr float kStill = 1e20f;
  const std::vector<float> factors = keys.read_vector(*tensor, head_dim / 2);
  const auto still =
      std::find_if(factors.begin(), factors.end(), [](float factor) { return factor > kStill; });
  const float factor = factors.front();
  const bool is_even =
      std::all_of(factors.begin(), still, [&](float one) { return one == factor; }) &&
      std::all_of(still, factors.end(), [&](float one) { return one > kStill; });
  if (still == factors.begin() || !is_even || !(factor > 0))
    keys.refuse(
        "rope_freqs.weight is not one factor for the first pairs of a head and none for "
        "the others",
        kGemma4NotRead);
  out["partial_rotary_factor"] =
      static_cast<double>(still - factors.begin()) / static_cast<double>(factors.size());
  if (factor != 1) out["factor"] = factor;
  return out;
}

// Layers that read others' keys and values may have MLPs of twice the width.
void read_gemma4_widths(const GgufKeys& keys, int64_t layers, nlohmann::json& config) {
  const std::string key = keys.prefix() + "feed_forward_length";
  const int64_t first_shared = layers - config["num_kv_shared_layers"].get<int64_t>();
  const std::vector<int64_t> widths = keys.integers(key, layers);
  if (widths.empty()) keys.refuse(fmt::format("key {} is missing", key), kGemma4Damaged);
  const int64_t width = widths.front();
  const bool is_double = width <= INT32_MAX / 2 && widths.back() == 2 * width;
  for (int64_t layer = 0; layer < layers; ++layer)
    if (widths[static_cast<size_t>(layer)] !=
        (is_double && layer >= first_shared ? 2 * width : width))
      keys.refuse(
          fmt::format("key {} is {} of layer {}", key, widths[static_cast<size_t>(layer)], layer),
          kGemma4NotRead);
  config["use_double_wide_mlp"] = is_double;
}

// Those with a window, and those without.
void read_gemma4_heads(const GgufKeys& keys, const std::vector<bool>& windows,
                       nlohmann::json& config) {
  const std::string p = keys.prefix();
  const auto layers = static_cast<int64_t>(windows.size());
  const int64_t first_shared = layers - config["num_kv_shared_layers"].get<int64_t>();
  std::vector<int64_t> heads = keys.integers(p + "attention.head_count_kv", layers);
  if (heads.empty()) heads.assign(windows.size(), config["num_attention_heads"].get<int64_t>());
  bool keys_are_values = false;
  std::optional<int64_t> full, windowed;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto at = static_cast<size_t>(layer);
    auto& known = windows[at] ? windowed : full;
    if (!known) known = heads[at];
    if (*known != heads[at])
      keys.refuse(fmt::format("key {}attention.head_count_kv differs among layers of one kind", p),
                  kGemma4NotRead);
    if (!windows[at] && layer < first_shared &&
        !keys.tensor(fmt::format("blk.{}.attn_v.weight", layer)) &&
        !keys.tensor(fmt::format("blk.{}.attn_qkv.weight", layer)))
      keys_are_values = true;
  }
  config["num_key_value_heads"] = windowed.value_or(full.value_or(1));
  config["attention_k_eq_v"] = keys_are_values;
  if (keys_are_values && full) config["num_global_key_value_heads"] = *full;
  config["attention_bias"] = keys.has_attention_bias();
}

void read_gemma4_experts(const GgufKeys& keys, nlohmann::json& config) {
  const std::string p = keys.prefix();
  const int64_t experts = keys.integer(p + "expert_count").value_or(0);
  config["enable_moe_block"] = experts > 0;
  if (experts <= 0) return;
  config["num_experts"] = experts;
  config["top_k_experts"] = keys.need_integer(p + "expert_used_count");
  config["moe_intermediate_size"] = keys.need_integer(p + "expert_feed_forward_length");
}

void read_gemma4_token_rows(const GgufKeys& keys, nlohmann::json& config) {
  const int64_t columns =
      keys.integer(keys.prefix() + "embedding_length_per_layer_input").value_or(0);
  config["hidden_size_per_layer_input"] = columns;
  if (columns <= 0) return;
  const io::TensorEntry* table = keys.tensor("per_layer_token_embd.weight");
  if (!table || table->shape.size() != 2)
    keys.refuse("per_layer_token_embd.weight is missing or no matrix", kGemma4Damaged);
  config["vocab_size_per_layer_input"] = table->shape[0];
}
}  // namespace

std::string gemma4_gguf_name(const std::string& tensor) {
  constexpr std::string_view kLayers = "layers.";
  if (!tensor.starts_with(kLayers)) return std::string(gemma4_found_in(kOfModel, tensor));
  const size_t dot = tensor.find('.', kLayers.size());
  const std::string block = "blk." + tensor.substr(kLayers.size(), dot - kLayers.size()) + ".";
  const std::string own = tensor.substr(dot + 1);
  if (const auto whole = gemma4_found_in(kWholeOfLayer, own); !whole.empty())
    return block + std::string(whole);
  const size_t end = own.rfind('.');
  const auto stem = gemma4_found_in(kOfLayer, std::string_view(own).substr(0, end));
  return stem.empty() ? std::string() : block + std::string(stem) + own.substr(end);
}

std::string gemma4_of_gguf(const GgufKeys& keys) {
  const std::string p = keys.prefix();
  const int64_t head_dim = keys.need_integer(p + "attention.key_length");
  const int64_t windowed = keys.integer(p + "attention.key_length_swa").value_or(head_dim);
  if (head_dim < 2 || windowed < 2)
    keys.refuse(fmt::format("heads are {} and {} wide", head_dim, windowed), kGemma4Damaged);
  for (const auto& [name, width] : {std::pair{"attention.value_length", head_dim},
                                    std::pair{"attention.value_length_swa", windowed},
                                    std::pair{"rope.dimension_count", head_dim},
                                    std::pair{"rope.dimension_count_swa", windowed}})
    if (keys.integer(p + name).value_or(width) != width)
      keys.refuse(fmt::format("key {}{} is not {}, a head's width", p, name, width),
                  kGemma4NotRead);
  if (keys.text_or(p + "rope.scaling.type", "none") != "none")
    keys.refuse(fmt::format("key {}rope.scaling.type is not none", p), kGemma4NotRead);
  nlohmann::json config = gguf_decoder_config(
      keys,
      {.architecture = "Gemma4ForCausalLM",
       .model_type = "gemma4_text",
       .turns_a_part = true,
       .also = {"attention.sliding_window", "attention.sliding_window_pattern",
                "attention.shared_kv_layers", "attention.key_length_swa",
                "attention.value_length_swa", "rope.freq_base_swa", "rope.dimension_count_swa",
                "embedding_length_per_layer_input", "final_logit_softcapping"},
       .has_experts = true,
       .differs_by_layer = true,
       .head_dim = windowed});
  const int64_t layers = config["num_hidden_layers"].get<int64_t>();
  for (const char* key : {"partial_rotary_factor", "rope_theta", "hidden_act"}) config.erase(key);
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["global_head_dim"] = head_dim;
  config["sliding_window"] = keys.need_integer(p + "attention.sliding_window");
  if (const auto cap = keys.number(p + "final_logit_softcapping"))
    config["final_logit_softcapping"] = *cap;
  const int64_t shared = keys.integer(p + "attention.shared_kv_layers").value_or(0);
  if (shared < 0 || shared >= layers)
    keys.refuse(
        fmt::format("key {}attention.shared_kv_layers is {}, of {} layers", p, shared, layers),
        kGemma4Damaged);
  config["num_kv_shared_layers"] = shared;
  const std::vector<bool> windows = keys.booleans(p + "attention.sliding_window_pattern", layers);
  if (windows.empty())
    keys.refuse(fmt::format("key {}attention.sliding_window_pattern is missing", p),
                kGemma4Damaged);
  for (const bool has_window : windows)
    config["layer_types"].push_back(has_window ? "sliding_attention" : "full_attention");
  config["rope_parameters"] = {
      {"full_attention", gemma4_full_rope(keys, head_dim)},
      {"sliding_attention",
       {{"rope_type", "default"},
        {"rope_theta", keys.number(p + "rope.freq_base_swa").value_or(1e4)}}}};
  read_gemma4_widths(keys, layers, config);
  read_gemma4_heads(keys, windows, config);
  read_gemma4_experts(keys, config);
  read_gemma4_token_rows(keys, config);
  return config.dump(2);
}

}  // namespace sluice
