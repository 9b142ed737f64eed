#include "kernels/cuda/dense_codes.h"
#include "kernels/cuda/quantised_linear_launch.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

namespace {
constexpr int kCodeThreads = 256;

int64_t blocks_of(int64_t all, int64_t each) { return (all + each - 1) / each; }

// A thread has 16 columns of a row: four words, which lie 64 bytes apart. `flip` takes 128 from
// each code, or nothing.
SLUICE_KERNEL(kCodeThreads)
unpack_codes_kernel(const std::byte* w, PanelShape shape, uint32_t flip, std::byte* out) {
  const int64_t index = int64_t{block_x()} * kCodeThreads + thread_index();
  const int64_t row = index % 16;
  const int64_t col = index / 16 * 16;
  if (col >= shape.columns) return;
  const int64_t panel = block_y();
  const auto* from =
      reinterpret_cast<const uint32_t*>(w + panel * shape.panel_bytes + col / 4 * 64) + row;
  Words4 codes;
  SLUICE_UNROLL
  for (int i = 0; i < 4; ++i) codes.word[i] = from[16 * i] ^ flip;
  *reinterpret_cast<Words4*>(out + (panel * 16 + row) * shape.columns + col) = codes;
}

SLUICE_DEVICE float as_float(uint32_t bits, int32_t) {
  return static_cast<float>(static_cast<int32_t>(bits));
}
SLUICE_DEVICE float as_float(uint32_t bits, float) { return bits_to_float(bits); }

// A thread has four rows of W of a token: 16 bytes of sums, and of y where they are aligned
// (`is_wide`).
template <class Product>
SLUICE_KERNEL(kCodeThreads)
scale_products_kernel(const Product* products, TokenScales x, const std::byte* w, PanelShape shape,
                      int64_t n, const float* bias, float* y, int64_t ldy, bool is_wide) {
  const int64_t row = (int64_t{block_x()} * kCodeThreads + thread_index()) * 4;
  const int64_t token = block_y();
  if (row >= n) return;
  const int64_t stride = (n + 15) / 16 * 16;
  const Words4 sums = load_streaming16(products + token * stride + row);
  const Words4 scales = *reinterpret_cast<const Words4*>(w + row / 16 * shape.panel_bytes +
                                                         shape.group_bytes - 64 + row % 16 * 4);
  const float token_scale = x.data[token * x.stride];
  Words4 out;
  SLUICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float value =
        bits_to_float(scales.word[i]) * (token_scale * as_float(sums.word[i], Product{}));
    out.word[i] = float_to_bits(value + (bias && row + i < n ? bias[row + i] : 0.0f));
  }
  float* to = y + token * ldy + row;
  if (is_wide && row + 4 <= n) {
    *reinterpret_cast<Words4*>(to) = out;
    return;
  }
  SLUICE_UNROLL
  for (int i = 0; i < 4; ++i)
    if (row + i < n) to[i] = bits_to_float(out.word[i]);
}

template <class Product>
void run_scale(const Product* products, const TokenScales& x, int64_t m, int64_t k,
               const std::byte* w, const WeightFormat& format, int64_t n, const float* bias,
               float* y, int64_t ldy, Stream stream) {
  if (m == 0 || n == 0) return;
  const bool is_wide = ldy % 4 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0;
  launch("scale_products", scale_products_kernel<Product>,
         {static_cast<int>(blocks_of(blocks_of(n, 4), kCodeThreads)), static_cast<int>(m)},
         kCodeThreads, 0, stream, products, x, w, panel_shape(format, k), n, bias, y, ldy, is_wide);
}
}  // namespace

bool is_dense_codes(const WeightFormat& format, int64_t m, int64_t k) noexcept {
  if (format.groups(k) != 1) return false;
  return (format.encoding == Encoding::kInt8 && m >= kFewestDenseInt8Rows) ||
         (format.encoding == Encoding::kFp8 && m >= kFewestDenseFp8Rows);
}

void unpack_codes(const std::byte* w, const WeightFormat& format, int64_t n, int64_t k, void* out,
                  Stream stream) {
  if (n == 0 || k == 0) return;
  const PanelShape shape = panel_shape(format, k);
  const uint32_t flip = format.encoding == Encoding::kInt8 ? 0x80808080u : 0;
  launch("unpack_codes", unpack_codes_kernel,
         {static_cast<int>(blocks_of(shape.columns, kCodeThreads)),
          static_cast<int>(blocks_of(n, 16))},
         kCodeThreads, 0, stream, w, shape, flip, static_cast<std::byte*>(out));
}

void scale_products(const int32_t* products, const TokenScales& x, int64_t m, int64_t k,
                    const std::byte* w, const WeightFormat& format, int64_t n, const float* bias,
                    float* y, int64_t ldy, Stream stream) {
  run_scale(products, x, m, k, w, format, n, bias, y, ldy, stream);
}

void scale_products(const float* products, const TokenScales& x, int64_t m, int64_t k,
                    const std::byte* w, const WeightFormat& format, int64_t n, const float* bias,
                    float* y, int64_t ldy, Stream stream) {
  run_scale(products, x, m, k, w, format, n, bias, y, ldy, stream);
}

}  // namespace sluice::cuda
