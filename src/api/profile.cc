#include <fmt/format.h>
#include <sluice/profile.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/api/values.h"
#include "src/app/machine.h"
#include "src/app/plan_report.h"
#include "src/app/plan_request.h"
#include "src/base/error.h"
#include "src/model/builtin.h"
#include "src/profile/profile_cache.h"

namespace sluice {

Profile Profile::of_this_machine(const ProfileOptions& options, std::stop_token cancel) {
  MeasureOptions measure;
  measure.offload_dir = options.offload_dir;
  measure.threads = options.threads;
  measure.quick = options.quick;
  measure.cancel = std::move(cancel);
  measure.progress = options.log;
  const auto log = options.log ? options.log : [](std::string_view) {};
  if (!options.again && options.keeps)
    return Profile(std::make_shared<policy::Profile>(load_or_measure(measure, log)));
  const auto path = profile_cache_path(options.offload_dir, options.threads);
  if (!options.again && !path.empty())
    if (auto kept = load_cached_profile(path, log))
      return Profile(std::make_shared<policy::Profile>(std::move(*kept)));
  auto measured = std::make_shared<policy::Profile>(measure_profile(measure));
  if (options.keeps && !path.empty()) store_profile(*measured, path);
  return Profile(std::move(measured));
}

Profile Profile::load(const std::string& name_or_path) {
  return Profile(std::make_shared<policy::Profile>(app::find_profile(name_or_path)));
}
std::vector<std::string> Profile::names() { return policy::shipped_profile_names(); }

std::string Profile::name() const { return impl_->name; }
std::string Profile::description() const { return impl_->description; }
std::string Profile::date() const { return impl_->date; }
std::string Profile::json() const { return policy::profile_to_json(*impl_); }
int64_t Profile::memory_bytes() const { return impl_->host_bytes; }
int64_t Profile::device_bytes() const { return impl_->device ? impl_->device_bytes : 0; }
int64_t Profile::disk_bytes() const { return impl_->disk_bytes; }
double Profile::memory_read() const { return impl_->host.memory_read.value; }
double Profile::disk_read() const { return impl_->disks.empty() ? 0 : impl_->disk_read(); }
double Profile::disk_write() const { return impl_->disks.empty() ? 0 : impl_->disk_write(); }
std::string Profile::processor() const { return impl_->host.name; }
std::string Profile::device() const { return impl_->device ? impl_->device->name : ""; }
int Profile::threads() const { return impl_->host.threads; }

namespace {
void check(const ForecastOptions& options) {
  const auto refuse = [](const char* name, const char* mend) {
    throw Error(ErrorKind::kUser, fmt::format("`{}` is out of range", name), mend);
  };
  if (options.memory_budget_bytes < 0) refuse("memory_budget_bytes", "0: what the machine has");
  if (options.device_budget_bytes < 0) refuse("device_budget_bytes", "0: what the machine has");
  if (options.disk_budget_bytes < 0) refuse("disk_budget_bytes", "0: what the machine has");
  if (!(options.prompt_tokens >= 1 && options.prompt_tokens <= 1e7))
    refuse("prompt_tokens", "1 to 10000000");
  if (!(options.new_tokens >= 1 && options.new_tokens <= 1e7))
    refuse("new_tokens", "1 to 10000000");
  if (options.sequences < 0) refuse("sequences", "0 leaves it to the plan");
  if (!(options.latency_bound_seconds >= 0)) refuse("latency_bound_seconds", "give seconds");
}

policy::Objective objective_of(const std::string& text) {
  if (text.empty() || text == "throughput") return policy::Objective::kThroughput;
  if (text == "latency") return policy::Objective::kLatency;
  if (text == "bounded") return policy::Objective::kThroughputUnderLatency;
  throw Error(ErrorKind::kUser, fmt::format("`objective` is \"{}\"", text),
              "write throughput, latency or bounded");
}

app::PlanQuestion question_of(const ForecastOptions& options, const ModelShape& model,
                              const policy::Profile& machine) {
  app::PlanQuestion out;
  out.model = &model;
  out.profile = &machine;
  if (options.device_budget_bytes > 0 && !machine.device)
    throw Error(ErrorKind::kUser, "`device_budget_bytes`: this machine has no device",
                "leave it out, or choose other `hardware`");
  out.device_bytes = options.device_budget_bytes;
  out.host_bytes = options.memory_budget_bytes;
  out.disk_bytes = options.disk_budget_bytes;
  out.job.prompt_tokens = options.prompt_tokens;
  out.job.new_tokens = options.new_tokens;
  out.objective = objective_of(options.objective);
  out.latency_bound_seconds = options.latency_bound_seconds;
  out.job.sequences = options.sequences > 0                          ? options.sequences
                      : out.objective == policy::Objective::kLatency ? 1
                                                                     : 256;
  out.kv_dtype = kv_dtype_of(options.kv_dtype);
  return out;
}
}  // namespace

Forecast forecast(const std::string& model, const ForecastOptions& options,
                  std::stop_token cancel) {
  check(options);
  ModelShape shape = app::planning_model(model);
  if (!options.weights.empty()) shape.set_weights(weights_of(options.weights));
  policy::Profile machine;
  if (options.hardware.empty() || options.hardware == "this") {
    MeasureOptions measure;
    measure.quick = true;
    measure.cancel = cancel;
    measure.progress = options.log;
    machine = load_or_measure(
        measure, options.log ? options.log : [](std::string_view) {});
  } else {
    machine = app::find_profile(options.hardware);
  }
  app::PlanQuestion question = question_of(options, shape, machine);
  question.has_file =
      (options.hardware.empty() || options.hardware == "this") && app::names_files(model);
  policy::SearchRequest request = app::plan_request(question);
  request.stop = std::move(cancel);
  const policy::SearchResult result = policy::search_policy(request);
  std::optional<app::WhatIfs> what_ifs;
  if (options.finds_lifts) what_ifs = app::find_what_ifs(request, result);
  const app::PlanSubject subject{model, machine.name};
  const policy::Prediction& expected = policy::prediction_of(result.best);
  return {app::job_tokens_per_second(result.best, request.job), expected.latency_seconds(),
          app::bottleneck_name(expected), app::plan_json(subject, request, result, what_ifs).dump(),
          app::plan_text(subject, request, result, what_ifs)};
}

std::vector<std::string> forecast_models() { return builtin_model_names(); }

}  // namespace sluice
