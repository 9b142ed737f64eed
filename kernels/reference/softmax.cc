#include "kernels/softmax.h"

#include <algorithm>
#include <cmath>

namespace sluice::kernels::reference {

void softmax(float* x, int64_t rows, int64_t cols) {
  for (float* row = x; row != x + rows * cols; row += cols) {
    const double maximum = *std::max_element(row, row + cols);
    double sum = 0;
    for (int64_t i = 0; i < cols; ++i) sum += std::exp(row[i] - maximum);
    for (int64_t i = 0; i < cols; ++i)
      row[i] = static_cast<float>(std::exp(row[i] - maximum) / sum);
  }
}

double log_softmax(const float* x, int64_t n, float* y) {
  const double maximum = *std::max_element(x, x + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - maximum);
  const double log_sum = maximum + std::log(sum);
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i] - log_sum);
  return log_sum;
}

int64_t argmax(const float* x, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i)
    if (x[i] > x[best] || (std::isnan(x[best]) && !std::isnan(x[i]))) best = i;
  return best;
}

}  // namespace sluice::kernels::reference
