#pragma once
// The keys that GGUF files have of Mamba-2's state spaces, as config.json's.
#include <nlohmann/json_fwd.hpp>

#include "src/model/families/state_space_traits.h"
#include "src/model/foreign/gguf_keys.h"

namespace sluice {

/// Adds to the config of gguf_decoder_config() a state space's sizes as `names` calls them, and
/// whether its convolution has a bias. Errors: kFile for sizes that are missing or do not fit
/// together.
void add_gguf_state_space_keys(const GgufKeys& keys, const StateSpaceKeys& names,
                               nlohmann::json& config);

/// What gguf_decoder_config() lets pass since this reads it.
inline constexpr const char* kGgufStateSpaceKeys[] = {
    "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"};

}  // namespace sluice
