#pragma once
// Where codes and scales of GGUF's K types, and of what is kept like them, lie in a panel of ours.
// A group (256 columns; of q4_1 and q5_1 32) is lines of 64 bytes, a word for each of 16 rows:
// first the words that hold the small scales, as blocks have them; a line of f32 scales, or of 16
// f16 scales and 16 f16 scales of minima; then blocks of 32 columns. Of these, in order: four lines
// of the codes' lower four bits, two of two bits, one of one bit, whichever the type has (kNibbles,
// kPairs, kBits). Quads of columns, v = 0 to 7, are a byte each of a word: line v / 2 at bit 4 (v %
// 2), line v / 4 at bit 2 (v % 4), bit v; byte b is column byte_column(b) of the quad, as in 8-bit
// lines.
#include "kernels/quantised_layout.h"

namespace sluice::kernels {

constexpr int kMostKColumns = 256;

/// What a K type has of each.
struct KLayout {
  int columns;       ///< of a group
  int part_columns;  ///< that share a small scale
  int scale_words;   ///< of a row
  int zero;          ///< of its codes (kIq1, kIq2: of what k_code_value makes of them)
  bool has_minima;
  bool has_nibbles, has_pairs, has_bits;  ///< planes of codes, lower ones first
  constexpr int parts() const noexcept { return columns / part_columns; }
  constexpr int blocks() const noexcept { return columns / 32; }
  /// Lines of 32 columns: as many as a code has bits.
  constexpr int block_lines() const noexcept {
    return (has_nibbles ? 4 : 0) + (has_pairs ? 2 : 0) + (has_bits ? 1 : 0);
  }
  constexpr int64_t scale_bytes() const noexcept { return (scale_words + 1) * kQuantLine; }
  constexpr int64_t bytes() const noexcept {
    return scale_bytes() + blocks() * block_lines() * kQuantLine;
  }
  /// Whether codes take more than six bits, so that pairs of products of int8 fit 16 bits once.
  constexpr bool is_wide() const noexcept { return zero > 32; }
};

constexpr KLayout k_layout(Encoding encoding) noexcept {
  switch (encoding) {
    case Encoding::kQ2K: return {256, 16, 4, 0, true, false, true, false};
    case Encoding::kQ3K: return {256, 16, 3, 4, false, false, true, true};
    case Encoding::kQ4K: return {256, 32, 3, 0, true, true, false, false};
    case Encoding::kQ5K: return {256, 32, 3, 0, true, true, false, true};
    case Encoding::kQ4_1: return {32, 32, 0, 0, true, true, false, false};
    case Encoding::kQ5_1: return {32, 32, 0, 0, true, true, false, true};
    case Encoding::kIq1: return {256, 16, 4, 9, false, false, true, true};
    case Encoding::kIq2: return {256, 16, 4, 43, false, false, true, true};
    default: return {256, 16, 4, 32, false, true, true, false};
  }
}

/// What codes mean, before the zero comes off: themselves, but that each bit of kIq1's and kIq2's
/// counts so much that six codes are their values. `codes`: a byte each, of four (or one).
template <Encoding kEncoding, typename Bytes>
constexpr Bytes k_code_value(Bytes codes) noexcept {
  if constexpr (kEncoding == Encoding::kIq1) {  // 8, 8, 2
    return (((codes & 0x01010101u) + (codes >> 1 & 0x01010101u)) << 3) + (codes >> 1 & 0x02020202u);
  } else if constexpr (kEncoding == Encoding::kIq2) {  // 17, 18, 51
    const Bytes second = codes >> 1 & 0x01010101u, third = codes >> 2 & 0x01010101u;
    const Bytes ones = (codes & 0x01010101u) + second + third + (third << 1);
    return (ones << 4) + ones + second;
  } else {
    return codes;
  }
}

/// Columns of x whose sum products with such weights take: a group's, or a part's of a K type.
inline int64_t sum_columns(const WeightFormat& format, int64_t cols) noexcept {
  return format.is_k() ? k_layout(format.encoding).part_columns : format.group_columns(cols);
}

}  // namespace sluice::kernels
