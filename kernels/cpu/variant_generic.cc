// The inner loops for generic; compiled with its own flags (kernels/CMakeLists.txt).
#include "kernels/cpu/variant.h"

namespace sluice::kernels {

namespace {
constexpr int kLanes = 8;

#include "kernels/cpu/variant_body.inc"
#include "kernels/cpu/attention_body.inc"
}  // namespace

const Variant kVariantGeneric{"generic",        rms_norm_rows, layer_norm_rows, add_range,   silu_mul_range, relu_range,
                         gelu_tanh_range, to_f32,        from_f32,        scale_range, linear_rows,    nullptr, attend};

}  // namespace sluice::kernels
