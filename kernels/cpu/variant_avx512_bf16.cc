// The inner loops for avx512_bf16; compiled with its own flags (kernels/CMakeLists.txt).
#include "kernels/cpu/variant.h"

#include <immintrin.h>

namespace sluice::kernels {

namespace {
constexpr int kLanes = 16;
#define SLUICE_F16C 16
#define SLUICE_BF16_DOT 1
#include "kernels/cpu/variant_body.inc"
#include "kernels/cpu/attention_body.inc"
}  // namespace

const Variant kVariantAvx512Bf16{"avx512_bf16",        rms_norm_rows, layer_norm_rows, add_range,   silu_mul_range, relu_range,
                         gelu_tanh_range, to_f32,        from_f32,        scale_range, linear_rows,    linear_rows_bf16, attend};

}  // namespace sluice::kernels
