#pragma once
// Questions to the policy search, from what people say: a model by name, folder or config.json, a
// machine, a job. `sluice plan` asks about any machine; run, batch and bench about this one.
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "policy/cost_model.h"
#include "policy/search.h"
#include "src/engine/engine.h"

namespace sluice::app {

/// The shape of a built-in name, a model folder, a packed store or a config.json. Errors: kUser for
/// an unknown name (with the nearest ones), kFile for a bad file.
ModelShape planning_model(const std::string& name_or_path);

/// The checkpoint behind such a name, where another tool has packed its weights; else null.
std::shared_ptr<const BoundModel> planning_checkpoint(const std::string& name_or_path);

/// A model, a machine and a job, with what is already decided.
struct PlanQuestion {
  const ModelShape* model = nullptr;
  /// Whose shape it is, where weights are to run as another tool has packed them; repacking is
  /// timed here, whatever machine is asked about.
  const BoundModel* packed = nullptr;
  const policy::Profile* profile = nullptr;
  int64_t device_bytes = 0;  ///< budgets; 0: the profile's sizes
  int64_t host_bytes = 0;
  int64_t disk_bytes = 0;  ///< of what is offloaded; 0: what the disk has beside the model's file
  /// The model's file lies on the machine's disk already, beside what the profile says is free.
  bool has_file = false;
  policy::JobShape job;
  std::optional<KvFormat> kv_dtype;  ///< nothing: as the weights
  double attention_sparsity = 1;     ///< policy::PlanInput's
  bool disk_reaches_device = false;  ///< likewise
  policy::Objective objective = policy::Objective::kThroughput;
  double latency_bound_seconds = 0;
  policy::SearchConstraints constraints;
  policy::Policy start;
};

/// Whether a name or path is that of a model's files, not of a shape alone.
bool names_files(const std::string& name_or_path);

/// The search request for a machine that need not be here: kernels' sizes are estimated from the
/// shapes. Errors: kUser for sizes and lengths that make no sense, and for what the engine would
/// refuse to run there; kResource where neither the disk nor memory has room for the weights.
policy::SearchRequest plan_request(const PlanQuestion& question);

/// What to know about a job whose sequences are longer than the model was made for; else empty.
std::string context_note(const policy::SearchRequest& request);

/// About the device memory that a micro-batch of `tokens` rows takes on a GPU that is not here,
/// beside weights and KV (device_workspace_bytes() of src/engine/cuda/device_areas.h wants the
/// GPU).
int64_t gpu_workspace_estimate(const ModelShape& model, int64_t tokens);

/// The job that a workload stands for: equal sequences of its mean length.
policy::JobShape job_of(const policy::Workload& workload);

/// A run beside its prediction.
struct Comparison {
  double predicted_seconds = 0;  ///< of the tokens that the run really made
  double measured_seconds = 0;
  std::optional<Lane> blamed;  ///< the lane furthest off, when the two differ by more than 20 %
  std::map<Lane, double> transfer_rates;   ///< measured, for recalibrating
  std::map<Lane, double> compute_factors;  ///< measured over predicted seconds
};
/// Holds a run against its prediction.
Comparison compare(const policy::Prediction& prediction, const EngineStats& stats);
/// predicted_s and measured_s of the tokens made, predicted tokens/s, busy seconds by lane.
nlohmann::ordered_json comparison_json(const policy::Prediction& prediction,
                                       const EngineStats& stats);
/// "12.3", "1690", "0.0000412": never with an exponent.
std::string format_three_digits(double value);
/// "predicted 1.21 tokens/s, measured 1.18 (-2%)", and which lane differs where they do.
std::string comparison_text(const policy::Prediction& prediction, const EngineStats& stats);

}  // namespace sluice::app
