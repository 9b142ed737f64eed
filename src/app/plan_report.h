#pragma once
// What `sluice plan` says: a table for people and one JSON object, of a policy and what it would
// do.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policy/search.h"
#include "src/app/mixture_report.h"

namespace sluice::app {

/// What is planned, as the report names it.
struct PlanSubject {
  std::string model;
  std::string hardware;
};

/// What a lift of host memory is called.
inline constexpr const char* kHostMemory = "the host memory";

/// "host memory twice": how much faster the best policy would be with twice of one resource.
struct Lift {
  std::string what;
  double factor = 1;
};

/// What a plan would be like otherwise.
struct WhatIfs {
  std::vector<Lift> lifts;  ///< those that give 3 % or more, best first
  std::optional<MixtureWhatIfs> mixture;
};
/// Searches again with twice of each resource, and for what mixtures are asked.
WhatIfs find_what_ifs(const policy::SearchRequest& request, const policy::SearchResult& result);

/// The lane with the most busy seconds, or "host memory" where all that moves through it takes
/// longer.
std::string bottleneck_name(const policy::Prediction& prediction);
/// Blocks that the job's sequences take, one after the other.
double job_blocks(const policy::Candidate& candidate, const policy::JobShape& job);
/// Tokens generated per second over the whole job, rounds of blocks included.
double job_tokens_per_second(const policy::Candidate& candidate, const policy::JobShape& job);

/// Bytes of one kind on (device, host, disk): weights, then KV, then activations.
struct TierBytes {
  double device = 0, host = 0, disk = 0;
  double total() const noexcept { return device + host + disk; }
};
TierBytes placed_weights(const policy::Plan& plan);
/// Largest difference between an asked share and the placed one, of the weights' bytes.
double placement_error(const policy::Plan& plan);

/// `what_ifs`: nothing where nobody searched for them.
nlohmann::ordered_json plan_json(const PlanSubject& subject, const policy::SearchRequest& request,
                                 const policy::SearchResult& result,
                                 const std::optional<WhatIfs>& what_ifs);
std::string plan_text(const PlanSubject& subject, const policy::SearchRequest& request,
                      const policy::SearchResult& result, const std::optional<WhatIfs>& what_ifs);

}  // namespace sluice::app
