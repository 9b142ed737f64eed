// The inner loops for avx512; compiled with its own flags (kernels/CMakeLists.txt).
#include <immintrin.h>

#include "kernels/cpu/variant.h"
#include "kernels/quantised_layout.h"

namespace sluice::kernels {

namespace {
constexpr int kLanes = 16;
#define SLUICE_F16C 16
#include "kernels/cpu/variant_bodies.inc"
}  // namespace

constinit const Variant kVariantAvx512 = make_variant("avx512");

}  // namespace sluice::kernels
