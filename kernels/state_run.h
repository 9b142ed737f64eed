#pragma once
// A run of tokens that goes on from a state, for kernels on every processor.
#include <cstdint>

namespace sluice::kernels {

/// Rows [row, row + count) of a micro-batch, new tokens of one sequence, count >= 1. States are
/// RecurrentShape::floats() floats. Of two runs none writes what the other reads or writes.
struct StateRun {
  int64_t row = 0;
  int64_t count = 0;
  const float* from = nullptr;  ///< before its first token; null: zeros
  float* to = nullptr;          ///< behind its last; may be `from`
  /// Behind its first `kept` tokens too, 0 < kept < count, to `kept_to`, which may be `from` and is
  /// not `to`; 0: nothing more is kept.
  int64_t kept = 0;
  float* kept_to = nullptr;
};

}  // namespace sluice::kernels
