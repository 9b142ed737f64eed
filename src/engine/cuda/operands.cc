#include "src/engine/cuda/operands.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/quantise.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

namespace {
// Of the values that are made on the host; beyond them they come again.
constexpr int64_t kMostDrawn = int64_t{1} << 18;
constexpr int64_t kAlignment = 256;

std::vector<float> normal_values(int64_t count) {
  std::mt19937 random(20261125);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// `piece` at the beginning of `memory`, and again and again until its end: each copy is twice the
// one before.
void fill_with(const std::vector<std::byte>& piece, int64_t bytes, std::byte* memory,
               cuda::Stream stream) {
  int64_t filled = std::min(bytes, static_cast<int64_t>(piece.size()));
  cuda::copy_to_device(memory, piece.data(), filled, stream);
  while (filled < bytes) {
    const int64_t more = std::min(filled, bytes - filled);
    cuda::copy_on_device(memory + filled, memory, more, stream);
    filled += more;
  }
  cuda::synchronize(stream);
}

std::vector<std::byte> encoded(DType type, const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() * static_cast<size_t>(dtype_bytes(type)));
  auto* floats = reinterpret_cast<float*>(out.data());
  auto* halves = reinterpret_cast<uint16_t*>(out.data());
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DType::kF32)
      floats[i] = values[i];
    else
      halves[i] = type == DType::kBF16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
  }
  return out;
}

std::vector<std::byte> panel_of(const WeightFormat& format, int64_t k) {
  const std::vector<float> rows = normal_values(WeightFormat::kPanelRows * k);
  std::vector<std::byte> panel(static_cast<size_t>(format.panel_bytes(k)));
  const bool is_made = kernels::quantise_panel(format, {kernels::RangeSearch::kMinMax}, rows.data(),
                                               k, WeightFormat::kPanelRows, k, panel.data());
  SLUICE_ASSERT(is_made, "normal values have scales");
  return panel;
}
}  // namespace

void fill_values(DType type, int64_t count, std::byte* memory, cuda::Stream stream) {
  fill_with(encoded(type, normal_values(std::min(count, kMostDrawn))), count * dtype_bytes(type),
            memory, stream);
}

void fill_pages(const kernels::AttentionShape& shape, int64_t pages, std::byte* memory,
                cuda::Stream stream) {
  const int64_t row = int64_t{shape.num_kv_heads} * shape.head_dim;
  const std::vector<float> values = normal_values(2 * shape.page_tokens * row);
  const int64_t page_bytes = shape.page_bytes();
  std::vector<std::byte> page(static_cast<size_t>(page_bytes));
  std::byte* const only = page.data();
  kernels::kv_write(shape, values.data(), values.data() + shape.page_tokens * row, row, 0,
                    shape.page_tokens, &only);
  fill_with(page, pages * page_bytes, memory, stream);
}

int64_t MatrixPool::bytes_for(const WeightFormat& format, int64_t n, int64_t k,
                              int64_t rotate_bytes) {
  const int64_t one = round_up(format.bytes(n, k), kAlignment);
  return (rotate_bytes + one - 1) / one * one;
}

void MatrixPool::fill(const WeightFormat& format, int64_t n, int64_t k, cuda::Stream stream) {
  matrix_bytes_ = round_up(format.bytes(n, k), kAlignment);
  const int64_t all = std::min(bytes_for(format, n, k, rotate_), memory_.size());
  matrices_ = static_cast<int>(all / matrix_bytes_);
  SLUICE_ASSERT(matrices_ > 0, "the pool holds one matrix");
  if (!format.is_quantised())
    return fill_values(format.dtype, int64_t{matrices_} * matrix_bytes_ / dtype_bytes(format.dtype),
                       memory_.data(), stream);
  // Each from its first row on: panels do not go on from one to the next.
  const std::vector<std::byte> panel = panel_of(format, k);
  if (matrix_bytes_ % static_cast<int64_t>(panel.size()) == 0)
    return fill_with(panel, int64_t{matrices_} * matrix_bytes_, memory_.data(), stream);
  for (int i = 0; i < matrices_; ++i)
    fill_with(panel, format.bytes(n, k), memory_.data() + i * matrix_bytes_, stream);
}

}  // namespace sluice
