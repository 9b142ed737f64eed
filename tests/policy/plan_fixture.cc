#include "tests/policy/plan_fixture.h"

#include <map>
#include <memory>

#include "src/base/bytes.h"
#include "src/model/builtin.h"

namespace sluice::policy {

const ModelShape& shape_of(const std::string& name) {
  static std::map<std::string, std::unique_ptr<FamilyModel>> models;
  auto& model = models[name];
  if (!model) model = make_family_model(ModelConfig(*builtin_config(name), name));
  return model->shape();
}

const std::vector<std::string>& tested_models() {
  static const std::vector<std::string> names{"opt-125m",      "opt-350m",      "opt-30b",
                                              "opt-175b",      "llama-2-7b",    "llama-3.2-1b",
                                              "llama-3.1-70b", "llama-3.1-405b"};
  return names;
}

PlanInput input_for(const ModelShape& model, int64_t budget) {
  PlanInput input;
  input.model = &model;
  input.memory_budget_bytes = budget;
  input.program_bytes = 20 * kMiB;
  input.row_granule = 32;
  const int64_t columns = model.workspace_columns + model.hidden_size;
  input.workspace_bytes = [columns](int64_t tokens) { return tokens * columns * 4 + kMiB; };
  return input;
}

TierShares memory_share(double share) { return {share, 0, 1 - share}; }

Workload random_workload(std::mt19937& random) {
  Workload workload;
  workload.sequences = 1 + random() % (random() % 3 == 0 ? 600 : 20);
  workload.max_prompt_tokens = 1 + random() % 1500;
  workload.max_total_tokens = workload.max_prompt_tokens + 1 + random() % 500;
  if (random() % 2 == 0)
    workload.total_tokens = workload.max_total_tokens +
                            (workload.sequences - 1) * (1 + random() % workload.max_total_tokens);
  return workload;
}

}  // namespace sluice::policy
