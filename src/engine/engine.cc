#include "src/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/prefault.h"
#include "src/base/team.h"
#include "src/engine/batching/batcher.h"
#include "src/engine/batching/token_taker.h"
#include "src/engine/engine_stores.h"
#include "src/engine/passes/class_chooser.h"
#include "src/engine/run_record.h"
#include "src/engine/runners/layer_runner.h"
#include "src/schedule/schedule.h"

namespace sluice {

namespace {
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void keep_average(double& average, double latest) {
  average = average == 0 ? latest : 0.75 * average + 0.25 * latest;
}

std::vector<StatePools::Group> pool_groups(const policy::Plan& plan, const KvStore& kv) {
  std::vector<StatePools::Group> groups;
  for (const policy::KvPlan& group : plan.kv)
    groups.push_back({{group.memory_pages, group.host_pages, group.disk_pages},
                      group.state.window,
                      group.ring_pages,
                      kv.swap_pages(static_cast<int32_t>(groups.size())),
                      group.state.is_recurrent()});
  return groups;
}

// Loads of weights move what the files hold, not the plan's upper bound.
class EngineColumns final : public PassColumns {
 public:
  EngineColumns(ScheduleGenerator& generator, uint64_t& hash, const WeightStore& weights,
                Router router)
      : PassColumns(generator, hash, std::move(router)), weights_(weights) {}

 private:
  void prepare(Task& task) override {
    if (task.kind == TaskKind::kLoadWeights) task.bytes = weights_.moved_bytes(task);
  }
  const WeightStore& weights_;
};

LaneTable lanes_beside(const Device* device) {
  return one_device_lanes(!device                   ? DeviceLanes::kNone
                          : device->has_own_cores() ? DeviceLanes::kOwnCores
                                                    : DeviceLanes::kSharedCores);
}
}  // namespace

struct Engine::Impl final : TaskRunner {
  Impl(std::shared_ptr<const BoundModel> bound, EngineOptions chosen, EngineInput input,
       policy::Plan made)
      : options(std::move(chosen)),
        shared_model(std::move(bound)),
        model(*shared_model),
        planned(std::move(input), std::move(made)),
        team(planned.threads),
        tokens(planned.context_tokens),
        classes(planned.plan.policy, planned.plan.pass_estimates),
        stores(model, options, planned),
        reads_weights(stores.weights->reads_in_passes()),
        record(lanes_beside(stores.device), planned.plan.classes.size()) {
    const ModelShape& shape = model.shape();
    const policy::Plan& plan = planned.plan;
    pools = std::make_unique<StatePools>(pool_groups(plan, *stores.kv), plan.policy.page_tokens,
                                         plan.host_attends());
    batcher = std::make_unique<Batcher>(
        *pools, *stores.recent,
        // Every running sequence has a token in every pass.
        BatcherLimits{std::min(plan.policy.block_sequences(), plan.pass_tokens),
                      plan.policy.page_tokens, planned.context_tokens, shape.vocab_size,
                      shape.max_positions, options.predict_lengths, options.cache_prefixes,
                      options.static_batches},
        model.eos_token_ids());
    schedule_shape = policy::schedule_shape(shape, plan);
    std::vector<int32_t> guessed;
    for (size_t i = 0; i < schedule_shape.sublayers.size(); ++i)
      guessed.push_back(guessed_after(schedule_shape.sublayers, static_cast<int32_t>(i)));
    const RunnerParts parts{
        &model,
        stores.weights.get(),
        stores.kv.get(),
        stores.recent.get(),
        stores.hidden.get(),
        stores.exchange.get(),
        planned.compute,
        planned.attention,
        std::min(plan.pass_tokens, plan.policy.micro_batch_tokens),
        plan.host_rows,
        planned.threads,
        options.observe_product,
        options.observe_choices,
        &tally,
        options.fuses_operators,
        options.keep_trace,
        {stores.expert_answers.as<float>(), static_cast<size_t>(stores.expert_answers.size()) / 4},
        options.adapters.rank,
        std::move(guessed)};
    if (options.backend)
      runner = options.backend->make_runner(parts, stores.workspace.span(),
                                            stores.host_workspace.span());
    else
      runner = std::make_unique<LayerRunner>(parts, stores.emulated.get(), stores.workspace.span(),
                                             stores.host_workspace.span());
    experts.emplace(schedule_shape, options.experts_file, options.log);
    for (size_t i = 0; i < plan.classes.size(); ++i) limits.push_back(policy::pass_limits(plan, i));
    warn_of_pageable();
  }

  void warn_of_pageable() const;
  void tell_notices() const;
  void tell_progress(const Task& task) const;

  // TaskRunner
  void compute(const Task& task) override {
    const auto batch = static_cast<size_t>(task.micro_batch);
    if (options.pass_progress) tell_progress(task);
    runner->run(task, *pass_of(task).micro_batches[batch], batch, tokens);
    if (task.compute().step == ComputeStep::kUntilRoute) routed = runner->routed();
    if (options.keep_trace && task.compute().step != ComputeStep::kHostAttention)
      record.trace_inplace(task, *runner);
  }
  void transfer(const Task& task, std::function<void(std::exception_ptr)> done) override {
    stores.transfer(task, record.machine(), pass_of(task), std::move(done));
  }

  void run_pass(LaneExecutor& executor, ScheduleGenerator& schedule, GenerationSink& sink);
  void copy_pages(LaneExecutor& executor, const std::vector<GroupCopy>& copies);
  policy::RoutedTokens tokens_of_next(std::span<Sequence* const> active,
                                      const PassPlan& pass) const;
  PassClasses classes_of(std::span<Sequence* const> active, const PassPlan& pass,
                         bool more_follow) const;
  const PassPlan& pass_of(const Task& task) const {
    return passes[static_cast<size_t>(task.pass % 2)];
  }

  EngineOptions options;
  std::shared_ptr<const BoundModel> shared_model;
  const BoundModel& model;
  EnginePlan planned;
  Team team;
  TokenTaker tokens;
  ClassChooser classes;
  std::vector<PassLimits> limits;  ///< [class]
  EngineStores stores;
  bool reads_weights;  ///< in passes, from disk
  RunRecord record;
  std::unique_ptr<StatePools> pools;
  policy::KernelTally tally;  ///< before the runner that adds to it
  std::unique_ptr<SublayerRunner> runner;
  ScheduleShape schedule_shape;
  std::optional<HeldExperts> experts;
  Routed routed;  ///< what the last route has found
  bool is_loaded = false;

  AdapterPtr default_adapter;
  std::unique_ptr<Batcher> batcher;
  double swap_copy_seconds = 0;  ///< of a page, of late; 0: not known yet
  double page_seconds = 0;       ///< to compute a page of a prompt
  /// By parity of the pass: stores of one pass may still run while the next computes.
  std::array<PassPlan, 2> passes;
  int64_t waiting_tokens = 0;  ///< of running prompts, that the pass under way does not compute
};

// Where passes move nothing between the tiers only tables and tokens are slower.
void Engine::Impl::warn_of_pageable() const {
  const Device* device = stores.device;
  if (!device || !options.warn || device->pageable_bytes() == 0) return;
  const policy::Plan& plan = planned.plan;
  const bool moves = plan.host_weight_bytes > 0 || plan.host_ring_bytes > 0 ||
                     plan.inplace_weight_bytes > 0 || plan.has_lower_pages() ||
                     plan.activation_host_rows > 0 || plan.activation_disk_bytes > 0;
  if (!moves) return;
  options.warn(fmt::format(
      "{} of {} of host memory could not be page-locked, so copies to and from the device are "
      "slower there than they were measured: raise what the system lets a process lock (ulimit "
      "-l, the container's or the virtual machine's limit), or lower `memory_budget_bytes`",
      format_bytes(device->pageable_bytes()),
      format_bytes(device->pageable_bytes() + device->pinned_bytes())));
}

void Engine::Impl::tell_notices() const {
  Notices* const notices = stores.device ? stores.device->notices() : nullptr;
  if (!notices || !options.warn) return;
  for (const std::string& notice : notices->take()) options.warn(notice);
}

void Engine::Impl::tell_progress(const Task& task) const {
  const PassPlan& pass = pass_of(task);
  const double batches = static_cast<double>(task.micro_batch) /
                         static_cast<double>(std::max<size_t>(pass.micro_batches.size(), 1));
  options.pass_progress({task.pass,
                         (static_cast<double>(task.sublayer) + batches) /
                             static_cast<double>(schedule_shape.sublayers.size()),
                         pass.prefill_tokens, pass.decode_tokens, waiting_tokens});
}

void Engine::Impl::copy_pages(LaneExecutor& executor, const std::vector<GroupCopy>& copies) {
  if (copies.empty()) return;
  executor.settle();
  // What is copied for a beam says nothing of the swap space.
  double swap_seconds = 0;
  int64_t swapped = 0;
  for (const auto& [group, page] : copies) {
    const auto& [from, to] = page;
    const Clock::time_point started = Clock::now();
    stores.kv->copy_page(group, from, to, stores.device);
    if (from.tier != PageTier::kSwap && to.tier != PageTier::kSwap) continue;
    swap_seconds += seconds_since(started);
    ++swapped;
  }
  record.totals().copied_pages += static_cast<int64_t>(copies.size());
  if (swapped > 0) keep_average(swap_copy_seconds, swap_seconds / static_cast<double>(swapped));
}

namespace {
policy::RoutedTokens tokens_of(const PassPlan& pass) {
  policy::RoutedTokens out;
  for (const auto& batch : pass.micro_batches)
    for (const Chunk& chunk : batch->chunks) out.add_run(chunk.count);
  return out;
}

// That a sequence may still get.
int64_t tokens_left(const Sequence& sequence) {
  if (!sequence.generates()) return 0;
  return int64_t{sequence.sampler.params().max_tokens} -
         static_cast<int64_t>(sequence.output().size());
}
}  // namespace

// Of the pass after this one, where nobody new comes: what of the prompts is left, and a token of
// each sequence that goes on.
policy::RoutedTokens Engine::Impl::tokens_of_next(std::span<Sequence* const> active,
                                                  const PassPlan& pass) const {
  const policy::Plan& plan = planned.plan;
  std::map<const Sequence*, int64_t> taken;
  for (const auto& batch : pass.micro_batches)
    for (const Chunk& chunk : batch->chunks) taken[chunk.sequence] += chunk.count;
  policy::RoutedTokens next;
  const auto add = [&](int64_t run) {
    const int64_t chunk = plan.policy.micro_batch_tokens;
    for (int64_t left = std::min(run, plan.pass_tokens - next.all); left > 0; left -= chunk)
      next.add_run(std::min(left, chunk));
  };
  for (const Sequence* sequence : active) add(tokens_left(*sequence) > 1);
  for (const Sequence* sequence : active) add(sequence->pending() - taken[sequence]);
  if (next.all == 0) add(1);
  return next;
}

PassClasses Engine::Impl::classes_of(std::span<Sequence* const> active, const PassPlan& pass,
                                     bool more_follow) const {
  const policy::RoutedTokens now = tokens_of(pass);
  const policy::RoutedTokens next = more_follow ? tokens_of_next(active, pass) : now;
  const policy::Plan& plan = planned.plan;
  return {pass.pass_class, more_follow ? classes.expect(next.all) : pass.pass_class,
          plan.demands_experts(now), plan.demands_experts(next)};
}

void Engine::Impl::run_pass(LaneExecutor& executor, ScheduleGenerator& schedule,
                            GenerationSink& sink) {
  const Clock::time_point started = Clock::now();
  std::vector<Sequence*> active;
  for (const auto& sequence : batcher->running()) active.push_back(sequence.get());
  PassPlan& pass = passes[static_cast<size_t>(schedule.passes() % 2)];
  pass = plan_pass(active, limits, [&](const PassTokens& taken) {
    return classes.choose(taken.prefill_tokens + taken.decode_tokens);
  });
  // Weights that stay where they are computed were read before the first pass.
  tokens.begin_pass(
      sink, pass.prefill_tokens > 0,
      reads_weights ? [this] { stores.weights->check_unchanged(); } : std::function<void()>());
  stores.hidden->begin_pass(pass.micro_batches);
  // Another pass follows unless every sequence is at its last token and nobody waits.
  bool more_follow = batcher->has_more();
  for (const Sequence* sequence : active) more_follow = more_follow || tokens_left(*sequence) > 1;
  int64_t pending = 0;
  for (const Sequence* sequence : active) pending += sequence->pending();
  waiting_tokens = pending - pass.prefill_tokens - pass.decode_tokens;
  more_follow = more_follow || waiting_tokens > 0;
  schedule.begin_pass(stores.loads_of(pass), more_follow, classes_of(active, pass, more_follow));
  EngineColumns columns(schedule, record.totals().stream_hash, *stores.weights,
                        [&](const AwaitedRoute&) { return routed; });
  executor.run(columns);
  experts->count(schedule);
  for (const auto& batch : pass.micro_batches)
    for (const Chunk& chunk : batch->chunks) chunk.sequence->computed += chunk.count;
  batcher->keep_prefixes();
  batcher->advance_beams(sink);

  const double seconds = seconds_since(started);
  if (pass.prefill_tokens > 0) {
    const auto computed = static_cast<double>(pass.prefill_tokens + pass.decode_tokens);
    keep_average(page_seconds,
                 seconds / computed * static_cast<double>(planned.plan.policy.page_tokens));
  }
  if (!options.swaps_always) batcher->set_page_costs(swap_copy_seconds, page_seconds);
  if (!planned.plan.pass_estimates.classes.empty())
    classes.learn(pass.pass_class, pass.prefill_tokens + pass.decode_tokens,
                  record.take_times(seconds, executor, *runner));
  record.add_pass(pass, seconds);
  batcher->retire(sink);
  EngineStats& totals = record.totals();
  PassReport report{.pass = totals.passes,
                    .prefill_tokens = pass.prefill_tokens,
                    .decode_tokens = pass.decode_tokens,
                    .seconds = seconds,
                    .pass_class = pass.pass_class,
                    .from_tokens = planned.plan.classes[pass.pass_class].execution.from_tokens};
  batcher->report(report);
  report.experts_asked = experts->counts().asked;
  report.experts_found = experts->counts().found;
  report.experts_guessed = experts->counts().guesses.guessed;
  report.guesses_right = experts->counts().guesses.right;
  report.machine = &record.machine();
  report.lanes = record.lane_report(executor, *runner);
  totals.preemptions = report.preemptions;
  totals.prefix_hit_tokens = report.prefix_hit_tokens;
  totals.saved_pages = report.saved_pages;
  totals.restored_pages = report.restored_pages;
  sink.on_pass(report);
}

Engine::Engine(std::shared_ptr<const BoundModel> model, EngineOptions options, EngineInput input,
               policy::Plan plan)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(options), std::move(input),
                                   std::move(plan))) {}
Engine::~Engine() = default;

std::unique_ptr<Engine> Engine::open(std::shared_ptr<const BoundModel> model,
                                     EngineOptions options) {
  EngineInput input = plan_input(*model, options);
  policy::Plan plan = choose_plan(input, options);
  return std::make_unique<Engine>(std::move(model), std::move(options), std::move(input),
                                  std::move(plan));
}

std::unique_ptr<Engine> Engine::open(const std::filesystem::path& model_path,
                                     EngineOptions options) {
  // A GPU multiplies int8 activations with codes of a byte or half of one.
  const bool repacks = options.backend && options.activations == kernels::ActivationFormat::kInt8;
  const KTypes k_types = repacks ? KTypes::kRepacked : KTypes::kKept;
  PositionWishes positions;
  positions.context_tokens = options.context_tokens;
  positions.sequence_tokens = options.workload.max_total_tokens;
  return open(std::make_shared<const BoundModel>(BoundModel::open(model_path, k_types, positions)),
              std::move(options));
}

const BoundModel& Engine::model() const noexcept { return impl_->model; }
const policy::Plan& Engine::plan() const noexcept { return impl_->planned.plan; }
const EngineOptions& Engine::options() const noexcept { return impl_->options; }
AdapterBank& Engine::adapters() noexcept { return *impl_->stores.adapters; }
void Engine::set_default_adapter(AdapterPtr adapter) noexcept {
  impl_->default_adapter = std::move(adapter);
}
int64_t Engine::context_tokens() const noexcept { return impl_->planned.context_tokens; }
std::string Engine::io_name() const { return impl_->stores.file_engine->describe(); }
const std::vector<TaskEvent>& Engine::trace() const { return impl_->record.events(); }
const LaneTable& Engine::machine() const noexcept { return impl_->record.machine(); }

std::string Engine::compute_name() const {
  const kernels::QuantisedOptions& compute = impl_->planned.compute;
  const auto is = [&](kernels::ActivationFormat format) { return compute.activations == format; };
  const std::string_view products = is(kernels::ActivationFormat::kInt8)         ? "int8"
                                    : is(kernels::ActivationFormat::kFp8)        ? "fp8"
                                    : compute.compute == kernels::Compute::kBF16 ? "bf16"
                                                                                 : "f32";
  const float sparsity = impl_->planned.attention.front().sparsity;
  const std::string recent_name =
      impl_->stores.recent->is_used()
          ? fmt::format(" (the newest {} tokens {})", impl_->stores.recent->tokens(),
                        kv_format_name(impl_->planned.recent_attention.front().kv_dtype))
          : "";
  const Backend* const backend = impl_->options.backend.get();
  const ModelShape& shape = impl_->model.shape();
  const std::string otherwise =
      backend ? backend->otherwise(shape, compute)
              : with_16_bit_inputs(shape, compute, kernels::takes_activations);
  return fmt::format(
      "{} weights, {} products{}{}, {} KV{}, {} threads{}", impl_->model.shape().weights_name(),
      products, compute.outlier_threshold > 0 ? " (outliers in f32)" : "",
      otherwise.empty() ? "" : fmt::format(" ({})", otherwise),
      kv_format_name(impl_->planned.kv_dtype) + recent_name,
      sparsity < 1 ? fmt::format(" (values of {:.3g} % read)", 100 * sparsity) : "",
      impl_->planned.threads, impl_->options.batch_invariant ? ", batch-invariant" : "");
}

void Engine::load(std::stop_token cancel) {
  if (impl_->is_loaded) return;
  const Team::Use use(impl_->team);
  const Clock::time_point started = Clock::now();
  Impl& impl = *impl_;
  Prefault prefault(impl.stores.memory_to_fault(), impl.planned.threads);
  impl.stores.load_resident(
      impl.experts->held(),
      [&](const LoadProgress& progress) {
        impl.record.totals().loaded_bytes = progress.done_bytes;
        if (impl.options.load_progress) impl.options.load_progress(progress);
      },
      cancel);
  prefault.finish();
  impl.stores.weights->check_unchanged();
  impl_->record.totals().load_seconds = seconds_since(started);
  impl_->is_loaded = true;
}

void Engine::generate(RequestSource& source, GenerationSink& sink, std::stop_token cancel) {
  load(cancel);
  const Team::Use use(impl_->team);
  const Clock::time_point started = Clock::now();
  Impl& impl = *impl_;
  impl.batcher->begin(impl.default_adapter);
  LaneExecutor executor(impl, cancel, impl.record.machine(), impl.options.keep_trace);
  impl.record.begin_run(executor, *impl.runner);
  ScheduleGenerator schedule(impl.schedule_shape);
  impl.experts->begin_run(schedule, *impl.stores.weights, cancel);
  try {
    for (;;) {
      impl.batcher->admit(source, sink);
      impl.copy_pages(executor, impl.batcher->secure_pages());
      if (!impl.batcher->running().empty()) {
        impl.run_pass(executor, schedule, sink);
        impl.tell_notices();
      } else if (impl.batcher->is_idle()) {
        source.wait(cancel);
        if (cancel.stop_requested())
          throw Error(ErrorKind::kCancelled, "stopped while waiting for requests");
      } else if (!impl.batcher->has_more()) {
        break;
      }
    }
    executor.finish();
    impl.experts->end_run(schedule);
  } catch (...) {
    impl.stores.file_engine->cancel_pending();
    impl.batcher->abort(sink);
    impl.record.end_run(executor, *impl.runner, seconds_since(started));
    throw;
  }
  impl.record.end_run(executor, *impl.runner, seconds_since(started));
}

EngineStats Engine::stats() const {
  const EngineStores& stores = impl_->stores;
  EngineStats out = impl_->record.stats();
  out.decode_tokens = impl_->tokens.tokens();
  out.first_tokens = impl_->tokens.first_tokens();
  out.peak_memory_bytes = stores.memory.peak();
  out.peak_disk_bytes = stores.disk.peak();
  if (stores.device) {
    out.peak_device_bytes = stores.device->memory().peak();
    out.device_budget_bytes = stores.device->memory().limit();
    out.pinned_bytes = stores.device->pinned_bytes();
    out.pageable_bytes = stores.device->pageable_bytes();
  }
  out.memory_budget_bytes = impl_->planned.memory_budget_bytes;
  out.disk_budget_bytes = impl_->options.disk_budget_bytes;
  out.experts = impl_->experts->counts();
  out.gathered_bytes = stores.weights->gathered_bytes();
  const ForeignArrivals::Repacked repacked = stores.weights->repacked();
  out.repacked_bytes = repacked.bytes;
  out.repack_seconds = repacked.seconds;
  out.disk_read_busy_seconds = stores.file_engine->counters().read_busy_seconds;
  out.kernels = impl_->tally.times();
  return out;
}

}  // namespace sluice
