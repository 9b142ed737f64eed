#include "src/model/families/gguf_state_space.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace sluice {

void add_gguf_state_space_keys(const GgufKeys& keys, const StateSpaceKeys& names,
                               nlohmann::json& config) {
  const auto hidden = config["hidden_size"].get<int64_t>();
  const int64_t values = keys.need_size("ssm.inner_size");
  const int64_t heads = keys.need_size("ssm.time_step_rank");
  if (hidden < 1 || values % heads != 0 || values % hidden != 0)
    keys.refuse(fmt::format("key {}ssm.inner_size is {}, of {} heads and {} columns", keys.prefix(),
                            values, heads, hidden),
                "download the file again");
  config[names.heads] = heads;
  config[names.width] = values / heads;
  config[names.expand] = values / hidden;
  config[names.groups] = keys.need_size("ssm.group_count");
  config[names.state] = keys.need_size("ssm.state_size");
  config[names.taps] = keys.need_size("ssm.conv_kernel");
  config[names.bias] = false;
  config[names.conv_bias] = false;
  for (int64_t layer = 0; layer < config["num_hidden_layers"].get<int64_t>(); ++layer)
    if (keys.tensor(fmt::format("blk.{}.ssm_conv1d.bias", layer))) config[names.conv_bias] = true;
}

}  // namespace sluice
