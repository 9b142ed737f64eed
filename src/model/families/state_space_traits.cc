#include "src/model/families/state_space_traits.h"

#include <fmt/format.h>

#include <limits>

namespace sluice {

namespace {
// From the first to the second: a time step.
void read_step_bounds(const ModelConfig& config, StateSpace& space) {
  const std::vector<double> bounds = config.numbers("time_step_limit", /*may_be_infinite=*/true);
  space.least_step = 0;
  space.most_step = std::numeric_limits<float>::infinity();
  if (bounds.empty()) return;
  if (bounds.size() != 2 || !(bounds[0] >= 0 && bounds[0] <= bounds[1]))
    config.refuse("\"time_step_limit\" is not the least and the most that a step may be",
                  "mend the config.json");
  space.least_step = static_cast<float>(bounds[0]);
  space.most_step = static_cast<float>(bounds[1]);
}
}  // namespace

void read_state_space(const ModelConfig& config, const StateSpaceKeys& keys,
                      const StateSpaceSizes& usual, DecoderTraits& traits) {
  constexpr int64_t kMost = 4096;
  const int64_t hidden = config.integer("hidden_size", 1, 1 << 20);
  const int64_t values = config.integer_or(keys.expand, 2, 1, 64) * hidden;
  const int64_t heads = config.integer_or(keys.heads, usual.heads, 1, kMost);
  const bool is_said = config.has(keys.width) && config.text_or_number(keys.width, "") != "auto";
  const int64_t width = is_said           ? config.integer(keys.width, 1, kMost)
                        : usual.width > 0 ? usual.width
                                          : values / heads;
  if (heads * width != values)
    config.refuse(fmt::format("{} heads of {} are not the {} columns that \"{}\" asks for", heads,
                              width, values, keys.expand),
                  "mend the config.json");
  const int64_t groups = config.integer_or(keys.groups, usual.groups, 1, kMost);
  if (heads % groups != 0)
    config.refuse(fmt::format("{} heads can't share {} groups evenly", heads, groups),
                  "mend the config.json");
  if (config.boolean_or(keys.bias, false))
    config.refuse(fmt::format("\"{}\" is true", keys.bias),
                  "sluice runs state spaces whose products have no biases");
  if (read_activation(config, "hidden_act", "silu") != Activation::kSilu)
    config.refuse("\"hidden_act\" is not silu", "sluice runs this family with silu");
  traits.recurrent = {groups,
                      heads,
                      config.integer_or(keys.state, usual.state, 1, RecurrentShape::kMostKeyWidth),
                      width,
                      config.integer_or(keys.taps, 4, 1, RecurrentShape::kMostTaps),
                      RecurrentRule::kStateSpace};
  traits.space.has_conv_bias = config.boolean_or(keys.conv_bias, true);
  read_step_bounds(config, traits.space);
}

}  // namespace sluice
