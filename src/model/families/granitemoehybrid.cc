// Granite 4: Granite's scales on layers of which most have a state space (Mamba-2) in place of
// attention, without rotary positions; behind each an MLP, or experts beside it. The MLP's gate and
// up are one tensor.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_mixture.h"
#include "src/model/families/gguf_state_space.h"
#include "src/model/families/mixture_traits.h"
#include "src/model/families/state_space_traits.h"

namespace sluice {

namespace {

std::vector<DecoderLayer> read_layers(const ModelConfig& config, bool is_turned) {
  const int64_t count = config.integer("num_hidden_layers", 1, 4096);
  std::vector<std::string> types = config.texts("layer_types");
  if (types.empty()) types = config.texts("layers_block_type");
  if (!types.empty() && std::ssize(types) != count)
    config.refuse(fmt::format("\"layer_types\" has {} entries for {} layers", types.size(), count),
                  "mend the config.json");
  std::vector<DecoderLayer> out;
  for (int64_t layer = 0; layer < count; ++layer) {
    const std::string type = types.empty() ? "mamba" : types[static_cast<size_t>(layer)];
    const bool is_recurrent = type == "mamba" || type == "linear_attention";
    if (!is_recurrent && type != "attention" && type != "full_attention")
      config.refuse(fmt::format("layer {} has type \"{}\"", layer, type),
                    "sluice knows mamba and attention here");
    out.push_back(
        {.window = 0, .rope = is_turned && !is_recurrent ? 0 : -1, .is_recurrent = is_recurrent});
  }
  return out;
}

// Granite 3's experts beside one that every row goes to.
Mixture read_shared_mixture(const ModelConfig& config, DecoderNames& names) {
  Mixture mixture = read_granite_mixture(config, names);
  mixture.shared_width = config.integer_or("shared_intermediate_size", 1024, 1, 1 << 23);
  names.shared_gate.name = "shared_mlp.gate_proj";
  names.shared_up.name = "shared_mlp.up_proj";
  names.shared_down.name = "shared_mlp.output_linear";
  names.shared_gate_up = {"shared_mlp.input_linear", nullptr};
  return mixture;
}

std::unique_ptr<FamilyModel> make_granitemoehybrid(const ModelConfig& config) {
  const std::string positions = config.text_or("position_embedding_type", "nope");
  if (positions != "nope" && positions != "rope")
    config.refuse(fmt::format("\"position_embedding_type\" is \"{}\"", positions),
                  "sluice knows rope and nope here");
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{.family = "granitemoehybrid",
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .fused = Fused::kRows,
                       .gguf_pairs_rows = true,
                       .attention_scale = read_factor(config, "attention_multiplier", 1),
                       .embed_scale = read_factor(config, "embedding_multiplier", 1),
                       .residual_scale = read_factor(config, "residual_multiplier", 1),
                       .logit_scale = 1 / read_factor(config, "logits_scaling", 1)};
  read_state_space(config, {}, {}, traits);
  traits.layers = read_layers(config, positions == "rope");
  DecoderNames& names = traits.names;
  names.space_in.name = "mamba.in_proj";
  names.space_z.name = "mamba.z_proj";
  names.space_xbc.name = "mamba.xbc_proj";
  names.space_dt.name = "mamba.dt_proj";
  names.space_conv.name = "mamba.conv1d";
  names.space_a_log.name = "mamba.A_log";
  names.space_bias.name = "mamba.dt_bias";
  names.space_skip.name = "mamba.D";
  names.space_norm.name = "mamba.norm";
  names.space_out.name = "mamba.out_proj";
  if (config.integer_or("num_local_experts", 8, 0, RouterSpec::kMostExperts) > 0) {
    traits.mixture = read_shared_mixture(config, names);
    return make_decoder(config, std::move(traits));
  }
  traits.keys.intermediate = "shared_intermediate_size";
  traits.intermediate_size = 1024;
  names.gate.name = "shared_mlp.gate_proj";
  names.up.name = "shared_mlp.up_proj";
  names.down.name = "shared_mlp.output_linear";
  names.gate_up.name = "shared_mlp.input_linear";
  return make_decoder(config, std::move(traits));
}

// A layer without KV heads has a state space.
void add_granite_layers(const GgufKeys& keys, nlohmann::json& config) {
  const std::string key = keys.prefix() + "attention.head_count_kv";
  const auto layers = config["num_hidden_layers"].get<int64_t>();
  const std::vector<int64_t> heads = keys.integers(key, layers);
  if (heads.empty()) keys.refuse(fmt::format("key {} is missing", key), "download the file again");
  const int64_t most = *std::max_element(heads.begin(), heads.end());
  nlohmann::json types = nlohmann::json::array();
  bool has_bias = false;
  for (size_t layer = 0; layer < heads.size(); ++layer) {
    if (heads[layer] != 0 && heads[layer] != most)
      keys.refuse(fmt::format("key {} has {} for layer {}, and {} for others", key, heads[layer],
                              layer, most),
                  "layers with attention have as many heads each");
    types.push_back(heads[layer] == 0 ? "mamba" : "attention");
    has_bias = has_bias || keys.has_attention_bias(static_cast<int64_t>(layer));
  }
  config["layer_types"] = types;
  config["attention_bias"] = has_bias;
  // Of no layer with attention none are read.
  config["num_key_value_heads"] = most > 0 ? nlohmann::json(most) : config["num_attention_heads"];
  // The key that files have of rotary positions at all.
  const bool is_turned = keys.boolean(keys.prefix() + "rope.scaling.finetuned").value_or(true);
  config["position_embedding_type"] = is_turned ? "rope" : "nope";
}

std::string granitemoehybrid_of_gguf(const GgufKeys& keys) {
  const std::string p = keys.prefix();
  GgufDecoderKind kind{.architecture = "GraniteMoeHybridForCausalLM",
                       .model_type = "granitemoehybrid",
                       .also = {"attention.scale", "embedding_scale", "residual_scale",
                                "logit_scale", "expert_shared_feed_forward_length"},
                       .differs_by_layer = true};
  kind.also.insert(kind.also.end(), std::begin(kGgufStateSpaceKeys), std::end(kGgufStateSpaceKeys));
  const bool has_experts = keys.integer(p + "expert_count").value_or(0) > 0;
  nlohmann::json config = has_experts
                              ? gguf_mixture_config(keys, kind,
                                                    {.experts = "num_local_experts",
                                                     .width = "intermediate_size",
                                                     .shared_width = "shared_intermediate_size",
                                                     .renormalises = true,
                                                     .always_does_so = true})
                              : gguf_decoder_config(keys, kind);
  if (!has_experts) {
    config["num_local_experts"] = 0;
    config["shared_intermediate_size"] = keys.integer(p + "expert_shared_feed_forward_length")
                                             .value_or(config["intermediate_size"].get<int64_t>());
  }
  for (const auto& [theirs, ours] : {std::pair{"attention.scale", "attention_multiplier"},
                                     {"embedding_scale", "embedding_multiplier"},
                                     {"residual_scale", "residual_multiplier"},
                                     {"logit_scale", "logits_scaling"}})
    if (const auto value = keys.number(p + theirs)) config[ours] = *value;
  add_granite_layers(keys, config);
  add_gguf_state_space_keys(keys, {}, config);
  return config.dump(2);
}

}  // namespace

Family granitemoehybrid_family() {
  return {"granitemoehybrid",
          make_granitemoehybrid,
          [] { return std::vector<KnownModel>{}; },
          {"granitehybrid", granitemoehybrid_of_gguf}};
}

}  // namespace sluice
