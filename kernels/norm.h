#pragma once
// Row norms, f32. Rows run on the calling thread's team.
#include <cstdint>

namespace sluice::kernels {

class RowPreparer;

/// What becomes of a row once it is written: a product's int8 rows (kernels/quantised_linear.h).
struct AfterNorm {
  const RowPreparer* preparer = nullptr;  ///< or nothing
  int64_t first_row = 0;                  ///< of the preparer's rows, which y's first is
};

/// y = x / sqrt(mean(x^2) + eps) * gain, row by row (RMSNorm, arXiv:1910.07467; eps inside the root
/// as Hugging Face does).
///   x, y [rows, cols] contiguous; y equal to x or disjoint      gain [cols], null: 1
void rms_norm(const float* x, const float* gain, float eps, float* y, int64_t rows, int64_t cols,
              const AfterNorm& after = {}) noexcept;
/// y = (x - mean) / sqrt(variance + eps) * gain + bias (LayerNorm, arXiv:1607.06450). gain and bias
/// may be null.
void layer_norm(const float* x, const float* gain, const float* bias, float eps, float* y,
                int64_t rows, int64_t cols, const AfterNorm& after = {}) noexcept;

namespace reference {
void rms_norm(const float* x, const float* gain, float eps, float* y, int64_t rows, int64_t cols);
void layer_norm(const float* x, const float* gain, const float* bias, float eps, float* y,
                int64_t rows, int64_t cols);
}  // namespace reference

}  // namespace sluice::kernels
