#pragma once
// Converts arrays of weights between element types, a few GB/s a core: for `sluice convert`. Rounds
// to nearest even, keeps infinities and subnormals; the same bits as the scalar functions of
// src/base/dtype.h, but a NaN always comes out quiet. Uses the processor's instructions where there
// are some; the result does not depend on that. Pure functions; inputs need no alignment.
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/dtype.h"

namespace sluice::io {

/// True between any two of f32, f16, bf16, from f64 to these, and from a type to itself.
bool can_convert(DType from, DType to) noexcept;
/// `in`: whole elements of `from`; `out`: as many of `to`, not overlapping. f64 goes through f32
/// (rounds twice).
void convert_elements(DType from, std::span<const std::byte> in, DType to,
                      std::span<std::byte> out);
/// The same without special instructions: for other processors, and for tests.
void convert_elements_portable(DType from, std::span<const std::byte> in, DType to,
                               std::span<std::byte> out);
/// The first element that is finite in `in` and infinite in `out`, which convert_elements has made
/// of it: too large for `to`. -1: none.
int64_t first_overflow(DType from, std::span<const std::byte> in, DType to,
                       std::span<const std::byte> out) noexcept;

}  // namespace sluice::io
