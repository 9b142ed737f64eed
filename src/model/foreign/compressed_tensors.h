#pragma once
// What the compressed-tensors library stores as small floats, for the reader of its checkpoints.
#include <optional>

#include "src/model/foreign/foreign.h"

namespace sluice {

/// Four kinds of small floats: e2m1 with two scales, e2m1, e2m3 and e4m3 with one power of two.
enum class CompressedFloat : uint8_t { kNvfp4, kMxfp4, kMxfp6, kMxfp8 };

/// Which of them a layer's tensors are, or nothing: integers, or floats of 8 bits with plain
/// scales.
std::optional<CompressedFloat> compressed_float_of(const PartFinder& parts);

/// The matrix: MXFP4 as it is, MXFP6 as int8 and MXFP8 as fp8 in groups of 32, which hold their
/// values exactly; NVFP4 as bf16. Errors: kFile when its tensors are missing or do not fit.
ForeignMatrix compressed_float_matrix(CompressedFloat kind, const PartFinder& parts, int64_t rows,
                                      int64_t cols);

}  // namespace sluice
