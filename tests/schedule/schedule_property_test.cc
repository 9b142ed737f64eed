// Properties of every schedule, over random shapes and passes: order, completeness, weights and the
// ring.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/schedule/schedule_checker.h"

namespace sluice {
namespace {

constexpr int kRounds = 400;

std::string describe(const Stream& stream, int round) {
  std::string text = "round " + std::to_string(round) + ", ring " +
                     std::to_string(stream.shape.weight_ring_bytes) + ", streamed";
  for (const ScheduleSublayer& sublayer : stream.shape.sublayers)
    text += " " + std::to_string(sublayer.streamed_bytes) + (sublayer.has_attention ? "a" : "");
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

bool has_smallest_ring(const Stream& stream) {
  std::vector<int64_t> bytes;
  for (const ScheduleSublayer& sublayer : stream.shape.sublayers)
    bytes.push_back(sublayer.streamed_bytes);
  return stream.shape.weight_ring_bytes == smallest_ring_bytes(bytes);
}

// Weight loads and compute tasks of each (pass, sublayer), by running number.
struct Column {
  std::vector<TaskId> loads;
  std::vector<TaskId> computes;
  int64_t begin = 0;
  int64_t end = 0;
};
std::map<int64_t, Column> columns_of(const Stream& stream) {
  const auto count = static_cast<int64_t>(stream.shape.sublayers.size());
  std::map<int64_t, Column> columns;
  for (const Task& task : stream.tasks) {
    Column& column = columns[task.pass * count + task.sublayer];
    if (task.kind == TaskKind::kCompute) column.computes.push_back(task.id);
    if (task.kind != TaskKind::kLoadWeights) continue;
    column.loads.push_back(task.id);
    column.begin = task.offset;
    column.end =
        task.offset + stream.shape.sublayers[static_cast<size_t>(task.sublayer)].streamed_bytes;
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

TEST(ScheduleProperty, SlicesAreTheWholeSublayerAndComputeWaitsForAll) {
  for_random_streams(4, [](const Stream& stream, bool) {
    const SureOrder order(stream.tasks);
    for (const auto& [running, column] : columns_of(stream)) {
      const auto sublayer = static_cast<size_t>(running) % stream.shape.sublayers.size();
      const int64_t streamed = stream.shape.sublayers[sublayer].streamed_bytes;
      int64_t bytes = 0;
      std::set<int32_t> slices;
      for (TaskId id : column.loads) {
        const Task& load = stream.tasks[static_cast<size_t>(id)];
        EXPECT_EQ(load.lane, Lane::kDiskRead);
        EXPECT_EQ(load.slices, static_cast<int32_t>(column.loads.size()));
        EXPECT_EQ(load.offset, column.begin);
        EXPECT_TRUE(slices.insert(load.slice).second);
        bytes += load.bytes;
      }
      // A next pass that never came may have begun to load.
      if (column.computes.empty() && column.loads.empty()) continue;
      ASSERT_EQ(bytes, streamed);
      if (!slices.empty()) {
        ASSERT_EQ(*slices.begin(), 0);
        ASSERT_EQ(*slices.rbegin(), static_cast<int32_t>(column.loads.size()) - 1);
      }
      for (TaskId compute : column.computes) {
        if (streamed > 0) {
          ASSERT_EQ(stream.tasks[static_cast<size_t>(compute)].offset, column.begin);
        }
        for (TaskId load : column.loads) ASSERT_TRUE(order.ends_before(load, compute));
      }
    }
  });
}

TEST(ScheduleProperty, NoRingRegionIsOverwrittenBeforeItsLastCompute) {
  for_random_streams(5, [](const Stream& stream, bool) {
    const SureOrder order(stream.tasks);
    const auto columns = columns_of(stream);
    for (const auto& [later, next] : columns) {
      if (next.loads.empty()) continue;
      ASSERT_GE(next.begin, 0);
      ASSERT_LE(next.end, stream.shape.weight_ring_bytes);
      for (const auto& [earlier, column] : columns) {
        if (earlier >= later || column.loads.empty()) continue;
        if (next.end <= column.begin || column.end <= next.begin) continue;
        for (TaskId compute : column.computes)
          for (TaskId load : next.loads)
            ASSERT_TRUE(order.ends_before(compute, load))
                << "load " << load << " overwrites what compute " << compute << " reads";
      }
    }
  });
}

TEST(ScheduleProperty, WithTheSmallestRingTheNextSublayerIsAlwaysUnderWayInTime) {
  int checked = 0;
  for_random_streams(6, [&](const Stream& stream, bool) {
    if (!has_smallest_ring(stream)) return;
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
    std::vector<bool> looks_ahead(stream.passes.size());
    for (const Task& task : stream.tasks) {
      const size_t emitted_in = pass_of_index(stream, static_cast<size_t>(task.id));
      if (task.pass == static_cast<int64_t>(emitted_in)) continue;
      ASSERT_EQ(task.kind, TaskKind::kLoadWeights);
      ASSERT_EQ(task.pass, static_cast<int64_t>(emitted_in) + 1);
      ASSERT_TRUE(stream.more_follow[emitted_in]);
      if (task.sublayer == 0) looks_ahead[emitted_in] = true;
      ++ahead;
    }
    if (!has_smallest_ring(stream) || stream.shape.sublayers.size() == 1 ||
        stream.shape.sublayers[0].streamed_bytes == 0)
      return;
    for (size_t pass = 0; pass < stream.passes.size(); ++pass)
      ASSERT_EQ(looks_ahead[pass], stream.more_follow[pass]);
  });
  EXPECT_GT(ahead, 100);
}

}  // namespace
}  // namespace sluice
