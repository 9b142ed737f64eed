#pragma once
// Products of heads with their own rows of a plain matrix in GPU memory; what each computes is said
// in kernels/head_products.h. Pointers are the device's; calls return at once, in the stream's
// order. f32 products on the general cores: a few tokens are bound by the bytes of the matrix,
// which each block reads for eight of them.
#include "kernels/cuda/types.h"
#include "kernels/head_products.h"

namespace sluice::cuda {

/// y = x times the head's rows.
void head_products(const kernels::HeadRows& of, const kernels::MatrixRun& w,
                   const kernels::HeadOperands& operands, Stream stream);

/// y += x times the head's rows, transposed.
void add_transposed_head_products(const kernels::HeadRows& of, const kernels::MatrixRun& w,
                                  const kernels::HeadOperands& operands, Stream stream);

/// y's first `moved` columns of each head = x's, the others 0.
void begin_head_products(int64_t heads, int64_t moved, int64_t cols,
                         const kernels::HeadOperands& operands, Stream stream);

}  // namespace sluice::cuda
