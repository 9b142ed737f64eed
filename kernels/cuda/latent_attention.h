#pragma once
// Attention where a position's one key is its value too (AttentionShape::has_values), called by
// attention(). Plain 16-bit rows of at most kMostLatentDim columns.
#include "kernels/cuda/attention.h"

namespace sluice::cuda {

/// The plan's items of such a shape; attention() merges its splits.
void latent_attention(const kernels::AttentionShape& shape, const AttentionPlan& plan,
                      const AttentionArguments& arguments, Stream stream);

}  // namespace sluice::cuda
