#include "src/model/families/delta_traits.h"

#include <fmt/format.h>

namespace sluice {

namespace {

constexpr int64_t kHeadDim = 256;

std::vector<DecoderLayer> read_layers(const ModelConfig& config) {
  const int64_t count = config.integer("num_hidden_layers", 1, 4096);
  const int64_t period = config.integer_or("full_attention_interval", 4, 1, 4096);
  const std::vector<std::string> types = config.texts("layer_types");
  if (!types.empty() && std::ssize(types) != count)
    config.refuse(fmt::format("\"layer_types\" has {} entries for {} layers", types.size(), count),
                  "mend the config.json");
  std::vector<DecoderLayer> out;
  for (int64_t layer = 0; layer < count; ++layer) {
    bool is_recurrent = (layer + 1) % period != 0;
    if (!types.empty()) {
      const std::string& type = types[static_cast<size_t>(layer)];
      if (type != "linear_attention" && type != "full_attention")
        config.refuse(fmt::format("layer {} has type \"{}\"", layer, type),
                      "sluice knows linear_attention and full_attention here");
      is_recurrent = type == "linear_attention";
    }
    out.push_back({.window = 0, .rope = 0, .is_recurrent = is_recurrent});
  }
  return out;
}

RecurrentShape read_recurrent(const ModelConfig& config) {
  constexpr int64_t kMost = RecurrentShape::kMostKeyWidth;
  RecurrentShape shape{
      config.integer_or("linear_num_key_heads", 16, 1, 4096),
      config.integer_or("linear_num_value_heads", 32, 1, 4096),
      config.integer_or("linear_key_head_dim", 128, 1, kMost),
      config.integer_or("linear_value_head_dim", 128, 1, 4096),
      config.integer_or("linear_conv_kernel_dim", 4, 1, RecurrentShape::kMostTaps)};
  if (shape.value_heads % shape.key_heads != 0)
    config.refuse(fmt::format("{} value heads can't share {} key heads evenly", shape.value_heads,
                              shape.key_heads),
                  "mend the config.json");
  return shape;
}

}  // namespace

DecoderTraits read_delta_nets(const ModelConfig& config, const char* family) {
  if (!config.boolean_or("attn_output_gate", true))
    config.refuse("\"attn_output_gate\" is false", "sluice runs this family with its gate");
  if (read_activation(config, "hidden_act", "silu") != Activation::kSilu)
    config.refuse("\"hidden_act\" is not silu", "sluice runs this family with silu");
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{.family = family,
                       .heads = 16,
                       .vocab_size = 248320,
                       .head_dim = kHeadDim,
                       .kv_heads = 4,
                       .max_positions = 32768,
                       .norm_added = 1,
                       .qk_norm = QkNorm::kEachHead,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .layers = read_layers(config),
                       .has_output_gate = true,
                       .recurrent = read_recurrent(config)};
  traits.ropes = {read_rope(config, read_head_dim(config, kHeadDim), {.share = 0.25})};
  traits.names.mlp_norm.gguf = "post_attention_norm";
  // Of our own making, as stores of GGUF files have it.
  traits.has_tiled_delta = config.boolean_or("is_delta_tiled", false);
  if (traits.has_tiled_delta) {
    traits.names.delta_qkv.name = "linear_attn.tiled_qkv";
    traits.names.delta_z.name = "linear_attn.tiled_z";
    traits.names.delta_conv.name = "linear_attn.tiled_conv1d";
    traits.names.delta_out.name = "linear_attn.tiled_out_proj";
  }
  return traits;
}

}  // namespace sluice
