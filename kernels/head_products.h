#pragma once
// Products of each head with rows of its own of one matrix: how latent attention (arXiv:2405.04434)
// brings queries to the width of the latent rows before it attends and its answers back behind it,
// without making keys and values of them. The matrix may come in runs of rows, wherever they begin.
// They run on the calling thread's team (src/base/team.h).
#include <cstddef>
#include <cstdint>

#include "src/base/dtype.h"

namespace sluice::kernels {

/// A matrix of `heads` times `height` rows; of each head's rows those [first, first + count) are
/// meant.
struct HeadRows {
  int64_t heads = 0;
  int64_t height = 0;
  int64_t first = 0;
  int64_t count = 0;
};

/// Rows [begin, begin + count) of the matrix as they lie, `cols` elements each, at any address that
/// an element may have.
struct MatrixRun {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t begin = 0;
  int64_t count = 0;
  int64_t cols = 0;
};

/// Rows of x and y, f32 and disjoint: the first column that is meant of head 0, floats from a row
/// to the next and from a head to the next.
struct HeadOperands {
  int64_t rows = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t x_head = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t y_head = 0;
};

/// y[row, head, i] = sum over c < cols of x[row, head, c] w[head height + first + i, c], for the
/// rows that the run has. f32 products and sums: relative error of a sum of `cols` terms.
void head_products(const HeadRows& of, const MatrixRun& w, const HeadOperands& operands) noexcept;

/// y[row, head, c] += sum over i < count of x[row, head, i] w[head height + first + i, c], over the
/// rows that the run has: over all runs, x times the transposed rows.
void add_transposed_head_products(const HeadRows& of, const MatrixRun& w,
                                  const HeadOperands& operands) noexcept;

/// y's first `moved` columns of each head = x's, the `cols` behind them 0: what
/// add_transposed_head_products adds to.
void begin_head_products(int64_t heads, int64_t moved, int64_t cols,
                         const HeadOperands& operands) noexcept;

namespace reference {
void head_products(const HeadRows& of, const MatrixRun& w, const HeadOperands& operands);
void add_transposed_head_products(const HeadRows& of, const MatrixRun& w,
                                  const HeadOperands& operands);
}  // namespace reference

}  // namespace sluice::kernels
