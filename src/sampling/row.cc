#include "src/sampling/row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace sluice::sampling {

namespace {

constexpr size_t kRow = 1024;  // values at a time: stays in the first-level cache

// exp(x) for x <= 0: x = n ln2 + r with |r| <= ln2 / 2, then 2^n times the Taylor polynomial of
// degree 7, whose remainder r^8 / 8! is below 6e-9. Branch-free; x below -87 gives 0.
inline float exp_of_negative(float x) noexcept {
  constexpr float kLowest = -87.0F;
  constexpr float kRounder = 12582912.0F;   // 1.5 x 2^23: adding it rounds to an integer
  constexpr float kLn2High = 0.693359375F;  // ln2 in two parts; n times the first is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  const float clamped = x > kLowest ? x : kLowest;
  const float shifted = clamped * 1.44269504F + kRounder;
  const float n = shifted - kRounder;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float sum = 1.0F / 5040;
  sum = sum * r + 1.0F / 720;
  sum = sum * r + 1.0F / 120;
  sum = sum * r + 1.0F / 24;
  sum = sum * r + 1.0F / 6;
  sum = sum * r + 0.5F;
  sum = sum * r + 1.0F;
  sum = sum * r + 1.0F;
  const uint32_t power =
      (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRounder) + 127U) << 23;
  const float result = sum * std::bit_cast<float>(power);
  return x > kLowest ? result : 0.0F;
}

double sum_of(const float* values, size_t count) noexcept {
  std::array<double, 4> sums{};
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) sums[lane] += values[i + lane];
  }
  for (; i < count; ++i) sums[0] += values[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void exponentiate_row(const float* from, float* to, size_t count, float max,
                      float temperature) noexcept {
  for (size_t i = 0; i < count; ++i) to[i] = exp_of_negative((from[i] - max) / temperature);
}

}  // namespace

Largest largest(std::span<const float> values) noexcept {
  constexpr size_t kLanes =
      8;  // separate maxima, so that one comparison need not wait for the last
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  std::array<float, kLanes> maxima;
  maxima.fill(kNothing);
  std::array<uint32_t, kLanes> unusable{};
  const auto take = [&](size_t lane, float value) {
    maxima[lane] = value > maxima[lane] ? value : maxima[lane];
    unusable[lane] |= value <= std::numeric_limits<float>::max() ? 0U : 1U;
  };
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) take(lane, values[i + lane]);
  }
  for (; i < values.size(); ++i) take(0, values[i]);
  Largest found{kNothing, false};
  for (size_t lane = 0; lane < kLanes; ++lane) {
    found.value = std::max(found.value, maxima[lane]);
    found.has_unusable = found.has_unusable || unusable[lane] != 0;
  }
  return found;
}

double exponentiate(std::span<float> values, float max, float temperature) noexcept {
  double sum = 0;
  for (size_t start = 0; start < values.size(); start += kRow) {
    const size_t count = std::min(kRow, values.size() - start);
    float* row = values.data() + start;
    exponentiate_row(row, row, count, max, temperature);
    sum += sum_of(row, count);
  }
  return sum;
}

double log_sum_exp(std::span<const float> values, float max) noexcept {
  std::array<float, kRow> row;
  double sum = 0;
  for (size_t start = 0; start < values.size(); start += kRow) {
    const size_t count = std::min(kRow, values.size() - start);
    exponentiate_row(values.data() + start, row.data(), count, max, 1.0F);
    sum += sum_of(row.data(), count);
  }
  return max + std::log(sum);
}

}  // namespace sluice::sampling
