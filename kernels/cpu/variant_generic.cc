// The inner loops for generic; compiled with its own flags (kernels/CMakeLists.txt).
#include "kernels/cpu/variant.h"
#include "kernels/quantised_layout.h"

namespace sluice::kernels {

namespace {
constexpr int kLanes = 8;
#include "kernels/cpu/variant_bodies.inc"
}  // namespace

constinit const Variant kVariantGeneric = make_variant("generic");

}  // namespace sluice::kernels
