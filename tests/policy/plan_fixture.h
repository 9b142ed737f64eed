#pragma once
// Inputs of plans for the policy's tests: built-in shapes and plain functions for what kernels
// would say of sizes.
#include <random>
#include <string>
#include <vector>

#include "policy/plan.h"
#include "src/model/family.h"

namespace sluice::policy {

/// The built-in model of that name, made once.
const ModelShape& shape_of(const std::string& name);

/// Shapes of all kinds: tied and not, with and without grouped heads, narrow embeddings, from
/// 15M-like to 405B.
const std::vector<std::string>& tested_models();

/// An input with `budget` and a workspace linear in the tokens.
PlanInput input_for(const ModelShape& model, int64_t budget);

/// Shares a / (a + b) on device, the rest on disk.
TierShares memory_share(double share);

Workload random_workload(std::mt19937& random);

}  // namespace sluice::policy
