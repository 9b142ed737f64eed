#pragma once
// What the words of `sluice plan` ask: a model, a machine and a job, as the search takes them.
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "src/app/plan_request.h"

namespace sluice::tools {

/// The words, as they were written.
struct PlanFlags {
  std::string model, hardware, device_memory, host_memory, disk_memory, prompt = "512",
                                                                        fresh = "32";
  std::string cost_model = "ours", html;
  std::string objective = "throughput", policy_file, output_policy, kv_dtype, weights;
  std::vector<double> percent;
  std::vector<std::string> sweeps, allow, nodes;
  int64_t sequences = 0, micro_batch = 0, micro_batches = 0;
  std::optional<int64_t> gpu;
  std::string device;
  double latency_bound = 0, attention_sparsity = 1;
  bool json = false, list_models = false, no_lifts = false, simulate_all = false;
  bool is_gpu_direct = false;
  bool is_fits = false;
  double at_least = 1;
  std::string target, price;
  std::vector<std::string> part_prices;
};

/// What they say. The question points into the rest: it stays where it is.
struct Question {
  ModelShape model;
  std::shared_ptr<const BoundModel> packed;  ///< whose shape that is, if another tool packed it
  policy::Profile profile;
  app::PlanQuestion asked;
  std::optional<policy::Policy> policy;  ///< to evaluate, instead of searching
};

/// "512", or "300:1024" for mean and longest. Errors: kUser naming `flag`.
void parse_length(const std::string& text, const char* flag, double& mean, int64_t& longest);

/// The machine that is asked about, with the device of --gpu, or without any; this one is measured
/// where it has no profile. Errors: kUser for an unknown name, kFile, kCancelled.
policy::Profile hardware_of(const PlanFlags& flags, const std::stop_token& stop);

/// Fills `q`. Errors: kUser for words that contradict each other, or name what is not there; those
/// of planning_model().
void fill(const PlanFlags& flags, const std::stop_token& stop, Question& q);
/// The job of the words alone, of so many sequences where they say none.
policy::JobShape job_of(const PlanFlags& flags, int64_t sequences);

/// Applies one change of a sweep or of a node, "cpu-mem" to "16GiB". Errors: kUser.
void apply(const std::string& what, const std::string& value, Question& q);

/// The bytes of a budget's flag; 0 where it is empty. Errors: kUser naming `flag`.
int64_t budget(const std::string& text, const char* flag);

}  // namespace sluice::tools
