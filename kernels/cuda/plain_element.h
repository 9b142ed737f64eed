#pragma once
// An element of a plain matrix, for kernels that read few at a time.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/vocabulary.h"
#include "src/base/dtype.h"

namespace sluice::cuda {

/// matrix[index] of elements kType: kF32, kF16 or kBF16.
template <DType kType>
SLUICE_DEVICE float plain_element(const std::byte* matrix, int64_t index) {
  if constexpr (kType == DType::kF32)
    return reinterpret_cast<const float*>(matrix)[index];
  else if constexpr (kType == DType::kF16)
    return half_to_float(reinterpret_cast<const uint16_t*>(matrix)[index]);
  else
    return bf16_to_float(reinterpret_cast<const uint16_t*>(matrix)[index]);
}

}  // namespace sluice::cuda
