// The inner loops for 64-bit ARM with products of bytes and of bf16; compiled with its own flags
// (kernels/CMakeLists.txt).
#include "kernels/cpu/isa/neon_bf16.h"
#include "kernels/cpu/generic/make_variant.h"
#include "kernels/cpu/neon_bf16/linear.h"
#include "kernels/cpu/neon_bf16/quantised_linear.h"
#include "kernels/cpu/neon_bf16/quantised_panels.h"

namespace sluice::kernels {

namespace {
constexpr Variant with_bf16_products(Variant out) {
  out.linear_rows_bf16 = linear_rows_bf16;
  out.arrange_pairs = arrange_pairs;
  out.linear_panels_bf16 = linear_panels_bf16;
  out.quantised_bf16 = quantised_bf16;
  out.quantised_panels_bf16 = quantised_panels_bf16;
  return out;
}
}  // namespace

constinit const Variant kVariantNeonBf16 = with_bf16_products(make_variant<void>("neon_bf16"));

}  // namespace sluice::kernels
