#include "kernels/cuda/head_products.h"
#include "kernels/cuda/plain_element.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

namespace {
using kernels::HeadOperands;
using kernels::HeadRows;
using kernels::MatrixRun;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTokens = 8;   // of a block
constexpr int kDepth = 256;  // columns or rows of x in shared memory at a time
constexpr int kOutputs = 8;  // of a warp
// Of W that a thread asks for before it uses the first: columns of all its outputs, or rows.
constexpr int kColumnsAhead = 2;
constexpr int kRowsAhead = 16;
static_assert(kDepth % (kColumnsAhead * kWarp) == 0 && kDepth % kRowsAhead == 0);
constexpr int kBlockOutputs = kOutputs * kWarps;
constexpr int kSharedBytes = kTokens * kDepth * static_cast<int>(sizeof(float));

// The rows of a block's head that are meant and in the run: the first, as the run counts them and
// as those that are meant, and how many.
struct RowsOfHead {
  int64_t in_run;
  int64_t first;
  int64_t count;
};
SLUICE_DEVICE RowsOfHead rows_of(const HeadRows& of, const MatrixRun& w, int64_t head) {
  const int64_t own = head * of.height + of.first;
  const int64_t begin = own > w.begin ? own : w.begin;
  const int64_t end = own + of.count < w.begin + w.count ? own + of.count : w.begin + w.count;
  return {begin - w.begin, begin - own, end > begin ? end - begin : 0};
}

// Columns [begin, begin + kDepth) of the block's rows of x, zeros where there are none.
SLUICE_DEVICE void load_x(const HeadOperands& operands, const float* x, int64_t first_token,
                          int64_t begin, int64_t end, float* to) {
  for (int i = thread_index(); i < kTokens * kDepth; i += kThreads) {
    const int64_t token = first_token + i / kDepth;
    const int64_t col = begin + i % kDepth;
    to[i] = token < operands.rows && col < end ? x[token * operands.x_stride + col] : 0.0f;
  }
}

// A warp has kOutputs rows of W, its lanes every 32nd column.
template <DType kType>
SLUICE_KERNEL_OF_BLOCKS(kThreads, 4)
head_products_kernel(HeadRows of, MatrixRun w, HeadOperands operands, int64_t first_head) {
  auto* x = reinterpret_cast<float*>(shared_memory());
  const int64_t head = first_head + block_y();
  const RowsOfHead own = rows_of(of, w, head);
  const int64_t first_output = int64_t{block_x()} * kBlockOutputs;
  if (first_output >= own.count) return;
  const int64_t first_token = int64_t{block_z()} * kTokens;
  float sums[kOutputs][kTokens] = {};
  for (int64_t begin = 0; begin < w.cols; begin += kDepth) {
    block_sync();  // what was there has been used
    load_x(operands, operands.x + head * operands.x_head, first_token, begin, w.cols, x);
    block_sync();
    const int depth = w.cols - begin < kDepth ? static_cast<int>(w.cols - begin) : kDepth;
    for (int first = lane_index(); first < depth; first += kColumnsAhead * kWarp) {
      float weights[kColumnsAhead][kOutputs];
      SLUICE_UNROLL
      for (int j = 0; j < kColumnsAhead * kOutputs; ++j) {
        const int i = j % kOutputs, col = first + j / kOutputs * kWarp;
        const int64_t output = first_output + i * kWarps + warp_index();
        weights[j / kOutputs][i] =
            output < own.count && col < depth
                ? plain_element<kType>(w.data, (own.in_run + output) * w.cols + begin + col)
                : 0.0f;
      }
      SLUICE_UNROLL
      for (int j = 0; j < kColumnsAhead; ++j) SLUICE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const float value = x[t * kDepth + first + j * kWarp];
        SLUICE_UNROLL
        for (int i = 0; i < kOutputs; ++i) sums[i][t] += weights[j][i] * value;
      }
    }
  }
  SLUICE_UNROLL
  for (int i = 0; i < kOutputs; ++i) {
    const int64_t output = first_output + i * kWarps + warp_index();
    SLUICE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const float sum = warp_sum(sums[i][t]);
      if (lane_index() == t && output < own.count && first_token + t < operands.rows)
        operands.y[(first_token + t) * operands.y_stride + head * operands.y_head + own.first +
                   output] = sum;
    }
  }
}

// A thread has a column of W. x is 0 behind its last column (load_x), up to kDepth.
template <DType kType>
SLUICE_KERNEL(kThreads)
add_transposed_kernel(HeadRows of, MatrixRun w, HeadOperands operands, int64_t first_head) {
  auto* x = reinterpret_cast<float*>(shared_memory());
  const int64_t head = first_head + block_y();
  const RowsOfHead own = rows_of(of, w, head);
  if (own.count == 0) return;
  const int64_t col = int64_t{block_x()} * kThreads + thread_index();
  const int64_t first_token = int64_t{block_z()} * kTokens;
  float sums[kTokens] = {};
  for (int64_t begin = 0; begin < own.count; begin += kDepth) {
    block_sync();  // what was there has been used
    load_x(operands, operands.x + head * operands.x_head + own.first, first_token, begin, own.count,
           x);
    block_sync();
    const int64_t depth = own.count - begin < kDepth ? own.count - begin : kDepth;
    for (int64_t first = 0; first < depth && col < w.cols; first += kRowsAhead) {
      float weights[kRowsAhead];
      SLUICE_UNROLL
      for (int j = 0; j < kRowsAhead; ++j) {
        const int64_t row = own.in_run + begin + first + j;
        weights[j] = first + j < depth ? plain_element<kType>(w.data, row * w.cols + col) : 0.0f;
      }
      SLUICE_UNROLL
      for (int j = 0; j < kRowsAhead; ++j) SLUICE_UNROLL
      for (int t = 0; t < kTokens; ++t) sums[t] += weights[j] * x[t * kDepth + first + j];
    }
  }
  if (col >= w.cols) return;
  float* y = operands.y + head * operands.y_head + col;
  SLUICE_UNROLL
  for (int t = 0; t < kTokens; ++t)
    if (first_token + t < operands.rows) y[(first_token + t) * operands.y_stride] += sums[t];
}

// A block a row.
SLUICE_KERNEL(kThreads)
begin_products_kernel(int64_t heads, int64_t moved, int64_t cols, HeadOperands operands) {
  const int64_t row = block_x();
  const int64_t width = moved + cols;
  for (int64_t i = thread_index(); i < heads * width; i += kThreads) {
    const int64_t head = i / width, col = i % width;
    operands.y[row * operands.y_stride + head * operands.y_head + col] =
        col < moved ? operands.x[row * operands.x_stride + head * operands.x_head + col] : 0.0f;
  }
}

int blocks_of(int64_t n, int each) { return static_cast<int>((n + each - 1) / each); }

// The heads that a run has rows of.
struct Heads {
  int64_t first;
  int count;
};
Heads heads_of(const HeadRows& of, const MatrixRun& w) {
  const int64_t first = w.begin / of.height;
  return {first, static_cast<int>((w.begin + w.count + of.height - 1) / of.height - first)};
}

// Calls run(kernel) with the one for the matrix's type.
template <class F32, class F16, class Bf16, class Run>
void with_type(DType type, F32 f32, F16 f16, Bf16 bf16, const Run& run) {
  if (type == DType::kF32)
    run(f32);
  else if (type == DType::kF16)
    run(f16);
  else
    run(bf16);
}
}  // namespace

void head_products(const HeadRows& of, const MatrixRun& w, const HeadOperands& operands,
                   Stream stream) {
  if (operands.rows == 0 || w.count == 0) return;
  const Heads heads = heads_of(of, w);
  with_type(
      w.dtype, head_products_kernel<DType::kF32>, head_products_kernel<DType::kF16>,
      head_products_kernel<DType::kBF16>, [&](auto kernel) {
        launch("head_products", kernel,
               {blocks_of(of.count, kBlockOutputs), heads.count, blocks_of(operands.rows, kTokens)},
               kThreads, kSharedBytes, stream, of, w, operands, heads.first);
      });
}

void add_transposed_head_products(const HeadRows& of, const MatrixRun& w,
                                  const HeadOperands& operands, Stream stream) {
  if (operands.rows == 0 || w.count == 0) return;
  const Heads heads = heads_of(of, w);
  with_type(w.dtype, add_transposed_kernel<DType::kF32>, add_transposed_kernel<DType::kF16>,
            add_transposed_kernel<DType::kBF16>, [&](auto kernel) {
              launch("add_transposed_head_products", kernel,
                     {blocks_of(w.cols, kThreads), heads.count, blocks_of(operands.rows, kTokens)},
                     kThreads, kSharedBytes, stream, of, w, operands, heads.first);
            });
}

void begin_head_products(int64_t heads, int64_t moved, int64_t cols, const HeadOperands& operands,
                         Stream stream) {
  if (operands.rows == 0) return;
  launch("begin_head_products", begin_products_kernel, {static_cast<int>(operands.rows)}, kThreads,
         0, stream, heads, moved, cols, operands);
}

}  // namespace sluice::cuda
