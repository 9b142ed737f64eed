#pragma once
// What adapters add to products and to rows of tables in GPU memory (kernels/low_rank.h says what
// that is). Rows are grouped by adapter, up to eight in an item wherever they lie, so that A and B
// are read once for them. What an adapter adds to a weight is read by the kernels themselves from
// its table, so that a launch depends on sizes alone: one list of items serves all products of a
// micro-batch, and a graph may be launched with others. f32 on the general cores. Pointers are the
// device's; calls return at once, in the stream's order.
#include "kernels/cuda/multiprocessors.h"
#include "kernels/cuda/types.h"
#include "kernels/low_rank.h"

namespace sluice::cuda {

/// Rows that an item may have.
constexpr int kLowRankRows = 8;

/// Rows of one adapter. As it is, one that has nothing to do.
struct LowRankItem {
  /// What the adapter adds to each weight of the model (rank 0: nothing); null: none at all.
  const kernels::LowRank* changes = nullptr;
  /// Rows of the micro-batch, each in one item only; -1: none.
  int32_t rows[kLowRankRows] = {-1, -1, -1, -1, -1, -1, -1, -1};
};

/// Which rows of which product.
struct LowRankProduct {
  const LowRankItem* items = nullptr;
  int64_t count = 0;
  int64_t weight = 0;     ///< which of an item's changes
  int64_t most_rank = 0;  ///< of these
  /// Rows [first_row, first_row + rows) of the items' are those of x and y from their first on.
  int64_t first_row = 0;
  int64_t rows = 0;
};

/// As kernels::add_low_rank(); what has `operands.ids` is a table. `scratch` has
/// low_rank_scratch_floats() of the most rows and the largest rank.
void add_low_rank(const LowRankProduct& product, const kernels::LowRankOperands& operands,
                  float* scratch, const Multiprocessors& processors, Stream stream);
int64_t low_rank_scratch_floats(int64_t rows, int64_t most_rank) noexcept;
/// Parts that columns of x are cut in, where items and ranks are too few for all processors; of a
/// product that is not empty.
int low_rank_parts(const LowRankProduct& product, int64_t cols,
                   const Multiprocessors& processors) noexcept;

}  // namespace sluice::cuda
