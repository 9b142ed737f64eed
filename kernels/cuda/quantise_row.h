#pragma once
// One row of f32 to int8 codes and scales, by a block: the device part of int8_rows.h. Only .cu
// files include it.
#include "kernels/cuda/int8_rows.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

/// The larger of two magnitudes, as bits: a NaN is the largest.
SLUICE_DEVICE float larger_bits(float a, float b) {
  return float_to_bits(a) > float_to_bits(b) ? a : b;
}

/// That of a block; `scratch`: a word a warp of shared memory, which other threads may have read
/// before.
SLUICE_DEVICE float block_larger_bits(float largest, float* scratch) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2)
    largest = larger_bits(largest, shuffle_xor(largest, mask));
  block_sync();
  if (lane_index() == 0) scratch[warp_index()] = largest;
  block_sync();
  for (int i = 0; i < block_threads() / kWarp; ++i) largest = larger_bits(largest, scratch[i]);
  return largest;
}

/// Quantises rows that a block writes.
class RowQuantiser {
 public:
  /// Columns that a warp takes at a time: a word of codes a lane.
  static constexpr int kWarpColumns = 4 * kWarp;

  /// `from`: `cols` values that all threads of the block see; `scratch`: a word a warp.
  SLUICE_DEVICE RowQuantiser(const float* from, int64_t cols, const Int8Rows& to, int64_t row,
                             float* scratch)
      : from_(from), cols_(cols), to_(to), row_(row), scratch_(scratch) {}

  SLUICE_DEVICE void run() const {
    if (to_.group_columns > kWarpColumns)
      quantise_whole();
    else
      run_slice(0, to_.columns / 4);
  }

  /// Words from `first`, the first of a group, up to `count`, of a row with groups of up to
  /// kWarpColumns: 8, 16 or 32 neighbouring lanes each.
  SLUICE_DEVICE void run_slice(int64_t first, int64_t count) const {
    const int group_lanes = static_cast<int>(to_.group_columns) / 4;
    const int64_t end = first + count < to_.columns / 4 ? first + count : to_.columns / 4;
    for (int64_t begin = first + int64_t{warp_index()} * kWarp; begin < end;
         begin += block_threads()) {
      const int64_t index = begin + lane_index();
      const Values values = values_of(index);  // zeros past the end
      float largest = values.largest;
      for (int mask = group_lanes / 2; mask > 0; mask /= 2)
        largest = larger_bits(largest, shuffle_xor(largest, mask));
      const float scale = largest / 127.0f;
      int sum = index < end ? store(index, values, scale) : 0;
      for (int mask = group_lanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
      if (index < end && lane_index() % group_lanes == 0)
        store_scale(index * 4 / to_.group_columns, scale, static_cast<float>(sum));
    }
  }

 private:
  // Values of word `index` of the codes: every second column of a line of eight, or a line of four.
  struct Values {
    float value[4];
    float largest;  // as bits, so that a NaN stays the largest
  };

  SLUICE_DEVICE Values values_of(int64_t index) const {
    const int64_t first = to_.is_four_bit ? index / 2 * 8 + index % 2 * 2 : index * 4;
    Values out;
    uint32_t largest = 0;
    SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      // Of four bits columns 0, 4, 1, 5 of the line and then 2, 6, 3, 7; of eight 0, 2, 1, 3.
      const int64_t col = first + i / 2 + i % 2 * (to_.is_four_bit ? 4 : 2);
      out.value[i] = col < cols_ ? from_[col] : 0.0f;
      const uint32_t magnitude = float_to_bits(out.value[i]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
    out.largest = bits_to_float(largest);
    return out;
  }

  SLUICE_DEVICE static int code_of(float value, float scale) {
    const float code = scale > 0 ? round_of(value / scale) : 0.0f;
    return static_cast<int>(code > -127.0f ? (code < 127.0f ? code : 127.0f) : -127.0f);
  }

  // Stores a word of codes; its sum.
  SLUICE_DEVICE int store(int64_t index, const Values& values, float scale) const {
    uint32_t word = 0;
    int sum = 0;
    SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int code = code_of(values.value[i], scale);
      sum += code;
      word |= (static_cast<uint32_t>(code) & 255u) << (8 * i);
    }
    reinterpret_cast<uint32_t*>(to_.codes + row_ * to_.columns)[index] = word;
    return sum;
  }

  SLUICE_DEVICE void store_scale(int64_t group, float scale, float sum) const {
    to_.scales[group * to_.scale_stride + row_] = {scale, scale * sum};
  }

  SLUICE_DEVICE void quantise_whole() const {
    const int64_t words = to_.columns / 4;
    float largest = 0;
    for (int64_t i = thread_index(); i < words; i += block_threads())
      largest = larger_bits(largest, values_of(i).largest);
    largest = block_larger_bits(largest, scratch_);
    const float scale = largest / 127.0f;
    int sum = 0;
    for (int64_t i = thread_index(); i < words; i += block_threads())
      sum += store(i, values_of(i), scale);
    const float total = block_sum(static_cast<float>(sum), scratch_);
    if (thread_index() == 0) store_scale(0, scale, total);
  }

  const float* from_;
  int64_t cols_;
  const Int8Rows& to_;
  int64_t row_;
  float* scratch_;
};

}  // namespace sluice::cuda
