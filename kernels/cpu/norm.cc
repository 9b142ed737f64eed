#include "kernels/norm.h"

#include <algorithm>

#include "kernels/cpu/variant.h"
#include "kernels/quantised_linear.h"
#include "src/base/team.h"

namespace sluice::kernels {

namespace {
// Fewer are no share of their own: calling a thread takes longer.
constexpr int64_t kShareElements = 1 << 15;

template <typename Norm>
void over_rows(int64_t rows, int64_t cols, const AfterNorm& after, const Norm& norm) {
  deal_each(rows, kShareElements / std::max<int64_t>(cols, 1), [&](int64_t row) {
    norm(row);
    if (after.preparer) after.preparer->prepare(after.first_row + row);
  });
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
