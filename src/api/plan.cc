#include <fmt/format.h>

#include <algorithm>

#include "src/api/found_plan.h"
#include "src/api/values.h"
#include "src/app/gpu.h"
#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice {

namespace {
[[noreturn]] void refuse(const char* field, const std::string& value, const char* mend) {
  throw Error(ErrorKind::kUser, fmt::format("`{}` is \"{}\"", field, value), mend);
}

ComputeChoice compute_of(const std::string& text) {
  if (text.empty()) return ComputeChoice::kAuto;
  if (text == "f32") return ComputeChoice::kF32;
  if (text == "bf16") return ComputeChoice::kBF16;
  refuse("compute", text, "write f32 or bf16, or leave it empty");
}

void set_device(const Options& options, EngineOptions& out) {
  if (options.device == "cuda") {
    out.backend = app::open_gpu(options.gpu, options.device_budget_bytes, {.tell = options.log});
  } else if (!options.device.empty() && options.device != "cpu") {
    out.device = parse_emulated_spec(options.device);
    if (options.device_budget_bytes > 0) out.device->memory_bytes = options.device_budget_bytes;
  }
}

EngineOptions engine_options(const Model& model, const Options& options) {
  EngineOptions out;
  set_device(options, out);
  out.memory_budget_bytes = options.memory_budget_bytes;
  out.disk_budget_bytes = options.disk_budget_bytes;
  out.offload_dir = options.offload_dir;
  out.threads = options.threads;
  out.compute = compute_of(options.compute);
  out.batch_invariant = options.batch_invariant;
  out.kv_dtype = kv_dtype_of(options.kv_dtype);
  out.predict_lengths = options.predicts_lengths;
  out.cache_prefixes = options.keeps_prefixes;
  const int64_t context = std::min(options.context_tokens, model.longest_context());
  out.context_tokens = context;
  out.workload.sequences = std::max<int64_t>(options.sequences, 1);
  out.workload.max_prompt_tokens = out.workload.max_total_tokens = context;
  if (options.kv_tokens > 0) {
    out.workload.total_tokens = std::max(options.kv_tokens, context);
    out.workload.prompt_tokens = out.workload.total_tokens / 2;
  }
  if (!options.policy.empty()) out.policy = policy::parse_policy(options.policy, "`policy`");
  out.log = out.warn = options.log;
  return out;
}

app::MachineOptions machine_options(const Options& options, std::stop_token cancel) {
  app::MachineOptions out;
  out.offload_dir = options.offload_dir;
  out.threads = options.threads;
  out.measure_backend = app::measure_with_gpu;
  out.tell = options.log;
  out.cancel = std::move(cancel);
  if (options.hardware == "none") {
    out.source = app::ProfileSource::kNone;
  } else if (options.hardware == "this") {
    out.source = app::ProfileSource::kThis;
  } else if (!options.hardware.empty()) {
    out.source = app::ProfileSource::kGiven;
    out.profile_name = options.hardware;
    out.profile = app::find_profile(options.hardware);
  }
  return out;
}
}  // namespace

Plan Plan::find(const Model& model, const Options& options, std::stop_token cancel) {
  if (options.memory_budget_bytes < 0 || options.disk_budget_bytes < 0 ||
      options.device_budget_bytes < 0 || options.context_tokens < 1 || options.threads < 0 ||
      options.kv_tokens < 0)
    throw Error(ErrorKind::kUser,
                "a budget, `context_tokens`, `kv_tokens` or `threads` is negative",
                "leave them as they are for the default");
  auto found = std::make_shared<Found>();
  found->options = engine_options(model, options);
  found->model = found->options.backend ? app::for_gpu(model.bound_, found->options.activations)
                                        : model.bound_;
  found->adapters = app::open_adapters(options.lora);
  found->options.adapters = app::room_for(*found->model, found->adapters);
  found->input = plan_input(*found->model, found->options);
  found->plan = app::find_plan(*found->model, found->options, found->input,
                               machine_options(options, std::move(cancel)));
  return Plan(std::move(found));
}

std::string Plan::policy() const { return policy::policy_to_json(found_->plan.plan.policy); }
std::string Plan::table() const {
  return policy::plan_table(found_->plan.plan, found_->input.memory_budget_bytes,
                            found_->input.question.device_budget_bytes,
                            found_->options.disk_budget_bytes);
}
int64_t Plan::memory_bytes() const { return found_->plan.plan.memory_bytes(); }
int64_t Plan::device_bytes() const { return found_->plan.plan.device_bytes(); }
int64_t Plan::disk_bytes() const { return found_->plan.plan.disk_bytes(); }
int64_t Plan::streamed_bytes() const { return found_->plan.plan.streamed_weight_bytes; }
int64_t Plan::context_tokens() const { return found_->input.context_tokens; }
std::optional<double> Plan::expected_tokens_per_second() const {
  if (!found_->plan.prediction) return std::nullopt;
  return found_->plan.prediction->tokens_per_second();
}

int64_t Plan::sequences() const { return found_->plan.plan.policy.block_sequences(); }
int64_t Plan::memory_budget_bytes() const { return found_->input.memory_budget_bytes; }

}  // namespace sluice
