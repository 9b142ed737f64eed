#include "src/sampling/candidates.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace sluice::sampling {

namespace {

constexpr int64_t kSmallestBuffer =
    1024;  // values; below it, selecting costs less than the scan that fills it
constexpr int64_t kSortedRange = 32;  // candidates that are sorted rather than partitioned further
constexpr int kMaxPartitions =
    64;  // about 2 log2(vocabulary); past it (crafted input) the range is sorted

bool ranks_before(const Ranked& a, const Ranked& b) noexcept { return a.before(b); }

Ranked median(Ranked a, Ranked b, Ranked c) noexcept {
  if (b.before(a)) std::swap(a, b);
  if (c.before(b)) std::swap(b, c);
  return b.before(a) ? a : b;
}

// The element of the sorted range with which `mass` plus the sum so far reaches `target`; the last
// if none does.
Ranked walk(std::span<Ranked> range, double mass, double target) {
  std::sort(range.begin(), range.end(), ranks_before);
  for (const Ranked& one : range) {
    mass += one.weight;
    if (mass >= target) return one;
  }
  return range.back();
}

}  // namespace

float kth_largest(std::span<const float> values, int64_t k, std::vector<float>& buffer) {
  const auto n = static_cast<int64_t>(values.size());
  const auto kept = static_cast<size_t>(k);
  const auto room = static_cast<size_t>(std::min(n, std::max(2 * k, k + kSmallestBuffer)));
  if (buffer.size() < room) buffer.resize(room);
  const auto begin = buffer.begin();
  const auto shrink = [&](size_t filled) {
    std::nth_element(begin, begin + (k - 1), begin + static_cast<int64_t>(filled),
                     std::greater<>());
    return buffer[kept - 1];
  };

  size_t filled = 0;
  float threshold = -std::numeric_limits<float>::infinity();
  bool has_threshold = false;
  for (const float value : values) {
    if (has_threshold && value <= threshold)
      continue;  // k values at least as large are held already
    if (filled == room) {
      threshold = shrink(filled);
      has_threshold = true;
      filled = kept;
      if (value <= threshold) continue;
    }
    buffer[filled++] = value;
  }
  return shrink(filled);
}

void gather(std::span<const float> logits, float threshold, std::vector<int32_t>& tokens,
            std::vector<float>& kept_logits) {
  if (tokens.size() < logits.size()) tokens.resize(logits.size());
  if (kept_logits.size() < logits.size()) kept_logits.resize(logits.size());
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  size_t filled = 0;
  for (size_t token = 0; token < logits.size(); ++token) {
    tokens[filled] = static_cast<int32_t>(token);
    kept_logits[filled] = logits[token];
    filled += static_cast<size_t>(logits[token] >= threshold && logits[token] > kNothing);
  }
  tokens.resize(filled);
  kept_logits.resize(filled);
}

Ranked last_of_top_p(std::span<const int32_t> tokens, std::span<const float> weights, double total,
                     float top_p, std::vector<Ranked>& buffer) {
  const double target = (static_cast<double>(top_p) - 1e-7) * total;
  // Tokens below this hold less than total - target together, so those above reach the target
  // without them.
  const double negligible = (total - target) / static_cast<double>(tokens.size()) * 0.999;
  if (buffer.size() < tokens.size()) buffer.resize(tokens.size());
  size_t count = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    buffer[count] = {weights[i], tokens[i]};
    count += static_cast<size_t>(weights[i] >= negligible);
  }

  std::span<Ranked> range(buffer.data(), count);
  double mass = 0;  // of everything ranked before `range`
  for (int round = 0; round < kMaxPartitions && std::ssize(range) > kSortedRange; ++round) {
    const Ranked pivot = median(range.front(), range[range.size() / 2], range.back());
    const auto split = std::partition(range.begin(), range.end(),
                                      [&](const Ranked& one) { return one.before(pivot); });
    double upper = 0;
    for (auto one = range.begin(); one != split; ++one) upper += one->weight;
    if (mass + upper >= target && split != range.begin()) {
      range = range.first(static_cast<size_t>(split - range.begin()));
      continue;
    }
    mass += upper;
    if (mass + pivot.weight >= target) return pivot;
    mass += pivot.weight;
    const auto same = std::find_if(split, range.end(),
                                   [&](const Ranked& one) { return one.token == pivot.token; });
    std::iter_swap(split, same);
    range = range.subspan(static_cast<size_t>(split - range.begin()) + 1);
    if (range.empty()) return pivot;
  }
  return walk(range, mass, target);
}

}  // namespace sluice::sampling
