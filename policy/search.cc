#include "policy/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "policy/infeasible.h"
#include "policy/placement_lp.h"
#include "policy/simulator.h"
#include "src/base/error.h"

namespace sluice::policy {

namespace {
using Clock = std::chrono::steady_clock;

// Realised, predicted and simulated beyond the LP: so many times the candidates that are simulated.
constexpr size_t kRealisedPerSimulated = 4;
// Realising a placement rounds and adds staging: so often is the overshoot taken off again.
constexpr int kShrinkRounds = 24;

struct Block {
  Policy policy;
  Placement placement;
  double job_seconds = 0;
};

std::vector<int64_t> counts_up_to(int64_t most) {
  std::vector<int64_t> out;
  for (int64_t base = 1; base <= most; base *= 2)
    for (const int64_t value : {base, base + base / 2})
      if (value <= most && (out.empty() || out.back() < value)) out.push_back(value);
  if (out.empty() || out.back() != most) out.push_back(most);
  return out;
}

// Block sizes that split the job evenly over rounds: no round is nearly empty.
std::vector<int64_t> even_blocks(int64_t sequences, int64_t most) {
  std::vector<int64_t> out;
  for (int64_t rounds = 1; rounds <= sequences && rounds <= 64; ++rounds) {
    const int64_t block = (sequences + rounds - 1) / rounds;
    if (block <= most && (out.empty() || out.back() != block)) out.push_back(block);
  }
  for (int64_t block : counts_up_to(std::min(sequences, most)))
    if (std::find(out.begin(), out.end(), block) == out.end()) out.push_back(block);
  return out;
}

double job_rounds(const SearchRequest& request, int64_t block) {
  return std::ceil(static_cast<double>(std::max<int64_t>(request.job.sequences, 1)) /
                   static_cast<double>(std::max<int64_t>(block, 1)));
}

class Search {
 public:
  explicit Search(const SearchRequest& request)
      : request_(request), has_device_(request.input.device_budget_bytes > 0) {}

  SearchResult run() {
    const auto started = Clock::now();
    enumerate();
    if (blocks_.empty()) explain_infeasible(request_);
    std::sort(blocks_.begin(), blocks_.end(),
              [](const Block& a, const Block& b) { return a.job_seconds < b.job_seconds; });
    realise();
    if (realised_.empty()) explain_infeasible(request_);
    rank();
    result_.best = realised_.front();
    result_.ranked = std::move(realised_);
    result_.search_seconds = std::chrono::duration<double>(Clock::now() - started).count();
    return std::move(result_);
  }

 private:
  int64_t most_sequences() const {
    if (request_.objective == Objective::kLatency) return 1;
    return std::max<int64_t>(std::min(request_.job.sequences, request_.input.workload.sequences),
                             1);
  }

  void enumerate() {
    const SearchConstraints& fixed = request_.constraints;
    const int64_t most = most_sequences();
    // Without a device a micro-batch is bounded by its tokens alone: one shape of block.
    std::vector<int64_t> micro =
        has_device_ ? counts_up_to(std::min<int64_t>(most, 256)) : even_blocks(most, 512);
    if (fixed.micro_batch_sequences) micro = {*fixed.micro_batch_sequences};
    for (const int64_t size : micro) {
      std::vector<int64_t> counts{1};
      if (fixed.micro_batches)
        counts = {*fixed.micro_batches};
      else if (has_device_)
        counts = counts_up_to(std::min<int64_t>(32, (most + size - 1) / size));
      for (const int64_t count : counts) add_block(size, count);
    }
  }

  void add_block(int64_t size, int64_t count) {
    Policy block = request_.start;
    block.micro_batch_sequences = size;
    block.micro_batches = count;
    const int64_t sequences = std::min(block.block_sequences(), most_sequences());
    const int64_t all = sequences * std::max<int64_t>(request_.input.workload.max_prompt_tokens, 1);
    std::vector<AttentionPlace> places{AttentionPlace::kDevice};
    if (request_.constraints.attention)
      places = {*request_.constraints.attention};
    else if (has_device_)
      places.push_back(AttentionPlace::kHost);
    for (const AttentionPlace place : places) {
      block.attention = place;
      bool is_found = false;
      for (const int64_t tokens : {request_.start.micro_batch_tokens, int64_t{128}, int64_t{32}}) {
        if (tokens > request_.start.micro_batch_tokens) continue;
        block.micro_batch_tokens = tokens;
        // Fewer prefill passes read the streamed weights less often and hold more hidden states.
        for (const int64_t passes : {1, 4, 16}) {
          const int64_t least = std::max<int64_t>(8 * tokens, sequences);
          const int64_t wanted = (all + passes - 1) / passes;
          if (passes > 1 && wanted < least && is_found) break;
          block.pass_tokens = std::max(std::min(all, least), wanted);
          is_found = try_block(block, sequences) || is_found;
        }
        if (is_found) break;  // smaller micro-batches only where nothing else fits
      }
    }
  }

  bool try_block(const Policy& block, int64_t sequences) {
    ++result_.candidates;
    const PlacementLp lp(request_, block);
    ++result_.linear_programs;
    const bool is_bounded = request_.objective == Objective::kThroughputUnderLatency;
    const auto placement = lp.solve(is_bounded ? request_.latency_bound_seconds : 0);
    if (!placement) return false;
    const double seconds = placement->prefill_seconds + placement->decode_seconds;
    blocks_.push_back({block, *placement, seconds * job_rounds(request_, sequences)});
    return true;
  }

  // What the device lacks goes to the host, what the host lacks to disk, until the plan fits.
  std::optional<Plan> shrink_to_fit(Policy policy) const {
    const PlanInput& input = request_.input;
    const auto weight_bytes =
        static_cast<double>(std::max<int64_t>(input.model->weight_bytes(), 1));
    for (int round = 0; round < kShrinkRounds; ++round) {
      Plan plan = make_plan(input, policy);
      if (policy::fits(input, plan)) return plan;
      const double device_over =
          has_device_ ? static_cast<double>(plan.device_bytes() - input.device_budget_bytes) : 0;
      const auto memory_over = static_cast<double>(plan.memory_bytes() - input.memory_budget_bytes);
      if (device_over > 0) move(policy, device_over / weight_bytes, true);
      if (memory_over > 0) move(policy, memory_over / weight_bytes, false);
      if (device_over <= 0 && memory_over <= 0) return std::nullopt;  // the disk is full
    }
    return std::nullopt;
  }

  void move(Policy& policy, double share, bool from_device) const {
    share = share * 1.02 + 1e-4;
    double& from = from_device || !has_device_ ? policy.weights.device : policy.weights.host;
    double& to = from_device ? policy.weights.host : policy.weights.disk;
    const double taken = std::min(share, from);
    from -= taken;
    to += taken;
    policy.inplace_host_fraction = std::min(policy.inplace_host_fraction, policy.weights.host);
    if (taken > 0) return;
    // No weights left to move: KV.
    double& kv_from = from_device || !has_device_ ? policy.kv.device : policy.kv.host;
    double& kv_to = from_device ? policy.kv.host : policy.kv.disk;
    const double step = std::min(0.1, kv_from);
    kv_from -= step;
    kv_to += step;
  }

  void realise() {
    const size_t most =
        kRealisedPerSimulated * static_cast<size_t>(std::max(request_.simulated_candidates, 2));
    for (const Block& block : blocks_) {
      if (realised_.size() >= most) break;
      const auto plan = shrink_to_fit(
          PlacementLp::policy_with(block.policy, block.placement.shares, has_device_));
      if (!plan) continue;
      Candidate candidate;
      candidate.policy = plan->policy;
      candidate.plan = *plan;
      candidate.predicted = predict(*request_.input.model, *plan, *request_.profile,
                                    request_.input.kv_dtype, request_.job);
      realised_.push_back(std::move(candidate));
    }
  }

  double value(const Candidate& candidate) const {
    const Prediction& prediction = candidate.simulated ? *candidate.simulated : candidate.predicted;
    const double rounds = job_rounds(request_, prediction.block_sequences);
    // Over the bound: after everything that keeps it.
    const bool is_late = request_.objective == Objective::kThroughputUnderLatency &&
                         prediction.seconds() > request_.latency_bound_seconds * 1.02;
    return prediction.seconds() * rounds + (is_late ? 1e12 : 0);
  }

  void rank() {
    const auto better = [&](const Candidate& a, const Candidate& b) { return value(a) < value(b); };
    std::stable_sort(realised_.begin(), realised_.end(), better);
    const auto simulated =
        std::min(realised_.size(), static_cast<size_t>(std::max(request_.simulated_candidates, 0)));
    if (simulated == 0) return;
    realised_.resize(simulated);
    for (Candidate& candidate : realised_)
      candidate.simulated = simulate_block(*request_.input.model, candidate.plan, *request_.profile,
                                           request_.input.kv_dtype, request_.job);
    std::stable_sort(realised_.begin(), realised_.end(), better);
  }

  const SearchRequest& request_;
  bool has_device_;
  std::vector<Block> blocks_;
  std::vector<Candidate> realised_;
  SearchResult result_;
};

void check(const SearchRequest& request) {
  const auto refuse = [](const char* what, const char* mend) {
    throw Error(ErrorKind::kUser, what, mend);
  };
  if (request.input.device_budget_bytes > 0 && !request.profile->device)
    refuse("a device budget on a machine without a device", "leave --gpu-mem out");
  if (request.job.sequences < 1 || !(request.job.prompt_tokens >= 1) ||
      !(request.job.new_tokens >= 1))
    refuse("a job has at least one sequence of one prompt token and one new token",
           "mend --batch, --prompt-len or --gen-len");
  if (request.objective == Objective::kThroughputUnderLatency &&
      !(request.latency_bound_seconds > 0))
    refuse("throughput under a latency bound needs the bound", "give --latency-bound seconds");
  if (request.constraints.attention == AttentionPlace::kHost &&
      request.input.device_budget_bytes <= 0)
    refuse("attention on the host needs a device to be beside", "leave that constraint out");
}
}  // namespace

SearchResult search_policy(const SearchRequest& request) {
  check(request);
  validate(*request.profile);
  return Search(request).run();
}

}  // namespace sluice::policy
