#include "src/sampling/filters.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::sampling {

namespace {

constexpr size_t kSortedTokens = 32;  // are sorted rather than cut further
constexpr size_t kZipfTokens = 100;   // that Mirostat measures Zipf's law on

template <typename Keeps>
void filter(Kept& kept, const Keeps& keeps) {
  size_t filled = 0;
  double total = 0;
  for (size_t i = 0; i < kept.tokens.size(); ++i) {
    if (!keeps(kept.tokens[i], kept.weights[i])) continue;
    kept.tokens[filled] = kept.tokens[i];
    kept.weights[filled++] = kept.weights[i];
    total += kept.weights[filled - 1];
  }
  kept.tokens.resize(filled);
  kept.weights.resize(filled);
  kept.total = total;
}

bool is_nearer(const Shifted& a, const Shifted& b) noexcept { return a.before(b); }

// The first, from the nearest, with which the sum of weights reaches `target`; the last if none
// does.
Shifted last_of_mass(std::span<Shifted> range, double target) {
  double mass = 0;  // of all before `range`
  while (range.size() > kSortedTokens) {
    const size_t half = range.size() / 2;
    std::nth_element(range.begin(), range.begin() + static_cast<int64_t>(half), range.end(),
                     is_nearer);
    double lower = 0;
    for (const Shifted& one : range.first(half)) lower += one.weight;
    if (mass + lower >= target) {
      range = range.first(half);
    } else {
      mass += lower;
      range = range.subspan(half);
    }
  }
  std::sort(range.begin(), range.end(), is_nearer);
  for (const Shifted& one : range) {
    mass += one.weight;
    if (mass >= target) return one;
  }
  return range.back();
}

// Least squares of ln(p_i / p_(i+1)) over ln((i+1) / i) (its
// section 3); 0 where there are no two tokens with a weight.
double zipf_exponent(std::span<const Ranked> likeliest) {
  double up = 0, down = 0;
  for (size_t i = 0; i + 1 < likeliest.size() && likeliest[i + 1].weight > 0; ++i) {
    const auto rank = static_cast<double>(i + 1);
    const double t = std::log((rank + 1) / rank);
    up += t * std::log(static_cast<double>(likeliest[i].weight) / likeliest[i + 1].weight);
    down += t * t;
  }
  return down > 0 ? up / down : 0;
}

// k of the paper's Algorithm 1, its logarithm first: with an exponent near 0 the power has no
// bounds.
size_t tokens_of_surprise(double exponent, double bits, int64_t vocab_size, size_t most) {
  const double log_vocab = std::log(static_cast<double>(vocab_size));
  const double above_one = exponent - 1;
  // above_one / (1 - N^-above_one), which is 1 / ln N where above_one is 0.
  const double ratio = std::abs(above_one * log_vocab) < 1e-9
                           ? 1 / std::max(log_vocab, 1e-9)
                           : above_one / -std::expm1(-above_one * log_vocab);
  const double log_k = (std::log(ratio) + bits * std::log(2.0)) / std::max(exponent, 1e-9);
  if (!(log_k > 0)) return 1;
  const double k = std::round(std::exp(std::min(log_k, 60.0)));
  return k < static_cast<double>(most) ? static_cast<size_t>(k) : most;
}

}  // namespace

float top_sigma_threshold(std::span<const float> logits, float max, float sigmas) noexcept {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  double sum = 0, squares = 0, count = 0;  // of distances from max
  for (const float logit : logits) {
    if (logit == kNothing) continue;
    const double below = static_cast<double>(max) - logit;
    sum += below;
    squares += below * below;
    ++count;
  }
  if (count == 0) return kNothing;
  const double mean = sum / count;
  const double variance = std::max(squares / count - mean * mean, 0.0);
  return static_cast<float>(std::min(max - sigmas * std::sqrt(variance), double{max}));
}

void keep_typical(Kept& kept, float typical_p, std::vector<Shifted>& buffer) {
  const size_t size = kept.tokens.size();
  const double log_total = std::log(kept.total);
  const auto information = [log_total](float weight) {
    return weight > 0 ? log_total - std::log(static_cast<double>(weight))
                      : std::numeric_limits<double>::infinity();
  };
  double sum = 0;
  for (const float weight : kept.weights)
    if (weight > 0) sum += weight * information(weight);
  const double entropy = sum / kept.total;
  const auto shifted = [&](int32_t token, float weight) {
    return Shifted{std::abs(information(weight) - entropy), weight, token};
  };
  if (buffer.size() < size) buffer.resize(size);
  for (size_t i = 0; i < size; ++i) buffer[i] = shifted(kept.tokens[i], kept.weights[i]);
  const Shifted last = last_of_mass(std::span(buffer).first(size),
                                    (static_cast<double>(typical_p) - 1e-7) * kept.total);
  filter(kept, [&](int32_t token, float weight) { return !last.before(shifted(token, weight)); });
}

void exclude_top(Kept& kept, float threshold) {
  const double least = threshold * kept.total;
  const auto is_top = [&](float weight) { return weight > 0 && weight >= least; };
  Ranked last{std::numeric_limits<float>::infinity(), 0};  // the least likely of those
  for (size_t i = 0; i < kept.tokens.size(); ++i) {
    const Ranked one{kept.weights[i], kept.tokens[i]};
    if (is_top(one.weight) && last.before(one)) last = one;
  }
  filter(kept, [&](int32_t token, float weight) { return !is_top(weight) || token == last.token; });
}

void keep_mirostat(Kept& kept, int version, double bits, int64_t vocab_size,
                   std::vector<Ranked>& buffer) {
  const size_t size = kept.tokens.size();
  if (buffer.size() < size) buffer.resize(size);
  for (size_t i = 0; i < size; ++i) buffer[i] = {kept.weights[i], kept.tokens[i]};
  const std::span<Ranked> ranked(buffer.data(), size);
  const auto is_before = [](const Ranked& a, const Ranked& b) { return a.before(b); };
  Ranked last{};
  if (version == 2) {
    // Nothing that surprises less stays away; the likeliest always stays.
    last = *std::min_element(ranked.begin(), ranked.end(), is_before);
    const double least = kept.total * std::exp2(-bits);
    for (const Ranked& one : ranked)
      if (one.weight > 0 && one.weight >= least && last.before(one)) last = one;
  } else {
    const size_t counted = std::min(size, kZipfTokens);
    std::partial_sort(ranked.begin(), ranked.begin() + static_cast<int64_t>(counted), ranked.end(),
                      is_before);
    const size_t k =
        tokens_of_surprise(zipf_exponent(ranked.first(counted)), bits, vocab_size, size);
    if (k > counted)
      std::nth_element(ranked.begin() + static_cast<int64_t>(counted),
                       ranked.begin() + static_cast<int64_t>(k - 1), ranked.end(), is_before);
    last = ranked[k - 1];
  }
  filter(kept, [&](int32_t token, float weight) { return !last.before({weight, token}); });
}

}  // namespace sluice::sampling
