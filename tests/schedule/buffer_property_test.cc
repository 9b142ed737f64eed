// Properties of every schedule, over random shapes and passes: staging slots of KV and activations,
// and what is read back from disk after it was written there.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "tests/schedule/schedule_checker.h"

namespace sluice {
namespace {

constexpr int kRounds = 400;
using Step = std::tuple<int64_t, int32_t, int32_t>;  // pass, sublayer, micro-batch
Step step_of(const Task& task) { return {task.pass, task.sublayer, task.micro_batch}; }

// One fill of a slot: the load, and whatever used what it loaded.
struct Fill {
  TaskId load = kNoTask;
  TaskId compute = kNoTask;
  TaskId store = kNoTask;
  int32_t slot = -1;
};

std::map<Step, Fill> fills_of(const Stream& stream, TaskKind load_kind, TaskKind store_kind) {
  std::map<Step, Fill> fills;
  for (const Task& task : stream.tasks) {
    if (task.kind == load_kind) {
      EXPECT_EQ(fills[step_of(task)].load, kNoTask) << "loaded twice";
      fills[step_of(task)].load = task.id;
      fills[step_of(task)].slot = flat(task).slot;
      EXPECT_EQ(task.lane, Lane::kDiskRead);
    } else if (task.kind == store_kind) {
      EXPECT_EQ(fills[step_of(task)].store, kNoTask) << "stored twice";
      fills[step_of(task)].store = task.id;
      EXPECT_EQ(flat(task).slot, fills[step_of(task)].slot);
      EXPECT_EQ(task.lane, Lane::kDiskWrite);
    } else if (task.kind == TaskKind::kCompute) {
      const int32_t slot =
          load_kind == TaskKind::kLoadKv ? flat(task).slot : flat(task).activation_slot;
      if (slot < 0) continue;
      fills[step_of(task)].compute = task.id;
      EXPECT_EQ(slot, fills[step_of(task)].slot);
    }
  }
  return fills;
}

void check_slots(const Stream& stream, TaskKind load_kind, TaskKind store_kind, int32_t slots) {
  const SureOrder order(stream.tasks);
  std::map<TaskId, Fill> by_load;
  for (const auto& [step, fill] : fills_of(stream, load_kind, store_kind)) {
    ASSERT_NE(fill.load, kNoTask);
    ASSERT_NE(fill.compute, kNoTask);
    ASSERT_GE(fill.slot, 0);
    ASSERT_LT(fill.slot, slots);
    ASSERT_TRUE(order.ends_before(fill.load, fill.compute));
    if (fill.store != kNoTask) {
      ASSERT_TRUE(order.ends_before(fill.compute, fill.store));
    }
    by_load[fill.load] = fill;
  }
  std::map<int32_t, std::vector<Fill>> earlier;
  for (const auto& [load, fill] : by_load) {
    for (const Fill& other : earlier[fill.slot]) {
      ASSERT_TRUE(order.ends_before(other.compute, load))
          << "slot " << fill.slot << " is refilled under its reader";
      if (other.store != kNoTask) {
        ASSERT_TRUE(order.ends_before(other.store, load))
            << "slot " << fill.slot << " is refilled under its store";
      }
    }
    earlier[fill.slot].push_back(fill);
  }
}

template <typename Check>
void for_random_streams(unsigned seed, Check check) {
  std::mt19937 random(seed);
  for (int round = 0; round < kRounds; ++round) {
    Stream stream = random_stream(random, round % 3 == 0);
    if (round % 2 == 1) split_groups(stream, random);
    if (round % 4 >= 2) share_state(stream, random);
    check(stream);
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "round " << round << " of seed " << seed;
      return;
    }
  }
}

TEST(ScheduleProperty, KvSlotsAreRefilledOnlyWhenDone) {
  for_random_streams(11, [](const Stream& stream) {
    check_slots(stream, TaskKind::kLoadKv, TaskKind::kStoreKv, stream.shape.kv_slots);
  });
}

TEST(ScheduleProperty, ActivationSlotsAreRefilledOnlyWhenDone) {
  for_random_streams(12, [](const Stream& stream) {
    check_slots(stream, TaskKind::kLoadActivations, TaskKind::kStoreActivations,
                stream.shape.activation_slots);
  });
}

TEST(ScheduleProperty, EveryStepWithKvOnDiskLoadsAndStoresItsBytes) {
  for_random_streams(13, [](const Stream& stream) {
    auto fills = fills_of(stream, TaskKind::kLoadKv, TaskKind::kStoreKv);
    size_t wanted = 0;
    for (size_t pass = 0; pass < stream.passes.size(); ++pass)
      for (size_t sublayer = 0; sublayer < stream.shape.sublayers.size(); ++sublayer)
        for (size_t micro_batch = 0; micro_batch < stream.passes[pass].size(); ++micro_batch) {
          const ScheduleSublayer& shape = stream.shape.sublayers[sublayer];
          const StateBytes load =
              stream.passes[pass][micro_batch].state_of(shape.state_group, shape.reads_from >= 0);
          if (!shape.has_attention || load.load + load.store == 0) continue;
          ++wanted;
          const Fill& fill = fills[{pass, sublayer, micro_batch}];
          ASSERT_NE(fill.load, kNoTask);
          ASSERT_EQ(stream.tasks[static_cast<size_t>(fill.load)].bytes, load.load);
          ASSERT_EQ(fill.store != kNoTask, load.store > 0);
          if (fill.store != kNoTask) {
            ASSERT_EQ(stream.tasks[static_cast<size_t>(fill.store)].bytes, load.store);
          }
        }
    ASSERT_EQ(fills.size(), wanted);
  });
}

TEST(ScheduleProperty, KvIsReadBackOnlyAfterItWasStored) {
  int checked = 0;
  for_random_streams(14, [&](const Stream& stream) {
    const SureOrder order(stream.tasks);
    for (const Task& load : stream.tasks) {
      if (load.kind != TaskKind::kLoadKv) continue;
      const bool continues =
          stream.passes[static_cast<size_t>(load.pass)][static_cast<size_t>(load.micro_batch)]
              .continues_previous;
      for (const Task& store : stream.tasks) {
        if (store.kind != TaskKind::kStoreKv || store.sublayer != load.sublayer) continue;
        const bool is_continued =
            continues && store.pass == load.pass && store.micro_batch == load.micro_batch - 1;
        if (store.pass >= load.pass && !is_continued) continue;
        ASSERT_TRUE(order.ends_before(store.id, load.id))
            << "load of pass " << load.pass << " may pass the store of pass " << store.pass;
        ++checked;
      }
    }
  });
  EXPECT_GT(checked, 1000);
}

// Micro-batches with tokens of the same sequences, before and behind it.
bool are_joined(const std::vector<MicroBatchLoad>& pass, int32_t a, int32_t b) {
  for (int32_t i = std::min(a, b) + 1; i <= std::max(a, b); ++i)
    if (!pass[static_cast<size_t>(i)].continues_previous) return false;
  return true;
}

TEST(ScheduleProperty, SharedKvIsReadAfterThePassHasStoredIt) {
  int of_pass = 0, of_earlier = 0;
  for_random_streams(16, [&](const Stream& stream) {
    const SureOrder order(stream.tasks);
    for (const Task& load : stream.tasks) {
      const int32_t source = stream.shape.sublayers[static_cast<size_t>(load.sublayer)].reads_from;
      if (load.kind != TaskKind::kLoadKv || source < 0) continue;
      const auto& pass = stream.passes[static_cast<size_t>(load.pass)];
      for (const Task& store : stream.tasks) {
        if (store.kind != TaskKind::kStoreKv || store.sublayer != source) continue;
        if (store.pass > load.pass) {
          ASSERT_TRUE(order.ends_before(load.id, store.id)) << "what is read is written over";
          continue;
        }
        if (store.pass == load.pass && !are_joined(pass, store.micro_batch, load.micro_batch))
          continue;
        ASSERT_TRUE(order.ends_before(store.id, load.id))
            << "sublayer " << load.sublayer << " may pass the store of sublayer " << source;
        ++(store.pass == load.pass ? of_pass : of_earlier);
      }
    }
  });
  EXPECT_GT(of_pass, 300);
  EXPECT_GT(of_earlier, 200);
}

TEST(ScheduleProperty, ActivationsAreReadBackAfterTheSublayerBeforeStoredThem) {
  int checked = 0;
  for_random_streams(15, [&](const Stream& stream) {
    const SureOrder order(stream.tasks);
    auto fills = fills_of(stream, TaskKind::kLoadActivations, TaskKind::kStoreActivations);
    const auto last = static_cast<int32_t>(stream.shape.sublayers.size()) - 1;
    for (const auto& [step, fill] : fills) {
      const auto [pass, sublayer, micro_batch] = step;
      const int64_t bytes =
          stream.passes[static_cast<size_t>(pass)][static_cast<size_t>(micro_batch)]
              .activation_bytes;
      ASSERT_GT(bytes, 0);
      ASSERT_EQ(stream.tasks[static_cast<size_t>(fill.load)].bytes, sublayer == 0 ? 0 : bytes);
      ASSERT_EQ(fill.store != kNoTask, sublayer != last) << "the head's rows go nowhere";
      if (sublayer == 0) continue;
      ASSERT_TRUE(order.ends_before((fills[{pass, sublayer - 1, micro_batch}].store), fill.load));
      ++checked;
    }
  });
  EXPECT_GT(checked, 1000);
}

}  // namespace
}  // namespace sluice
