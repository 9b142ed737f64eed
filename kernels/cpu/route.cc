#include "kernels/route.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/team.h"

namespace sluice::kernels {

namespace {
constexpr int64_t kShareElements = 1 << 13;  // that a thread takes at a time, at least

// Softmax or sigmoid in f32, as transformers' routers have it.
void to_scores(const RouterSpec& spec, const float* raw, float* scores) noexcept {
  const RouterSpec::Scores kind = spec.scores;
  const int64_t n = spec.experts;
  for (int64_t i = 0; i < n; ++i) scores[i] = spec.score_scale * raw[i];
  const float* const x = scores;
  if (kind == RouterSpec::Scores::kAsTheyAre) return;
  if (kind == RouterSpec::Scores::kSigmoid) {
    for (int64_t i = 0; i < n; ++i) scores[i] = 1.0f / (1.0f + std::exp(-x[i]));
    return;
  }
  const float most = *std::max_element(x, x + n);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += scores[i] = std::exp(x[i] - most);
  for (int64_t i = 0; i < n; ++i) scores[i] /= sum;
}

bool is_better(float a, float b) noexcept { return a > b || (std::isnan(b) && !std::isnan(a)); }

// Marks the `count` best of `values`, the first of equal ones.
void mark_best(const float* values, int64_t n, int64_t count, bool* is_chosen) noexcept {
  std::fill_n(is_chosen, n, false);
  for (int64_t round = 0; round < count; ++round) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; ++i)
      if (!is_chosen[i] && (best < 0 || is_better(values[i], values[best]))) best = i;
    is_chosen[best] = true;
  }
}

float worth_of(RouterSpec::GroupWorth kind, const float* values, int64_t n) noexcept {
  float best = -std::numeric_limits<float>::infinity(), second = best;
  for (int64_t i = 0; i < n; ++i) {
    second = std::max(second, std::min(best, values[i]));
    best = std::max(best, values[i]);
  }
  return kind == RouterSpec::GroupWorth::kBest || n == 1 ? best : best + second;
}

// Experts of groups that are not kept count as others do.
void keep_groups(const RouterSpec& spec, float* values) noexcept {
  if (spec.groups <= spec.kept_groups) return;
  float worth[RouterSpec::kMostExperts] = {};
  bool is_kept[RouterSpec::kMostExperts];
  const int64_t size = spec.experts / spec.groups;
  for (int64_t group = 0; group < spec.groups; ++group)
    worth[group] = worth_of(spec.worth, values + group * size, size);
  mark_best(worth, spec.groups, spec.kept_groups, is_kept);
  const float other = spec.others_count_zero ? 0 : -std::numeric_limits<float>::infinity();
  for (int64_t group = 0; group < spec.groups; ++group)
    if (!is_kept[group]) std::fill_n(values + group * size, size, other);
}

void weigh(const RouterSpec& spec, RoutedTo* choices) noexcept {
  float sum = 0, most = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < spec.chosen; ++i) most = std::max(most, choices[i].weight);
  for (int64_t i = 0; i < spec.chosen; ++i) {
    if (spec.is_softmax_of_chosen) choices[i].weight = std::exp(choices[i].weight - most);
    if (spec.is_sigmoid_of_chosen) choices[i].weight = 1.0f / (1.0f + std::exp(-choices[i].weight));
    sum += choices[i].weight;
  }
  const bool is_divided = spec.renormalises || spec.is_softmax_of_chosen;
  for (int64_t i = 0; i < spec.chosen; ++i) {
    if (is_divided) choices[i].weight /= sum + spec.eps;
    choices[i].weight *= spec.scale;
  }
}

void route_row(const RouterSpec& spec, const float* x, const float* vector,
               RoutedTo* choices) noexcept {
  float scores[RouterSpec::kMostExperts], values[RouterSpec::kMostExperts];
  bool is_chosen[RouterSpec::kMostExperts];
  to_scores(spec, x, scores);
  const bool is_corrected = vector && !spec.vector_scales;
  for (int64_t i = 0; i < spec.experts; ++i)
    values[i] = is_corrected ? scores[i] + vector[i] : scores[i];
  keep_groups(spec, values);
  mark_best(values, spec.experts, spec.chosen, is_chosen);
  RoutedTo* to = choices;
  for (int64_t i = 0; i < spec.experts; ++i)
    if (is_chosen[i]) *to++ = {static_cast<int32_t>(i), scores[i]};
  weigh(spec, choices);
  if (!vector || !spec.vector_scales) return;
  for (int64_t i = 0; i < spec.chosen; ++i) choices[i].weight *= vector[choices[i].expert];
}
}  // namespace

void route(const RouterSpec& spec, const float* x, int64_t stride, int64_t rows,
           const float* vector, RoutedTo* choices) noexcept {
  const int64_t steps = spec.experts * (spec.chosen + 8);
  deal_each(rows, kShareElements / steps, [&](int64_t row) {
    route_row(spec, x + row * stride, vector, choices + row * spec.chosen);
  });
}

void group_by_expert(const RoutedTo* choices, int64_t rows, int64_t chosen, int64_t experts,
                     const ExpertRows& out) noexcept {
  std::fill(out.begin.begin(), out.begin.end(), 0);
  int32_t* const ends = out.begin.data() + 1;
  for (int64_t i = 0; i < rows * chosen; ++i) ++ends[choices[i].expert];
  for (int64_t e = 1; e < experts; ++e) ends[e] += ends[e - 1];
  // From behind, so that what counted an expert's rows ends where they begin.
  for (int64_t row = rows; row-- > 0;)
    for (int64_t i = chosen; i-- > 0;) {
      const RoutedTo& choice = choices[row * chosen + i];
      const auto at = static_cast<size_t>(--ends[choice.expert]);
      out.rows[at] = static_cast<int32_t>(row);
      out.weights[at] = choice.weight;
    }
  std::copy(ends, ends + experts, out.begin.data());
  out.begin[static_cast<size_t>(experts)] = static_cast<int32_t>(rows * chosen);
}

void add_weighted_rows(const float* x, int64_t x_stride, const int32_t* ids, const float* weights,
                       int64_t weight_stride, float* y, int64_t y_stride, int64_t rows,
                       int64_t cols) noexcept {
  deal_each(rows, kShareElements / std::max<int64_t>(cols, 1), [&](int64_t row) {
    const float weight = weights[row * weight_stride];
    const float* from = x + row * x_stride;
    float* to = y + (ids ? ids[row] : row) * y_stride;
    for (int64_t col = 0; col < cols; ++col) to[col] += weight * from[col];
  });
}

}  // namespace sluice::kernels
