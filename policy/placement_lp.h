#pragma once
// One linear program: for a fixed block and fixed yes/no choices, the shares of weights, KV and
// activations on each tier that make the block's seconds least within the budgets (FlexGen,
// arXiv:2303.06865 section 4.3, with lanes in the place of steps). Every cost and every size is
// linear in the shares, so its coefficients are the differences between corner policies, asked of
// the same cost model and the same plan that the rest uses: nothing is written down twice. Of
// shares that are as fast, those with the most bytes high up are taken: memory before disk, and
// least on disk of what is written there in every pass.
#include <array>
#include <optional>

#include "policy/cost_model.h"
#include "policy/search.h"

namespace sluice::policy {

/// The shares that vary; what they leave of each kind is on the device.
enum class Share : uint8_t {
  kWeightsInplace,  ///< of host memory, multiplied there by small passes
  kWeightsHost,     ///< of host memory, sent up by them
  kWeightsDisk,
  kKvHost,
  kKvDisk,
  kActivationsHost,
  kActivationsDisk,
  /// Of the two shares in host memory, multiplied there by larger passes: only where the block's
  /// policy has them (Policy::larger_passes).
  kLargeInplace
};
constexpr size_t kShareCount = 8;

/// Shares slower than the fastest by less than this share of its seconds are as fast.
constexpr double kAsFast = 1e-3;

/// A solution: shares by variable, and what the program expects of them.
struct Placement {
  std::array<double, kShareCount> shares{};
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

class PlacementLp {
 public:
  /// Block and choices from `block` (its shares are ignored; of larger passes it has one class at
  /// most, that of its prefill). `make_plan` makes plans of request.input. `most_below`: the share
  /// of weights that may lie below the device, at most. Costs are linear up to there: of a mixture,
  /// whose experts cost less for their bytes than what every token multiplies, they are so while
  /// all of the latter is on the device.
  /// `make_passes`: sampled_passes() of the request's model and job. `known`: of this request's
  /// model on its profile.
  PlacementLp(const SearchRequest& request, const Policy& block, PlanMaker& make_plan,
              PassMaker& make_passes, double most_below = 1, KnownCosts* known = nullptr);

  /// The best shares, or nothing when no shares fit the budgets. `latency_bound_seconds` > 0 bounds
  /// prefill + decode.
  std::optional<Placement> solve(double latency_bound_seconds) const;

  /// `block` with these shares.
  static Policy policy_with(Policy block, const std::array<double, kShareCount>& shares,
                            bool has_device);
  /// Seconds and bytes of any shares under the LP's own (linear) model, for tests.
  double seconds(const std::array<double, kShareCount>& shares) const;
  bool fits(const std::array<double, kShareCount>& shares) const;
  bool varies(Share share) const noexcept { return varies_[static_cast<size_t>(share)]; }

 private:
  // A linear function of the shares.
  struct Linear {
    double base = 0;
    std::array<double, kShareCount> slope{};
    double at(const std::array<double, kShareCount>& shares) const noexcept;
  };
  // Seconds that the lanes are taken in a phase, and those of the host's memory.
  using Loads = std::vector<Linear>;
  std::vector<double> loads_of(const Prediction& prediction, bool is_prefill) const;
  void add_time_rows(const Loads& loads, std::vector<Linear>& rows) const;
  class Problem;
  void add_rows(Problem& problem, double unit) const;
  static void constrain(Problem& problem, const std::optional<TierShares>& shares, Share host,
                        Share disk, bool has_device, bool has_inplace);
  static double most_of(const std::vector<Linear>& rows,
                        const std::array<double, kShareCount>& shares);
  double unit() const;

  const SearchRequest& request_;
  const double most_below_;
  std::array<bool, kShareCount> varies_{};
  std::vector<Linear> prefill_rows_;  ///< each at most the phase's seconds
  std::vector<Linear> decode_rows_;
  std::vector<Linear> byte_rows_;  ///< each at most 1: bytes over budget, by tier and class
  std::array<double, kShareCount> dislike_{};  ///< of a whole share, where seconds say nothing
};

}  // namespace sluice::policy
