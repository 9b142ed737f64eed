#include "src/schedule/schedule.h"

#include <algorithm>

#include "src/base/error.h"

namespace sluice {

std::string_view lane_name(Lane lane) noexcept {
  constexpr std::string_view names[] = {"disk read",      "disk write",     "host to device",
                                        "device to host", "device compute", "host compute"};
  return names[static_cast<size_t>(lane)];
}

std::string_view task_kind_name(TaskKind kind) noexcept {
  constexpr std::string_view names[] = {"load weights", "load KV",       "load activations",
                                        "compute",      "store KV",      "store activations",
                                        "send queries", "return outputs"};
  return names[static_cast<size_t>(kind)];
}

int64_t ScheduleSublayer::streamed_bytes() const noexcept {
  int64_t bytes = 0;
  for (const SchedulePart& part : parts) bytes += part.bytes;
  return bytes;
}

int64_t ScheduleSublayer::disk_bytes() const noexcept {
  int64_t bytes = 0;
  for (const SchedulePart& part : parts) bytes += part.from_disk ? part.bytes : 0;
  return bytes;
}

ScheduleGenerator::ScheduleGenerator(ScheduleShape shape)
    : shape_(std::move(shape)),
      ring_(shape_.weight_ring_bytes),
      weight_loads_(shape_.sublayers.size()),
      weight_offsets_(shape_.sublayers.size()),
      host_ring_(shape_.host_ring_bytes),
      kv_slots_(static_cast<size_t>(shape_.kv_slots), kNoTask),
      host_kv_slots_(static_cast<size_t>(shape_.kv_slots), kNoTask),
      activation_slots_(static_cast<size_t>(shape_.activation_slots), kNoTask),
      host_activation_slots_(static_cast<size_t>(shape_.activation_slots), kNoTask),
      attention_slots_(static_cast<size_t>(shape_.attention_slots), kNoTask),
      kv_stores_(shape_.sublayers.size()) {
  SLUICE_ASSERT(!shape_.sublayers.empty(), "a model has sublayers");
  for (const ScheduleSublayer& sublayer : shape_.sublayers) {
    SLUICE_ASSERT(sublayer.streamed_bytes() <= shape_.weight_ring_bytes, "the plan sizes the ring");
    if (!shape_.has_device || shape_.disk_reaches_device) continue;
    for (const SchedulePart& part : sublayer.parts)
      SLUICE_ASSERT(!part.from_disk || part.bytes <= shape_.host_ring_bytes,
                    "the plan sizes the host's ring");
  }
}

Task& ScheduleGenerator::add(std::vector<Task>& out, TaskKind kind, Lane lane, int32_t sublayer,
                             int32_t micro_batch) {
  Task& task = out.emplace_back();
  task.id = next_id_++;
  task.kind = kind;
  task.lane = lane;
  task.pass = pass_;
  task.sublayer = sublayer;
  task.micro_batch = micro_batch;
  return task;
}

// Decides, at the start of column `running`, which parts the ring can take beside it.
void ScheduleGenerator::plan_weight_loads(int64_t running, bool more_follow) {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  const int64_t pass_end = (pass_ + 1) * count;
  // Not beyond one whole round: a sublayer's places belong to one pass at a time.
  const int64_t limit = std::min(more_follow ? pass_end + count : pass_end, running + count);
  ring_.release_before(running);
  pending_.clear();
  for (; next_load_ < limit; ++next_load_, next_part_ = 0) {
    const auto sublayer = static_cast<size_t>(next_load_ % count);
    const std::vector<SchedulePart>& parts = shape_.sublayers[sublayer].parts;
    if (next_part_ == 0) {
      weight_loads_[sublayer].clear();
      weight_offsets_[sublayer].clear();
    }
    for (; next_part_ < static_cast<int32_t>(parts.size()); ++next_part_) {
      const auto offset = ring_.place(next_load_, parts[static_cast<size_t>(next_part_)].bytes);
      if (!offset) break;
      weight_offsets_[sublayer].push_back(*offset);
      pending_.push_back({next_load_, next_part_, *offset});
    }
    if (next_part_ < static_cast<int32_t>(parts.size())) break;
  }
  SLUICE_ASSERT(next_load_ > running, "the ring holds at least the current sublayer");
}

// The disk's half of a load through host memory. It waits only for room there, so that the disk
// runs ahead of the link as far as the host's ring allows. The caller adds the copy that empties
// it.
TaskId ScheduleGenerator::read_to_host(std::vector<Task>& out, const PendingLoad& load,
                                       int32_t micro_batch, int64_t bytes, int64_t* host_offset) {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  std::vector<TaskId> waits;
  auto offset = host_ring_.place(next_host_part_, bytes);
  while (!offset) {
    SLUICE_ASSERT(!host_parts_.empty(), "an empty ring takes any part");
    waits.push_back(host_parts_.front().second);
    host_ring_.release_before(host_parts_.front().first + 1);
    host_parts_.pop_front();
    offset = host_ring_.place(next_host_part_, bytes);
  }
  *host_offset = *offset;
  Task& task = add(out, TaskKind::kLoadWeights, Lane::kDiskRead,
                   static_cast<int32_t>(load.running % count), micro_batch);
  task.pass = load.running / count;
  task.part = load.part;
  task.host_offset = *offset;
  task.bytes = bytes;
  task.waits = std::move(waits);
  return task.id;
}

// Tasks for the pending parts [first, last).
void ScheduleGenerator::load_weights(std::vector<Task>& out, size_t first, size_t last,
                                     int32_t micro_batch) {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  for (size_t i = first; i < last; ++i) {
    const PendingLoad& load = pending_[i];
    const auto sublayer = static_cast<int32_t>(load.running % count);
    const auto index = static_cast<size_t>(sublayer);
    const SchedulePart& part = shape_.sublayers[index].parts[static_cast<size_t>(load.part)];
    const bool is_only_read = part.from_disk && (!shape_.has_device || shape_.disk_reaches_device);
    const bool goes_through_host = part.from_disk && !is_only_read;
    int64_t host_offset = -1;
    TaskId read = kNoTask;
    if (goes_through_host) read = read_to_host(out, load, micro_batch, part.bytes, &host_offset);
    Task& task = add(out, TaskKind::kLoadWeights,
                     is_only_read ? Lane::kDiskRead : Lane::kHostToDevice, sublayer, micro_batch);
    task.pass = load.running / count;
    task.part = load.part;
    task.offset = load.offset;
    task.host_offset = host_offset;
    task.bytes = part.bytes;
    if (goes_through_host) {
      task.waits.push_back(read);
      host_parts_.emplace_back(next_host_part_++, task.id);
    }
    // The ring was placed with everything before the current column released.
    if (last_column_compute_ != kNoTask) task.waits.push_back(last_column_compute_);
    weight_loads_[index].push_back(task.id);
  }
}

// Whether the sublayer's compute is cut in three around attention on the host. Where only fresh
// prompts send their keys and values down, nothing comes back up and the device need not stop.
bool ScheduleGenerator::is_cut(int32_t sublayer, const MicroBatchLoad& load) const noexcept {
  return shape_.sublayers[static_cast<size_t>(sublayer)].has_attention && load.output_bytes > 0;
}

void ScheduleGenerator::compute(std::vector<Task>& out, const Loads& loads, int32_t sublayer,
                                int32_t micro_batch) {
  const MicroBatchLoad& load = loads[static_cast<size_t>(micro_batch)];
  MicroBatchState& state = state_[static_cast<size_t>(micro_batch)];
  const auto index = static_cast<size_t>(sublayer);
  const bool attends = shape_.sublayers[index].has_attention;
  const bool on_host = attends && load.attends_on_host();
  const bool stages_kv = attends && moves_kv(load) && !on_host;

  Task& task = add(out, TaskKind::kCompute, Lane::kDeviceCompute, sublayer, micro_batch);
  if (is_cut(sublayer, load)) task.step = ComputeStep::kBeforeAttention;
  task.part_offsets = weight_offsets_[index];
  task.waits = weight_loads_[index];
  if (stages_kv) {
    task.slot = state.kv_slot;
    task.waits.push_back(state.kv_load);
  }
  if (moves_activations(load)) {
    task.activation_slot = state.activation_slot;
    task.waits.push_back(state.activation_load);
  }
  if (on_host) {
    state.attention_slot = static_cast<int32_t>(attention_slot_counter_++ % shape_.attention_slots);
    task.attention_slot = state.attention_slot;
    const TaskId last = attention_slots_[static_cast<size_t>(state.attention_slot)];
    if (last != kNoTask) task.waits.push_back(last);
  }
  state.compute = task.id;
  const TaskId id = task.id;
  if (stages_kv) store_kv(out, sublayer, micro_batch, load, id);
  if (on_host) attend_on_host(out, sublayer, micro_batch, load);
  if (!is_cut(sublayer, load)) store_activations(out, sublayer, micro_batch, load);
}

void ScheduleGenerator::attend_on_host(std::vector<Task>& out, int32_t sublayer,
                                       int32_t micro_batch, const MicroBatchLoad& load) {
  MicroBatchState& state = state_[static_cast<size_t>(micro_batch)];
  Task& send = add(out, TaskKind::kSendQueries, Lane::kDeviceToHost, sublayer, micro_batch);
  send.attention_slot = state.attention_slot;
  send.bytes = load.query_bytes;
  send.waits = {state.compute};
  const TaskId sent = send.id;
  Task& attend = add(out, TaskKind::kCompute, Lane::kHostCompute, sublayer, micro_batch);
  attend.step = ComputeStep::kHostAttention;
  attend.attention_slot = state.attention_slot;
  attend.waits = {sent};
  const bool stages_kv = moves_kv(load);
  if (stages_kv) {
    attend.host_slot = state.kv_slot;
    attend.waits.push_back(state.kv_load);
  }
  state.host_attention = attend.id;
  attention_slots_[static_cast<size_t>(state.attention_slot)] = attend.id;
  const TaskId attended = attend.id;
  if (stages_kv) store_kv(out, sublayer, micro_batch, load, attended);
}

// The third part of a cut sublayer, one micro-batch later, so that the device computes the next one
// while the host attends.
void ScheduleGenerator::finish_attention(std::vector<Task>& out, const Loads& loads,
                                         int32_t sublayer, int32_t micro_batch) {
  const MicroBatchLoad& load = loads[static_cast<size_t>(micro_batch)];
  if (!is_cut(sublayer, load)) return;
  MicroBatchState& state = state_[static_cast<size_t>(micro_batch)];
  const auto index = static_cast<size_t>(sublayer);
  Task& back = add(out, TaskKind::kReturnOutputs, Lane::kHostToDevice, sublayer, micro_batch);
  back.attention_slot = state.attention_slot;
  back.bytes = load.output_bytes;
  back.waits = {state.host_attention};
  const TaskId returned = back.id;
  Task& task = add(out, TaskKind::kCompute, Lane::kDeviceCompute, sublayer, micro_batch);
  task.step = ComputeStep::kAfterAttention;
  task.attention_slot = state.attention_slot;
  task.part_offsets = weight_offsets_[index];
  task.waits = weight_loads_[index];
  task.waits.push_back(returned);
  if (moves_activations(load)) task.activation_slot = state.activation_slot;
  attention_slots_[static_cast<size_t>(state.attention_slot)] = task.id;
  state.compute = task.id;
  store_activations(out, sublayer, micro_batch, load);
}

std::vector<Task> ScheduleGenerator::next_pass(const std::vector<MicroBatchLoad>& micro_batches,
                                               bool more_follow) {
  SLUICE_ASSERT(!micro_batches.empty(), "a pass has micro-batches");
  const auto sublayers = static_cast<int32_t>(shape_.sublayers.size());
  const auto count = static_cast<int32_t>(micro_batches.size());
  std::vector<Task> out;
  out.reserve(static_cast<size_t>(sublayers) * static_cast<size_t>(count) * 4);
  state_.assign(static_cast<size_t>(count), {});
  for (int32_t sublayer = 0; sublayer < sublayers; ++sublayer) {
    const int64_t running = pass_ * sublayers + sublayer;
    plan_weight_loads(running, more_follow);
    // What the column itself still lacks (a ring too small to look ahead) comes before its first
    // step; the rest is spread over its steps.
    const auto late = static_cast<size_t>(
        std::count_if(pending_.begin(), pending_.end(),
                      [&](const PendingLoad& load) { return load.running == running; }));
    load_weights(out, 0, late, 0);
    const size_t ahead = pending_.size() - late;
    for (int32_t micro_batch = 0; micro_batch < count; ++micro_batch) {
      const MicroBatchLoad& load = micro_batches[static_cast<size_t>(micro_batch)];
      const auto step = static_cast<size_t>(micro_batch);
      const auto steps = static_cast<size_t>(count);
      load_weights(out, late + (ahead * step + steps - 1) / steps,
                   late + (ahead * (step + 1) + steps - 1) / steps, micro_batch);
      load_activations(out, sublayer, micro_batch, load);
      load_kv(out, sublayer, micro_batch, load);
      compute(out, micro_batches, sublayer, micro_batch);
      if (micro_batch > 0) finish_attention(out, micro_batches, sublayer, micro_batch - 1);
      prefetch(out, micro_batches, sublayer, micro_batch);
    }
    finish_attention(out, micro_batches, sublayer, count - 1);
    last_column_compute_ = kNoTask;
    for (const MicroBatchState& state : state_)
      last_column_compute_ = std::max(last_column_compute_, state.compute);
  }
  for (KvStores& stores : kv_stores_) {
    if (stores.this_pass.empty())
      continue;  // what an earlier pass stored still has to be waited for
    stores.last_pass = std::move(stores.this_pass);
    stores.this_pass.clear();
  }
  ++pass_;
  return out;
}

}  // namespace sluice
