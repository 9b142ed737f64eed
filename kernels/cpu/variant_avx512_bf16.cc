// The inner loops for avx512_bf16; compiled with its own flags (kernels/CMakeLists.txt).
#include <immintrin.h>

#include "kernels/cpu/variant.h"

namespace sluice::kernels {

namespace {
constexpr int kLanes = 16;
#define SLUICE_F16C 16
#define SLUICE_BF16_DOT 1
// Each body builds on the one before it.
// clang-format off
#include "kernels/cpu/vector.inc"
#include "kernels/cpu/rows_body.inc"
#include "kernels/cpu/linear_body.inc"
#include "kernels/cpu/attention_body.inc"
// clang-format on
}  // namespace

const Variant kVariantAvx512Bf16{
    .name = "avx512_bf16",
    .rms_norm = rms_norm_rows,
    .layer_norm = layer_norm_rows,
    .add = add_range,
    .silu_mul = silu_mul_range,
    .relu = relu_range,
    .gelu_erf = gelu_erf_range,
    .gelu_tanh = gelu_tanh_range,
    .softmax = softmax_row,
    .to_f32 = to_f32,
    .from_f32 = from_f32,
    .linear_rows = linear_rows,
    .linear_panels = linear_panels,
    .linear_rows_bf16 = linear_rows_bf16,
    .attend = attend,
};

}  // namespace sluice::kernels
