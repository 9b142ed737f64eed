// The inner loops for 64-bit ARM with products of bytes; compiled with its own flags
// (kernels/CMakeLists.txt).
#include "kernels/cpu/isa/neon.h"
#include "kernels/cpu/generic/make_variant.h"

namespace sluice::kernels {

constinit const Variant kVariantNeon = make_variant<void>("neon");

}  // namespace sluice::kernels
