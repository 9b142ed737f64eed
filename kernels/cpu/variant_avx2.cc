// The inner loops for avx2; compiled with its own flags (kernels/CMakeLists.txt).
#include <immintrin.h>

#include "kernels/cpu/variant.h"
#include "kernels/quantised_layout.h"

namespace sluice::kernels {

namespace {
constexpr int kLanes = 8;
#define SLUICE_F16C 8
// Each body builds on the one before it.
// clang-format off
#include "kernels/cpu/vector.inc"
#include "kernels/cpu/rows_body.inc"
#include "kernels/cpu/linear_body.inc"
#include "kernels/cpu/quantise_body.inc"
#include "kernels/cpu/quantised_linear_body.inc"
#include "kernels/cpu/attention_body.inc"
// clang-format on
}  // namespace

const Variant kVariantAvx2{
    .name = "avx2",
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
    .linear_rows_bf16 = nullptr,
    .quantised_f32 = quantised_f32,
    .quantised_bf16 = nullptr,
    .quantised_int8 = quantised_int8,
    .quantise_activations = quantise_activations,
    .sum_groups = sum_groups,
    .quantise_rows = quantise_rows,
    .unpack_panel = unpack_panel,
    .linear_panels_bf16 = nullptr,
    .attend = attend,
    .kv_quantise = kv_quantise,
};

}  // namespace sluice::kernels
