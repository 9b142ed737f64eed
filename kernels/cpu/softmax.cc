#include "kernels/softmax.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/variant.h"
#include "src/base/team.h"

namespace sluice::kernels {

namespace {
constexpr int64_t kShareElements = 1 << 15;  // of a thread, at least

float largest(const float* x, int64_t n) noexcept {
  float best = x[0];
  for (int64_t i = 1; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}
}  // namespace

void softmax(float* x, int64_t rows, int64_t cols) noexcept {
  const Variant& variant = active_variant();
  deal_each(rows, kShareElements / std::max<int64_t>(cols, 1),
            [&](int64_t row) { variant.softmax(x + row * cols, cols); });
}

double log_softmax(const float* x, int64_t n, float* y) noexcept {
  const double maximum = largest(x, n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - maximum);
  const double log_sum = maximum + std::log(sum);
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i] - log_sum);
  return log_sum;
}

int64_t argmax(const float* x, int64_t n) noexcept {
  int64_t best = 0;
  while (best + 1 < n && std::isnan(x[best])) ++best;
  if (std::isnan(x[best])) return 0;
  for (int64_t i = best + 1; i < n; ++i)
    if (x[i] > x[best]) best = i;
  return best;
}

}  // namespace sluice::kernels
