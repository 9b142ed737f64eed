#include "kernels/norm.h"

#include "kernels/cpu/variant.h"
#include "kernels/quantised_linear.h"

namespace sluice::kernels {

namespace {
// Below so many elements a parallel region costs more than the work.
constexpr int64_t kParallelElements = 1 << 15;

template <typename Norm>
void over_rows(int64_t rows, int64_t cols, const AfterNorm& after, const Norm& norm) {
#pragma omp parallel for schedule(static) if (rows > 1 && rows * cols > kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    norm(row);
    if (after.preparer) after.preparer->prepare(after.first_row + row);
  }
}
}  // namespace

void rms_norm(const float* x, const float* gain, float eps, float* y, int64_t rows, int64_t cols,
              const AfterNorm& after) noexcept {
  const Variant& variant = active_variant();
  over_rows(rows, cols, after, [&](int64_t row) {
    variant.rms_norm(x + row * cols, gain, eps, y + row * cols, 1, cols);
  });
}

void layer_norm(const float* x, const float* gain, const float* bias, float eps, float* y,
                int64_t rows, int64_t cols, const AfterNorm& after) noexcept {
  const Variant& variant = active_variant();
  over_rows(rows, cols, after, [&](int64_t row) {
    variant.layer_norm(x + row * cols, gain, bias, eps, y + row * cols, 1, cols);
  });
}

}  // namespace sluice::kernels
