// Properties of every schedule, over random shapes and passes: order, completeness, weights and the
// ring.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/schedule/schedule_checker.h"

namespace sluice {
namespace {

constexpr int kRounds = 400;

std::string describe(const Stream& stream, int round) {
  std::string text = "round " + std::to_string(round) + ", ring " +
                     std::to_string(stream.shape.weight_ring_bytes) + ", streamed";
  for (const ScheduleSublayer& sublayer : stream.shape.sublayers)
    text += " " + std::to_string(sublayer.streamed_bytes()) + (sublayer.has_attention ? "a" : "");
  for (const auto& pass : stream.passes)
    text += "; " + std::to_string(pass.size()) + " micro-batches";
  return text;
}

template <typename Check>
void for_random_streams(unsigned seed, Check check) {
  std::mt19937 random(seed);
  for (int round = 0; round < kRounds; ++round) {
    const bool small_ring = round % 3 == 0;
    const Stream stream = random_stream(random, small_ring);
    check(stream, small_ring);
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << describe(stream, round);
      return;
    }
  }
}

size_t pass_of_index(const Stream& stream, size_t index) {
  return static_cast<size_t>(
      std::upper_bound(stream.first_of_pass.begin(), stream.first_of_pass.end(), index) -
      stream.first_of_pass.begin() - 1);
}

bool looks_ahead(const Stream& stream) {
  return stream.shape.weight_ring_bytes >= ring_for(stream.shape, 1);
}

// Weight loads and compute tasks of each (pass, sublayer), by running number.
struct Column {
  std::vector<TaskId> loads;
  std::vector<TaskId> computes;
};
std::map<int64_t, Column> columns_of(const Stream& stream) {
  const auto count = static_cast<int64_t>(stream.shape.sublayers.size());
  std::map<int64_t, Column> columns;
  for (const Task& task : stream.tasks) {
    Column& column = columns[task.pass * count + task.sublayer];
    if (task.kind == TaskKind::kCompute) column.computes.push_back(task.id);
    if (task.kind == TaskKind::kLoadWeights) column.loads.push_back(task.id);
  }
  return columns;
}

TEST(ScheduleProperty, IdsCountUpAndWaitsPointBackwards) {
  for_random_streams(1, [](const Stream& stream, bool) {
    for (size_t i = 0; i < stream.tasks.size(); ++i) {
      ASSERT_EQ(stream.tasks[i].id, static_cast<TaskId>(i));
      ASSERT_GE(stream.tasks[i].bytes, 0);
      for (TaskId wait : stream.tasks[i].waits) {
        ASSERT_GE(wait, 0);
        ASSERT_LT(wait, stream.tasks[i].id);
      }
    }
  });
}

TEST(ScheduleProperty, LanesNeverBlockEachOtherWhateverTasksTake) {
  std::mt19937 random(2);
  for_random_streams(2, [&](const Stream& stream, bool) {
    const SureOrder order(stream.tasks);
    for (int interleaving = 0; interleaving < 3; ++interleaving) {
      const Times times = simulate(stream.tasks, random);
      ASSERT_EQ(times.end.size(), stream.tasks.size()) << "the lanes block each other";
      for (size_t i = 0; i < stream.tasks.size(); i += 7)
        for (size_t j = 0; j < i; ++j)
          if (order.ends_before(static_cast<TaskId>(j), static_cast<TaskId>(i))) {
            ASSERT_LE(times.end[j], times.start[i]);
          }
    }
  });
}

TEST(ScheduleProperty, ComputesEveryStepOnceInColumnOrder) {
  for_random_streams(3, [](const Stream& stream, bool) {
    std::vector<std::tuple<int64_t, int32_t, int32_t>> wanted, found;
    for (size_t pass = 0; pass < stream.passes.size(); ++pass)
      for (size_t sublayer = 0; sublayer < stream.shape.sublayers.size(); ++sublayer)
        for (size_t micro_batch = 0; micro_batch < stream.passes[pass].size(); ++micro_batch)
          wanted.emplace_back(pass, sublayer, micro_batch);
    for (const Task& task : stream.tasks) {
      if (task.kind != TaskKind::kCompute) continue;
      EXPECT_EQ(task.lane, Lane::kDeviceCompute);
      found.emplace_back(task.pass, task.sublayer, task.micro_batch);
      EXPECT_EQ(pass_of_index(stream, static_cast<size_t>(task.id)),
                static_cast<size_t>(task.pass));
    }
    ASSERT_EQ(found, wanted);
  });
}

TEST(ScheduleProperty, EveryPartLoadsOnceInOrderAndComputeWaitsForAll) {
  for_random_streams(4, [](const Stream& stream, bool) {
    const SureOrder order(stream.tasks);
    for (const auto& [running, column] : columns_of(stream)) {
      const auto sublayer = static_cast<size_t>(running) % stream.shape.sublayers.size();
      const std::vector<SchedulePart>& parts = stream.shape.sublayers[sublayer].parts;
      std::vector<int64_t> offsets;
      for (TaskId id : column.loads) {
        const Task& load = stream.tasks[static_cast<size_t>(id)];
        EXPECT_EQ(load.lane, Lane::kDiskRead);
        ASSERT_EQ(flat(load).part, static_cast<int32_t>(offsets.size()));
        ASSERT_LT(offsets.size(), parts.size());
        EXPECT_EQ(load.bytes, parts[offsets.size()].bytes);
        offsets.push_back(flat(load).offset);
      }
      // A next pass that never came may have begun to load.
      if (column.computes.empty()) continue;
      ASSERT_EQ(offsets.size(), parts.size());
      for (TaskId compute : column.computes) {
        ASSERT_EQ(flat(stream.tasks[static_cast<size_t>(compute)]).part_offsets, offsets);
        for (TaskId load : column.loads) ASSERT_TRUE(order.ends_before(load, compute));
      }
    }
  });
}

TEST(ScheduleProperty, NoRingRegionIsOverwrittenBeforeItsLastCompute) {
  for_random_streams(5, [](const Stream& stream, bool) {
    const SureOrder order(stream.tasks);
    const auto columns = columns_of(stream);
    const auto count = static_cast<int64_t>(stream.shape.sublayers.size());
    std::vector<const Task*> loads;
    for (const Task& task : stream.tasks)
      if (task.kind == TaskKind::kLoadWeights) loads.push_back(&task);
    for (const Task* next : loads) {
      const int64_t begin = next->part_load().offset;
      ASSERT_GE(begin, 0);
      ASSERT_LE(begin + next->bytes, stream.shape.weight_ring_bytes);
      for (const Task* earlier : loads) {
        if (earlier->id >= next->id) break;
        const int64_t other = earlier->part_load().offset;
        if (begin + next->bytes <= other || other + earlier->bytes <= begin) continue;
        const Column& column = columns.at(earlier->pass * count + earlier->sublayer);
        ASSERT_FALSE(column.computes.empty());
        for (TaskId compute : column.computes)
          ASSERT_TRUE(order.ends_before(compute, next->id))
              << "load " << next->id << " overwrites what compute " << compute << " reads";
      }
    }
  });
}

TEST(ScheduleProperty, WithARingForTwoTheNextSublayerIsAlwaysUnderWayInTime) {
  int checked = 0;
  for_random_streams(6, [&](const Stream& stream, bool) {
    if (!looks_ahead(stream)) return;
    const auto count = static_cast<int64_t>(stream.shape.sublayers.size());
    const auto columns = columns_of(stream);
    for (const auto& [running, column] : columns) {
      if (column.loads.empty() || column.computes.empty() || running == 0 || count == 1) continue;
      const bool starts_pass = running % count == 0;
      if (starts_pass && !stream.more_follow[static_cast<size_t>(running / count - 1)]) continue;
      const auto before = columns.find(running - 1);
      ASSERT_NE(before, columns.end());
      ASSERT_LT(column.loads.front(), before->second.computes.front())
          << "sublayer " << running << " is loaded late";
      ASSERT_LT(column.loads.back(), before->second.computes.back());
      ++checked;
    }
  });
  EXPECT_GT(checked, 500);
}

TEST(ScheduleProperty, LoadsAheadOfThePassOnlyWhenMoreFollow) {
  int ahead = 0;
  for_random_streams(7, [&](const Stream& stream, bool) {
    std::vector<bool> has_loaded(stream.passes.size());
    for (const Task& task : stream.tasks) {
      const size_t emitted_in = pass_of_index(stream, static_cast<size_t>(task.id));
      if (task.pass == static_cast<int64_t>(emitted_in)) continue;
      ASSERT_EQ(task.kind, TaskKind::kLoadWeights);
      ASSERT_EQ(task.pass, static_cast<int64_t>(emitted_in) + 1);
      ASSERT_TRUE(stream.more_follow[emitted_in]);
      if (task.sublayer == 0) has_loaded[emitted_in] = true;
      ++ahead;
    }
    if (!looks_ahead(stream) || stream.shape.sublayers.size() == 1 ||
        stream.shape.sublayers[0].parts.empty())
      return;
    for (size_t pass = 0; pass < stream.passes.size(); ++pass)
      ASSERT_EQ(has_loaded[pass], stream.more_follow[pass]);
  });
  EXPECT_GT(ahead, 100);
}

}  // namespace
}  // namespace sluice
