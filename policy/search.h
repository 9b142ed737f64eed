#pragma once
// The search for a policy: for each micro-batch size in sequences and in tokens, number of
// micro-batches, size of a prefill pass and yes/no choice, a linear program over the placement
// fractions (GLPK); the best few are re-ranked by simulating the real schedule. Pure and
// deterministic.
#include <optional>
#include <stop_token>
#include <vector>

#include "policy/plan.h"
#include "policy/prediction.h"
#include "policy/profile.h"

namespace sluice::policy {

/// What the search looks for.
enum class Objective : uint8_t {
  kThroughput,             ///< most generated tokens per second over the whole job
  kLatency,                ///< least seconds for a block of one sequence
  kThroughputUnderLatency  ///< most tokens per second with a block's seconds below the bound
};

/// What is decided already; the search keeps to it.
struct SearchConstraints {
  std::optional<int64_t> micro_batch_sequences;
  std::optional<int64_t> micro_batches;
  std::optional<int64_t> micro_batch_tokens;
  std::optional<int64_t> pass_tokens;
  std::optional<AttentionPlace> attention;
  std::optional<TierShares> weights;
  std::optional<TierShares> kv;
  std::optional<TierShares> activations;
  std::optional<double> inplace_host_fraction;
};

/// What is searched for, on which machine, within which bounds.
struct SearchRequest {
  /// Model, budgets, kernels' sizes; workload.sequences is the most that a block may hold.
  PlanInput input;
  const Profile* profile = nullptr;
  JobShape job;
  Objective objective = Objective::kThroughput;
  double latency_bound_seconds = 0;  ///< of kThroughputUnderLatency
  SearchConstraints constraints;
  /// Block shapes re-ranked by simulation, and of the best as many prefills; 0: the LP's word is
  /// final.
  int simulated_candidates = 12;
  Policy start;          ///< page_tokens
  std::stop_token stop;  ///< ends the search with an error of kind kCancelled
};

/// A policy that was looked at.
struct Candidate {
  Policy policy;
  Plan plan;
  Prediction predicted;                 ///< by the cost model, of `plan` as realised
  std::optional<Prediction> simulated;  ///< by the simulator
};

/// What was found, and how much was looked at.
struct SearchResult {
  Candidate best;
  std::vector<Candidate> ranked;  ///< those simulated (or the best few), best first
  int64_t candidates = 0;         ///< enumerated
  int64_t linear_programs = 0;    ///< solved
  double search_seconds = 0;
};

/// Errors: kResource when nothing fits: which tier is short by how much, and the smallest change
/// that would fit; or the smallest latency bound that can be kept. kUser for constraints that
/// contradict each other or the profile. kCancelled.
SearchResult search_policy(const SearchRequest& request);

/// What `policy` would do, exactly as it is: the only candidate. Objective and constraints of
/// `request` are not looked at. Errors: kResource when it does not fit, with every line of its
/// plan; kUser, kCancelled.
SearchResult evaluate_policy(const SearchRequest& request, const Policy& policy);

/// Seconds of the candidate's block as far as is known: by simulation, else by the cost model.
const Prediction& prediction_of(const Candidate& candidate) noexcept;

}  // namespace sluice::policy
