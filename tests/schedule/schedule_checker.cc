#include "tests/schedule/schedule_checker.h"

#include <algorithm>

namespace sluice {

bool is_load(const Task& task) {
  return task.kind == TaskKind::kLoadWeights || task.kind == TaskKind::kLoadKv ||
         task.kind == TaskKind::kLoadActivations;
}

bool is_store(const Task& task) {
  return task.kind == TaskKind::kStoreKv || task.kind == TaskKind::kStoreActivations;
}

int64_t ring_for(const ScheduleShape& shape, int ahead) {
  std::vector<int64_t> bytes;
  int64_t largest = 0;
  for (const ScheduleSublayer& sublayer : shape.sublayers) {
    bytes.push_back(sublayer.streamed_bytes());
    for (const SchedulePart& part : sublayer.parts) largest = std::max(largest, part.bytes);
  }
  return weight_ring_bytes(bytes, largest, ahead);
}

namespace {
ScheduleShape random_shape(std::mt19937& random, bool small_ring) {
  ScheduleShape shape;
  shape.sublayers.resize(1 + random() % 9);
  const bool all_resident = random() % 5 == 0;
  for (ScheduleSublayer& sublayer : shape.sublayers) {
    if (!all_resident && random() % 4 != 0)
      for (size_t parts = 1 + random() % 4; parts > 0; --parts)
        sublayer.parts.push_back({4096 * (1 + static_cast<int64_t>(random() % 12)), true});
    sublayer.has_attention = random() % 2 == 0;
  }
  shape.weight_ring_bytes = ring_for(shape, small_ring ? 0 : 1 + static_cast<int>(random() % 2));
  if (!small_ring && random() % 2 == 0)
    shape.weight_ring_bytes += 4096 * static_cast<int64_t>(random() % 200);
  shape.kv_slots = 1 + static_cast<int32_t>(random() % 3);
  shape.activation_slots = 1 + static_cast<int32_t>(random() % 4);
  return shape;
}

std::vector<MicroBatchLoad> random_pass(std::mt19937& random) {
  std::vector<MicroBatchLoad> loads(1 + random() % 5);
  const unsigned kv = random() % 3;  // none, some, all micro-batches have KV on disk
  const unsigned activations = random() % 3;
  for (size_t i = 0; i < loads.size(); ++i) {
    const auto has = [&](unsigned how) { return how == 2 || (how == 1 && random() % 2 == 0); };
    if (has(kv)) {
      loads[i].state.resize(1);
      loads[i].state[0].load = static_cast<int64_t>(random() % 3) * 4096;
      loads[i].state[0].store = static_cast<int64_t>(random() % 3) * 4096;
    }
    if (has(activations))
      loads[i].activation_bytes = 4096 * (1 + static_cast<int64_t>(random() % 5));
    loads[i].continues_previous = i > 0 && random() % 3 == 0;
  }
  return loads;
}
}  // namespace

void generate(Stream& stream) {
  stream.tasks.clear();
  stream.first_of_pass.clear();
  ScheduleGenerator generator(stream.shape);
  for (size_t pass = 0; pass < stream.passes.size(); ++pass) {
    stream.first_of_pass.push_back(stream.tasks.size());
    for (Task& task : whole_pass(generator, stream.passes[pass], stream.more_follow[pass]))
      stream.tasks.push_back(std::move(task));
  }
}

Stream random_stream(std::mt19937& random, bool small_ring) {
  Stream stream;
  stream.shape = random_shape(random, small_ring);
  const size_t passes = 1 + random() % 4;
  for (size_t pass = 0; pass < passes; ++pass) {
    stream.passes.push_back(random_pass(random));
    stream.more_follow.push_back(random() % 4 != 0);
  }
  generate(stream);
  return stream;
}

Stream random_device_stream(std::mt19937& random) {
  Stream stream;
  ScheduleShape& shape = stream.shape;
  shape = random_shape(random, random() % 3 == 0);
  shape.kv_slots = 2 + static_cast<int32_t>(random() % 2);
  shape.activation_slots = 2 + static_cast<int32_t>(random() % 3);
  shape.attention_slots = 2 + static_cast<int32_t>(random() % 2);
  for (ScheduleSublayer& sublayer : shape.sublayers)
    for (SchedulePart& part : sublayer.parts) {
      part.from_disk = random() % 2 == 0;
      if (part.from_disk) shape.host_ring_bytes = std::max(shape.host_ring_bytes, part.bytes);
    }
  shape.host_ring_bytes += 4096 * static_cast<int64_t>(random() % 40);
  const bool disk_reaches_device = random() % 3 == 0;
  shape.paths = paths_of_device(disk_reaches_device);
  if (disk_reaches_device) shape.host_ring_bytes = 0;
  const bool on_host = random() % 2 == 0;
  const size_t passes = 1 + random() % 4;
  for (size_t pass = 0; pass < passes; ++pass) {
    stream.passes.push_back(random_pass(random));
    stream.more_follow.push_back(random() % 4 != 0);
    for (MicroBatchLoad& load : stream.passes.back()) {
      const auto some = [&] { return static_cast<int64_t>(random() % 3) * 512; };
      if (load.activation_bytes > 0 || random() % 2 == 0)
        load.activation_up_bytes = load.activation_bytes + some();
      load.state.resize(1);
      StateBytes& state = load.state[0];
      if (on_host) {
        const bool has_lower = state.load + state.store > 0 || random() % 2 == 0;
        state.queries = has_lower ? 512 + some() : 0;
        state.outputs = has_lower ? some() : 0;
      } else {
        state.up = state.load + some();
        state.down = state.store + some();
      }
    }
  }
  generate(stream);
  return stream;
}

void split_groups(Stream& stream, std::mt19937& random) {
  for (ScheduleSublayer& sublayer : stream.shape.sublayers)
    sublayer.state_group = static_cast<int32_t>(random() % 2);
  for (auto& pass : stream.passes)
    for (MicroBatchLoad& load : pass) {
      if (load.state.empty()) load.state.resize(1);
      StateBytes other = load.state.front();
      if (other.load + other.store > 0) {
        other.load = static_cast<int64_t>(random() % 3) * 4096;
        other.store = static_cast<int64_t>(random() % 3) * 4096;
      }
      if (other.up + other.down > 0) {
        other.up = other.load + static_cast<int64_t>(random() % 3) * 512;
        other.down = other.store + static_cast<int64_t>(random() % 3) * 512;
      }
      load.state.push_back(other);
    }
  generate(stream);
}

void share_state(Stream& stream, std::mt19937& random) {
  std::vector<ScheduleSublayer>& sublayers = stream.shape.sublayers;
  for (size_t i = 1; i < sublayers.size(); ++i) {
    const size_t source = random() % i;
    const bool is_source = sublayers[source].has_attention && sublayers[source].reads_from < 0;
    if (!sublayers[i].has_attention || !is_source || random() % 4 == 0) continue;
    sublayers[i].reads_from = static_cast<int32_t>(source);
    sublayers[i].state_group = sublayers[source].state_group;
  }
  for (auto& pass : stream.passes)
    for (MicroBatchLoad& load : pass)
      for (const StateBytes& state : load.state) {
        StateBytes& shared = load.shared.emplace_back(state);
        shared.load += random() % 2 == 0 ? state.store : 0;
        shared.up += random() % 2 == 0 ? state.down : 0;
        shared.store = shared.down = 0;
        shared.queries = state.outputs;
      }
  generate(stream);
}

Times simulate(const std::vector<Task>& tasks, std::mt19937& random) {
  PerLane<std::vector<size_t>> queues;
  for (size_t i = 0; i < tasks.size(); ++i) queues[tasks[i].lane].push_back(i);
  PerLane<size_t> next;
  PerLane<double> lane_free;  // when the lane may start its next task
  Times times{std::vector<double>(tasks.size(), -1), std::vector<double>(tasks.size(), -1)};
  for (size_t done = 0; done < tasks.size();) {
    bool has_moved = false;
    for (size_t lane = 0; lane < queues.size(); ++lane) {
      while (next[lane] < queues[lane].size()) {
        const Task& task = tasks[queues[lane][next[lane]]];
        double start = lane_free[lane];
        bool is_ready = true;
        for (TaskId wait : task.waits) {
          const double end = times.end[static_cast<size_t>(wait)];
          if (end < 0) is_ready = false;
          start = std::max(start, end);
        }
        if (!is_ready) break;
        const size_t index = queues[lane][next[lane]++];
        times.start[index] = start;
        times.end[index] =
            start + 0.001 + static_cast<double>(random() % 1000) * (random() % 8 == 0 ? 1.0 : 0.01);
        // Transfers of a lane overlap and may overtake each other; compute does not.
        lane_free[lane] = task.kind == TaskKind::kCompute ? times.end[index] : start;
        has_moved = true;
        ++done;
      }
    }
    if (!has_moved) return {};
  }
  return times;
}

SureOrder::SureOrder(const std::vector<Task>& tasks)
    : ended_(tasks.size(), std::vector<bool>(tasks.size())) {
  PerLane<int64_t> previous;
  std::fill(previous.begin(), previous.end(), -1);
  const auto join = [&](std::vector<bool>& into, int64_t from) {
    const std::vector<bool>& other = ended_[static_cast<size_t>(from)];
    for (size_t i = 0; i < into.size(); ++i)
      if (other[i]) into[i] = true;
  };
  for (size_t index = 0; index < tasks.size(); ++index) {
    std::vector<bool>& ended = ended_[index];
    for (TaskId wait : tasks[index].waits) {
      join(ended, wait);
      ended[static_cast<size_t>(wait)] = true;
    }
    int64_t& before = previous[tasks[index].lane];
    if (before >= 0) {
      join(ended, before);
      if (tasks[index].kind == TaskKind::kCompute) ended[static_cast<size_t>(before)] = true;
    }
    before = static_cast<int64_t>(index);
  }
}

}  // namespace sluice
