#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/row_block.h"

namespace sluice::cuda {

namespace {
constexpr int64_t kLine = 16;

// kernels::e4m3_row_scale and its inverse, by their exponents.
struct PowerOfTwo {
  float value, inverse;
};
SLUICE_DEVICE PowerOfTwo row_scale(float largest) {
  const uint32_t bits = float_to_bits(largest);
  if (bits >= 0x7f800000u) return {bits_to_float(0x7fc00000u), 1.0f};
  // 448 is 1.75 times 2^8: past that the exponent is one more.
  const int exponent = static_cast<int>((bits + 0x1fffffu) >> 23) - 8;
  const uint32_t biased = exponent > 10 ? static_cast<uint32_t>(exponent) : 10u;
  return {bits_to_float(biased << 23), bits_to_float((254u - biased) << 23)};
}

struct Rounded {
  uint32_t code;
  float value;
};
// To nearest, ties to even; |x| is at most 448.
SLUICE_DEVICE Rounded rounded_to_e4m3(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t sign = bits & 0x80000000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x3c800000u) {  // 2^-6: below, steps of 2^-9
    const float steps = round_of(bits_to_float(magnitude) * 512.0f);
    return {static_cast<uint32_t>(steps) | sign >> 24,
            bits_to_float(float_to_bits(steps * 0x1p-9f) | sign)};
  }
  const uint32_t upper = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  return {(upper - (120u << 3)) | sign >> 24, bits_to_float(upper << 20 | sign)};
}

// kernels::byte_column, which is no function of the device.
SLUICE_DEVICE int column_of_byte(int byte) { return byte == 1 ? 2 : byte == 2 ? 1 : byte; }

// A block a row, a thread a word of four columns.
SLUICE_KERNEL(kMostRowThreads)
round_rows_to_fp8_kernel(const float* x, RowsShape shape, Fp8Rows codes, Rows16 narrow,
                         float* narrow_scales) {
  const int64_t row = block_x();
  const float* from = x + row * shape.stride;
  float largest = 0;
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    largest = larger_bits(largest, bits_to_float(float_to_bits(from[col]) & 0x7fffffffu));
  const PowerOfTwo scale =
      row_scale(block_larger_bits(largest, reinterpret_cast<float*>(shared_memory())));
  const float kept = narrow_scales ? 1.0f : scale.value;
  const int64_t columns = codes.codes ? codes.columns : (shape.cols + 3) / 4 * 4;
  for (int64_t word = thread_index(); word < columns / 4; word += block_threads()) {
    uint32_t packed = 0;
    SLUICE_UNROLL
    for (int byte = 0; byte < 4; ++byte) {
      const int64_t col = word * 4 + column_of_byte(byte);
      if (col >= shape.cols) continue;
      const Rounded rounded = rounded_to_e4m3(from[col] * scale.inverse);
      packed |= rounded.code << (8 * byte);
      keep_rounded(narrow, row, col, rounded.value * kept);
    }
    if (codes.codes) reinterpret_cast<uint32_t*>(codes.codes + row * codes.columns)[word] = packed;
  }
  clear_padding(narrow, row, shape.cols);
  if (thread_index() != 0) return;
  if (codes.codes) codes.scales[row] = scale.value;
  if (narrow_scales) narrow_scales[row] = scale.value;
}

int64_t code_bytes(const WeightFormat& format, int64_t rows, int64_t cols) {
  return (rows * format.padded_columns(cols) + kLine - 1) / kLine * kLine;
}
}  // namespace

Fp8Rows fp8_rows(const WeightFormat& format, int64_t rows, int64_t cols, std::byte* memory) {
  return {reinterpret_cast<uint8_t*>(memory),
          reinterpret_cast<float*>(memory + code_bytes(format, rows, cols)),
          format.padded_columns(cols)};
}

int64_t fp8_rows_bytes(const WeightFormat& format, int64_t rows, int64_t cols) noexcept {
  return code_bytes(format, rows, cols) + rows * static_cast<int64_t>(sizeof(float));
}

void round_rows_to_fp8(const float* x, const RowsShape& shape, const Fp8Rows& codes,
                       const Rows16& narrow, float* narrow_scales, Stream stream) {
  if (shape.rows == 0) return;
  launch("round_rows_to_fp8", round_rows_to_fp8_kernel, {static_cast<int>(shape.rows)},
         row_threads(shape.cols), kRowScratchBytes, stream, x, shape, codes, narrow, narrow_scales);
}

}  // namespace sluice::cuda
