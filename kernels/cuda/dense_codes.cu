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

template <class Product>
SLUICE_KERNEL(kCodeThreads)
scale_products_kernel(const Product* products, TokenScales x, const std::byte* w, PanelShape shape,
                      int64_t n, const float* bias, float* y, int64_t ldy) {
  const int64_t row = int64_t{block_x()} * kCodeThreads + thread_index();
  const int64_t token = block_y();
  if (row >= n) return;
  const int64_t stride = (n + 15) / 16 * 16;
  const auto* scales =
      reinterpret_cast<const float*>(w + row / 16 * shape.panel_bytes + shape.group_bytes - 64);
  const float value = scales[row % 16] * (x.data[token * x.stride] *
                                          static_cast<float>(products[token * stride + row]));
  y[token * ldy + row] = value + (bias ? bias[row] : 0.0f);
}

template <class Product>
void run_scale(const Product* products, const TokenScales& x, int64_t m, int64_t k,
               const std::byte* w, const WeightFormat& format, int64_t n, const float* bias,
               float* y, int64_t ldy, Stream stream) {
  if (m == 0 || n == 0) return;
  launch("scale_products", scale_products_kernel<Product>,
         {static_cast<int>(blocks_of(n, kCodeThreads)), static_cast<int>(m)}, kCodeThreads, 0,
         stream, products, x, w, panel_shape(format, k), n, bias, y, ldy);
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
