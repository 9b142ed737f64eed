#pragma once
// The keys that GGUF files have of gated delta nets, as config.json's.
#include <nlohmann/json_fwd.hpp>

#include "src/model/foreign/gguf_keys.h"

namespace sluice {

/// Adds to the config of gguf_decoder_config() which layers have a delta net, its sizes, how much
/// of a head is turned, whether attention has biases and, where the family's files have value
/// heads by turns of key heads, that ("is_delta_tiled"). Errors: kFile for sizes that are missing
/// or do not fit together.
void add_gguf_delta_keys(const GgufKeys& keys, bool is_tiled, nlohmann::json& config);

/// What gguf_decoder_config() lets pass since this reads it, or has no need of it.
inline constexpr const char* kGgufDeltaKeys[] = {"ssm.conv_kernel",
                                                 "ssm.state_size",
                                                 "ssm.group_count",
                                                 "ssm.time_step_rank",
                                                 "ssm.inner_size",
                                                 "full_attention_interval",
                                                 "attention.recurrent_layers",
                                                 "rope.dimension_sections",
                                                 "nextn_predict_layers"};

}  // namespace sluice
