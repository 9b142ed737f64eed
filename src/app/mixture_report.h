#pragma once
// What `sluice plan` says of a mixture of experts beside the rest: the bytes that a token takes,
// what a decode pass asks for and finds in memory, and what other blocks, more memory or no device
// would give, each searched for and evaluated as the plan itself was.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "policy/expert_traffic.h"
#include "policy/search.h"

namespace sluice::app {

/// A mixture's bytes, and what a decode pass of a plan does with its experts.
struct MixtureFacts {
  int64_t experts = 0;  ///< of a layer
  int64_t chosen = 0;   ///< of these, by a token
  int64_t total_bytes = 0;
  int64_t active_bytes = 0;  ///< that a token is multiplied with: all but experts it does not go to
  int64_t routed_bytes = 0;  ///< of active_bytes, of the experts that it goes to
  int64_t pass_tokens = 0;   ///< of a decode pass; 0: there is none
  policy::ExpertTraffic decode;
  /// Experts are loaded into slots, so that who is in them follows the routing.
  bool has_slots() const noexcept { return decode.slots > 0; }
  double moved_bytes_a_token() const noexcept;  ///< by the disk or the link, whichever moves more
};
/// Nothing of a model without routed experts.
std::optional<MixtureFacts> mixture_facts(const policy::SearchRequest& request,
                                          const policy::Candidate& candidate);

/// The best plan for other circumstances.
struct OtherPlan {
  double tokens_per_second = 0;  ///< of the job
  int64_t block_sequences = 0;
};

/// So many users at a time, and what each token then costs.
struct UsersAtATime {
  int64_t sequences = 0;
  double decode_tokens_per_second = 0;  ///< of all together
  double read_bytes_a_token = 0;        ///< of experts, from disk
};

/// What a mixture's plan would be like otherwise. Nothing where it does not fit or was not asked.
struct MixtureWhatIfs {
  double now = 0;  ///< tokens a second of the job as it is
  int64_t larger_job = 0;
  std::optional<OtherPlan> larger_block;  ///< four times the sequences
  int64_t more_memory_bytes = 0;
  std::optional<double> more_memory;     ///< tokens a second with so much host memory
  std::optional<double> without_device;  ///< likewise of the host alone, experts in slots
  /// 1, 4, 16 and 64, where experts come from disk into slots.
  std::vector<UsersAtATime> users;
  /// The most users that together decode less than a quarter faster than one alone; 0: none.
  int64_t users_without_gain() const noexcept;
};
/// Searches once more for each circumstance but more memory, which is left to the caller. Nothing
/// of a model without routed experts.
std::optional<MixtureWhatIfs> find_mixture_what_ifs(const policy::SearchRequest& request,
                                                    const policy::SearchResult& result);

/// Null for a model without routed experts. `what_ifs`: nothing where nobody asked.
nlohmann::ordered_json mixture_json(const std::optional<MixtureFacts>& facts,
                                    const std::optional<MixtureWhatIfs>& what_ifs);
/// Lines of the plan's text; empty for a model without routed experts.
std::string mixture_text(const std::optional<MixtureFacts>& facts,
                         const std::optional<MixtureWhatIfs>& what_ifs);

}  // namespace sluice::app
