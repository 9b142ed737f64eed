#include "src/cache/routing_figures.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>

namespace sluice {

namespace {
using Layer = RoutingTrace::Layer;
using Token = RoutingTrace::Token;

// A mean that is -1 of nothing.
struct Mean {
  double sum = 0;
  double count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return count > 0 ? sum / count : -1; }
};

// Tokens that follow each other, each as its experts.
using Run = std::vector<std::span<const int32_t>>;

// The runs of a layer: of each sequence, as long as positions follow each other.
std::vector<Run> runs_of(const Layer& layer, RoutedTokens tokens) {
  struct Open {
    size_t run;
    int64_t position;
  };
  std::vector<Run> runs;
  std::map<int64_t, Open> open;  // by sequence
  for (const Token& token : layer.tokens) {
    if (!is_counted(token, tokens)) continue;
    auto [at, is_new] = open.try_emplace(token.sequence, Open{runs.size(), token.position});
    if (!is_new && token.position != at->second.position + 1) {
      at->second.run = runs.size();
      is_new = true;
    }
    if (is_new) runs.emplace_back();
    at->second.position = token.position;
    runs[at->second.run].push_back(
        {layer.experts.data() + token.first, static_cast<size_t>(token.chosen)});
  }
  return runs;
}

class Figures {
 public:
  explicit Figures(int64_t experts) : experts_(static_cast<size_t>(experts)) {}

  void add(const Layer& layer, RoutedTokens tokens) {
    uses_.assign(experts_, 0);
    for (const Run& run : runs_of(layer, tokens)) {
      add_neighbours(run);
      for (size_t i = 0; i < RoutingFigures::kStretches.size(); ++i)
        add_stretches(run, static_cast<size_t>(RoutingFigures::kStretches[i]), distinct_[i]);
    }
    add_uses();
    add_passes(layer, tokens);
  }

  void put_into(RoutingFigures& out) const {
    const auto put = [](auto& to, const auto& from) {
      std::transform(from.begin(), from.end(), to.begin(),
                     [](const Mean& mean) { return mean.value(); });
    };
    put(out.overlap, overlap_);
    put(out.seen, seen_);
    put(out.distinct, distinct_);
    put(out.hottest, hottest_);
    out.entropy = entropy_.value();
    out.least_entropy = entropy_.count > 0 ? least_entropy_ : -1;
    out.most_entropy = entropy_.count > 0 ? most_entropy_ : -1;
    out.tokens_a_pass = tokens_.value();
    out.experts_a_pass = in_pass_.value();
  }

 private:
  // Of each token, how far back each of its experts was chosen last.
  void add_neighbours(const Run& run) {
    std::vector<int64_t> last(experts_, std::numeric_limits<int64_t>::min() / 2);
    for (size_t t = 0; t < run.size(); ++t) {
      const auto now = static_cast<int64_t>(t);
      for (size_t i = 0; i < RoutingFigures::kLags.size(); ++i)
        add_overlap(run, now, RoutingFigures::kLags[i], overlap_[i]);
      for (const int32_t expert : run[t]) {
        const int64_t distance = now - last[static_cast<size_t>(expert)];
        for (size_t i = 0; i < RoutingFigures::kWindows.size(); ++i)
          if (now >= RoutingFigures::kWindows[i])
            seen_[i].add(distance <= RoutingFigures::kWindows[i] ? 1 : 0);
      }
      for (const int32_t expert : run[t]) {
        last[static_cast<size_t>(expert)] = now;
        ++uses_[static_cast<size_t>(expert)];
      }
    }
  }
  static void add_overlap(const Run& run, int64_t now, int64_t lag, Mean& to) {
    if (now < lag) return;
    const auto& before = run[static_cast<size_t>(now - lag)];
    for (const int32_t expert : run[static_cast<size_t>(now)])
      to.add(std::find(before.begin(), before.end(), expert) != before.end() ? 1 : 0);
  }

  // Every stretch of `length` tokens, each begun one later than the one before.
  void add_stretches(const Run& run, size_t length, Mean& to) const {
    std::vector<int32_t> inside(experts_, 0);
    int64_t distinct = 0;
    for (size_t t = 0; t < run.size(); ++t) {
      for (const int32_t expert : run[t])
        if (inside[static_cast<size_t>(expert)]++ == 0) ++distinct;
      if (t >= length)
        for (const int32_t expert : run[t - length])
          if (--inside[static_cast<size_t>(expert)] == 0) --distinct;
      if (t + 1 >= length) to.add(static_cast<double>(distinct));
    }
  }

  void add_uses() {
    std::sort(uses_.begin(), uses_.end(), std::greater<>());
    const auto all = static_cast<double>(std::accumulate(uses_.begin(), uses_.end(), int64_t{0}));
    if (all == 0) return;
    for (size_t i = 0; i < RoutingFigures::kHottest.size(); ++i) {
      const double share = RoutingFigures::kHottest[i] * static_cast<double>(experts_);
      const auto some = std::max<size_t>(1, static_cast<size_t>(std::llround(share)));
      const auto end = uses_.begin() + static_cast<std::ptrdiff_t>(some);
      hottest_[i].add(static_cast<double>(std::accumulate(uses_.begin(), end, int64_t{0})) / all);
    }
    double bits = 0;
    for (const int64_t uses : uses_) {
      const double share = static_cast<double>(uses) / all;
      if (share > 0) bits -= share * std::log(share);
    }
    const double entropy = experts_ > 1 ? bits / std::log(static_cast<double>(experts_)) : 1;
    entropy_.add(entropy);
    least_entropy_ = std::min(least_entropy_, entropy);
    most_entropy_ = std::max(most_entropy_, entropy);
  }

  void add_passes(const Layer& layer, RoutedTokens tokens) {
    std::set<int32_t> experts;
    int64_t pass = -1, count = 0;
    const auto end_pass = [&] {
      if (count == 0) return;
      tokens_.add(static_cast<double>(count));
      in_pass_.add(static_cast<double>(experts.size()));
      experts.clear();
      count = 0;
    };
    for (const Token& token : layer.tokens) {
      if (!is_counted(token, tokens)) continue;
      if (token.pass != pass) end_pass();
      pass = token.pass;
      ++count;
      const auto* first = layer.experts.data() + token.first;
      experts.insert(first, first + token.chosen);
    }
    end_pass();
  }

  size_t experts_;
  std::vector<int64_t> uses_;  ///< [expert], of the layer under way
  std::array<Mean, 4> overlap_, seen_, hottest_;
  std::array<Mean, 3> distinct_;
  Mean entropy_, tokens_, in_pass_;
  double least_entropy_ = std::numeric_limits<double>::infinity();
  double most_entropy_ = 0;
};

// Of the layer that has most tokens.
void count_tokens(const RoutingTrace& trace, RoutedTokens tokens, RoutingFigures& out) {
  const auto largest = std::max_element(
      trace.layers.begin(), trace.layers.end(),
      [](const Layer& a, const Layer& b) { return a.tokens.size() < b.tokens.size(); });
  std::set<int64_t> sequences, passes;
  for (const Token& token : largest->tokens) {
    ++(token.is_prompt ? out.prompt_tokens : out.decoded_tokens);
    if (!is_counted(token, tokens)) continue;
    ++out.tokens;
    sequences.insert(token.sequence);
    passes.insert(token.pass);
  }
  out.sequences = std::ssize(sequences);
  out.passes = std::ssize(passes);
}
}  // namespace

RoutingFigures routing_figures(const RoutingTrace& trace, RoutedTokens tokens) {
  RoutingFigures out;
  Figures figures(trace.experts);
  for (const Layer& layer : trace.layers) {
    if (layer.tokens.empty()) continue;
    ++out.routed_layers;
    figures.add(layer, tokens);
  }
  figures.put_into(out);
  count_tokens(trace, tokens, out);
  const double untouched = 1 - static_cast<double>(std::min(trace.chosen, trace.experts)) /
                                   static_cast<double>(trace.experts);
  for (size_t i = 0; i < out.uniform.size(); ++i)
    out.uniform[i] = static_cast<double>(trace.experts) *
                     (1 - std::pow(untouched, static_cast<double>(RoutingFigures::kStretches[i])));
  return out;
}

}  // namespace sluice
