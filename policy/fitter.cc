#include "policy/fitter.h"

#include <algorithm>

namespace sluice::policy {

namespace {
// Realising a placement rounds and adds staging: so often is the overshoot taken off again.
constexpr int kShrinkRounds = 24;
// Of all weights, what is worth a further round of filling memory.
constexpr double kLeastGrowth = 1e-3;

double rounded_share(double share) noexcept { return share * 1.02 + 1e-4; }
}  // namespace

std::optional<Plan> Fitter::shrink(Policy policy) {
  const PlanInput& input = request_.input;
  for (int round = 0; round < kShrinkRounds; ++round) {
    Plan plan = make_plan_(policy);
    if (fits(input, plan)) return plan;
    const auto weight_bytes = static_cast<double>(std::max<int64_t>(plan.weight_bytes, 1));
    const double device_over =
        has_device_ ? static_cast<double>(plan.device_bytes() - input.device_budget_bytes) : 0;
    const auto memory_over = static_cast<double>(plan.memory_bytes() - input.memory_budget_bytes);
    if (device_over > 0) move_down(policy, device_over / weight_bytes, true);
    if (memory_over > 0 && input.has_disk) move_down(policy, memory_over / weight_bytes, false);
    if (memory_over > 0 && !input.has_disk)
      if (device_over > 0 || !move_up(policy, memory_over / weight_bytes)) return std::nullopt;
    if (device_over <= 0 && memory_over <= 0) return std::nullopt;  // the disk is full
  }
  return std::nullopt;
}

// The linear program's straight lines may leave memory without a use: what is streamed fills it.
// First all at once, for then no ring is wanted.
Plan Fitter::grow(Plan plan) {
  if (request_.constraints.weights) return plan;
  const auto weight_bytes = static_cast<double>(std::max<int64_t>(plan.weight_bytes, 1));
  const auto more = [&](double share) {
    Policy policy = plan.policy;
    const double taken = std::min(share, policy.weights.disk);
    (has_device_ ? policy.weights.host : policy.weights.device) += taken;
    policy.weights.disk -= taken;
    Plan grown = make_plan_(policy);
    const bool has_room = fits(request_.input, grown);
    if (has_room) plan = std::move(grown);
    return has_room;
  };
  const auto share_of = [&](int64_t bytes) { return static_cast<double>(bytes) / weight_bytes; };
  if (plan.streamed_weight_bytes <= 0) return plan;
  if (more(rounded_share(share_of(plan.streamed_weight_bytes)))) return plan;
  for (int round = 0; round < kShrinkRounds; ++round) {
    const int64_t unused = request_.input.memory_budget_bytes - plan.memory_bytes();
    if (share_of(unused) < kLeastGrowth || !more(share_of(unused))) break;
  }
  return plan;
}

Plan Fitter::fill_device(Plan plan) {
  const auto weight_bytes = static_cast<double>(std::max<int64_t>(plan.weight_bytes, 1));
  for (int round = 0; round < kShrinkRounds; ++round) {
    const int64_t unused = request_.input.device_budget_bytes - plan.device_bytes();
    double share = std::min(static_cast<double>(unused) / weight_bytes, plan.policy.weights.host);
    bool has_grown = false;
    // Rounding, and rings that grow with what they are for, may want more than was moved.
    for (; share >= kLeastGrowth && !has_grown; share /= 2) {
      Policy policy = plan.policy;
      policy.weights.host -= share;
      policy.weights.device += share;
      keep_inplace_in_host(policy);
      Plan grown = make_plan_(policy);
      if (!fits(request_.input, grown)) continue;
      plan = std::move(grown);
      has_grown = true;
    }
    if (!has_grown) break;
  }
  return plan;
}

// Weights of the host to the device; whether there were any.
bool Fitter::move_up(Policy& policy, double share) const {
  const double taken = has_device_ ? std::min(rounded_share(share), policy.weights.host) : 0;
  policy.weights.host -= taken;
  policy.weights.device += taken;
  keep_inplace_in_host(policy);
  return taken > 0;
}

void Fitter::keep_inplace_in_host(Policy& policy) {
  const double most = policy.weights.host;
  policy.inplace_host_fraction = std::min(policy.inplace_host_fraction, most);
  for (PassExecution& one : policy.larger_passes)
    one.inplace_host_fraction = std::min(one.inplace_host_fraction, most);
}

void Fitter::move_down(Policy& policy, double share, bool from_device) const {
  share = rounded_share(share);
  double& from = from_device || !has_device_ ? policy.weights.device : policy.weights.host;
  double& to = from_device ? policy.weights.host : policy.weights.disk;
  const double taken = std::min(share, from);
  from -= taken;
  to += taken;
  keep_inplace_in_host(policy);
  if (taken > 0) return;
  // No weights left to move: KV.
  double& kv_from = from_device || !has_device_ ? policy.kv.device : policy.kv.host;
  double& kv_to = from_device ? policy.kv.host : policy.kv.disk;
  const double step = std::min(0.1, kv_from);
  kv_from -= step;
  kv_to += step;
}

}  // namespace sluice::policy
