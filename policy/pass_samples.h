#pragma once
// Which of many prefill passes are looked at, and what each of them stands for. Passes differ in
// what their tokens see of their prompts, and the last has fewer tokens: passes that see as much
// are put together, one of each such group is looked at, and it is told the group's mean, so that
// tokens, (query, key) pairs and prompts of all passes come out as they are. Pure.
#include <cstdint>
#include <span>
#include <vector>

#include "policy/plan.h"

namespace sluice::policy {

/// (query, key) pairs of tokens [first, first + count) where each sees `window` positions (0: all).
double visible_pairs(int64_t first, int64_t count, int64_t window) noexcept;

/// What passes have to do, counted without cutting them into micro-batches.
class PassTallies {
 public:
  /// `chunk_tokens`: of one prompt that are computed together, at most. `layers` of the plan stay
  /// where they are.
  PassTallies(std::span<const KvPlan> layers, int64_t chunk_tokens);

  /// One more pass; runs are added to the last one.
  void open(int64_t pass);
  /// `times` runs of tokens [first, first + count) of a prompt of so many. `has_history`: what they
  /// see of tokens before them counts as history.
  void add_run(int64_t first, int64_t count, int64_t prompt_tokens, int64_t times = 1,
               bool has_history = true);

  size_t size() const noexcept { return passes_.size(); }
  int64_t pass(size_t row) const noexcept { return passes_[row]; }
  double tokens(size_t row) const noexcept { return at(row, 0); }
  /// That end in it.
  double prompts(size_t row) const noexcept { return at(row, 1); }
  /// Of a group of layers: visible pairs, and tokens of its prompts that were computed before, as
  /// often as a chunk of its own wants them.
  double pairs(size_t row, size_t group) const noexcept { return at(row, 2 + 2 * group); }
  double history(size_t row, size_t group) const noexcept { return at(row, 3 + 2 * group); }
  /// Of all layers together.
  double all_pairs(size_t row) const noexcept;
  double all_history(size_t row) const noexcept;

 private:
  double at(size_t row, size_t field) const noexcept { return values_[row * width_ + field]; }

  std::span<const KvPlan> layers_;
  int64_t chunk_tokens_;
  size_t width_;
  std::vector<int64_t> passes_;
  std::vector<double> values_;  // [row][field]
};

/// One pass that is looked at.
struct PassSample {
  int64_t pass = 0;
  double passes = 1;  ///< that it stands for: as many have its tokens as all of these together
  /// What each of these has of the sample's own, 1 where it stands for itself. By group of layers.
  std::vector<double> pairs;
  std::vector<double> history;
  double prompts = 0;  ///< that end in each
};

/// Of `count` passes of a block of `sequences` equal prompts, of which `tallies` has all or some,
/// spread evenly, and the last one: `most` that are full, and the last where it is not. By rising
/// pass; of no more passes than that each stands for itself.
std::vector<PassSample> choose_samples(const PassTallies& tallies, std::span<const KvPlan> layers,
                                       int64_t count, int64_t most, int64_t sequences,
                                       int64_t prompt_tokens);

}  // namespace sluice::policy
