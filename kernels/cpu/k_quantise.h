#pragma once
// Scales and codes of K types (kernels/k_layout.h) for groups of 256 columns of a panel, by
// weighted least squares. One set of loops for every instruction set, without fused products: the
// same bits everywhere. Nothing is shared: any thread may call it.
#include <cstddef>
#include <cstdint>

#include "kernels/k_layout.h"

namespace sluice::kernels {

constexpr int kMostKParts = 16;

/// What a group of each of 16 rows shares, as a panel stores it: w = d s q - m n.
struct KScalesOf16 {
  float d[WeightFormat::kPanelRows], m[WeightFormat::kPanelRows];
  /// s and n, [parts][16] whole numbers; n is 0 where the type has no minima.
  float s[kMostKParts * WeightFormat::kPanelRows], n[kMostKParts * WeightFormat::kPanelRows];
};

/// Scales for a group: first each part's own scale (and minimum) with the codes that they give, by
/// clipped ranges and least squares; then d (and m) that small scales in whole numbers come closest
/// with; then small scales, the codes that they give, and d (and m), in turns.
///   block    [256][16] finite, zeros past the last column
///   weights  [256] how much an error of each column counts, not negative, 0 past the last column;
///            null: one of a large value more
/// False: a scale is past what the type holds, or values are past a quarter of f32's range.
bool choose_k_scales(Encoding encoding, const float* block, const float* weights,
                     KScalesOf16& out) noexcept;

/// Small scales of one part once more, for other values of it, d and m as they are. Of a group that
/// choose_k_scales() has answered for, nothing changes.
void choose_k_part(Encoding encoding, int part, const float* block, const float* weights,
                   KScalesOf16& scales) noexcept;

/// codes [16][stride] of a group: what is nearest.
void choose_k_codes(Encoding encoding, const float* block, const KScalesOf16& scales,
                    uint8_t* codes, int64_t stride) noexcept;

/// All of the group's lines (kernels/k_layout.h).
void pack_k_group(Encoding encoding, const KScalesOf16& scales, const uint8_t* codes,
                  int64_t stride, std::byte* group) noexcept;

/// quantise_panel() of a K type.
bool quantise_k_panel(const WeightFormat& format, const float* importance, const float* rows,
                      int64_t ld, int64_t row_count, int64_t cols, std::byte* panel) noexcept;

}  // namespace sluice::kernels
