#pragma once
// What is wanted of a model's rotary positions beside what its config.json says: as a config that
// says so, which families then read as any other.
#include <cstdint>
#include <string>

#include "src/model/config.h"

namespace sluice {

/// Zeros and empty texts: as config.json says.
struct PositionWishes {
  /// "none", "linear" or "yarn"; or a whole object as config.json has it under "rope_scaling":
  /// {"rope_type": "yarn", "factor": 4, ...}.
  std::string rope_scaling;
  double rope_factor = 0;     ///< of linear and yarn: by which sequences become longer
  double rope_theta = 0;      ///< base of the frequencies
  int64_t rope_original = 0;  ///< positions that the model was trained on
  /// Tokens that a sequence may have, even where they are more than the model was made for.
  int64_t context_tokens = 0;
  /// Tokens that the longest sequence will have. Models with frequencies of their own for long
  /// sequences (LongRoPE) choose by the larger of the two.
  int64_t sequence_tokens = 0;

  /// Whether the frequencies are to be others than config.json's.
  bool changes_rope() const noexcept {
    return !rope_scaling.empty() || rope_factor != 0 || rope_theta != 0 || rope_original != 0;
  }
};

/// A config of text with what is wanted of its positions, for families to read. Errors: kUser for
/// wishes that are no numbers or contradict each other, and for a config whose layers have rotary
/// positions of several kinds.
ModelConfig with_positions(const ModelConfig& config, const PositionWishes& wishes);

/// The keys by which such a config says how long sequences become: what context_tokens and the
/// larger of both are.
constexpr const char* kContextKey = "sluice_context_tokens";
constexpr const char* kLongestKey = "sluice_longest_tokens";

}  // namespace sluice
