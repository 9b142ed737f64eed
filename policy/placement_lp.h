#pragma once
// One linear program: for a fixed block and fixed yes/no choices, the shares of weights, KV and
// activations on each tier that make the block's seconds least within the budgets (FlexGen,
// arXiv:2303.06865 section 4.3, with lanes in the place of steps). Every cost and every size is
// linear in the shares, so its coefficients are the differences between corner policies, asked of
// the same cost model and the same plan that the rest uses: nothing is written down twice.
#include <array>
#include <optional>

#include "policy/cost_model.h"
#include "policy/search.h"

namespace sluice::policy {

/// The shares that vary; what they leave of each kind is on the device.
enum class Share : uint8_t {
  kWeightsInplace,
  kWeightsHost,  ///< sent up
  kWeightsDisk,
  kKvHost,
  kKvDisk,
  kActivationsHost,
  kActivationsDisk
};
constexpr size_t kShareCount = 7;

struct Placement {
  std::array<double, kShareCount> shares{};
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

class PlacementLp {
 public:
  /// Block and choices from `block` (its shares are ignored).
  PlacementLp(const SearchRequest& request, const Policy& block);

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
  void add_time_rows(const std::array<Linear, kLaneCount>& lanes, std::vector<Linear>& rows) const;

  const SearchRequest& request_;
  std::array<bool, kShareCount> varies_{};
  std::vector<Linear> prefill_rows_;  ///< each at most the phase's seconds
  std::vector<Linear> decode_rows_;
  std::vector<Linear> byte_rows_;  ///< each at most 1: bytes over budget, by tier
};

}  // namespace sluice::policy
