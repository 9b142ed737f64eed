#pragma once
// Where the codes and scales of a quantised panel lie. A group is lines of 64 bytes, 4 bytes for
// each of 16 rows, and then scales: 16 f16 scales and 16 f16 zeros (kInt4), 16 f16 scales
// (kQ4_0), 16 bytes that are exponents of two and 127 more (kMxfp4), else 16 f32 scales. A line of
// 4-bit codes holds 8 columns, one of 8-bit codes 4; inside a row's 4 bytes the columns are ordered
// so that the low (high) codes of the two halves are neighbours, the pair that a bf16 dot product
// takes.
#include <cstdint>
#include <cstring>

#include "src/base/weight_format.h"

namespace sluice::kernels {

constexpr int64_t kQuantLine = 64;

/// Column of an 8-column line that nibble `position` (0: lowest bits) of a row's word holds.
constexpr int nibble_column(int position) noexcept {
  return position < 4 ? 2 * position : 2 * (position - 4) + 1;
}
/// Column of a 4-column line that byte `position` holds.
constexpr int byte_column(int position) noexcept {
  return position == 1 ? 2 : position == 2 ? 1 : position;
}

/// Column of a line whose code is byte `byte` of a row's codes once they are a byte each: the low
/// nibbles of the word's bytes before the high ones.
constexpr int unpacked_column(bool is_four_bit, int byte) noexcept {
  if (!is_four_bit) return byte_column(byte);
  return nibble_column(byte < 4 ? 2 * byte : 2 * (byte - 4) + 1);
}

/// Whether codes are whole numbers of four bits, less a zero: the group's (kInt4), or always 8.
constexpr bool has_int4_codes(Encoding encoding) noexcept {
  return encoding == Encoding::kInt4 || encoding == Encoding::kQ4_0;
}
constexpr float kQ4Zero = 8;  ///< of kQ4_0

constexpr bool is_four_bit(Encoding encoding) noexcept {
  return has_int4_codes(encoding) || encoding == Encoding::kNf4 || encoding == Encoding::kMxfp4 ||
         encoding == Encoding::kIq4;
}

constexpr int64_t line_columns(Encoding encoding) noexcept { return is_four_bit(encoding) ? 8 : 4; }

/// Byte of the panel where the lines of `group` begin.
inline int64_t group_offset(const WeightFormat& format, int64_t cols, int64_t group) noexcept {
  return group * (format.group_code_bytes(cols) + format.scale_bytes());
}

}  // namespace sluice::kernels
