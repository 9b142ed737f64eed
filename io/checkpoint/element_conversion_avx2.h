#pragma once
// Eight weights at a time for processors with AVX2 and F16C. Private to element_conversion.cc,
// which asks first whether the processor can; bit for bit what the portable code gives.
#include <cstddef>
#include <cstdint>

#include "src/base/dtype.h"

namespace sluice::io {

/// True when this processor runs convert_avx2. False on every other architecture.
bool has_avx2_conversion() noexcept;
/// Converts `count` elements, a multiple of 8, between two of f32, f16 and bf16. Returns false,
/// having done nothing, for other types.
bool convert_avx2(DType from, const std::byte* in, DType to, std::byte* out,
                  int64_t count) noexcept;

}  // namespace sluice::io
