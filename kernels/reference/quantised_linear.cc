#include "kernels/quantised_linear.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/quantise.h"

namespace sluice::kernels::reference {

namespace {
// A row of x as the product takes it.
std::vector<double> taken(const Activations& x, int64_t row, const WeightFormat& format,
                          const QuantisedOptions& options) {
  std::vector<double> out(static_cast<size_t>(x.k));
  if (options.activations == ActivationFormat::kFp8) {
    float largest = 0;
    for (int64_t i = 0; i < x.k; ++i) largest = std::max(largest, std::fabs(x.f32[row * x.ld + i]));
    const float scale = e4m3_row_scale(largest);
    for (int64_t i = 0; i < x.k; ++i)
      out[static_cast<size_t>(i)] =
          static_cast<double>(scale * e4m3_to_f32(f32_to_e4m3(x.f32[row * x.ld + i] / scale)));
    return out;
  }
  for (int64_t i = 0; i < x.k; ++i)
    out[static_cast<size_t>(i)] =
        options.activations == ActivationFormat::k16Bit && options.compute == Compute::kBF16
            ? static_cast<double>(bf16_to_f32(x.bf16[row * x.ld + i]))
            : static_cast<double>(x.f32[row * x.ld + i]);
  if (options.activations == ActivationFormat::k16Bit) return out;
  const int64_t columns = format.group_columns(x.k);
  for (int64_t begin = 0; begin < x.k; begin += columns) {
    const int64_t end = std::min(x.k, begin + columns);
    float largest = 0;
    for (int64_t i = begin; i < end; ++i)
      largest = std::max(largest, std::fabs(x.f32[row * x.ld + i]));
    const float scale = largest / 127.0f;
    for (int64_t i = begin; i < end; ++i)
      out[static_cast<size_t>(i)] =
          scale > 0 ? static_cast<double>(scale) *
                          std::nearbyint(static_cast<double>(x.f32[row * x.ld + i] / scale))
                    : 0.0;
  }
  return out;
}
}  // namespace

void linear_quantised(const Activations& x, const std::byte* w, const WeightFormat& format,
                      int64_t n, const float* bias, float* y, int64_t ldy,
                      const QuantisedOptions& options) {
  std::vector<std::vector<double>> rows;
  for (int64_t i = 0; i < x.m; ++i) rows.push_back(taken(x, i, format, options));
  std::vector<double> weights(static_cast<size_t>(x.k));
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c < x.k; ++c)
      weights[static_cast<size_t>(c)] = static_cast<double>(quantised_value(format, w, x.k, r, c));
    for (int64_t i = 0; i < x.m; ++i) {
      double sum = bias ? static_cast<double>(bias[r]) : 0;
      for (size_t c = 0; c < weights.size(); ++c)
        sum += rows[static_cast<size_t>(i)][c] * weights[c];
      y[i * ldy + r] = static_cast<float>(sum);
    }
  }
}

}  // namespace sluice::kernels::reference
