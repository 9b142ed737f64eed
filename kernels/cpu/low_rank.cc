#include "kernels/low_rank.h"

#include <algorithm>

#include "kernels/cpu/variant.h"
#include "kernels/elementwise.h"
#include "src/base/team.h"

namespace sluice::kernels {

namespace {
constexpr int64_t kRows = 64;  // of x that meet the same rows of A or tile of B at a time
constexpr int64_t kRanks = 8;  // rows of A that a thread takes at a time: few rows share it
// Products that a thread takes at a time, at least.
constexpr int64_t kShareProducts = int64_t{1} << 15;

int64_t blocks_of(int64_t n, int64_t block) noexcept { return (n + block - 1) / block; }

// Calls work(run, first row of it, rows, part) for blocks of rows of each run, `parts` times each:
// the same number of steps for all runs, some of them empty, so that nothing is listed.
template <typename Work>
void over_blocks(std::span<const LowRankRun> runs, int64_t parts, int64_t products,
                 const Work& work) noexcept {
  int64_t blocks = 0;
  for (const LowRankRun& run : runs) blocks = std::max(blocks, blocks_of(run.rows, kRows));
  const int64_t each = blocks * parts;
  deal_each(std::ssize(runs) * each, kShareProducts / std::max<int64_t>(products, 1),
            [&](int64_t i) {
              const LowRankRun& run = runs[static_cast<size_t>(i / each)];
              const int64_t first = i % each / parts * kRows;
              if (first < run.rows)
                work(run, run.first + first, std::min(kRows, run.rows - first), i % parts);
            });
}

struct Widest {
  int64_t rank = 0;
  int64_t rows = 0;
};
Widest widest_of(std::span<const LowRankRun> runs) noexcept {
  Widest out;
  for (const LowRankRun& run : runs) {
    out.rank = std::max(out.rank, run.of->rank);
    out.rows = std::max(out.rows, std::min(run.rows, kRows));
  }
  return out;
}

// h[row] = scale A x[row], a row every `stride` floats.
void shrink(std::span<const LowRankRun> runs, const LowRankOperands& operands, const Widest& widest,
            float* h, int64_t stride) noexcept {
  const Variant& variant = active_variant();
  const int64_t depth = operands.ids ? 1 : operands.cols;
  over_blocks(runs, blocks_of(widest.rank, kRanks), depth * kRanks * widest.rows,
              [&](const LowRankRun& run, int64_t first, int64_t rows, int64_t part) {
                const LowRank& of = *run.of;
                const int64_t begin = part * kRanks, end = std::min(begin + kRanks, of.rank);
                if (begin >= end) return;
                if (operands.ids)
                  for (int64_t row = first; row < first + rows; ++row)
                    variant.to_f32(
                        of.dtype,
                        of.a + (operands.ids[row] * of.rank + begin) * dtype_bytes(of.dtype),
                        h + row * stride + begin, end - begin);
                else
                  variant.linear_rows(of.a, of.dtype, begin, end, operands.cols,
                                      operands.x + first * operands.x_stride, operands.x_stride,
                                      rows, nullptr, h + first * stride, stride, SumOrder::kByRow);
                for (int64_t row = first; row < first + rows; ++row)
                  for (int64_t r = begin; r < end; ++r) h[row * stride + r] *= of.scale;
              });
}

// y = (y - bias) factors + bias, `count` columns of one row.
void rescale(float* y, const float* factors, const float* bias, int64_t count) noexcept {
  for (int64_t c = 0; c < count; ++c)
    y[c] = bias ? (y[c] - bias[c]) * factors[c] + bias[c] : y[c] * factors[c];
}

void expand(std::span<const LowRankRun> runs, const LowRankOperands& operands, const Widest& widest,
            const float* h, int64_t stride) noexcept {
  const Variant& variant = active_variant();
  over_blocks(runs, blocks_of(operands.outputs, kLowRankTile),
              std::min(operands.outputs, kLowRankTile) * widest.rank * widest.rows,
              [&](const LowRankRun& run, int64_t first, int64_t rows, int64_t tile) {
                const LowRank& of = *run.of;
                const int64_t begin = tile * kLowRankTile;
                const int64_t width = std::min(kLowRankTile, operands.outputs - begin);
                float* y = operands.y + first * operands.y_stride + begin;
                for (int64_t row = 0; of.factors && row < rows; ++row)
                  rescale(y + row * operands.y_stride, of.factors + begin,
                          operands.bias ? operands.bias + begin : nullptr, width);
                variant.add_rows(of.b + begin * of.rank * dtype_bytes(of.dtype), of.dtype, of.rank,
                                 width, h + first * stride, stride, rows, y, operands.y_stride);
              });
}
}  // namespace

void add_low_rank(std::span<const LowRankRun> runs, const LowRankOperands& operands,
                  float* scratch) noexcept {
  if (runs.empty()) return;
  const Widest widest = widest_of(runs);
  shrink(runs, operands, widest, scratch, widest.rank);
  expand(runs, operands, widest, scratch, widest.rank);
}

int64_t low_rank_scratch_floats(int64_t rows, int64_t rank) noexcept { return rows * rank; }

void place_low_rank_b(const float* b, int64_t outputs, int64_t rank, DType dtype,
                      std::byte* to) noexcept {
  const int64_t element = dtype_bytes(dtype);
  float line[kLowRankTile];
  for (int64_t begin = 0; begin < outputs; begin += kLowRankTile) {
    const int64_t width = std::min(kLowRankTile, outputs - begin);
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t c = 0; c < width; ++c) line[c] = b[(begin + c) * rank + r];
      convert(DType::kF32, line, dtype, to + (begin * rank + r * width) * element, width);
    }
  }
}

}  // namespace sluice::kernels
