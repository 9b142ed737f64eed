#include "src/app/open_model.h"

#include <fmt/format.h>

#include "policy/pass_classes.h"
#include "policy/simulator.h"
#include "src/app/plan_request.h"
#include "src/base/error.h"

namespace sluice::app {

namespace {
bool is_all_in_memory(const policy::Plan& plan) {
  return plan.streamed_weight_bytes == 0 && plan.kv_disk_bytes() == 0;
}

// Nothing where this machine can't be measured; a profile that somebody gave is used or refused.
std::optional<Machine> try_machine(const MachineOptions& machine, const EngineOptions& options) {
  try {
    return machine_of(machine, options);
  } catch (const Error& error) {
    if (machine.source == ProfileSource::kGiven || error.kind() == ErrorKind::kUser ||
        error.kind() == ErrorKind::kCancelled)
      throw;
    if (machine.tell)
      machine.tell(
          fmt::format("this machine can't be measured ({}): filling the budget without a search",
                      error.text()));
    return std::nullopt;
  }
}

void search(const EngineInput& input, const policy::Profile& profile,
            const policy::SearchConstraints& constraints, FoundPlan& out) {
  policy::SearchRequest request;
  request.constraints = constraints;
  request.input = input.question;
  request.input.has_disk = input.question.has_disk && !profile.disks.empty();
  request.profile = &profile;
  request.job = job_of(input.question.workload);
  request.start = input.start;
  try {
    policy::SearchResult found = policy::search_policy(request);
    out.prediction = prediction_of(found.best);
    out.candidates = found.candidates;
    out.search_seconds = found.search_seconds;
    out.plan = std::move(found.best.plan);
    out.plan.pass_estimates = policy::pass_estimates(*input.question.model, out.plan, profile,
                                                     input.question.kv_dtype, request.job);
    policy::require_fit(input.question, out.plan);
  } catch (const Error& error) {
    throw_with_mend(input, error);
  }
}
}  // namespace

std::shared_ptr<const BoundModel> open_model(const std::filesystem::path& path,
                                             const PositionWishes& positions) {
  return std::make_shared<const BoundModel>(BoundModel::open(path, KTypes::kKept, positions));
}

std::shared_ptr<const BoundModel> for_gpu(std::shared_ptr<const BoundModel> model,
                                          kernels::ActivationFormat activations) {
  if (activations != kernels::ActivationFormat::kInt8 ||
      model->checkpoint().format() != io::CheckpointFormat::kGguf)
    return model;
  return std::make_shared<const BoundModel>(
      BoundModel::open(model->path(), KTypes::kRepacked, model->positions()));
}

FoundPlan find_plan(const BoundModel& model, const EngineOptions& options, const EngineInput& input,
                    const MachineOptions& machine, const PlanWishes& wishes) {
  FoundPlan out;
  const bool is_asked_for = has_profile(machine);
  const bool on_cpu = !options.device && !options.backend;
  // By hand: expected only where a profile is at hand; nobody asked for a measurement.
  if (machine.source == ProfileSource::kNone || (options.policy && !is_asked_for)) {
    out.plan = choose_plan(input, options);
    return out;
  }
  if ((!is_asked_for || wishes.prefers_memory) && !options.policy && on_cpu) {
    // Everything in memory is the best there is: nothing to measure for.
    out.plan = choose_plan(input, options);
    if (is_all_in_memory(out.plan)) return out;
  }
  std::optional<Machine> found = try_machine(machine, options);
  if (!found) {
    out.plan = choose_plan(input, options);
    return out;
  }
  out.kept = found->kept;
  const int64_t memory = input.question.memory_budget_bytes + input.question.device_budget_bytes;
  if (model.shape().weight_bytes() > memory * 9 / 10)  // the disk will matter
    if (const double rate = model_read_rate(model.path()); rate > 0)
      set_read_rate(found->profile, rate);
  if (!options.policy) {
    search(input, found->profile, wishes.constraints, out);
    return out;
  }
  out.plan = choose_plan(input, options);
  out.prediction = policy::simulate_block(model.shape(), out.plan, found->profile, input.kv_dtype,
                                          job_of(input.question.workload));
  return out;
}

}  // namespace sluice::app
