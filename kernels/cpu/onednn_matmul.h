#pragma once
// oneDNN's matmul for y = x W^T, x and W bf16, y f32. Columns of y are dealt to the threads, each
// of which runs oneDNN on one thread, so that its sums don't depend on how many there are and no
// second pool of threads contends for the cores. Primitives are made once per shape, and kept;
// calls from several threads are safe. The first use lowers oneDNN's own instruction set to
// active_isa(): it can't be changed later.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/linear.h"

namespace sluice::kernels {

/// oneDNN multiplies so many rows at a time: by then its rate is flat, and the number of its
/// primitives (see onednn_rows()) and their scratch stay bounded whatever m the passes have.
constexpr int64_t kOnednnRows = 512;
/// Rows that a product of m is made for: x and y have room for them.
int64_t onednn_rows(int64_t m) noexcept;

/// Rows of W^T x as kernels::linear() has them, x.m up to kOnednnRows. `scratch`, aligned to 64:
/// onednn_scratch_bytes(); for fewer threads than there are, fewer run. Errors: kDevice from
/// oneDNN.
void onednn_linear(const Activations& x, const void* w, int64_t n, const float* bias, float* y,
                   int64_t ldy, std::span<std::byte> scratch);
/// For products of up to max_m rows on `threads` threads. Makes no primitive.
int64_t onednn_scratch_bytes(int64_t max_m, int64_t n, int64_t k, int threads);
/// The implementation that oneDNN picks, "brg:avx512_core_amx_bf16".
std::string onednn_implementation();

}  // namespace sluice::kernels
