#pragma once
// Rotary positions as config.json asks for them, in the spellings of old and new transformers.
#include <vector>

#include "src/model/config.h"

namespace sluice {

/// Inverse frequencies of the pairs of a head, [head_dim / 2]: theta and the scalings default,
/// linear and llama3. Errors: kFile naming what is asked for and not known.
std::vector<float> rope_frequencies(const ModelConfig& config, int64_t head_dim);

}  // namespace sluice
