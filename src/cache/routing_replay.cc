#include "src/cache/routing_replay.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>

#include "src/base/error.h"

namespace sluice {

namespace {
// So fast that a use outweighs all before it; of 0 there is no logarithm.
constexpr double kFastest = 1e-300;

// What is asked of a layer's cache together.
struct Ask {
  std::vector<ExpertCache::Use> uses;
  int64_t tokens = 0;  // that have passed since the ask before
};

void add_one_by_one(std::vector<Ask>& asks, std::span<const int32_t> experts) {
  int64_t passed = 1;
  for (const int32_t expert : experts) {
    asks.push_back({{{expert, 1}}, passed});
    passed = 0;
  }
}

std::vector<Ask> asks_of(const RoutingTrace::Layer& layer, const ReplayOptions& options) {
  std::vector<Ask> asks;
  std::map<int32_t, int32_t> together;  // expert, tokens
  int64_t tokens = 0;
  const auto end_pass = [&] {
    if (together.empty()) return;
    Ask& ask = asks.emplace_back();
    for (const auto& [expert, uses] : together) ask.uses.push_back({expert, uses});
    ask.tokens = tokens;
    together.clear();
    tokens = 0;
  };
  int64_t pass = -1;
  for (const RoutingTrace::Token& token : layer.tokens) {
    if (!is_counted(token, options.tokens)) continue;
    const std::span<const int32_t> experts(layer.experts.data() + token.first,
                                           static_cast<size_t>(token.chosen));
    if (options.is_one_by_one) {
      add_one_by_one(asks, experts);
      continue;
    }
    if (token.pass != pass) end_pass();
    pass = token.pass;
    for (const int32_t expert : experts) ++together[expert];
    ++tokens;
  }
  end_pass();
  return asks;
}

int64_t slots_of(const RoutingTrace& trace, const ReplayOptions& options) {
  SLUICE_ASSERT(options.slots >= 0, "a number of slots");
  return std::min(options.slots, trace.experts);
}

// One layer's cache, asked for any number of experts at once. Where it begins empty, what it holds
// at first is not there; nobody has used it, so it goes before anything else does.
class Replayed {
 public:
  Replayed(int64_t experts, int64_t slots, double decay, bool is_cold)
      : cache_(experts, slots, std::max(decay, kFastest)),
        is_lru_(decay == 0),
        was_there_(static_cast<size_t>(experts), !is_cold) {}

  void take(Ask& ask) {
    auto& uses = ask.uses;
    const auto portion = static_cast<size_t>(std::max<int64_t>(cache_.slots(), 1));
    if (uses.size() > portion)
      std::stable_partition(uses.begin(), uses.end(), [&](const ExpertCache::Use& one) {
        return cache_.slot_of(one.expert) >= 0;
      });
    // Where a use outweighs all before it, each ask is later than the one before.
    int64_t passed = is_lru_ ? 1 : ask.tokens;
    for (size_t at = 0; at < uses.size(); at += portion) {
      const std::span<const ExpertCache::Use> some(uses.data() + at,
                                                   std::min(portion, uses.size() - at));
      take_some(some, passed);
      passed = is_lru_ ? 1 : 0;
    }
  }
  const ExpertCache::Counts& counts() const { return counts_; }

 private:
  void take_some(std::span<const ExpertCache::Use> some, int64_t passed) {
    counts_.asked += std::ssize(some);
    if (cache_.slots() == 0) return;
    for (const ExpertCache::Place& place : cache_.take(some, passed)) {
      const auto expert = static_cast<size_t>(place.expert);
      if (!place.is_load && was_there_[expert]) ++counts_.found;
      was_there_[expert] = true;
    }
  }

  ExpertCache cache_;
  bool is_lru_;
  std::vector<bool> was_there_;
  ExpertCache::Counts counts_;
};

// A cache that knows what comes: [expert] when it is asked for next.
class Foreseeing {
 public:
  Foreseeing(int64_t experts, int64_t slots, bool is_cold)
      : slots_(slots), is_held_(static_cast<size_t>(experts), false) {
    for (int32_t e = 0; !is_cold && e < static_cast<int32_t>(slots); ++e) hold(e);
  }

  ExpertCache::Counts replay(const std::vector<Ask>& asks) {
    ExpertCache::Counts counts;
    begin(asks);
    for (size_t at = 0; at < asks.size(); ++at) {
      for (const ExpertCache::Use& use : asks[at].uses) {
        ++counts.asked;
        if (is_held_[static_cast<size_t>(use.expert)])
          ++counts.found;
        else
          hold(use.expert);
      }
      for (const ExpertCache::Use& use : asks[at].uses) ++passed_[static_cast<size_t>(use.expert)];
      keep_soonest();
    }
    return counts;
  }

 private:
  void begin(const std::vector<Ask>& asks) {
    times_.assign(is_held_.size(), {});
    passed_.assign(is_held_.size(), 0);
    for (size_t at = 0; at < asks.size(); ++at)
      for (const ExpertCache::Use& use : asks[at].uses)
        times_[static_cast<size_t>(use.expert)].push_back(at);
  }
  void hold(int32_t expert) {
    is_held_[static_cast<size_t>(expert)] = true;
    held_.push_back(expert);
  }
  size_t next(int32_t expert) const {
    const auto e = static_cast<size_t>(expert);
    return passed_[e] < times_[e].size() ? times_[e][passed_[e]]
                                         : std::numeric_limits<size_t>::max();
  }
  void keep_soonest() {
    while (std::ssize(held_) > slots_) {
      const auto latest = std::max_element(held_.begin(), held_.end(),
                                           [&](int32_t a, int32_t b) { return next(a) < next(b); });
      is_held_[static_cast<size_t>(*latest)] = false;
      held_.erase(latest);
    }
  }

  int64_t slots_;
  std::vector<bool> is_held_;
  std::vector<int32_t> held_;
  std::vector<std::vector<size_t>> times_;  ///< [expert]: the asks that it is in
  std::vector<size_t> passed_;              ///< [expert]: of these
};

template <typename LayerCounts>
ReplayResult replay(const RoutingTrace& trace, const LayerCounts& counts_of) {
  ReplayResult out;
  for (const RoutingTrace::Layer& layer : trace.layers) {
    const ExpertCache::Counts counts = counts_of(layer);
    out.layers.push_back(counts);
    out.all.asked += counts.asked;
    out.all.found += counts.found;
  }
  return out;
}
}  // namespace

ReplayResult replay_cache(const RoutingTrace& trace, const ReplayOptions& options, double decay) {
  SLUICE_ASSERT(decay >= 0 && decay <= 1, "see the header");
  return replay(trace, [&](const RoutingTrace::Layer& layer) {
    Replayed cache(trace.experts, slots_of(trace, options), decay, options.is_cold);
    for (Ask& ask : asks_of(layer, options)) cache.take(ask);
    return cache.counts();
  });
}

ReplayResult replay_best(const RoutingTrace& trace, const ReplayOptions& options) {
  return replay(trace, [&](const RoutingTrace::Layer& layer) {
    Foreseeing cache(trace.experts, slots_of(trace, options), options.is_cold);
    return cache.replay(asks_of(layer, options));
  });
}

BestDecay find_best_decay(const RoutingTrace& trace, const ReplayOptions& options,
                          const std::vector<double>& decays) {
  SLUICE_ASSERT(!decays.empty(), "some decay");
  BestDecay best{decays.front(), -1};
  for (const double decay : decays) {
    const double rate = replay_cache(trace, options, decay).hit_rate();
    if (rate > best.hit_rate || (rate == best.hit_rate && decay < best.decay)) best = {decay, rate};
  }
  return best;
}

}  // namespace sluice
