// The inner loops for AVX-512; compiled with its own flags (kernels/CMakeLists.txt).
#include "kernels/cpu/isa/avx512.h"
#include "kernels/cpu/generic/make_variant.h"

namespace sluice::kernels {

constinit const Variant kVariantAvx512 = make_variant<void>("avx512");

}  // namespace sluice::kernels
