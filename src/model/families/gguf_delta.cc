#include "src/model/families/gguf_delta.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace sluice {

namespace {
constexpr const char* kDeltaDamaged = "download the file again";

nlohmann::json delta_layer_types(const GgufKeys& keys, int64_t layers) {
  std::vector<bool> recurrent = keys.booleans(keys.prefix() + "attention.recurrent_layers", layers);
  if (recurrent.empty()) {
    const int64_t period = keys.integer(keys.prefix() + "full_attention_interval").value_or(4);
    if (period < 1)
      keys.refuse(fmt::format("key {}full_attention_interval is {}", keys.prefix(), period),
                  kDeltaDamaged);
    for (int64_t layer = 0; layer < layers; ++layer) recurrent.push_back((layer + 1) % period != 0);
  }
  nlohmann::json types = nlohmann::json::array();
  for (const bool is_recurrent : recurrent)
    types.push_back(is_recurrent ? "linear_attention" : "full_attention");
  return types;
}
}  // namespace

void add_gguf_delta_keys(const GgufKeys& keys, bool is_tiled, nlohmann::json& config) {
  const int64_t layers = config["num_hidden_layers"].get<int64_t>();
  const int64_t key_heads = keys.need_size("ssm.group_count");
  const int64_t value_heads = keys.need_size("ssm.time_step_rank");
  const int64_t values = keys.need_size("ssm.inner_size");
  if (values % value_heads != 0)
    keys.refuse(
        fmt::format("key {}ssm.inner_size is {}, of {} heads", keys.prefix(), values, value_heads),
        kDeltaDamaged);
  config["linear_conv_kernel_dim"] = keys.need_size("ssm.conv_kernel");
  config["linear_num_key_heads"] = key_heads;
  config["linear_num_value_heads"] = value_heads;
  config["linear_key_head_dim"] = keys.need_size("ssm.state_size");
  config["linear_value_head_dim"] = values / value_heads;
  config["is_delta_tiled"] = is_tiled && key_heads != value_heads;
  const nlohmann::json types = delta_layer_types(keys, layers);
  config["layer_types"] = types;
  if (!config.contains("partial_rotary_factor")) config["partial_rotary_factor"] = 1.0;
  config["attention_bias"] = false;
  for (size_t layer = 0; layer < types.size(); ++layer)
    if (types[layer] == "full_attention" && keys.has_attention_bias(static_cast<int64_t>(layer)))
      config["attention_bias"] = true;
}

}  // namespace sluice
