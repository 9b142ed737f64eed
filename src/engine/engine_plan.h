#pragma once
// From a model and options to a plan, in two steps, so that a search can stand between them:
// plan_input() says what there is to place and the sizes that kernels need, choose_plan() (or
// src/app/open_model.h) makes a plan of it, and an Engine runs that plan.
#include <filesystem>

#include "kernels/attention.h"
#include "kernels/quantised_linear.h"
#include "src/base/error.h"
#include "src/engine/engine_options.h"
#include "src/engine/stores/recent_kv.h"
#include "src/model/bound_model.h"

namespace sluice {

/// What there is to place, and what was chosen on the way there.
struct EngineInput {
  policy::PlanInput question;  ///< refers to the model; holds the options' backend
  policy::Policy start;        ///< the options' policy, or what they say of one
  kernels::QuantisedOptions compute;
  AttentionShapes attention;
  AttentionShapes recent_attention;  ///< of the newest tokens, where some are kept
  KvFormat kv_dtype = DType::kF32;
  int threads = 1;
  int64_t memory_budget_bytes = 0;
  int64_t context_tokens = 0;
  /// Of a checkpoint whose weights are repacked as they are loaded and can't stream; else empty.
  std::filesystem::path repacked_path;
};

/// `model` stays where it is. Errors: kUser when options contradict the model, or the model does
/// not run as it is.
EngineInput plan_input(const BoundModel& model, const EngineOptions& options);
/// The plan of the policy by hand, or of the one that fills the budget. Errors: kResource when it
/// does not fit.
policy::Plan choose_plan(const EngineInput& input, const EngineOptions& options);

/// The budget of host memory where none is given: what is free now, less a reserve for the program.
int64_t free_memory_budget();

/// Throws what making a plan threw; where weights can't lie on disk it says what would mend that.
[[noreturn]] void throw_with_mend(const EngineInput& input, const Error& error);

/// What an engine runs.
struct EnginePlan : EngineInput {
  EnginePlan(EngineInput input, policy::Plan made);
  policy::Plan plan;
  int64_t workspace_bytes = 0;
};

}  // namespace sluice
