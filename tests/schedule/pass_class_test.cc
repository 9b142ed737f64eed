// Passes of classes that load different parts: what is loaded ahead for the pass that was expected
// is used where that one comes, and makes room, in time, where another does.
#include <gtest/gtest.h>

#include <random>

#include "src/schedule/schedule.h"
#include "tests/rounds.h"
#include "tests/schedule/schedule_checker.h"

namespace sluice {
namespace {

constexpr size_t kClasses = 3;

struct ClassStream {
  Stream stream;
  std::vector<PassClasses> classes;
  uint64_t mistaken = 0;  // passes that came of another class than was expected
};

// The rings just take what the largest class wants.
ClassStream class_stream(std::mt19937& random) {
  ClassStream out{random_device_stream(random), {}};
  ScheduleShape& shape = out.stream.shape;
  shape.weight_ring_bytes = 0;
  for (ScheduleSublayer& sublayer : shape.sublayers)
    for (SchedulePart& part : sublayer.parts)
      if (random() % 2 == 0) part.classes = random() % (1 << kClasses);
  const int ahead = static_cast<int>(random() % 3);
  for (size_t c = 0; c < kClasses; ++c) {
    ScheduleShape one = shape;
    for (ScheduleSublayer& sublayer : one.sublayers)
      std::erase_if(sublayer.parts,
                    [&](const SchedulePart& part) { return !part.is_loaded_in(c); });
    shape.weight_ring_bytes = std::max(shape.weight_ring_bytes, ring_for(one, ahead));
  }
  std::vector<MicroBatchLoad> extra = out.stream.passes.front();
  while (out.stream.passes.size() < 6) {
    out.stream.passes.push_back(extra);
    out.stream.more_follow.push_back(random() % 4 != 0);
  }
  size_t expected = 0;
  ScheduleGenerator generator(shape);
  out.stream.tasks.clear();
  for (size_t pass = 0; pass < out.stream.passes.size(); ++pass) {
    PassClasses classes;
    classes.now = random() % 3 == 0 ? random() % kClasses : expected;
    out.mistaken += classes.now != expected;
    classes.next = expected = random() % kClasses;
    out.classes.push_back(classes);
    generator.begin_pass(out.stream.passes[pass], out.stream.more_follow[pass], classes);
    while (generator.has_column())
      for (Task& task : generator.next_column()) out.stream.tasks.push_back(std::move(task));
  }
  return out;
}

struct Region {
  int64_t begin, end;
  bool overlaps(const Region& other) const { return begin < other.end && other.begin < end; }
};

TEST(PassClass, EachPassComputesWithThePartsOfItsClass) {
  std::mt19937 random(71);
  uint64_t mistaken = 0;
  for (int round = 0; round < rounds(300); ++round) {
    const ClassStream one = class_stream(random);
    mistaken += one.mistaken;
    const ScheduleShape& shape = one.stream.shape;
    ASSERT_EQ(simulate(one.stream.tasks, random).end.size(), one.stream.tasks.size()) << "blocked";
    for (const Task& task : one.stream.tasks) {
      if (task.kind != TaskKind::kCompute || task.compute().step == ComputeStep::kHostAttention)
        continue;
      const auto& parts = shape.sublayers[static_cast<size_t>(task.sublayer)].parts;
      const std::vector<int64_t>& offsets = task.compute().part_offsets;
      ASSERT_EQ(offsets.size(), parts.size());
      std::vector<Region> live;
      for (size_t i = 0; i < parts.size(); ++i) {
        ASSERT_EQ(offsets[i] >= 0,
                  parts[i].is_loaded_in(one.classes[static_cast<size_t>(task.pass)].now));
        if (offsets[i] < 0) continue;
        const Region region{offsets[i], offsets[i] + parts[i].bytes};
        ASSERT_LE(region.end, shape.weight_ring_bytes);
        for (const Region& other : live) ASSERT_FALSE(region.overlaps(other));
        live.push_back(region);
        // Of the loads of this part for this pass the last one counts, and is waited for.
        TaskId last = kNoTask;
        for (const Task& load : one.stream.tasks) {
          if (load.id > task.id) break;
          if (load.kind == TaskKind::kLoadWeights && load.pass == task.pass &&
              load.sublayer == task.sublayer && load.part_load().part == static_cast<int32_t>(i) &&
              load.lane == shape.paths.weights(parts[i].from_disk).hops.back().up)
            last = load.id;
        }
        ASSERT_NE(last, kNoTask);
        ASSERT_EQ(one.stream.tasks[static_cast<size_t>(last)].part_load().offset, offsets[i]);
        ASSERT_NE(std::find(task.waits.begin(), task.waits.end(), last), task.waits.end());
      }
    }
  }
  EXPECT_GT(mistaken, 100u);
}

// A load into the ring starts when whoever used that room before has ended: a compute task that
// reads it, or the load of a pass that did not come.
TEST(PassClass, RoomInTheRingIsFilledAgainOnlyWhenItIsFree) {
  std::mt19937 random(72);
  for (int round = 0; round < rounds(120); ++round) {
    const ClassStream one = class_stream(random);
    const ScheduleShape& shape = one.stream.shape;
    const SureOrder order(one.stream.tasks);
    std::vector<std::pair<Region, TaskId>> uses;  // of the ring, by tasks before
    for (const Task& task : one.stream.tasks) {
      const auto& parts = shape.sublayers[static_cast<size_t>(task.sublayer)].parts;
      if (task.kind == TaskKind::kLoadWeights) {
        const SchedulePart& part = parts[static_cast<size_t>(task.part_load().part)];
        if (task.lane != shape.paths.weights(part.from_disk).hops.back().up) continue;
        const int64_t offset = task.part_load().offset;
        const Region region{offset, offset + part.bytes};
        for (const auto& [used, by] : uses)
          if (used.overlaps(region)) {
            ASSERT_TRUE(order.ends_before(by, task.id)) << "round " << round;
          }
        uses.emplace_back(region, task.id);
      } else if (task.kind == TaskKind::kCompute) {
        const std::vector<int64_t>& offsets = task.compute().part_offsets;
        for (size_t i = 0; i < offsets.size(); ++i)
          if (offsets[i] >= 0)
            uses.emplace_back(Region{offsets[i], offsets[i] + parts[i].bytes}, task.id);
      }
    }
  }
}

ScheduleShape two_class_shape() {
  ScheduleShape shape;
  shape.paths = paths_of_device(false);
  shape.sublayers.resize(4);
  for (ScheduleSublayer& sublayer : shape.sublayers)
    sublayer.parts = {{4096, false}, {8192, false, 0b10}};
  shape.weight_ring_bytes = 1 << 20;
  return shape;
}

int64_t loads_of(ScheduleGenerator& generator, bool more_follow, PassClasses classes) {
  int64_t bytes = 0;
  generator.begin_pass({{}}, more_follow, classes);
  while (generator.has_column())
    for (const Task& task : generator.next_column()) bytes += task.bytes;
  return bytes;
}

TEST(PassClass, LoadsAheadForTheClassThatIsExpected) {
  ScheduleGenerator generator(two_class_shape());
  // Four sublayers of its own, and all four of the next pass into a ring with room for them.
  EXPECT_EQ(loads_of(generator, true, {1, 0}), 4 * 12288 + 3 * 4096);
  EXPECT_EQ(loads_of(generator, true, {0, 0}), 1 * 4096 + 3 * 4096);
  EXPECT_EQ(loads_of(generator, true, {0, 1}), 1 * 4096 + 3 * 12288);
  EXPECT_EQ(loads_of(generator, false, {1, 1}), 1 * 12288);
}

TEST(PassClass, LoadsAgainWhereAnotherClassComes) {
  ScheduleGenerator generator(two_class_shape());
  EXPECT_EQ(loads_of(generator, true, {0, 0}), 4 * 4096 + 3 * 4096);
  EXPECT_EQ(loads_of(generator, true, {1, 1}), 4 * 12288 + 3 * 12288);
  EXPECT_EQ(loads_of(generator, false, {0, 0}), 4 * 4096);
  // Nothing was loaded ahead: nothing is in vain.
  EXPECT_EQ(loads_of(generator, false, {1, 1}), 4 * 12288);
}

TEST(PassClass, OfEqualPartsNothingIsLoadedAgain) {
  ScheduleShape shape = two_class_shape();
  for (ScheduleSublayer& sublayer : shape.sublayers) sublayer.parts = {{4096, false}};
  ScheduleGenerator generator(shape);
  EXPECT_EQ(loads_of(generator, true, {0, 0}), 7 * 4096);
  EXPECT_EQ(loads_of(generator, true, {1, 0}), 4 * 4096);
}

}  // namespace
}  // namespace sluice
