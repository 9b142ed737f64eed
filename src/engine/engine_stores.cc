#include "src/engine/engine_stores.h"

#include <algorithm>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/device/memory_limit.h"
#include "src/engine/stores/foreign_import.h"

namespace sluice {

namespace {
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

// Empty where nothing will be written: a missing temporary folder is no trouble then.
std::string offload_folder(const EngineOptions& options, const policy::Plan& plan) {
  if (!options.offload_dir.empty()) return options.offload_dir;
  return plan.disk_bytes() > 0 || options.swap_bytes > 0 ? temporary_folder() : std::string();
}
}  // namespace

EngineStores::EngineStores(const BoundModel& of_model, const EngineOptions& options,
                           const EnginePlan& planned)
    : model(of_model),
      memory(options.device || options.backend ? "host memory" : "memory",
             planned.memory_budget_bytes,
             options.backend ? options.backend->device().host_memory_source() : nullptr),
      disk("disk", options.disk_budget_bytes > 0 ? options.disk_budget_bytes : INT64_MAX / 2),
      file_engine(make_main_engine(options, planned.plan)),
      gather_engine(make_gather_engine(options)) {
  const policy::Plan& plan = planned.plan;
  const std::string folder = offload_folder(options, plan);
  if (options.device) emulated = std::make_unique<EmulatedDevice>(*options.device);
  device = options.backend ? &options.backend->device() : emulated.get();
  Arena& compute_memory = device ? device->memory() : memory;
  weights = std::make_unique<WeightStore>(
      model, plan,
      WeightReaders{*file_engine, *gather_engine,
                    options.backend ? options.backend->direct_reader() : nullptr,
                    packed_repack_threads(planned.threads)},
      device, compute_memory, memory);
  adapters = std::make_unique<AdapterBank>(model, options.adapters, compute_memory, device);
  kv = std::make_unique<KvStore>(plan, *file_engine, folder, options.swap_bytes, compute_memory,
                                 memory, disk);
  recent = std::make_unique<RecentKv>(plan, planned.recent_attention, compute_memory);
  hidden = std::make_unique<HiddenStore>(model.shape(), plan, *file_engine, folder, compute_memory,
                                         memory, disk);
  exchange = std::make_unique<AttentionExchange>(model.shape(), plan, compute_memory, memory);
  workspace = compute_memory.allocate(planned.workspace_bytes, "workspace");
  // Runners copy from and to it themselves.
  host_workspace = memory.allocate(plan.host_workspace_bytes, "workspace", Registration::kWhole);
  expert_answers =
      compute_memory.allocate(plan.expert_answers(model.shape()) * 4, "experts' answers");
}

void EngineStores::transfer(const Task& task, const LaneTable& machine, const PassPlan& pass,
                            std::function<void(std::exception_ptr)> done) {
  if (machine[static_cast<size_t>(task.lane)].touches(Place::Kind::kDisk))
    return use_disk(task, pass, std::move(done));
  use_link(task, machine, pass);
  done(nullptr);
}

void EngineStores::use_disk(const Task& task, const PassPlan& pass,
                            std::function<void(std::exception_ptr)> done) {
  const auto index = static_cast<size_t>(task.micro_batch);
  const StatePlace& at = model.shape().sublayers[static_cast<size_t>(task.sublayer)].state;
  if (task.kind == TaskKind::kLoadWeights) return weights->read_part(task, std::move(done));
  const int32_t slot = task.state_move().disk_slot();
  switch (task.kind) {
    case TaskKind::kLoadKv: return kv->load(*pass.micro_batches[index], at, slot, std::move(done));
    case TaskKind::kStoreKv:
      return kv->store(*pass.micro_batches[index], at, slot, std::move(done));
    case TaskKind::kLoadActivations:
      return task.bytes == 0 ? done(nullptr) : hidden->load(index, slot, std::move(done));
    case TaskKind::kStoreActivations: return hidden->store(index, slot, std::move(done));
    default: break;
  }
  SLUICE_ASSERT(false, "the disk moves weights, KV and activations");
}

void EngineStores::use_link(const Task& task, const LaneTable& machine, const PassPlan& pass) {
  const auto index = static_cast<size_t>(task.micro_batch);
  const StatePlace& at = model.shape().sublayers[static_cast<size_t>(task.sublayer)].state;
  if (task.bytes == 0) return;
  const auto batch = [&]() -> const MicroBatch& { return *pass.micro_batches[index]; };
  const auto slot = [&] { return task.state_move().slot; };
  const auto exchanged = [&] { return task.attention_move().slot; };
  const auto make_copies = [&](const Device::Copy& copy) {
    switch (task.kind) {
      case TaskKind::kLoadWeights: weights->copy_part(task, copy); break;
      case TaskKind::kLoadKv: kv->copy_up(batch(), at, slot(), copy); break;
      case TaskKind::kStoreKv: kv->copy_down(batch(), at, slot(), copy); break;
      case TaskKind::kLoadActivations: hidden->copy_up(index, slot(), copy); break;
      case TaskKind::kStoreActivations: hidden->copy_down(index, slot(), copy); break;
      case TaskKind::kSendQueries: exchange->copy_down(batch(), at, exchanged(), copy); break;
      case TaskKind::kReturnOutputs: exchange->copy_up(batch(), at.group, exchanged(), copy); break;
      case TaskKind::kCompute: SLUICE_ASSERT(false, "compute runs on the compute lanes");
    }
  };
  const bool is_up = machine[static_cast<size_t>(task.lane)].to.kind == Place::Kind::kDevice;
  device->transfer(is_up ? Direction::kUp : Direction::kDown, task.bytes, make_copies);
}

std::vector<MicroBatchLoad> EngineStores::loads_of(const PassPlan& pass) const {
  std::vector<MicroBatchLoad> loads;
  const auto groups = static_cast<int32_t>(model.shape().state_groups.size());
  const bool has_readers = model.shape().has_readers();
  for (size_t i = 0; i < pass.micro_batches.size(); ++i) {
    const MicroBatch& batch = *pass.micro_batches[i];
    MicroBatchLoad& load = loads.emplace_back();
    for (int32_t group = 0; group < groups; ++group) {
      const ExchangedBytes exchanged = exchange->bytes(batch, group, false);
      load.state.push_back({kv->load_bytes(batch, group), kv->store_bytes(batch, group),
                            kv->up_bytes(batch, group), kv->down_bytes(batch, group),
                            exchanged.queries, exchanged.outputs});
      if (!has_readers) continue;
      const ExchangedBytes asked = exchange->bytes(batch, group, true);
      load.shared.push_back({kv->shared_load_bytes(batch, group), 0,
                             kv->shared_up_bytes(batch, group), 0, asked.queries, asked.outputs});
    }
    load.activation_bytes = hidden->disk_bytes(i);
    load.continues_previous = batch.continues_previous;
    load.activation_up_bytes = hidden->up_bytes(i);
  }
  return loads;
}

// What the passes write first finds its pages there: a budget that the machine can't keep shows
// now, and the first pass is as fast as the others.
std::vector<std::span<std::byte>> EngineStores::memory_to_fault() {
  std::vector<std::span<std::byte>> ranges;
  const auto add = [&](const std::vector<std::span<std::byte>>& more) {
    ranges.insert(ranges.end(), more.begin(), more.end());
  };
  if (!device || device->is_in_host_memory()) {
    add({weights->resident_memory(), expert_answers.span()});
    add(kv->memory());
    add({recent->memory(), hidden->memory(), workspace.span()});
  }
  add({weights->slot_memory(), weights->inplace_memory(), weights->host_memory()});
  add(kv->host_memory());
  add(kv->swap_memory());
  add({host_workspace.span()});
  return ranges;
}

void EngineStores::load_resident(const WeightStore::HeldLists& held,
                                 const std::function<void(const LoadProgress&)>& progress,
                                 std::stop_token cancel) {
  weights->load_resident(device ? host_workspace.span() : workspace.span(), held, progress, cancel);
}

}  // namespace sluice
