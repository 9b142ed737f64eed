// The inner loops for AVX-512 with BF16 and VNNI; compiled with its own flags
// (kernels/CMakeLists.txt).
#include "kernels/cpu/isa/avx512_bf16.h"
#include "kernels/cpu/avx512_bf16/int_products.h"
#include "kernels/cpu/avx512_bf16/linear.h"
#include "kernels/cpu/avx512_bf16/quantised_linear.h"
#include "kernels/cpu/avx512_bf16/quantised_panels.h"
#include "kernels/cpu/generic/make_variant.h"

namespace sluice::kernels {

namespace {
constexpr Variant with_bf16_products(Variant out) {
  out.same_sum_columns = kChunkColumns;
  out.linear_rows_bf16 = linear_rows_bf16;
  out.arrange_pairs = arrange_pairs;
  out.linear_panels_bf16 = linear_panels_bf16;
  out.quantised_bf16 = quantised_bf16;
  out.quantised_panels_bf16 = quantised_panels_bf16;
  return out;
}
}  // namespace

constinit const Variant kVariantAvx512Bf16 =
    with_bf16_products(make_variant<ByteProducts>("avx512_bf16"));

}  // namespace sluice::kernels
