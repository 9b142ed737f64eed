// Fills the budget until the LP chooses: resident weights first, the rest streamed, block as large
// as KV allows.
#include <algorithm>

#include "policy/plan.h"
#include "src/base/bytes.h"

namespace sluice::policy {

namespace {
// Past this many sequences a dense model is bound by arithmetic on any CPU we measured
// (docs/perf-notes.md).
constexpr int64_t kLargestBlock = 512;

void set_memory_share(TierShares& shares, double share) { shares = {share, 0, 1 - share}; }

// The largest share of resident weights that fits, to 1/1024.
Plan most_resident(const PlanInput& input, Policy policy) {
  int low = 0;
  int high = 1024;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    set_memory_share(policy.weights, middle / 1024.0);
    if (fits(input, make_plan(input, policy)))
      low = middle;
    else
      high = middle - 1;
  }
  set_memory_share(policy.weights, low / 1024.0);
  return make_plan(input, policy);
}

// The block that reads the fewest bytes over the whole workload: a larger one leaves less room for
// resident weights and takes fewer rounds of passes. At least one sequence.
void choose_block(const PlanInput& input, Policy& policy) {
  const int64_t wanted = std::min(std::max<int64_t>(input.workload.sequences, 1), kLargestBlock);
  double least_read = -1;
  int64_t best = 1;
  for (int64_t block = wanted; block >= 1;) {
    const int64_t rounds = (wanted + block - 1) / block;
    policy.micro_batch_sequences = block;
    const Plan plan = most_resident(input, policy);
    const auto read = static_cast<double>(rounds) * static_cast<double>(plan.streamed_weight_bytes);
    if (fits(input, plan)) {
      if (least_read >= 0 && read >= least_read) break;  // and smaller ones read more still
      least_read = read;
      best = block;
    }
    block = std::min(block - 1, (wanted + rounds) / (rounds + 1));
  }
  policy.micro_batch_sequences = best;
}
}  // namespace

Plan default_plan(const PlanInput& input, const Policy& start) {
  Policy policy = start;
  policy.micro_batches = 1;
  policy.micro_batch_sequences =
      std::min(std::max<int64_t>(input.workload.sequences, 1), kLargestBlock);
  set_memory_share(policy.weights, 1);
  set_memory_share(policy.kv, 1);
  set_memory_share(policy.activations, 1);
  if (policy.pass_tokens == 0) {
    // Prompts of a large block go in over several passes rather than holding a hidden state for
    // each of their tokens.
    policy.pass_tokens =
        std::max<int64_t>(8 * policy.micro_batch_tokens, policy.micro_batch_sequences);
  }
  Plan plan = make_plan(input, policy);
  if (fits(input, plan)) return plan;

  choose_block(input, policy);
  for (int64_t tokens = policy.micro_batch_tokens; tokens >= 16; tokens /= 4) {
    policy.micro_batch_tokens = tokens;
    policy.pass_tokens =
        std::max(std::min(policy.pass_tokens, 8 * tokens), policy.micro_batch_sequences);
    for (double kv_share : {1.0, 0.0}) {
      set_memory_share(policy.kv, kv_share);
      plan = most_resident(input, policy);
      if (fits(input, plan)) return plan;
    }
  }
  if (!input.has_disk) {  // then memory is what is short
    set_memory_share(policy.weights, 1);
    set_memory_share(policy.kv, 1);
    plan = make_plan(input, policy);
    if (fits(input, plan)) return plan;
  }
  require_fit(input, plan);
  return plan;
}

}  // namespace sluice::policy
