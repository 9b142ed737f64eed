// The inner loops for avx2; compiled with its own flags (kernels/CMakeLists.txt).
#include <immintrin.h>

#include "kernels/cpu/variant.h"
#include "kernels/quantised_layout.h"

namespace sluice::kernels {

namespace {
constexpr int kLanes = 8;
#define SLUICE_F16C 8
#include "kernels/cpu/variant_bodies.inc"
}  // namespace

constinit const Variant kVariantAvx2 = make_variant("avx2");

}  // namespace sluice::kernels
