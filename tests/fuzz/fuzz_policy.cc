// Policy files: arbitrary bytes as a policy. Refused as the user's error, or a policy that comes
// back from its own JSON and gives a plan whose sizes are sound.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "policy/plan.h"
#include "src/base/error.h"
#include "src/model/builtin.h"
#include "src/model/family.h"
#include "tests/fuzz/fuzzing.h"

namespace {

using sluice::fuzz::accepted;
using sluice::fuzz::require;

const sluice::ModelShape& model_shape() {
  static const auto model = sluice::make_family_model(
      sluice::ModelConfig(*sluice::builtin_config("opt-350m"), "builtin"));
  return model->shape();
}

void check_plan(const sluice::policy::Policy& policy) {
  sluice::policy::PlanInput input;
  input.model = &model_shape();
  input.workload = {.sequences = 1000,
                    .max_prompt_tokens = 1500,
                    .max_total_tokens = 2048,
                    .total_tokens = 700000};
  input.memory_budget_bytes = int64_t{1} << 30;
  input.row_granule = 16;
  input.workspace_bytes = [](int64_t tokens) {
    return tokens * 4 * model_shape().workspace_columns;
  };
  const sluice::policy::Plan plan = make_plan(input, policy);
  for (const auto& line : plan.memory) require(line.bytes >= 0);
  for (const auto& line : plan.disk) require(line.bytes >= 0);
  require(plan.resident_weight_bytes >= 0 && plan.resident_weight_bytes <= plan.weight_bytes);
  require(plan.kv.front().memory_pages >= 0 && plan.kv.front().disk_pages >= 0 &&
          plan.kv.front().pages() > 0);
  require(plan.hidden_memory_rows() >= 0 && plan.hidden_memory_rows() <= plan.pass_tokens);
  require(!describe(policy).empty() && !plan_table(plan, input.memory_budget_bytes).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::policy;
  try {
    const Policy policy =
        parse_policy(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    require(policy_to_json(parse_policy(policy_to_json(policy), "again")) ==
            policy_to_json(policy));
    accepted();
    check_plan(policy);
  } catch (const sluice::Error& error) {
    require(error.kind() == sluice::ErrorKind::kUser && !error.text().empty());
  }
  return 0;
}
