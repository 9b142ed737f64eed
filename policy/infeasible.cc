#include "policy/infeasible.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice::policy {

namespace {
// The policy that needs least of every tier above the disk: one sequence, everything below, as far
// as the constraints leave it.
Policy least_policy(const SearchRequest& request, bool kv_on_disk) {
  Policy policy = request.start;
  const SearchConstraints& fixed = request.constraints;
  const bool has_device = request.input.device_budget_bytes > 0;
  policy.micro_batch_sequences = fixed.micro_batch_sequences.value_or(1);
  policy.micro_batches = fixed.micro_batches.value_or(1);
  policy.micro_batch_tokens = fixed.micro_batch_tokens.value_or(32);
  policy.pass_tokens = fixed.pass_tokens.value_or(
      std::max<int64_t>(8 * policy.micro_batch_tokens, policy.block_sequences()));
  policy.weights = fixed.weights.value_or(request.input.has_disk ? TierShares{0, 0, 1}
                                          : has_device           ? TierShares{0, 1, 0}
                                                                 : TierShares{1, 0, 0});
  policy.kv = fixed.kv.value_or(kv_on_disk   ? TierShares{0, 0, 1}
                                : has_device ? TierShares{0, 1, 0}
                                             : TierShares{1, 0, 0});
  policy.activations = fixed.activations.value_or(TierShares{1, 0, 0});
  policy.attention =
      fixed.attention.value_or(has_device ? AttentionPlace::kHost : AttentionPlace::kDevice);
  policy.inplace_host_fraction = 0;
  return policy;
}

// "one sequence with everything below it": what the least policy holds.
std::string least_block(const SearchRequest& request) {
  const SearchConstraints& fixed = request.constraints;
  const int64_t sequences = std::min(least_policy(request, true).block_sequences(),
                                     std::max<int64_t>(request.input.workload.sequences, 1));
  const bool is_placed = fixed.weights || fixed.kv || fixed.activations;
  return fmt::format(
      "{} {}", sequences == 1 ? "one sequence" : fmt::format("a block of {} sequences", sequences),
      is_placed                ? "placed as asked"
      : request.input.has_disk ? "with everything below it"
                               : "with all weights in memory and no disk");
}

// Where there is no disk: as much on the device as it holds, the rest in host memory.
Plan fullest(const SearchRequest& request) {
  const PlanInput& input = request.input;
  Policy policy = least_policy(request, false);
  Plan plan = make_plan(input, policy);
  if (request.constraints.weights || input.device_budget_bytes <= 0) return plan;
  double low = 0;
  for (double step = 0.5; step > 1e-4; step /= 2) {
    const double share = low + step;
    policy.weights = {share, 1 - share, 0};
    Plan more = make_plan(input, policy);
    if (more.device_bytes() > input.device_budget_bytes) continue;
    low = share;
    plan = std::move(more);
  }
  return plan;
}

int64_t rounded(int64_t bytes) {
  return round_up(bytes, bytes >= kGiB ? 64 * kMiB : bytes >= 64 * kMiB ? kMiB : 64 * kKiB);
}

// The longest context, in tokens, with which the least policy fits; 0: none.
int64_t shorter_context(const SearchRequest& request) {
  SearchRequest less = request;
  int64_t low = 0;
  int64_t high = request.input.workload.max_total_tokens;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    less.input.workload.max_total_tokens = middle;
    less.input.workload.max_prompt_tokens =
        std::min(request.input.workload.max_prompt_tokens, middle);
    less.input.workload.total_tokens = 0;
    const auto least_fits = [&](bool kv_on_disk) {
      return fits(less.input, make_plan(less.input, least_policy(less, kv_on_disk)));
    };
    const bool does_fit = less.input.has_disk ? least_fits(false) || least_fits(true)
                                              : fits(less.input, fullest(less));
    (does_fit ? low : high) = does_fit ? middle : middle - 1;
  }
  return low;
}
}  // namespace

std::optional<Policy> least_that_fits(const SearchRequest& request) {
  const SearchConstraints& fixed = request.constraints;
  const PlanInput& input = request.input;
  if (fixed.inplace_host_fraction.value_or(0) > 0) return std::nullopt;
  const TierShares high = input.device_budget_bytes > 0 ? TierShares{0, 1, 0} : TierShares{1, 0, 0};
  std::vector<TierShares> places{high};
  if (input.has_disk) places.push_back({0, 0, 1});
  for (const TierShares& weights : places)
    for (const TierShares& kv : places) {
      Policy policy = least_policy(request, false);
      if (!fixed.weights) policy.weights = weights;
      if (!fixed.kv) policy.kv = kv;
      if (fits(input, make_plan(input, policy))) return policy;
    }
  return std::nullopt;
}

void explain_infeasible(const SearchRequest& request) {
  const PlanInput& input = request.input;
  Plan plan = input.has_disk ? make_plan(input, least_policy(request, true)) : fullest(request);
  if (input.disk_budget_bytes > 0 && plan.disk_bytes() > input.disk_budget_bytes)
    plan = make_plan(input, least_policy(request, false));
  if (fits(input, plan))
    throw Error(ErrorKind::kResource, "no policy within the constraints given fits the budgets",
                "leave constraints out, or raise the budgets");
  struct Tier {
    const char* name;
    const char* parameter;
    int64_t needs;
    int64_t budget;
  };
  std::string what;
  std::string mend;
  for (const Tier& tier :
       {Tier{"device memory", "`device_budget_bytes`", plan.device_bytes(),
             input.device_budget_bytes},
        Tier{plan.has_device ? "host memory" : "memory", "`memory_budget_bytes`",
             plan.memory_bytes(), input.memory_budget_bytes},
        Tier{"disk", "`disk_budget_bytes`", plan.disk_bytes(),
             input.disk_budget_bytes > 0 ? input.disk_budget_bytes : plan.disk_bytes()}}) {
    if (tier.needs <= tier.budget) continue;
    what += fmt::format("{}{} is {} short: of {}, {} needs {}", what.empty() ? "" : "; ", tier.name,
                        format_bytes(tier.needs - tier.budget), format_bytes(tier.budget),
                        least_block(request), format_bytes(tier.needs));
    mend += fmt::format("{} {} {}", mend.empty() ? "the smallest change that fits:" : " and",
                        tier.parameter, format_bytes(rounded(tier.needs)));
  }
  const int64_t context = shorter_context(request);
  if (context > 0)
    mend +=
        fmt::format("; or sequences of at most {} tokens (`context_tokens` {})", context, context);
  throw Error(ErrorKind::kResource, what, mend);
}

}  // namespace sluice::policy
