#pragma once
// What a cache of experts would have found on a recorded run (routing_trace.h), for any slots and
// decay of ExpertCache, and what the best possible one would have: to choose both, and to hold the
// engine's counts against. Pure; thread safe.
#include <cstdint>
#include <vector>

#include "src/cache/expert_cache.h"
#include "src/cache/routing_trace.h"

namespace sluice {

/// Which tokens of a trace count.
enum class RoutedTokens : uint8_t { kDecoded, kPrompts, kAll };

/// Whether a token is among them.
inline bool is_counted(const RoutingTrace::Token& token, RoutedTokens tokens) noexcept {
  return tokens == RoutedTokens::kAll || token.is_prompt == (tokens == RoutedTokens::kPrompts);
}

/// What of a trace is asked of a cache, and how.
struct ReplayOptions {
  int64_t slots = 0;  ///< a layer; more than there are experts: all of these
  RoutedTokens tokens = RoutedTokens::kDecoded;
  /// Experts one after the other, in the order of the file, as other programs count; else all that
  /// the tokens of a pass choose at once, each once, as the engine asks.
  bool is_one_by_one = false;
  /// Nothing is there at first; else the first experts are, as where the engine begins.
  bool is_cold = true;
};

/// Of a trace or a layer: experts asked for, and those of them that were there.
struct ReplayResult {
  std::vector<ExpertCache::Counts> layers;  ///< [layers]
  ExpertCache::Counts all;

  /// 0 where nothing was asked for.
  double hit_rate() const noexcept {
    return all.asked > 0 ? static_cast<double>(all.found) / static_cast<double>(all.asked) : 0;
  }
};

/// ExpertCache with `decay` from 0 (the one used longest ago goes: LRU) to 1 (the least used goes).
/// Who asks for more than there are slots gets those that are there first, then the others in
/// portions of as many as there are slots.
ReplayResult replay_cache(const RoutingTrace& trace, const ReplayOptions& options, double decay);

/// The most that any cache could have found (Belady, IBM Systems Journal 5(2), 1966): what is asked
/// for again latest goes, or is not kept at all.
ReplayResult replay_best(const RoutingTrace& trace, const ReplayOptions& options);

/// Of the decays tried the one that finds most, the fastest of equal ones.
struct BestDecay {
  double decay = 0;
  double hit_rate = 0;
};
/// Tries `decays`, at least one.
BestDecay find_best_decay(const RoutingTrace& trace, const ReplayOptions& options,
                          const std::vector<double>& decays);

}  // namespace sluice
