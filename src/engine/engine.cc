#include "src/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/prefault.h"
#include "src/base/team.h"
#include "src/device/memory_limit.h"
#include "src/engine/batching/batcher.h"
#include "src/engine/batching/token_taker.h"
#include "src/engine/engine_plan.h"
#include "src/engine/passes/class_chooser.h"
#include "src/engine/runners/layer_runner.h"
#include "src/engine/stores/attention_exchange.h"
#include "src/engine/stores/hidden_store.h"
#include "src/engine/stores/kv_store.h"
#include "src/engine/stores/recent_kv.h"
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

// The page cache is in the same memory group as we are. What a pass streams and the rest can't hold
// is not there when the next pass reads it in the same order, and some kernels kill a group rather
// than take such pages back in time.
void spare_page_cache(const policy::Plan& plan, io::FileEngineOptions& io) {
  constexpr int64_t kPlenty = 256 * kMiB;
  const int64_t rest = std::max<int64_t>(memory_limit().available_bytes - plan.memory_bytes(), 0);
  if (rest >= kPlenty && rest >= plan.streamed_weight_bytes + kPlenty / 4) return;
  io.drops_cache = true;
  io.bytes_in_flight = std::clamp(rest / 8, 2 * kMiB, io.bytes_in_flight / 2);
}

std::unique_ptr<io::FileEngine> make_main_engine(const EngineOptions& options,
                                                 const policy::Plan& plan) {
  io::FileEngineOptions io;
  io.mode = options.io_mode;
  io.direct = options.direct_io;
  if (!io.direct) spare_page_cache(plan, io);
  io.log = options.log;
  io.warn = options.warn;
  return io::make_file_engine(io);
}

// Single table rows must not queue behind megabytes of streamed weights: they have an engine of
// their own. In the device they do wait behind what is in flight, so all rows of a pass go at once.
std::unique_ptr<io::FileEngine> make_gather_engine(const EngineOptions& options) {
  io::FileEngineOptions io;
  io.mode = options.io_mode;
  io.direct = options.direct_io;
  io.bytes_in_flight = 8 * kMiB;
  io.request_bytes = 512 * kKiB;
  return io::make_file_engine(io);
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

// Empty where nothing will be written: a missing temporary folder is no trouble then.
std::string offload_folder(const EngineOptions& options, const policy::Plan& plan) {
  if (!options.offload_dir.empty()) return options.offload_dir;
  return plan.disk_bytes() > 0 || options.swap_bytes > 0 ? temporary_folder() : std::string();
}
}  // namespace

namespace {
// Loads of weights move what the files hold, not the plan's upper bound.
class EngineColumns final : public PassColumns {
 public:
  EngineColumns(ScheduleGenerator& generator, uint64_t& hash, const WeightStore& weights)
      : PassColumns(generator, hash), weights_(weights) {}

 private:
  void prepare(Task& task) override {
    if (task.kind == TaskKind::kLoadWeights) task.bytes = weights_.moved_bytes(task);
  }
  const WeightStore& weights_;
};
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
        memory(options.device || options.backend ? "host memory" : "memory",
               planned.memory_budget_bytes,
               options.backend ? options.backend->device().host_memory_source() : nullptr),
        disk("disk", options.disk_budget_bytes > 0 ? options.disk_budget_bytes : INT64_MAX / 2),
        file_engine(make_main_engine(options, planned.plan)),
        gather_engine(make_gather_engine(options)) {
    const ModelShape& shape = model.shape();
    const policy::Plan& plan = planned.plan;
    const std::string folder = offload_folder(options, plan);
    if (options.device) emulated = std::make_unique<EmulatedDevice>(*options.device);
    device = options.backend ? &options.backend->device() : emulated.get();
    Arena& compute_memory = device ? device->memory() : memory;
    weights = std::make_unique<WeightStore>(
        model, plan,
        WeightReaders{*file_engine, *gather_engine,
                      options.backend ? options.backend->direct_reader() : nullptr},
        device, compute_memory, memory);
    kv = std::make_unique<KvStore>(plan, *file_engine, folder, options.swap_bytes, compute_memory,
                                   memory, disk);
    recent = std::make_unique<RecentKv>(plan, planned.recent_attention, compute_memory);
    pools = std::make_unique<StatePools>(pool_groups(plan, *kv), plan.policy.page_tokens,
                                         plan.host_attends());
    batcher = std::make_unique<Batcher>(
        *pools, *recent,
        // Every running sequence has a token in every pass.
        BatcherLimits{std::min(plan.policy.block_sequences(), plan.pass_tokens),
                      plan.policy.page_tokens, planned.context_tokens, shape.vocab_size,
                      shape.max_positions, options.predict_lengths, options.cache_prefixes,
                      options.static_batches},
        model.eos_token_ids());
    hidden = std::make_unique<HiddenStore>(shape, plan, *file_engine, folder, compute_memory,
                                           memory, disk);
    exchange = std::make_unique<AttentionExchange>(shape, plan, compute_memory, memory);
    workspace = compute_memory.allocate(planned.workspace_bytes, "workspace");
    host_workspace = memory.allocate(plan.host_workspace_bytes, "workspace");
    const RunnerParts parts{&model,
                            weights.get(),
                            kv.get(),
                            recent.get(),
                            hidden.get(),
                            exchange.get(),
                            planned.compute,
                            planned.attention,
                            std::min(plan.pass_tokens, plan.policy.micro_batch_tokens),
                            plan.host_rows,
                            planned.threads,
                            options.observe_input,
                            &tally,
                            options.fuses_operators,
                            options.keep_trace};
    if (options.backend)
      runner = options.backend->make_runner(parts, workspace.span(), host_workspace.span());
    else
      runner = std::make_unique<LayerRunner>(parts, emulated.get(), workspace.span(),
                                             host_workspace.span());
    machine = one_device_lanes(!device                   ? DeviceLanes::kNone
                               : device->has_own_cores() ? DeviceLanes::kOwnCores
                                                         : DeviceLanes::kSharedCores);
    lane_totals = PerLane<LaneStats>(machine);
    schedule_shape = policy::schedule_shape(shape, plan);
    totals.classes.resize(plan.classes.size());
    for (size_t i = 0; i < plan.classes.size(); ++i) limits.push_back(policy::pass_limits(plan, i));
    warn_of_pageable();
  }

  void warn_of_pageable() const;

  // TaskRunner
  void compute(const Task& task) override {
    const auto batch = static_cast<size_t>(task.micro_batch);
    runner->run(task, *pass_of(task).micro_batches[batch], batch, tokens);
    if (options.keep_trace && task.compute().step != ComputeStep::kHostAttention)
      trace_inplace(task);
  }
  void trace_inplace(const Task& task);
  void transfer(const Task& task, std::function<void(std::exception_ptr)> done) override;
  void use_disk(const Task& task, std::function<void(std::exception_ptr)> done);
  void use_link(const Task& task);

  void run_pass(LaneExecutor& executor, ScheduleGenerator& schedule, GenerationSink& sink);
  void copy_pages(LaneExecutor& executor, const std::vector<GroupCopy>& copies);
  std::vector<MicroBatchLoad> loads_of(const PassPlan& pass) const;
  void learn_from(const PassPlan& pass, double seconds, const LaneExecutor& executor);
  void keep_lane_stats(const LaneExecutor& executor);
  LaneStats lane_stats(const LaneExecutor& executor, Lane lane) const;
  int64_t tokens_of_next(std::span<Sequence* const> active, const PassPlan& pass) const;
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
  Arena memory;
  Arena disk;
  std::unique_ptr<io::FileEngine> file_engine;
  std::unique_ptr<io::FileEngine> gather_engine;
  std::unique_ptr<EmulatedDevice> emulated;  ///< before everything that lives in its memory
  Device* device = nullptr;                  ///< that or the backend's
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<KvStore> kv;
  std::unique_ptr<RecentKv> recent;
  std::unique_ptr<StatePools> pools;
  std::unique_ptr<HiddenStore> hidden;
  std::unique_ptr<AttentionExchange> exchange;
  Buffer workspace;
  Buffer host_workspace;      ///< below a device
  policy::KernelTally tally;  ///< before the runner that adds to it
  std::unique_ptr<SublayerRunner> runner;
  ScheduleShape schedule_shape;
  bool is_loaded = false;

  std::unique_ptr<Batcher> batcher;
  double swap_copy_seconds = 0;  ///< of a page, of late; 0: not known yet
  double page_seconds = 0;       ///< to compute a page of a prompt
  /// By parity of the pass: stores of one pass may still run while the next computes.
  std::array<PassPlan, 2> passes;
  EngineStats totals;
  LaneTable machine;
  PerLane<LaneStats> lane_totals;
  int64_t counted_down = 0;  ///< of the runner's exchanged bytes, already in lane_totals
  int64_t counted_up = 0;
  double counted_inplace = 0;
  PassTimes seen;  ///< of this run, when the last pass had ended
  Clock::time_point run_began;
  std::vector<TaskEvent> events;
};

// Where passes move nothing between the tiers only tables and tokens are slower.
void Engine::Impl::warn_of_pageable() const {
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

void Engine::Impl::transfer(const Task& task, std::function<void(std::exception_ptr)> done) {
  if (machine[static_cast<size_t>(task.lane)].touches(Place::Kind::kDisk))
    return use_disk(task, std::move(done));
  use_link(task);
  done(nullptr);
}

void Engine::Impl::use_disk(const Task& task, std::function<void(std::exception_ptr)> done) {
  const auto index = static_cast<size_t>(task.micro_batch);
  const StatePlace& at = model.shape().sublayers[static_cast<size_t>(task.sublayer)].state;
  if (task.kind == TaskKind::kLoadWeights) return weights->read_part(task, std::move(done));
  const int32_t slot = task.state_move().disk_slot();
  switch (task.kind) {
    case TaskKind::kLoadKv:
      return kv->load(*pass_of(task).micro_batches[index], at, slot, std::move(done));
    case TaskKind::kStoreKv:
      return kv->store(*pass_of(task).micro_batches[index], at, slot, std::move(done));
    case TaskKind::kLoadActivations:
      return task.bytes == 0 ? done(nullptr) : hidden->load(index, slot, std::move(done));
    case TaskKind::kStoreActivations: return hidden->store(index, slot, std::move(done));
    default: break;
  }
  SLUICE_ASSERT(false, "the disk moves weights, KV and activations");
}

void Engine::Impl::use_link(const Task& task) {
  const auto index = static_cast<size_t>(task.micro_batch);
  const StatePlace& at = model.shape().sublayers[static_cast<size_t>(task.sublayer)].state;
  if (task.bytes == 0) return;
  const auto batch = [&]() -> const MicroBatch& { return *pass_of(task).micro_batches[index]; };
  const auto slot = [&] { return task.state_move().slot; };
  const auto exchanged = [&] { return task.attention_move().slot; };
  const auto make_copies = [&](const Device::Copy& copy) {
    switch (task.kind) {
      case TaskKind::kLoadWeights: weights->copy_part(task, copy); break;
      case TaskKind::kLoadKv: kv->copy_up(batch(), at, slot(), copy); break;
      case TaskKind::kStoreKv: kv->copy_down(batch(), at, slot(), copy); break;
      case TaskKind::kLoadActivations: hidden->copy_up(index, slot(), copy); break;
      case TaskKind::kStoreActivations: hidden->copy_down(index, slot(), copy); break;
      case TaskKind::kSendQueries: exchange->copy_down(batch(), at.group, exchanged(), copy); break;
      case TaskKind::kReturnOutputs: exchange->copy_up(batch(), at.group, exchanged(), copy); break;
      case TaskKind::kCompute: SLUICE_ASSERT(false, "compute runs on the compute lanes");
    }
  };
  const bool is_up = machine[static_cast<size_t>(task.lane)].to.kind == Place::Kind::kDevice;
  device->transfer(is_up ? Direction::kUp : Direction::kDown, task.bytes, make_copies);
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
    kv->copy_page(group, from, to, device);
    if (from.tier != PageTier::kSwap && to.tier != PageTier::kSwap) continue;
    swap_seconds += seconds_since(started);
    ++swapped;
  }
  totals.copied_pages += static_cast<int64_t>(copies.size());
  if (swapped > 0) keep_average(swap_copy_seconds, swap_seconds / static_cast<double>(swapped));
}

namespace {
// That a sequence may still get.
int64_t tokens_left(const Sequence& sequence) {
  if (sequence.score_prompt && sequence.score_only) return 0;
  return int64_t{sequence.sampler.params().max_tokens} -
         static_cast<int64_t>(sequence.output().size());
}
}  // namespace

// Of the pass after this one, where nobody new comes: what of the prompts is left, and a token of
// each sequence that goes on.
int64_t Engine::Impl::tokens_of_next(std::span<Sequence* const> active,
                                     const PassPlan& pass) const {
  int64_t pending = 0;
  int64_t decoding = 0;
  for (const Sequence* sequence : active) {
    pending += sequence->pending();
    decoding += tokens_left(*sequence) > 1;
  }
  const int64_t prompts = pending - pass.prefill_tokens - pass.decode_tokens;
  return std::clamp<int64_t>(prompts + decoding, 1, planned.plan.pass_tokens);
}

std::vector<MicroBatchLoad> Engine::Impl::loads_of(const PassPlan& pass) const {
  std::vector<MicroBatchLoad> loads;
  const auto groups = static_cast<int32_t>(model.shape().state_groups.size());
  for (size_t i = 0; i < pass.micro_batches.size(); ++i) {
    const MicroBatch& batch = *pass.micro_batches[i];
    MicroBatchLoad& load = loads.emplace_back();
    for (int32_t group = 0; group < groups; ++group) {
      const ExchangedBytes exchanged = exchange->bytes(batch, group);
      load.state.push_back({kv->load_bytes(batch, group), kv->store_bytes(batch, group),
                            kv->up_bytes(batch, group), kv->down_bytes(batch, group),
                            exchanged.queries, exchanged.outputs});
    }
    load.activation_bytes = hidden->disk_bytes(i);
    load.continues_previous = batch.continues_previous;
    load.activation_up_bytes = hidden->up_bytes(i);
  }
  return loads;
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
  tokens.begin_pass(sink, pass.prefill_tokens > 0);
  hidden->begin_pass(pass.micro_batches);
  // Another pass follows unless every sequence is at its last token and nobody waits.
  bool more_follow = batcher->has_more();
  for (const Sequence* sequence : active) more_follow = more_follow || tokens_left(*sequence) > 1;
  int64_t pending = 0;
  for (const Sequence* sequence : active) pending += sequence->pending();
  more_follow = more_follow || pass.prefill_tokens + pass.decode_tokens < pending;
  const size_t next = more_follow ? classes.expect(tokens_of_next(active, pass)) : pass.pass_class;
  schedule.begin_pass(loads_of(pass), more_follow, {pass.pass_class, next});
  EngineColumns columns(schedule, totals.stream_hash, *weights);
  executor.run(columns);
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
  learn_from(pass, seconds, executor);
  ++totals.passes;
  PassClassStats& of_class = totals.classes[pass.pass_class];
  ++of_class.passes;
  of_class.prefill_tokens += pass.prefill_tokens;
  of_class.decode_tokens += pass.decode_tokens;
  of_class.seconds += seconds;
  if (pass.prefill_tokens == 0) {
    of_class.decode_pass_tokens += pass.decode_tokens;
    of_class.decode_pass_seconds += seconds;
  }
  totals.prefill_tokens += pass.prefill_tokens;
  (pass.prefill_tokens > 0 ? totals.prefill_seconds : totals.decode_seconds) += seconds;
  batcher->retire(sink);
  PassReport report{.pass = totals.passes,
                    .prefill_tokens = pass.prefill_tokens,
                    .decode_tokens = pass.decode_tokens,
                    .seconds = seconds,
                    .pass_class = pass.pass_class,
                    .from_tokens = planned.plan.classes[pass.pass_class].execution.from_tokens};
  batcher->report(report);
  report.machine = &machine;
  report.lanes = PerLane<PassReport::LaneReport>(machine);
  for (size_t i = 0; i < machine.size(); ++i) {
    const LaneStats lane = lane_stats(executor, Lane(i));
    report.lanes[i] = {lane.bytes, lane.busy_seconds};
  }
  totals.preemptions = report.preemptions;
  totals.prefix_hit_tokens = report.prefix_hit_tokens;
  totals.saved_pages = report.saved_pages;
  totals.restored_pages = report.restored_pages;
  sink.on_pass(report);
}

// Rows in place are the host's, within a task of the device's lane.
void Engine::Impl::trace_inplace(const Task& task) {
  const auto seconds = [&](Clock::time_point at) {
    return std::chrono::duration<double>(at - run_began).count();
  };
  for (const SublayerRunner::Span& span : runner->take_inplace_spans()) {
    TaskEvent& event = events.emplace_back(task, seconds(span.begin), seconds(span.end));
    event.task.lane = Lane::kHostCompute;
  }
}

// What this pass's lanes did, for the next one's class.
void Engine::Impl::learn_from(const PassPlan& pass, double seconds, const LaneExecutor& executor) {
  if (planned.plan.pass_estimates.classes.empty()) return;
  const double device = executor.stats(Lane::kDeviceCompute).busy_seconds;
  const LaneStats up = executor.stats(Lane::kHostToDevice);
  const double inplace = runner->inplace_seconds();
  classes.learn(pass.pass_class, pass.prefill_tokens + pass.decode_tokens,
                {seconds, device - seen.device_seconds - (inplace - seen.inplace_seconds),
                 inplace - seen.inplace_seconds, up.busy_seconds - seen.up_seconds,
                 up.bytes - seen.up_bytes});
  seen = {0, device, inplace, up.busy_seconds, up.bytes};
}

// Of this run. Rows in place are multiplied by the host while they hold the device's lane.
LaneStats Engine::Impl::lane_stats(const LaneExecutor& executor, Lane lane) const {
  LaneStats out = executor.stats(lane);
  const double inplace = runner->inplace_seconds() - counted_inplace;
  if (lane == Lane::kDeviceCompute)
    out.busy_seconds = std::max(out.busy_seconds - inplace, 0.0);
  else if (lane == Lane::kHostCompute)
    out.busy_seconds += inplace;
  return out;
}

void Engine::Impl::keep_lane_stats(const LaneExecutor& executor) {
  for (size_t i = 0; i < machine.size(); ++i) {
    const LaneStats stats = lane_stats(executor, Lane(i));
    LaneStats& total = lane_totals[i];
    total.tasks += stats.tasks;
    total.bytes += stats.bytes;
    total.busy_seconds += stats.busy_seconds;
    total.wait_seconds += stats.wait_seconds;
  }
  lane_totals[Lane::kDeviceToHost].bytes += runner->exchanged_down_bytes() - counted_down;
  lane_totals[Lane::kHostToDevice].bytes += runner->exchanged_up_bytes() - counted_up;
  counted_down = runner->exchanged_down_bytes();
  counted_up = runner->exchanged_up_bytes();
  counted_inplace = runner->inplace_seconds();
  events.insert(events.end(), executor.events().begin(), executor.events().end());
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
  return open(std::make_shared<const BoundModel>(BoundModel::open(model_path)), std::move(options));
}

const BoundModel& Engine::model() const noexcept { return impl_->model; }
const policy::Plan& Engine::plan() const noexcept { return impl_->planned.plan; }
const EngineOptions& Engine::options() const noexcept { return impl_->options; }
int64_t Engine::context_tokens() const noexcept { return impl_->planned.context_tokens; }
std::string Engine::io_name() const { return impl_->file_engine->describe(); }
const std::vector<TaskEvent>& Engine::trace() const { return impl_->events; }
const LaneTable& Engine::machine() const noexcept { return impl_->machine; }

std::string Engine::compute_name() const {
  const kernels::QuantisedOptions& compute = impl_->planned.compute;
  const auto is = [&](kernels::ActivationFormat format) { return compute.activations == format; };
  const std::string_view products = is(kernels::ActivationFormat::kInt8)         ? "int8"
                                    : is(kernels::ActivationFormat::kFp8)        ? "fp8"
                                    : compute.compute == kernels::Compute::kBF16 ? "bf16"
                                                                                 : "f32";
  const float sparsity = impl_->planned.attention.front().sparsity;
  const std::string recent_name =
      impl_->recent->is_used()
          ? fmt::format(" (the newest {} tokens {})", impl_->recent->tokens(),
                        kv_format_name(impl_->planned.recent_attention.front().kv_dtype))
          : "";
  return fmt::format("{} weights, {} products{}, {} KV{}, {} threads",
                     impl_->model.shape().weights_name(), products,
                     compute.outlier_threshold > 0 ? " (outliers in f32)" : "",
                     kv_format_name(impl_->planned.kv_dtype) + recent_name,
                     sparsity < 1 ? fmt::format(" (values of {:.3g} % read)", 100 * sparsity) : "",
                     impl_->planned.threads);
}

void Engine::load(std::stop_token cancel) {
  if (impl_->is_loaded) return;
  const Team::Use use(impl_->team);
  const Clock::time_point started = Clock::now();
  // What the passes write first finds its pages there: a budget that the machine can't keep shows
  // now, and the first pass is as fast as the others.
  std::vector<std::span<std::byte>> ranges;
  const auto add = [&](const std::vector<std::span<std::byte>>& more) {
    ranges.insert(ranges.end(), more.begin(), more.end());
  };
  if (!impl_->device || impl_->device->is_in_host_memory()) {
    add({impl_->weights->resident_memory()});
    add(impl_->kv->memory());
    add({impl_->recent->memory(), impl_->hidden->memory(), impl_->workspace.span()});
  }
  add({impl_->weights->inplace_memory(), impl_->weights->host_memory()});
  add(impl_->kv->host_memory());
  add(impl_->kv->swap_memory());
  add({impl_->host_workspace.span()});
  Prefault prefault(ranges, impl_->planned.threads);
  impl_->weights->load_resident(
      impl_->device ? impl_->host_workspace.span() : impl_->workspace.span(),
      [&](const LoadProgress& progress) {
        impl_->totals.loaded_bytes = progress.done_bytes;
        if (impl_->options.load_progress) impl_->options.load_progress(progress);
      },
      cancel);
  prefault.finish();
  impl_->totals.load_seconds = seconds_since(started);
  impl_->is_loaded = true;
}

void Engine::generate(RequestSource& source, GenerationSink& sink, std::stop_token cancel) {
  load(cancel);
  const Team::Use use(impl_->team);
  const Clock::time_point started = Clock::now();
  Impl& impl = *impl_;
  impl.batcher->begin();
  LaneExecutor executor(impl, cancel, impl.machine, impl.options.keep_trace);
  impl.run_began =
      Clock::now() - std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(executor.seconds_since_start()));
  impl.seen = {.inplace_seconds = impl.runner->inplace_seconds()};
  ScheduleGenerator schedule(impl.schedule_shape);
  try {
    for (;;) {
      impl.batcher->admit(source, sink);
      impl.copy_pages(executor, impl.batcher->secure_pages());
      if (!impl.batcher->running().empty()) {
        impl.run_pass(executor, schedule, sink);
      } else if (impl.batcher->is_idle()) {
        source.wait(cancel);
        if (cancel.stop_requested())
          throw Error(ErrorKind::kCancelled, "stopped while waiting for requests");
      } else if (!impl.batcher->has_more()) {
        break;
      }
    }
    executor.finish();
  } catch (...) {
    impl.file_engine->cancel_pending();
    impl.batcher->abort(sink);
    impl.keep_lane_stats(executor);
    impl.totals.wall_seconds += seconds_since(started);
    throw;
  }
  impl.keep_lane_stats(executor);
  impl.totals.wall_seconds += seconds_since(started);
}

EngineStats Engine::stats() const {
  EngineStats out = impl_->totals;
  out.decode_tokens = impl_->tokens.tokens();
  out.first_tokens = impl_->tokens.first_tokens();
  out.peak_memory_bytes = impl_->memory.peak();
  out.peak_disk_bytes = impl_->disk.peak();
  if (impl_->device) {
    out.peak_device_bytes = impl_->device->memory().peak();
    out.device_budget_bytes = impl_->device->memory().limit();
    out.pinned_bytes = impl_->device->pinned_bytes();
    out.pageable_bytes = impl_->device->pageable_bytes();
  }
  out.memory_budget_bytes = impl_->planned.memory_budget_bytes;
  out.disk_budget_bytes = impl_->options.disk_budget_bytes;
  out.machine = impl_->machine;
  for (size_t i = 0; i < out.machine.size(); ++i)
    if (impl_->lane_totals[i].tasks > 0 || impl_->lane_totals[i].busy_seconds > 0)
      out.lanes.emplace_back(Lane(i), impl_->lane_totals[i]);
  out.gathered_bytes = impl_->weights->gathered_bytes();
  out.disk_read_busy_seconds = impl_->file_engine->counters().read_busy_seconds;
  out.kernels = impl_->tally.times();
  return out;
}

}  // namespace sluice
