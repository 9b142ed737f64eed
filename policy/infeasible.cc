#include "policy/infeasible.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice::policy {

namespace {
// The policy that needs least of every tier above the disk: one sequence, everything below.
Policy least_policy(const SearchRequest& request, bool kv_on_disk) {
  Policy policy = request.start;
  const SearchConstraints& fixed = request.constraints;
  const bool has_device = request.input.device_budget_bytes > 0;
  policy.micro_batch_sequences = fixed.micro_batch_sequences.value_or(1);
  policy.micro_batches = fixed.micro_batches.value_or(1);
  policy.micro_batch_tokens = std::min<int64_t>(policy.micro_batch_tokens, 32);
  policy.pass_tokens = std::max<int64_t>(8 * policy.micro_batch_tokens, policy.block_sequences());
  policy.weights = fixed.weights.value_or(TierShares{0, 0, 1});
  policy.kv = fixed.kv.value_or(kv_on_disk   ? TierShares{0, 0, 1}
                                : has_device ? TierShares{0, 1, 0}
                                             : TierShares{1, 0, 0});
  policy.activations = fixed.activations.value_or(TierShares{1, 0, 0});
  policy.attention =
      fixed.attention.value_or(has_device ? AttentionPlace::kHost : AttentionPlace::kDevice);
  policy.inplace_host_fraction = 0;
  return policy;
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
    bool does_fit = false;
    for (const bool kv_on_disk : {false, true})
      does_fit =
          does_fit || fits(less.input, make_plan(less.input, least_policy(less, kv_on_disk)));
    (does_fit ? low : high) = does_fit ? middle : middle - 1;
  }
  return low;
}
}  // namespace

void explain_infeasible(const SearchRequest& request) {
  const PlanInput& input = request.input;
  Plan plan = make_plan(input, least_policy(request, true));
  if (input.disk_budget_bytes > 0 && plan.disk_bytes() > input.disk_budget_bytes)
    plan = make_plan(input, least_policy(request, false));
  if (fits(input, plan))
    throw Error(ErrorKind::kResource,
                "no policy within the bounds and constraints given fits the budgets",
                "loosen --latency-bound, or leave constraints out");
  struct Tier {
    const char* name;
    const char* flag;
    int64_t needs;
    int64_t budget;
  };
  std::string what;
  std::string mend;
  for (const Tier& tier :
       {Tier{"device memory", "--gpu-mem", plan.device_bytes(), input.device_budget_bytes},
        Tier{plan.has_device ? "host memory" : "memory", "--cpu-mem", plan.memory_bytes(),
             input.memory_budget_bytes},
        Tier{"disk", "--disk-mem", plan.disk_bytes(),
             input.disk_budget_bytes > 0 ? input.disk_budget_bytes : plan.disk_bytes()}}) {
    if (tier.needs <= tier.budget) continue;
    what += fmt::format("{}{} is {} short: of {}, one sequence with everything below it needs {}",
                        what.empty() ? "" : "; ", tier.name, format_bytes(tier.needs - tier.budget),
                        format_bytes(tier.budget), format_bytes(tier.needs));
    mend += fmt::format("{} {} {}", mend.empty() ? "the smallest change that fits:" : " and",
                        tier.flag, format_bytes(rounded(tier.needs)));
  }
  const int64_t context = shorter_context(request);
  if (context > 0)
    mend += fmt::format("; or sequences of at most {} tokens (--ctx-size {})", context, context);
  throw Error(ErrorKind::kResource, what, mend);
}

}  // namespace sluice::policy
