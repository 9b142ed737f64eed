#pragma once
// What families with gated delta nets (arXiv:2412.06464) read from config.json alike: which layers
// have one in place of attention, and its sizes.
#include "src/model/families/decoder.h"

namespace sluice {

/// Qwen3.5's traits, whose layers, states, biases and rotary positions are read; so that a
/// mixture's family adds what it has. Errors: kFile for fields that are missing or don't fit
/// together.
DecoderTraits read_delta_nets(const ModelConfig& config, const char* family);

}  // namespace sluice
