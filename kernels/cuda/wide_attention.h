#pragma once
// Attention of heads of more than kMostKeptDim columns, up to kWideDim, called by attention().
// Plain 16-bit KV: no wider heads are quantised (KvFormat::kMostHeadDim).
#include "kernels/cuda/attention.h"

namespace sluice::cuda {

/// The plan's items of such a shape; attention() merges its splits.
void wide_attention(const kernels::AttentionShape& shape, const AttentionPlan& plan,
                    const AttentionArguments& arguments, Stream stream);

}  // namespace sluice::cuda
