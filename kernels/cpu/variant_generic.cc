// The inner loops in plain C++, for any processor.
#include "kernels/cpu/generic/make_variant.h"

namespace sluice::kernels {

constinit const Variant kVariantGeneric = make_variant<void>("generic");

}  // namespace sluice::kernels
