// Three tiers: a schedule run in any order that lanes and waits allow does what it does when run
// task by task. Each task is given the places that it reads and writes; two tasks that touch the
// same place, one of them writing, must be ordered; and run one by one every task must find there
// what it expects.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/schedule/schedule_checker.h"

namespace sluice {
namespace {

enum class Space : uint8_t {
  kRing,
  kHostRing,
  kKvSlot,
  kHostKvSlot,
  kActivationSlot,
  kHostActivationSlot,
  kExchange,
  kHostExchange,
  kHostKv,
  kDiskKv,  // of a sublayer; begin = micro-batch
  kHostRows,
  kDiskRows,  // begin = micro-batch
};

struct Place {
  Space space;
  int64_t begin;
  int64_t end;
  int64_t of = 0;  // sublayer, for KV
  bool overlaps(const Place& other) const {
    return space == other.space && of == other.of && begin < other.end && other.begin < end;
  }
};

struct Touches {
  std::vector<Place> reads;
  std::vector<Place> writes;
};

Place slot(Space space, int32_t index) { return {space, index, index + 1}; }

// KV of all sequences that a pass of the past may have held: a new pass deals them anew.
// Where a layer reads what another keeps it is that one's.
Place kv_home(const Stream& stream, Space space, const Task& task) {
  const int32_t source = stream.shape.sublayers[static_cast<size_t>(task.sublayer)].reads_from;
  return {space, task.micro_batch, task.micro_batch + 1, source < 0 ? task.sublayer : source};
}

// Up the link, or straight from disk.
bool fills_ring(const Task& task) {
  return task.lane == Lane::kHostToDevice || flat(task).host_offset < 0;
}

void touch_load(const Stream& stream, const Task& task, Touches& t) {
  const bool up = task.lane == Lane::kHostToDevice;
  switch (task.kind) {
    case TaskKind::kLoadWeights:
      if (flat(task).host_offset >= 0) {
        const Place host{Space::kHostRing, flat(task).host_offset,
                         flat(task).host_offset + task.bytes};
        (up ? t.reads : t.writes).push_back(host);
      }
      if (fills_ring(task))
        t.writes.push_back({Space::kRing, flat(task).offset, flat(task).offset + task.bytes});
      break;
    case TaskKind::kLoadKv:
      if (!up) {
        t.reads.push_back(kv_home(stream, Space::kDiskKv, task));
        t.writes.push_back(slot(Space::kHostKvSlot, flat(task).host_slot));
        break;
      }
      t.reads.push_back(kv_home(stream, Space::kHostKv, task));
      if (flat(task).host_slot >= 0)
        t.reads.push_back(slot(Space::kHostKvSlot, flat(task).host_slot));
      t.writes.push_back(slot(Space::kKvSlot, flat(task).slot));
      break;
    case TaskKind::kLoadActivations:
      if (!up) {
        if (task.bytes > 0)
          t.reads.push_back({Space::kDiskRows, task.micro_batch, task.micro_batch + 1});
        t.writes.push_back(slot(Space::kHostActivationSlot, flat(task).host_slot));
        break;
      }
      if (task.bytes > 0)
        t.reads.push_back({Space::kHostRows, task.micro_batch, task.micro_batch + 1});
      if (flat(task).host_slot >= 0)
        t.reads.push_back(slot(Space::kHostActivationSlot, flat(task).host_slot));
      t.writes.push_back(slot(Space::kActivationSlot, flat(task).slot));
      break;
    default: break;
  }
}

void touch_store(const Stream& stream, const Task& task, Touches& t) {
  const bool is_kv = task.kind == TaskKind::kStoreKv;
  const Space host_slot = is_kv ? Space::kHostKvSlot : Space::kHostActivationSlot;
  const Place disk = is_kv ? kv_home(stream, Space::kDiskKv, task)
                           : Place{Space::kDiskRows, task.micro_batch, task.micro_batch + 1};
  const Place host = is_kv ? kv_home(stream, Space::kHostKv, task)
                           : Place{Space::kHostRows, task.micro_batch, task.micro_batch + 1};
  if (task.lane == Lane::kDiskWrite) {
    t.reads.push_back(slot(host_slot, flat(task).host_slot));
    t.writes.push_back(disk);
    return;
  }
  t.reads.push_back(slot(is_kv ? Space::kKvSlot : Space::kActivationSlot, flat(task).slot));
  t.writes.push_back(host);
  if (flat(task).host_slot >= 0) t.writes.push_back(slot(host_slot, flat(task).host_slot));
}

Touches touches_of(const Stream& stream, const Task& task) {
  Touches t;
  touch_load(stream, task, t);
  if (is_store(task)) touch_store(stream, task, t);
  if (task.kind == TaskKind::kSendQueries) {
    t.reads.push_back(slot(Space::kExchange, flat(task).attention_slot));
    t.writes.push_back(slot(Space::kHostExchange, flat(task).attention_slot));
  }
  if (task.kind == TaskKind::kReturnOutputs) {
    t.reads.push_back(slot(Space::kHostExchange, flat(task).attention_slot));
    t.writes.push_back(slot(Space::kExchange, flat(task).attention_slot));
  }
  if (task.kind != TaskKind::kCompute) return t;
  if (flat(task).step == ComputeStep::kHostAttention) {
    t.writes.push_back(slot(Space::kHostExchange, flat(task).attention_slot));
    const bool is_reader =
        stream.shape.sublayers[static_cast<size_t>(task.sublayer)].reads_from >= 0;
    (is_reader ? t.reads : t.writes).push_back(kv_home(stream, Space::kHostKv, task));
    if (flat(task).host_slot >= 0)
      t.writes.push_back(slot(Space::kHostKvSlot, flat(task).host_slot));
    return t;
  }
  const auto& parts = stream.shape.sublayers[static_cast<size_t>(task.sublayer)].parts;
  for (size_t i = 0; i < parts.size(); ++i)
    t.reads.push_back(
        {Space::kRing, flat(task).part_offsets[i], flat(task).part_offsets[i] + parts[i].bytes});
  if (flat(task).slot >= 0) t.writes.push_back(slot(Space::kKvSlot, flat(task).slot));
  if (flat(task).activation_slot >= 0)
    t.writes.push_back(slot(Space::kActivationSlot, flat(task).activation_slot));
  if (flat(task).attention_slot >= 0) {
    const bool is_last = flat(task).step == ComputeStep::kAfterAttention;
    (is_last ? t.reads : t.writes).push_back(slot(Space::kExchange, flat(task).attention_slot));
  }
  return t;
}

bool conflict(const Touches& a, const Touches& b) {
  const auto any = [](const std::vector<Place>& x, const std::vector<Place>& y) {
    for (const Place& p : x)
      for (const Place& q : y)
        if (p.overlaps(q)) return true;
    return false;
  };
  return any(a.writes, b.writes) || any(a.writes, b.reads) || any(a.reads, b.writes);
}

template <typename Check>
void for_random_streams(unsigned seed, int rounds, Check check) {
  std::mt19937 random(seed);
  for (int round = 0; round < rounds; ++round) {
    Stream stream = random_device_stream(random);
    if (round % 2 == 1) split_groups(stream, random);
    if (round % 4 >= 2) share_state(stream, random);
    check(stream);
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "round " << round << " of seed " << seed;
      return;
    }
  }
}

TEST(ScheduleHazards, TasksThatTouchTheSamePlaceAreOrdered) {
  int64_t conflicts = 0;
  for_random_streams(31, 250, [&](const Stream& stream) {
    const SureOrder order(stream.tasks);
    std::vector<Touches> touches;
    for (const Task& task : stream.tasks) touches.push_back(touches_of(stream, task));
    for (size_t later = 0; later < stream.tasks.size(); ++later)
      for (size_t first = 0; first < later; ++first) {
        if (!conflict(touches[first], touches[later])) continue;
        ++conflicts;
        ASSERT_TRUE(order.ends_before(static_cast<TaskId>(first), static_cast<TaskId>(later)))
            << task_kind_name(stream.tasks[first].kind) << " " << first << " on "
            << lane_name(named_lanes(), stream.tasks[first].lane) << " and "
            << task_kind_name(stream.tasks[later].kind) << " " << later << " on "
            << lane_name(named_lanes(), stream.tasks[later].lane);
      }
  });
  EXPECT_GT(conflicts, 10000);
}

TEST(ScheduleHazards, LanesNeverBlockEachOther) {
  std::mt19937 random(32);
  for_random_streams(32, 250, [&](const Stream& stream) {
    for (int interleaving = 0; interleaving < 3; ++interleaving)
      ASSERT_EQ(simulate(stream.tasks, random).end.size(), stream.tasks.size())
          << "the lanes block each other";
  });
}

// What a place holds: which pass, sublayer, micro-batch or part put it there.
using Tag = std::string;
Tag tag_of(const Task& task, const char* what) {
  return std::string(what) + " " + std::to_string(task.pass) + "." + std::to_string(task.sublayer) +
         "." + std::to_string(task.micro_batch);
}

TEST(ScheduleHazards, RunOneByOneEveryTaskFindsWhatItNeeds) {
  int64_t cut = 0, direct = 0;
  for_random_streams(33, 250, [&](const Stream& stream) {
    std::map<std::pair<Space, int64_t>, Tag> held;
    for (const Task& task : stream.tasks) {
      const auto at = [&](Space space, int64_t index) -> Tag& { return held[{space, index}]; };
      const Tag part = "part " + std::to_string(task.pass) + "." + std::to_string(task.sublayer) +
                       "." + std::to_string(flat(task).part);
      const bool up = task.lane == Lane::kHostToDevice;
      if (task.kind == TaskKind::kLoadWeights) {
        ASSERT_TRUE(stream.shape.paths.weights_from_disk.stops_between() > 0 ||
                    flat(task).host_offset < 0);
        direct += !up && flat(task).host_offset < 0 ? 1 : 0;
        if (!up && flat(task).host_offset >= 0) at(Space::kHostRing, flat(task).host_offset) = part;
        if (up && flat(task).host_offset >= 0) {
          ASSERT_EQ(at(Space::kHostRing, flat(task).host_offset), part);
        }
        if (fills_ring(task)) at(Space::kRing, flat(task).offset) = part;
      }
      if (task.kind == TaskKind::kLoadKv)
        (up ? at(Space::kKvSlot, flat(task).slot) : at(Space::kHostKvSlot, flat(task).host_slot)) =
            tag_of(task, "KV");
      if (task.kind == TaskKind::kLoadActivations && up)
        at(Space::kActivationSlot, flat(task).slot) = tag_of(task, "rows");
      if (task.kind == TaskKind::kSendQueries)
        at(Space::kHostExchange, flat(task).attention_slot) = tag_of(task, "q");
      if (task.kind == TaskKind::kReturnOutputs) {
        ASSERT_EQ(at(Space::kHostExchange, flat(task).attention_slot), tag_of(task, "out"));
        at(Space::kExchange, flat(task).attention_slot) = tag_of(task, "out");
      }
      if (task.kind != TaskKind::kCompute) continue;
      if (flat(task).step == ComputeStep::kHostAttention) {
        ASSERT_EQ(task.lane, Lane::kHostCompute);
        ASSERT_EQ(at(Space::kHostExchange, flat(task).attention_slot), tag_of(task, "q"));
        if (flat(task).host_slot >= 0) {
          ASSERT_EQ(at(Space::kHostKvSlot, flat(task).host_slot), tag_of(task, "KV"));
        }
        at(Space::kHostExchange, flat(task).attention_slot) = tag_of(task, "out");
        ++cut;
        continue;
      }
      ASSERT_EQ(task.lane, Lane::kDeviceCompute);
      for (size_t i = 0; i < flat(task).part_offsets.size(); ++i)
        ASSERT_EQ(at(Space::kRing, flat(task).part_offsets[i]),
                  "part " + std::to_string(task.pass) + "." + std::to_string(task.sublayer) + "." +
                      std::to_string(i));
      if (flat(task).slot >= 0) {
        ASSERT_EQ(at(Space::kKvSlot, flat(task).slot), tag_of(task, "KV"));
      }
      if (flat(task).activation_slot >= 0) {
        ASSERT_EQ(at(Space::kActivationSlot, flat(task).activation_slot), tag_of(task, "rows"));
      }
      if (flat(task).step == ComputeStep::kAfterAttention) {
        ASSERT_EQ(at(Space::kExchange, flat(task).attention_slot), tag_of(task, "out"));
      } else if (flat(task).attention_slot >= 0) {
        at(Space::kExchange, flat(task).attention_slot) = tag_of(task, "q");
      }
    }
  });
  EXPECT_GT(cut, 500);
  EXPECT_GT(direct, 100);
}

TEST(ScheduleHazards, EqualStreamsHaveEqualHashesAndOthersDiffer) {
  std::mt19937 random(34);
  const Stream stream = random_device_stream(random);
  Stream again = stream;
  generate(again);
  const auto hash_of = [](const std::vector<Task>& tasks) {
    uint64_t hash = 0;
    for (const Task& task : tasks) hash = fold_task(hash, task);
    return hash;
  };
  EXPECT_EQ(hash_of(again.tasks), hash_of(stream.tasks));
  for (size_t i = 0; i < again.tasks.size(); ++i) {
    std::vector<Task> changed = stream.tasks;
    changed[i].waits.push_back(0);
    EXPECT_NE(hash_of(changed), hash_of(stream.tasks));
    changed[i] = stream.tasks[i];
    changed[i].micro_batch += 1;
    EXPECT_NE(hash_of(changed), hash_of(stream.tasks));
    if (auto* load = std::get_if<PartLoad>(&(changed[i] = stream.tasks[i]).work)) {
      load->part += 1;
      EXPECT_NE(hash_of(changed), hash_of(stream.tasks));
    }
    changed[i] = stream.tasks[i];
    changed[i].bytes += 1;
    EXPECT_EQ(hash_of(changed), hash_of(stream.tasks)) << "bytes are not identity";
  }
}

}  // namespace
}  // namespace sluice
