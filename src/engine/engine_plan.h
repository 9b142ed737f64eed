#pragma once
// From options and a bound model to a plan: the sizes that kernels need, the budget, and the policy
// by hand or by default.
#include "kernels/attention.h"
#include "kernels/quantised_linear.h"
#include "src/engine/engine.h"

namespace sluice {

struct EnginePlan {
  policy::Plan plan;
  kernels::QuantisedOptions compute;
  kernels::AttentionShape attention;
  kernels::AttentionShape recent_attention;  ///< of the newest tokens, where some are kept
  KvFormat kv_dtype = DType::kF32;
  int threads = 1;
  int64_t memory_budget_bytes = 0;
  int64_t context_tokens = 0;
  int64_t workspace_bytes = 0;
};

/// Errors: kResource when it does not fit, kUser when options contradict the model.
EnginePlan plan_engine(const BoundModel& model, const EngineOptions& options);

}  // namespace sluice
