#pragma once
// Rows of a weight matrix to quantised panels and back (layout: docs/formats/quantised-weights.md).
// Callers may run it on any thread, several panels at a time: nothing is shared.
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/weight_format.h"

namespace sluice::kernels {

/// How a group's range is chosen.
enum class RangeSearch : uint8_t {
  kMinMax,  ///< the range is that of the group's values (round to nearest)
  kClip     ///< the range is shrunk to where the summed squared error is least
};

/// How codes are chosen.
struct QuantiseOptions {
  RangeSearch search = RangeSearch::kClip;
  /// [cols] how much an error of each column counts, such as the mean square of the inputs that it
  /// is multiplied with; null: all the same.
  const float* importance = nullptr;
};

/// Shares of the range that kClip tries, largest first, one apart by kClipStep.
constexpr int kClipSteps = 20;
constexpr float kClipStep = 0.02f;

/// Quantises `row_count` rows (1 to 16) into one panel; missing rows become zeros.
///   rows  [row_count, cols] f32, row stride `ld`, all finite      panel  format.panel_bytes(cols)
/// Every scale is a normal number or zero; a group of equal values comes back as close as its scale
/// is stored. K types are always searched, whatever `search` says: d, m and small scales for the
/// least squared error that kernels/cpu/k_quantise.h finds. Returns false, with the panel
/// undefined, when a value is not finite, a scale is past f16 (kInt4, kQ4_0, kQ2K, kQ4K, kQ5K), a
/// value past a quarter of f32's range (K types), or nothing is quantised to the format.
bool quantise_panel(const WeightFormat& format, const QuantiseOptions& options, const float* rows,
                    int64_t ld, int64_t row_count, int64_t cols, std::byte* panel) noexcept;

/// Whether quantise_panel() knows the format.
constexpr bool can_quantise_to(const WeightFormat& format) noexcept {
  return format.encoding != Encoding::kPlain && !format.is_only_read();
}

/// rows [row_count, cols] f32, row stride `ld` = the panel's first rows.
void dequantise_panel(const WeightFormat& format, const std::byte* panel, int64_t row_count,
                      int64_t cols, float* rows, int64_t ld) noexcept;

/// The codes of one group of a panel with its scales, for formats that are read from elsewhere:
/// codes [16][group_columns] (one byte each), scales [16] (kMxfp4: powers of two, from 2^-127 on),
/// zeros [16] (kInt4; kQ4_0's are 8, whatever is given).
void pack_group(const WeightFormat& format, int64_t cols, int64_t group, const uint8_t* codes,
                const float* scales, const float* zeros, std::byte* panel) noexcept;

/// The lines of the codes [16][stride] of a group of a K type, or of what is kept like one
/// (kernels/k_layout.h); `group`: where its lines begin.
void pack_k_codes(Encoding encoding, const uint8_t* codes, int64_t stride,
                  std::byte* group) noexcept;

/// One group of a panel of kQ6K, kIq1 or kIq2, read from elsewhere: codes [16][columns] a byte
/// each, scales [16][parts] of 16 columns (kernels/k_layout.h), d [16]. `group`: where its lines
/// begin.
void pack_parts(const WeightFormat& format, const uint8_t* codes, const int8_t* scales,
                const float* d, std::byte* group) noexcept;

/// The 16 values of NF4, rising; the same to 1e-6 as published.
extern const float kNf4Values[16];
/// The 16 values of GGUF's IQ4_NL and IQ4_XS, rising.
extern const float kIq4Values[16];
/// The nearest e2m1 code (ties to even mantissa); past 6 the largest.
uint8_t f32_to_e2m1(float value) noexcept;
/// kMxfp4's scale for values of which the largest has this magnitude: the power of two of the
/// largest over 4, from 2^-126 to 2^125, so that neither it nor a value is past f32.
float mxfp4_scale(float largest) noexcept;
/// The nearest e4m3 code (ties to even mantissa); past 448 the largest.
uint8_t f32_to_e4m3(float value) noexcept;

/// The power of two, 2^-117 or more, that fp8 activations of a row are codes times: the smallest
/// that takes `largest`, the row's largest magnitude, to 448 or below; NaN where that is not
/// finite.
float e4m3_row_scale(float largest) noexcept;

namespace reference {
/// w[row, col] of a quantised matrix of `cols` columns, exact in f32 but for the last rounding.
float quantised_value(const WeightFormat& format, const std::byte* w, int64_t cols, int64_t row,
                      int64_t col);
/// quantise_panel with RangeSearch::kMinMax, the plainest way.
void quantise_panel(const WeightFormat& format, const float* rows, int64_t ld, int64_t row_count,
                    int64_t cols, std::byte* panel);
}  // namespace reference

}  // namespace sluice::kernels
