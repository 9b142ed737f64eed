#pragma once
// Rows quantised on the device, for tests: memory for them, and the check against the plain
// formula.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/int8_rows.h"
#include "kernels/quantised_layout.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::cuda {

class Int8Copy {
 public:
  Int8Copy(const WeightFormat& format, int64_t rows, int64_t cols)
      : format_(format),
        rows_(rows),
        cols_(cols),
        memory_(static_cast<size_t>(int8_rows_bytes(format, rows, cols))) {}

  Int8Rows rows() const { return int8_rows(format_, rows_, cols_, memory_.data()); }

  /// Codes, scales and sums are those of `values` [rows, cols] (kernels/quantised_linear.h).
  void expect_of(const std::vector<float>& values) const {
    const auto bytes = memory_.values();
    const Int8Rows there = rows();
    const auto* codes = reinterpret_cast<const int8_t*>(bytes.data());
    const auto* scales = reinterpret_cast<const Int8Scale*>(
        bytes.data() + (reinterpret_cast<const std::byte*>(there.scales) - memory_.data()));
    for (int64_t row = 0; row < rows_; ++row)
      for (int64_t group = 0; group < there.groups(); ++group) {
        const float* x = values.data() + row * cols_;
        const int64_t begin = group * there.group_columns;
        float largest = 0;
        for (int64_t col = begin; col < std::min(cols_, begin + there.group_columns); ++col)
          largest = std::max(largest, std::fabs(x[col]));
        const float scale = largest / 127.0f;
        int sum = 0;
        for (int64_t at = begin; at < begin + there.group_columns; ++at) {
          const int line = there.is_four_bit ? 8 : 4;
          const int64_t col =
              at / line * line +
              kernels::unpacked_column(there.is_four_bit, static_cast<int>(at % line));
          const int code =
              col < cols_ && scale > 0 ? static_cast<int>(std::nearbyint(x[col] / scale)) : 0;
          ASSERT_EQ(int{codes[row * there.columns + at]}, code)
              << "row " << row << " column " << col;
          sum += code;
        }
        const Int8Scale& found = scales[group * there.scale_stride + row];
        ASSERT_EQ(found.scale, scale) << "row " << row << " group " << group;
        ASSERT_EQ(found.scaled_sum, scale * static_cast<float>(sum)) << row << " " << group;
      }
  }

 private:
  WeightFormat format_;
  int64_t rows_;
  int64_t cols_;
  DeviceArray<std::byte> memory_;
};

}  // namespace sluice::cuda
