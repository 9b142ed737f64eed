#pragma once
// What the compressed-tensors library stores as small floats or without zeros, for the reader of
// its checkpoints.
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

/// A matrix of which a bitmask says which elements are stored, "X.bitmask" and "X.compressed":
/// plain, fp8 or int8. Errors: kFile when its tensors are missing or do not fit.
ForeignMatrix bitmask_matrix(const PartFinder& parts, int64_t rows, int64_t cols);

/// A matrix of marlin-24, with two of every four elements: int4 or int8, as long as a dense one.
/// Errors likewise.
ForeignMatrix marlin24_matrix(const PartFinder& parts, int64_t rows, int64_t cols);

}  // namespace sluice
