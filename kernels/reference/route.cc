#include "kernels/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace sluice::kernels::reference {

namespace {
std::vector<int64_t> best_of(const std::vector<double>& values, int64_t count) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(count));
  return order;
}
}  // namespace

void route(const RouterSpec& spec, const float* x, int64_t stride, int64_t rows,
           const float* vector, RoutedTo* choices) {
  const auto n = static_cast<size_t>(spec.experts);
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> scores(x + row * stride, x + row * stride + n);
    for (double& s : scores) s *= spec.score_scale;
    if (spec.scores == RouterSpec::Scores::kSigmoid) {
      for (double& s : scores) s = 1 / (1 + std::exp(-s));
    } else if (spec.scores == RouterSpec::Scores::kSoftmax) {
      const double most = *std::max_element(scores.begin(), scores.end());
      for (double& s : scores) s = std::exp(s - most);
      const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
      for (double& s : scores) s /= sum;
    }
    std::vector<double> values = scores;
    for (size_t i = 0; vector && !spec.vector_scales && i < n; ++i) values[i] += vector[i];
    const int64_t size = spec.experts / spec.groups;
    std::vector<double> worth;
    for (auto begin = values.begin(); begin != values.end(); begin += size) {
      std::vector<double> group(begin, begin + size);
      std::sort(group.rbegin(), group.rend());
      worth.push_back(spec.worth == RouterSpec::GroupWorth::kBest || size == 1
                          ? group[0]
                          : group[0] + group[1]);
    }
    const std::vector<int64_t> kept = best_of(worth, spec.kept_groups);
    for (int64_t i = 0; i < spec.experts; ++i)
      if (std::find(kept.begin(), kept.end(), i / size) == kept.end())
        values[static_cast<size_t>(i)] =
            spec.others_count_zero ? 0 : -std::numeric_limits<double>::infinity();
    std::vector<int64_t> chosen = best_of(values, spec.chosen);
    std::sort(chosen.begin(), chosen.end());
    std::vector<double> weights;
    for (const int64_t i : chosen)
      weights.push_back(spec.is_softmax_of_chosen ? std::exp(scores[static_cast<size_t>(i)])
                                                  : scores[static_cast<size_t>(i)]);
    for (double& weight : weights)
      if (spec.is_sigmoid_of_chosen) weight = 1 / (1 + std::exp(-weight));
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (spec.renormalises || spec.is_softmax_of_chosen) weights[i] /= sum + spec.eps;
      if (vector && spec.vector_scales) weights[i] *= vector[chosen[i]];
      choices[row * spec.chosen + static_cast<int64_t>(i)] = {
          static_cast<int32_t>(chosen[i]), static_cast<float>(weights[i] * spec.scale)};
    }
  }
}

void add_weighted_rows(const float* x, int64_t x_stride, const int32_t* ids, const float* weights,
                       int64_t weight_stride, float* y, int64_t y_stride, int64_t rows,
                       int64_t cols) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col)
      y[(ids ? ids[row] : row) * y_stride + col] +=
          weights[row * weight_stride] * x[row * x_stride + col];
}

}  // namespace sluice::kernels::reference
