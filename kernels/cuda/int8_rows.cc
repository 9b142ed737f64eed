#include "kernels/cuda/int8_rows.h"

#include "kernels/quantised_layout.h"
#include "src/base/bytes.h"

namespace sluice::cuda {

namespace {
constexpr int64_t kLine = 16;

int64_t scales_of_group(int64_t rows) noexcept { return round_up(rows, 2); }

int64_t code_bytes(const WeightFormat& format, int64_t rows, int64_t cols) noexcept {
  return round_up(rows * format.padded_columns(cols), kLine);
}
}  // namespace

Int8Rows int8_rows(const WeightFormat& format, int64_t rows, int64_t cols, std::byte* memory) {
  Int8Rows out;
  out.codes = reinterpret_cast<int8_t*>(memory);
  out.scales = reinterpret_cast<Int8Scale*>(memory + code_bytes(format, rows, cols));
  out.columns = format.padded_columns(cols);
  out.group_columns = format.group_columns(cols);
  out.scale_stride = scales_of_group(rows);
  out.is_four_bit = kernels::is_four_bit(format.encoding);
  return out;
}

int64_t int8_rows_bytes(const WeightFormat& format, int64_t rows, int64_t cols) noexcept {
  return code_bytes(format, rows, cols) +
         format.groups(cols) * scales_of_group(rows) * static_cast<int64_t>(sizeof(Int8Scale));
}

}  // namespace sluice::cuda
