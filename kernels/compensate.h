#pragma once
// Quantisation that makes up for its errors (GPTQ, arXiv:2210.17323; in the form of LDLQ, which
// arXiv:2307.13304, section 3, shows to be the same). With H = X^T X of a layer's inputs, what an
// error E = W - Q of its matrix costs is tr(E H E^T). Let H = (U + I) D (U + I)^T, U strictly upper
// triangular: columns are rounded one after another, column k to
//   Q[k] = round(W[k] + sum over j < k of E[j] U[j, k])
// and what is left is the sum over k of D[k] times the squared error of that rounding.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/quantise.h"

namespace sluice::kernels {

/// U and D of the inputs of a layer.
struct Compensation {
  int64_t cols = 0;
  int64_t block = 0;  ///< columns that are taken together: those of a group, at most 256
  /// For each block of columns [begin, end): rows k of U's columns, [end - begin, begin], then the
  /// triangle [end - begin, end - begin] of the block itself.
  std::vector<float> feedback;
  std::vector<float> importance;  ///< [cols] D

  /// Where the block that begins at this column has its rows, and its triangle.
  size_t rows_at(int64_t begin) const noexcept;
  size_t triangle_at(int64_t begin) const noexcept;
  static int64_t values(int64_t cols, int64_t block) noexcept;
};

/// Columns that compensation of a matrix in `format` takes together.
int64_t compensation_block(const WeightFormat& format, int64_t cols) noexcept;

/// U and D of `hessian` [cols, cols] f32, symmetric, both triangles; it is overwritten. `damping`
/// times the mean of the diagonal is added to the diagonal (GPTQ's is 0.01), ten times as much as
/// often as rounding makes the factorisation fail. Products and sums in f32, a block's own in f64.
/// Nothing when a value is not finite. Runs on the calling thread's team.
std::optional<Compensation> compensation_of(std::span<float> hessian, int64_t cols, double damping,
                                            const WeightFormat& format);

/// Quantises rows [row_count, cols] f32, row stride `ld`, into panels of format.panel_bytes(cols)
/// each, the last filled up with rows of zeros. A group's scale is what quantise_panel() chooses
/// for its columns as errors before them have left them, errors counting by D; one scale for a row
/// is chosen for the row as it was; a K type's d and m for its group, and small scales for each
/// part, as its turn comes. With U = 0 that is quantise_panel() of each panel, bit by bit. False
/// where quantise_panel() says so. Runs on the calling thread's team.
bool quantise_compensated(const WeightFormat& format, RangeSearch search,
                          const Compensation& compensation, const float* rows, int64_t ld,
                          int64_t row_count, int64_t cols, std::byte* panels);

}  // namespace sluice::kernels
