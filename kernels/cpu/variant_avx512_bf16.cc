// The inner loops for avx512_bf16; compiled with its own flags (kernels/CMakeLists.txt).
#include <immintrin.h>

#include "kernels/cpu/variant.h"
#include "kernels/quantised_layout.h"

namespace sluice::kernels {

namespace {
constexpr int kLanes = 16;
#define SLUICE_F16C 16
#define SLUICE_BF16_DOT 1
#define SLUICE_VNNI 1
#include "kernels/cpu/variant_bodies.inc"
}  // namespace

constinit const Variant kVariantAvx512Bf16 = make_variant("avx512_bf16");

}  // namespace sluice::kernels
