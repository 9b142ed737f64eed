#pragma once
// What a packed store made of other tools' weights holds, beside rows that their packages gave.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "kernels/elementwise.h"
#include "kernels/quantise.h"

namespace sluice::app {

inline std::vector<std::byte> bytes_of(const io::Checkpoint& checkpoint,
                                       const io::TensorEntry& tensor) {
  std::ifstream file(checkpoint.files()[static_cast<size_t>(tensor.file_index)].path,
                     std::ios::binary);
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
  file.seekg(tensor.offset);
  file.read(reinterpret_cast<char*>(bytes.data()), tensor.bytes);
  return bytes;
}

/// Row `row` of a matrix as f32.
inline std::vector<float> row_of(const io::TensorEntry& tensor, const std::vector<std::byte>& bytes,
                                 int64_t row) {
  const int64_t cols = tensor.shape.back();
  std::vector<float> out(static_cast<size_t>(cols));
  if (tensor.quantised.is_quantised())
    for (int64_t col = 0; col < cols; ++col)
      out[static_cast<size_t>(col)] =
          kernels::reference::quantised_value(tensor.quantised, bytes.data(), cols, row, col);
  else
    kernels::convert(tensor.dtype, bytes.data() + row * cols * dtype_bytes(tensor.dtype),
                     DType::kF32, out.data(), cols);
  return out;
}

/// The largest difference between matrix `name` of `store` and the golden rows (0, 1, the middle
/// one, the last), as a share of the largest value of its 32 columns.
inline double worst_share(const std::filesystem::path& store, const std::filesystem::path& golden,
                          const std::string& name) {
  const io::Checkpoint goldens = io::Checkpoint::open(golden);
  const io::Checkpoint made = io::Checkpoint::open(store);
  const io::TensorEntry* expected_entry = goldens.find(name);
  const io::TensorEntry* tensor = made.find(name);
  EXPECT_TRUE(expected_entry && tensor) << name;
  if (!expected_entry || !tensor) return INFINITY;
  const auto expected_bytes = bytes_of(goldens, *expected_entry), bytes = bytes_of(made, *tensor);
  const int64_t rows = tensor->shape[0];
  const std::array<int64_t, 4> sampled{0, 1, rows / 2, rows - 1};
  double worst = 0;
  for (int64_t i = 0; i < 4; ++i) {
    const auto expected = row_of(*expected_entry, expected_bytes, i);
    const auto actual = row_of(*tensor, bytes, sampled[static_cast<size_t>(i)]);
    for (size_t begin = 0; begin < expected.size(); begin += 32) {
      float most = 0;
      const size_t end = std::min(begin + 32, expected.size());
      for (size_t col = begin; col < end; ++col) most = std::max(most, std::fabs(expected[col]));
      for (size_t col = begin; col < end; ++col)
        worst = std::max(worst, double{std::fabs(actual[col] - expected[col])} / most);
    }
  }
  return worst;
}

}  // namespace sluice::app
