#pragma once
// Rotary positions as config.json asks for them, in the spellings of old and new transformers.
#include <string>
#include <string_view>
#include <vector>

#include "src/model/config.h"

namespace sluice {

struct Rope {
  std::vector<float> frequencies;  ///< inverse, of the pairs that are turned
  float factor = 1;                ///< of cosine and sine
  /// Positions up to which the kind is the same for every length; 0: all. Kinds that turn a longer
  /// sequence's first positions otherwise are read up to where they don't.
  int64_t longest = 0;
  bool is_of_long = false;  ///< as the kind has it for sequences longer than the original length
};

/// Where a model's rotary positions are said.
struct RopeKeys {
  double theta = 10000;                  ///< where config.json has none
  double share = 1;                      ///< of a head that is turned, likewise
  const char* theta_key = "rope_theta";  ///< of configs before "rope_parameters"
  bool is_scaled = true;                 ///< "rope_scaling" is meant too
  std::string_view layer_type;           ///< of "rope_parameters" with an object for each; or ""
  bool is_proportional = false;          ///< the kind where config.json says nothing at all
};

/// Theta and the scalings default, linear, dynamic, yarn, longrope, llama3 and proportional (docs
/// of transformers' modeling_rope_utils; YaRN: arXiv:2309.00071, LongRoPE: arXiv:2402.13753).
/// Errors: kFile naming what is asked for and not known.
Rope read_rope(const ModelConfig& config, int64_t head_dim, const RopeKeys& keys = {});

}  // namespace sluice
