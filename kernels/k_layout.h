#pragma once
// Where codes and scales of GGUF's K types lie in a panel of ours. A group (256 columns) is lines
// of 64 bytes, a word for each of 16 rows: first the words that hold the small scales, as blocks
// have them; a line of f32 scales, or of 16 f16 scales and 16 f16 scales of minima; then eight
// blocks of 32 columns. Of these, in order: four lines of the codes' lower four bits, two of two
// bits, one of one bit, whichever the type has (kNibbles, kPairs, kBits). Quads of columns, v = 0
// to 7, are a byte each of a word: line v / 2 at bit 4 (v % 2), line v / 4 at bit 2 (v % 4), bit v;
// byte b is column byte_column(b) of the quad, as in 8-bit lines.
#include "kernels/quantised_layout.h"

namespace sluice::kernels {

constexpr int kKColumns = 256;
constexpr int kKBlocks = 8;

/// What a K type has of each.
struct KLayout {
  int part_columns;  ///< that share a small scale
  int scale_words;   ///< of a row
  int zero;          ///< of its codes
  bool has_minima;
  bool has_nibbles, has_pairs, has_bits;  ///< planes of codes, lower ones first
  constexpr int parts() const noexcept { return kKColumns / part_columns; }
  /// Lines of 32 columns: as many as a code has bits.
  constexpr int block_lines() const noexcept {
    return (has_nibbles ? 4 : 0) + (has_pairs ? 2 : 0) + (has_bits ? 1 : 0);
  }
  constexpr int64_t scale_bytes() const noexcept { return (scale_words + 1) * kQuantLine; }
  constexpr int64_t bytes() const noexcept {
    return scale_bytes() + kKBlocks * block_lines() * kQuantLine;
  }
};

constexpr KLayout k_layout(Encoding encoding) noexcept {
  switch (encoding) {
    case Encoding::kQ2K: return {16, 4, 0, true, false, true, false};
    case Encoding::kQ3K: return {16, 3, 4, false, false, true, true};
    case Encoding::kQ4K: return {32, 3, 0, true, true, false, false};
    case Encoding::kQ5K: return {32, 3, 0, true, true, false, true};
    default: return {16, 4, 32, false, true, true, false};
  }
}

/// Columns of x whose sum products with such weights take: a group's, or a part's of a K type.
inline int64_t sum_columns(const WeightFormat& format, int64_t cols) noexcept {
  return format.is_k() ? k_layout(format.encoding).part_columns : format.group_columns(cols);
}

}  // namespace sluice::kernels
