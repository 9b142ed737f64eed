#include "kernels/rope.h"

#include <cmath>

#include "src/base/team.h"

namespace sluice::kernels {

namespace {
constexpr int64_t kShareTokens = 4;  // of a thread, at least: some microseconds

void rotate_halves(float* head, int half, const float* cosines, const float* sines) noexcept {
  float* low = head;
  float* high = head + half;
#pragma omp simd
  for (int j = 0; j < half; ++j) {
    const float a = low[j];
    const float b = high[j];
    low[j] = a * cosines[j] - b * sines[j];
    high[j] = b * cosines[j] + a * sines[j];
  }
}

void rotate_pairs(float* head, int half, const float* cosines, const float* sines) noexcept {
#pragma omp simd
  for (int j = 0; j < half; ++j) {
    const float a = head[2 * j];
    const float b = head[2 * j + 1];
    head[2 * j] = a * cosines[j] - b * sines[j];
    head[2 * j + 1] = b * cosines[j] + a * sines[j];
  }
}
}  // namespace

void rope_inplace(float* x, int64_t tokens, int64_t stride, int heads, int head_dim, int rotary_dim,
                  const int32_t* positions, const float* inverse_frequencies, float factor,
                  RopeLayout layout) noexcept {
  const int half = rotary_dim / 2;
  deal_each(tokens, kShareTokens, [&](int64_t token) {
    float cosines[512];
    float sines[512];
    for (int j = 0; j < half; ++j) {
      const float angle = static_cast<float>(positions[token]) * inverse_frequencies[j];
      cosines[j] = std::cos(angle) * factor;
      sines[j] = std::sin(angle) * factor;
    }
    const auto rotate = layout == RopeLayout::kPairs ? rotate_pairs : rotate_halves;
    for (int head = 0; head < heads; ++head)
      rotate(x + token * stride + int64_t{head} * head_dim, half, cosines, sines);
  });
}

}  // namespace sluice::kernels
