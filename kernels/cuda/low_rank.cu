#include <algorithm>

#include "kernels/cuda/low_rank.h"
#include "kernels/cuda/plain_element.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

namespace {
using kernels::kLowRankTile;
using kernels::LowRank;
using kernels::LowRankOperands;

constexpr int kShrinkThreads = 256;
constexpr int kShrinkWarps = kShrinkThreads / kWarp;
constexpr int kRanks = 4;  // of a block that shrinks
constexpr int kSums = kRanks * kLowRankRows;
static_assert(kSums == kWarp, "a lane keeps one of a warp's sums");
// Columns of a part: four for each thread, so that the loads of A that it waits for are some.
constexpr int64_t kPartColumns = 4 * kShrinkThreads;
constexpr int kBlocksWanted = 2;          // of a multiprocessor
constexpr int64_t kPartFloats = 1 << 16;  // that all parts of a product may take

constexpr int kExpandThreads = static_cast<int>(kLowRankTile);
constexpr int kDepth = kExpandThreads / kLowRankRows;  // ranks in shared memory at a time
constexpr int kRanksAhead = 8;  // of B that a thread asks for before it uses the first
static_assert(kDepth % kRanksAhead == 0);

// Calls run(constant) with the type of the adapter, which is one for all threads of a block.
template <class Run>
SLUICE_DEVICE void with_type_of(const LowRank& of, const Run& run) {
  if (of.dtype == DType::kF32)
    run(Constant<DType::kF32>());
  else if (of.dtype == DType::kF16)
    run(Constant<DType::kF16>());
  else
    run(Constant<DType::kBF16>());
}

// Where x and y have an item's row; -1: they have not.
SLUICE_DEVICE int64_t row_of(const LowRankProduct& product, const LowRankItem& item, int i) {
  const int64_t row = item.rows[i] - product.first_row;
  return item.rows[i] >= 0 && row >= 0 && row < product.rows ? row : -1;
}

// Sums over columns of x times rows of A, of all ranks of a block and rows of an item.
template <DType kType>
SLUICE_DEVICE void shrink_columns(const LowRank& of, int64_t first_rank,
                                  const LowRankOperands& operands,
                                  const int64_t (&rows)[kLowRankRows], int64_t begin, int64_t end,
                                  float (&sums)[kRanks][kLowRankRows]) {
  for (int64_t col = begin + thread_index(); col < end; col += kShrinkThreads) {
    float weights[kRanks];
    SLUICE_UNROLL
    for (int r = 0; r < kRanks; ++r)
      weights[r] = first_rank + r < of.rank
                       ? plain_element<kType>(of.a, (first_rank + r) * operands.cols + col)
                       : 0.0f;
    SLUICE_UNROLL
    for (int i = 0; i < kLowRankRows; ++i) {
      const float value = rows[i] >= 0 ? operands.x[rows[i] * operands.x_stride + col] : 0.0f;
      SLUICE_UNROLL
      for (int r = 0; r < kRanks; ++r) sums[r][i] += weights[r] * value;
    }
  }
}

// h [part][row][most_rank] = scale A x of the part's columns: a block has kRanks rows of A.
SLUICE_KERNEL(kShrinkThreads)
low_rank_shrink_kernel(LowRankProduct product, LowRankOperands operands, int64_t part_columns,
                       float* h) {
  auto* of_warps = reinterpret_cast<float*>(shared_memory());
  const LowRankItem& item = product.items[block_y()];
  if (!item.changes) return;
  const LowRank of = item.changes[product.weight];
  const int64_t first_rank = int64_t{block_x()} * kRanks;
  if (first_rank >= of.rank) return;
  int64_t rows[kLowRankRows];
  SLUICE_UNROLL
  for (int i = 0; i < kLowRankRows; ++i) rows[i] = row_of(product, item, i);
  const int64_t begin = block_z() * part_columns;
  const int64_t end = begin + part_columns < operands.cols ? begin + part_columns : operands.cols;
  float sums[kRanks][kLowRankRows] = {};
  with_type_of(of, [&](auto type) {
    shrink_columns<decltype(type)::value>(of, first_rank, operands, rows, begin, end, sums);
  });
  float kept = 0;
  SLUICE_UNROLL
  for (int i = 0; i < kSums; ++i) {
    const float sum = warp_sum(sums[i / kLowRankRows][i % kLowRankRows]);
    if (lane_index() == i) kept = sum;
  }
  of_warps[warp_index() * kSums + lane_index()] = kept;
  block_sync();
  if (thread_index() >= kSums) return;
  float sum = 0;
  SLUICE_UNROLL
  for (int warp = 0; warp < kShrinkWarps; ++warp) sum += of_warps[warp * kSums + thread_index()];
  const int64_t rank = first_rank + thread_index() / kLowRankRows;
  const int64_t row = row_of(product, item, thread_index() % kLowRankRows);
  if (row >= 0 && rank < of.rank)
    h[(block_z() * product.rows + row) * product.most_rank + rank] = of.scale * sum;
}

// What one rank of a row is multiplied with: the sum of its parts, or of a table the row's own.
SLUICE_DEVICE float shrunk_at(const LowRankProduct& product, const LowRank& of,
                              const LowRankOperands& operands, const float* h, int parts,
                              int64_t row, int64_t rank) {
  float value = 0;
  if (operands.ids) {
    with_type_of(of, [&](auto type) {
      value = of.scale * plain_element<decltype(type)::value>(
                             of.a, int64_t{operands.ids[row]} * of.rank + rank);
    });
    return value;
  }
  for (int part = 0; part < parts; ++part)
    value += h[(part * product.rows + row) * product.most_rank + rank];
  return value;
}

// sums += B h for one output of a thread; `from`: B's at the first of `depth` ranks. Behind them
// the ranks in shared memory are 0, up to kDepth.
template <DType kType>
SLUICE_DEVICE void expand_ranks(const std::byte* b, int64_t from, int64_t width, int depth,
                                const float* ranks, float (&sums)[kLowRankRows]) {
  for (int first = 0; first < depth; first += kRanksAhead) {
    float weights[kRanksAhead];
    SLUICE_UNROLL
    for (int j = 0; j < kRanksAhead; ++j)
      weights[j] = first + j < depth ? plain_element<kType>(b, from + (first + j) * width) : 0.0f;
    SLUICE_UNROLL
    for (int j = 0; j < kRanksAhead; ++j) SLUICE_UNROLL
    for (int i = 0; i < kLowRankRows; ++i) sums[i] += weights[j] * ranks[i * kDepth + first + j];
  }
}

// y = (y - bias) factors + bias + B h: a block has a tile of B, a thread an output.
SLUICE_KERNEL(kExpandThreads)
low_rank_expand_kernel(LowRankProduct product, LowRankOperands operands, int parts,
                       const float* h) {
  auto* ranks = reinterpret_cast<float*>(shared_memory());
  const LowRankItem& item = product.items[block_y()];
  if (!item.changes) return;
  const LowRank of = item.changes[product.weight];
  if (of.rank == 0) return;
  const int64_t begin = block_x() * kLowRankTile;
  const int64_t width =
      operands.outputs - begin < kLowRankTile ? operands.outputs - begin : kLowRankTile;
  const bool has_output = thread_index() < width;
  const int64_t own_row = row_of(product, item, thread_index() / kDepth);
  float sums[kLowRankRows] = {};
  for (int64_t first = 0; first < of.rank; first += kDepth) {
    const int64_t own_rank = first + thread_index() % kDepth;
    block_sync();  // what was there has been used
    ranks[thread_index()] = own_row >= 0 && own_rank < of.rank
                                ? shrunk_at(product, of, operands, h, parts, own_row, own_rank)
                                : 0.0f;
    block_sync();
    if (!has_output) continue;
    const int depth = of.rank - first < kDepth ? static_cast<int>(of.rank - first) : kDepth;
    with_type_of(of, [&](auto type) {
      expand_ranks<decltype(type)::value>(of.b, begin * of.rank + first * width + thread_index(),
                                          width, depth, ranks, sums);
    });
  }
  if (!has_output) return;
  const int64_t output = begin + thread_index();
  const float factor = of.factors ? of.factors[output] : 1.0f;
  const float bias = of.factors && operands.bias ? operands.bias[output] : 0.0f;
  SLUICE_UNROLL
  for (int i = 0; i < kLowRankRows; ++i) {
    const int64_t row = row_of(product, item, i);
    if (row < 0) continue;
    float& y = operands.y[row * operands.y_stride + output];
    y = (of.factors ? (y - bias) * factor + bias : y) + sums[i];
  }
}

int64_t blocks_for(int64_t n, int64_t each) { return (n + each - 1) / each; }
}  // namespace

int low_rank_parts(const LowRankProduct& product, int64_t cols,
                   const Multiprocessors& processors) noexcept {
  const int64_t blocks = product.count * blocks_for(product.most_rank, kRanks);
  const int64_t wanted = int64_t{kBlocksWanted} * processors.count / blocks;
  const int64_t room = kPartFloats / (product.rows * product.most_rank);
  return static_cast<int>(
      std::clamp<int64_t>(std::min(wanted, room), 1, blocks_for(cols, kPartColumns)));
}

void add_low_rank(const LowRankProduct& product, const LowRankOperands& operands, float* scratch,
                  const Multiprocessors& processors, Stream stream) {
  if (product.count == 0 || product.rows == 0 || product.most_rank == 0) return;
  const int parts = low_rank_parts(product, operands.cols, processors);
  const auto items = static_cast<int>(product.count);
  if (!operands.ids) {
    const int64_t part_columns = blocks_for(operands.cols, parts);
    launch("low_rank_shrink", low_rank_shrink_kernel,
           {static_cast<int>(blocks_for(product.most_rank, kRanks)), items, parts}, kShrinkThreads,
           kShrinkThreads * static_cast<int64_t>(sizeof(float)), stream, product, operands,
           part_columns, scratch);
  }
  launch("low_rank_expand", low_rank_expand_kernel,
         {static_cast<int>(blocks_for(operands.outputs, kLowRankTile)), items}, kExpandThreads,
         kExpandThreads * static_cast<int64_t>(sizeof(float)), stream, product, operands, parts,
         static_cast<const float*>(scratch));
}

int64_t low_rank_scratch_floats(int64_t rows, int64_t most_rank) noexcept {
  return most_rank == 0 ? 0 : std::max(rows * most_rank, kPartFloats);
}

}  // namespace sluice::cuda
