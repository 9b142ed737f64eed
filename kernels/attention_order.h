#pragma once
// Attention whose results do not depend on who attends beside a query.
#include "kernels/attention.h"
#include "kernels/sum_order.h"

namespace sluice::kernels {

/// attention() in an order of sums. By row a query's result is the same bits whichever tokens of
/// its sequence, whichever other sequences and however many threads attend beside it: contexts are
/// cut at the same positions for all and merged in their order, many rows take keys as few do, and
/// queries of layers with windows, or of sparse attention, attend one token at a time. Scratch is
/// attention_scratch_floats().
void attention(const AttentionShape& shape, std::span<const AttentionSequence> sequences,
               float* scratch, int64_t scratch_floats, SumOrder order) noexcept;

}  // namespace sluice::kernels
