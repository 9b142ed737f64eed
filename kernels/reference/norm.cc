#include "kernels/norm.h"

#include <cmath>

namespace sluice::kernels::reference {

void rms_norm(const float* x, const float* gain, float eps, float* y, int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t i = 0; i < cols; ++i) sum += double{x[row * cols + i]} * x[row * cols + i];
    const double factor = 1 / std::sqrt(sum / static_cast<double>(cols) + eps);
    for (int64_t i = 0; i < cols; ++i)
      y[row * cols + i] = static_cast<float>(x[row * cols + i] * factor * (gain ? gain[i] : 1));
  }
}

void layer_norm(const float* x, const float* gain, const float* bias, float eps, float* y,
                int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row) {
    double mean = 0;
    for (int64_t i = 0; i < cols; ++i) mean += x[row * cols + i];
    mean /= static_cast<double>(cols);
    double variance = 0;
    for (int64_t i = 0; i < cols; ++i)
      variance += (x[row * cols + i] - mean) * (x[row * cols + i] - mean);
    variance /= static_cast<double>(cols);
    for (int64_t i = 0; i < cols; ++i)
      y[row * cols + i] = static_cast<float>((x[row * cols + i] - mean) /
                                                 std::sqrt(variance + eps) * (gain ? gain[i] : 1) +
                                             (bias ? bias[i] : 0));
  }
}

}  // namespace sluice::kernels::reference
