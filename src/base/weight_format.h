#pragma once
// How the elements of a weight matrix are stored: plain (row-major elements of one type) or
// quantised. Quantised matrices are panels of 16 rows, so that one vector register holds the same
// columns of 16 rows; docs/formats/quantised-weights.md has the bytes. One description for kernels,
// files and plans. Plain values; thread safe.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/dtype.h"

namespace sluice {

/// Stored on disk (packed store, by name): never rename.
enum class Encoding : uint8_t {
  kPlain,  ///< elements of WeightFormat::dtype
  kInt4,   ///< w = scale (q - zero), q in 0..15; scale and zero f16 for each row and group
  kInt8,   ///< w = scale (q - 128), q in 0..255; scale f32 for each row and group
  kNf4,    ///< w = scale codebook[q] (QLoRA, arXiv:2305.14314, appendix E); scale f32
  kFp8,    ///< w = scale e4m3(q) (arXiv:2209.05433, no infinities); scale f32
  kMxfp4,  ///< w = scale e2m1(q) (OCP Microscaling 1.0); scale e8m0, a power of two in a byte
  // GGUF's K types, value by value: 256 columns share an f16 scale d (and one of minima, m), parts
  // of 16 or 32 columns a small whole number s of them (and n); places: kernels/k_layout.h.
  kQ2K,  ///< w = d s q - m n, q in 0..3, s and n in 0..15, of 16 columns
  kQ3K,  ///< w = d s (q - 4), q in 0..7, s in -32..31, of 16 columns
  kQ4K,  ///< w = d s q - m n, q in 0..15, s and n in 0..63, of 32 columns
  kQ5K,  ///< the same, q in 0..31
  kQ6K,  ///< w = d s (q - 32), q in 0..63, s in -128..127, of 16 columns
  // Others of GGUF's types, kept in the same way.
  kQ4_1,  ///< w = d q + m, q in 0..15, of 32 columns
  kQ5_1,  ///< the same, q in 0..31
  kIq1,   ///< w = d s v, v of +-1, +-7 and +-9, s in 1..15, of 16 columns: iq1_s and iq1_m
  kIq2,   ///< w = d s v, v of +-8, +-25 and +-43, s in 1..31: iq2_xxs, iq2_xs and iq2_s
  // Laid out as kInt4.
  kQ4_0,  ///< w = scale (q - 8), q in 0..15; scale f16, of 32 columns: GGUF's type
  kIq4,   ///< w = scale v, v of 16 values (kernels/quantise.h); scale f32, of 32: iq4_nl, iq4_xs
};

struct WeightFormat {
  Encoding encoding = Encoding::kPlain;
  DType dtype = DType::kBF16;  ///< of kPlain
  /// Columns that share a scale: 32, 64 or 128, of kMxfp4, kQ4_0, kIq4, kQ4_1 and kQ5_1 32, of K
  /// types, kIq1 and kIq2 256; 0: the whole row.
  int32_t group = 0;

  static constexpr int64_t kPanelRows = 16;

  bool operator==(const WeightFormat&) const = default;
  bool is_quantised() const noexcept { return encoding != Encoding::kPlain; }
  /// Whether it is one of GGUF's K types, or another of its types that is kept like them.
  constexpr bool is_k() const noexcept {
    return encoding >= Encoding::kQ2K && encoding <= Encoding::kIq2;
  }
  /// Whether nothing is quantised to it: GGUF files bring it.
  constexpr bool is_only_read() const noexcept {
    return encoding >= Encoding::kQ4_1 && encoding <= Encoding::kIq2;
  }
  /// Bits of one code: 2 to 8; of plain elements their own.
  int64_t code_bits() const noexcept;
  /// Columns of one group as stored: `group`, or the row's columns rounded up to 64.
  int64_t group_columns(int64_t cols) const noexcept;
  int64_t groups(int64_t cols) const noexcept;
  /// Columns as stored: whole groups.
  int64_t padded_columns(int64_t cols) const noexcept { return groups(cols) * group_columns(cols); }
  /// Bytes of the codes of one group of a panel, and of its scales.
  int64_t group_code_bytes(int64_t cols) const noexcept;
  constexpr int64_t scale_bytes() const noexcept {
    switch (encoding) {
      case Encoding::kQ2K:
      case Encoding::kQ6K:
      case Encoding::kIq1:
      case Encoding::kIq2: return 20 * kPanelRows;
      case Encoding::kQ3K:
      case Encoding::kQ4K:
      case Encoding::kQ5K: return 16 * kPanelRows;
      case Encoding::kMxfp4: return kPanelRows;
      case Encoding::kQ4_0: return 2 * kPanelRows;
      default: return 4 * kPanelRows;
    }
  }
  /// Bytes of kPanelRows rows; quantised only.
  int64_t panel_bytes(int64_t cols) const noexcept;
  /// Bytes from a row to the next; of a panel its sixteenth part.
  int64_t row_bytes(int64_t cols) const noexcept;
  /// Bytes of `rows` rows that begin at a panel: the last panel is stored whole.
  int64_t bytes(int64_t rows, int64_t cols) const noexcept;

  static WeightFormat plain(DType dtype) noexcept { return {Encoding::kPlain, dtype, 0}; }
};

/// "bf16", "int4-g64", "int8", "int8-g32", "nf4-g64", "fp8", "mxfp4", "q6_k".
std::string format_name(const WeightFormat& format);
/// The inverse; "int4" and "nf4" mean groups of 64, "int8" and "fp8" one scale a row, "mxfp4" is
/// always of groups of 32, as are "q4_0", "iq4", "q4_1" and "q5_1"; K types, "iq1" and "iq2" are of
/// 256.
std::optional<WeightFormat> parse_weight_format(std::string_view name) noexcept;

}  // namespace sluice
