#include "kernels/rope.h"

#include <cmath>

namespace sluice::kernels::reference {

void rope_inplace(float* x, int64_t tokens, int64_t stride, int heads, int head_dim, int rotary_dim,
                  const int32_t* positions, const float* inverse_frequencies, float factor,
                  RopeLayout layout) {
  const int half = rotary_dim / 2;
  for (int64_t token = 0; token < tokens; ++token)
    for (int head = 0; head < heads; ++head)
      for (int j = 0; j < half; ++j) {
        const float angle = static_cast<float>(positions[token]) * inverse_frequencies[j];
        const bool is_paired = layout == RopeLayout::kPairs;
        float* low = x + token * stride + int64_t{head} * head_dim + (is_paired ? 2 * j : j);
        float* high = low + (is_paired ? 1 : half);
        const double a = *low;
        const double b = *high;
        *low = static_cast<float>((a * std::cos(double{angle}) - b * std::sin(double{angle})) *
                                  factor);
        *high = static_cast<float>((b * std::cos(double{angle}) + a * std::sin(double{angle})) *
                                   factor);
      }
}

}  // namespace sluice::kernels::reference
