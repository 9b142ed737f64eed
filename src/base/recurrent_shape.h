#pragma once
// What a layer keeps that has a state of one size however long a sequence is: the gated delta
// rule's (arXiv:2412.06464) or Mamba-2's (arXiv:2405.21060). All of it f32, one block: for each
// value head a matrix [key_width, value_width], then the last taps - 1 inputs of the convolution,
// [taps - 1, columns], the oldest first. Before a sequence's first token all of it is zero. Plain
// values; thread safe.
#include <cstdint>

namespace sluice {

/// What a token does to a state (kernels/delta_rule.h).
enum class RecurrentRule : uint8_t {
  kGatedDelta,  ///< decays, forgets what it has for a key, learns the value
  kStateSpace   ///< decays and adds (Mamba-2: B are keys, C queries, x values, groups key heads)
};

struct RecurrentShape {
  int64_t key_heads = 0;
  int64_t value_heads =
      0;  ///< a multiple of key_heads; head h has the keys of h key_heads / value_heads
  int64_t key_width = 0;
  int64_t value_width = 0;
  int64_t taps = 0;  ///< inputs that the convolution of a column sees, its own among them
  RecurrentRule rule = RecurrentRule::kGatedDelta;

  static constexpr int64_t kMostKeyWidth = 512;
  static constexpr int64_t kMostTaps = 16;

  bool operator==(const RecurrentShape&) const = default;
  int64_t key_columns() const noexcept { return key_heads * key_width; }
  int64_t value_columns() const noexcept { return value_heads * value_width; }
  /// Of what is convolved: queries, keys, values; of a state space values, keys, queries.
  int64_t columns() const noexcept { return 2 * key_columns() + value_columns(); }
  bool is_delta() const noexcept { return rule == RecurrentRule::kGatedDelta; }
  int64_t first_query() const noexcept { return is_delta() ? 0 : value_columns() + key_columns(); }
  int64_t first_key() const noexcept { return is_delta() ? key_columns() : value_columns(); }
  int64_t first_value() const noexcept { return is_delta() ? 2 * key_columns() : 0; }
  int64_t matrix_floats() const noexcept { return key_width * value_width; }
  int64_t matrices_floats() const noexcept { return value_heads * matrix_floats(); }
  /// Floating-point operations of a token: each element decays, learns and answers, of the delta
  /// rule twice.
  double rule_flops() const noexcept {
    return (is_delta() ? 8.0 : 5.0) * static_cast<double>(matrices_floats());
  }
  int64_t window_floats() const noexcept { return (taps - 1) * columns(); }
  int64_t floats() const noexcept { return matrices_floats() + window_floats(); }
};

}  // namespace sluice
