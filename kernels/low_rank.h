#pragma once
// Low-rank changes of products (LoRA, arXiv:2106.09685; DoRA, arXiv:2402.09353), of some rows by
// one adapter's matrices and of others by another's: y += scale B (A x). They run on the calling
// thread's team (src/base/team.h).
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/dtype.h"

namespace sluice::kernels {

/// Outputs of a tile of B.
constexpr int64_t kLowRankTile = 256;

/// What an adapter adds to one matrix [outputs, cols], or to the rows of a table. At any address
/// that an element may have.
struct LowRank {
  const std::byte* a = nullptr;  ///< [rank, cols]; of a table a row for each of its own, [.., rank]
  /// B [outputs, rank] turned, in tiles of kLowRankTile outputs (the last may be narrower), one
  /// behind the other: [rank, outputs of the tile]. As place_low_rank_b() leaves it.
  const std::byte* b = nullptr;
  DType dtype = DType::kF32;  ///< of both
  int64_t rank = 0;
  float scale = 1;
  /// [outputs]: y without its bias is multiplied by these first (DoRA), or null.
  const float* factors = nullptr;
};

/// Rows [first, first + rows) of x and y, and what changes them.
struct LowRankRun {
  const LowRank* of = nullptr;
  int64_t first = 0;
  int64_t rows = 0;
};

/// What is read and changed; strides in floats.
struct LowRankOperands {
  const float* x = nullptr;  ///< [rows, cols] f32, disjoint from y; null with `ids`
  int64_t x_stride = 0;
  int64_t cols = 0;
  const int32_t* ids = nullptr;  ///< of a table: the row of each row of y
  float* y = nullptr;            ///< [rows, outputs] f32
  int64_t y_stride = 0;
  int64_t outputs = 0;
  const float* bias = nullptr;  ///< [outputs] that y has in it, or null; where there are factors
};

/// y[row] = (y[row] - bias) factors + bias + scale B (A x[row]) for the rows of each run, which no
/// two runs share. `scratch` has low_rank_scratch_floats() of all rows and the largest rank. f32
/// products and sums: relative error of sums of `cols` and of `rank` terms.
void add_low_rank(std::span<const LowRankRun> runs, const LowRankOperands& operands,
                  float* scratch) noexcept;
int64_t low_rank_scratch_floats(int64_t rows, int64_t rank) noexcept;

/// B [outputs, rank] f32, row-major, as LowRank::b has it.
void place_low_rank_b(const float* b, int64_t outputs, int64_t rank, DType dtype,
                      std::byte* to) noexcept;

namespace reference {
void add_low_rank(std::span<const LowRankRun> runs, const LowRankOperands& operands);
}  // namespace reference

}  // namespace sluice::kernels
