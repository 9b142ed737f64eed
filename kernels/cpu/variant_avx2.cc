// The inner loops for AVX2; compiled with its own flags (kernels/CMakeLists.txt).
#include "kernels/cpu/isa/avx2.h"
#include "kernels/cpu/avx2/int_products.h"
#include "kernels/cpu/generic/make_variant.h"

namespace sluice::kernels {

constinit const Variant kVariantAvx2 = make_variant<PairProducts>("avx2");

}  // namespace sluice::kernels
