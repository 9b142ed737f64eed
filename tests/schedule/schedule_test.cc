// Small schedules written out in full: what a reader of the trace expects to see.
#include "src/schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "src/base/error.h"
#include "tests/schedule/flat_task.h"

namespace sluice {
namespace {

std::vector<std::string> words(const std::vector<Task>& tasks) {
  std::vector<std::string> out;
  for (const Task& task : tasks) {
    std::string text = std::to_string(task.id) + " " + std::string(task_kind_name(task.kind)) +
                       " " + std::to_string(task.sublayer);
    if (task.kind == TaskKind::kLoadWeights)
      text += " part " + std::to_string(flat(task).part);
    else
      text += "." + std::to_string(task.micro_batch);
    text += " after";
    for (TaskId wait : task.waits) text += " " + std::to_string(wait);
    out.push_back(text);
  }
  return out;
}

TEST(Schedule, AResidentModelIsComputeOnly) {
  ScheduleGenerator generator({.sublayers = {{{}, false}, {{}, true}, {{}, false}}});
  const std::vector<std::string> expected{"0 compute 0.0 after", "1 compute 1.0 after",
                                          "2 compute 2.0 after"};
  EXPECT_EQ(words(whole_pass(generator, {{}}, true)), expected);
  EXPECT_EQ(generator.passes(), 1);
  const std::vector<Task> second = whole_pass(generator, {{}}, false);
  ASSERT_EQ(second.size(), 3u);
  EXPECT_EQ(second.front().id, 3);
  EXPECT_EQ(second.front().pass, 1);
}

TEST(Schedule, TheNextSublayerArrivesInPartsSpreadOverTheMicroBatches) {
  ScheduleGenerator generator(
      {.sublayers = {{{{8192}}, false}, {{{4096}, {2048}, {1024}}, false}, {{}, false}},
       .weight_ring_bytes = 16384});
  const std::vector<Task> tasks = whole_pass(generator, {{}, {}}, false);
  const std::vector<std::string> expected{
      "0 load weights 0 part 0 after", "1 load weights 1 part 0 after",
      "2 load weights 1 part 1 after", "3 compute 0.0 after 0",
      "4 load weights 1 part 2 after", "5 compute 0.1 after 0",
      "6 compute 1.0 after 1 2 4",     "7 compute 1.1 after 1 2 4",
      "8 compute 2.0 after",           "9 compute 2.1 after"};
  EXPECT_EQ(words(tasks), expected);
  EXPECT_EQ(tasks[0].bytes, 8192);
  EXPECT_EQ(tasks[2].bytes, 2048);
  EXPECT_EQ(flat(tasks[2]).offset, 8192 + 4096);
  EXPECT_EQ(flat(tasks[6]).part_offsets, (std::vector<int64_t>{8192, 12288, 14336}));
}

TEST(Schedule, PartsLoadAheadAsFarAsTheRingHoldsThem) {
  ScheduleGenerator generator({.sublayers = {{{{4096}}, false}, {{{4096}, {4096}}, false}},
                               .weight_ring_bytes = 12288 - 4096});
  const std::vector<std::string> expected{
      "0 load weights 0 part 0 after", "1 load weights 1 part 0 after", "2 compute 0.0 after 0",
      "3 load weights 1 part 1 after 2", "4 compute 1.0 after 1 3"};
  EXPECT_EQ(words(whole_pass(generator, {{}}, false)), expected);
}

TEST(Schedule, TheLastColumnLoadsTheNextPassWhenMoreFollow) {
  ScheduleGenerator generator(
      {.sublayers = {{{{4096}}, false}, {{{4096}}, false}}, .weight_ring_bytes = 8192});
  const std::vector<std::string> first{"0 load weights 0 part 0 after",
                                       "1 load weights 1 part 0 after", "2 compute 0.0 after 0",
                                       "3 load weights 0 part 0 after 2", "4 compute 1.0 after 1"};
  EXPECT_EQ(words(whole_pass(generator, {{}}, true)), first);
  const std::vector<std::string> second{"5 load weights 1 part 0 after 4", "6 compute 0.0 after 3",
                                        "7 compute 1.0 after 5"};
  EXPECT_EQ(words(whole_pass(generator, {{}}, false)), second);
}

TEST(Schedule, ARingOfOneSublayerLoadsAndComputesInTurn) {
  ScheduleGenerator generator(
      {.sublayers = {{{{4096}}, false}, {{{4096}}, false}}, .weight_ring_bytes = 4096});
  const std::vector<std::string> expected{"0 load weights 0 part 0 after", "1 compute 0.0 after 0",
                                          "2 load weights 1 part 0 after 1",
                                          "3 compute 1.0 after 2"};
  EXPECT_EQ(words(whole_pass(generator, {{}}, true)), expected);
}

TEST(Schedule, KvOfTheNextMicroBatchLoadsWhileThisOneComputes) {
  ScheduleGenerator generator({.sublayers = {{{}, true}}, .kv_slots = 2});
  const MicroBatchLoad on_disk{.state = {{8192, 4096}}};
  const std::vector<std::string> first{
      "0 load KV 0.0 after",   "1 compute 0.0 after 0", "2 store KV 0.0 after 1",
      "3 load KV 0.1 after",   "4 compute 0.1 after 3", "5 store KV 0.1 after 4",
      "6 load KV 0.2 after 2", "7 compute 0.2 after 6", "8 store KV 0.2 after 7"};
  EXPECT_EQ(words(whole_pass(generator, {on_disk, on_disk, on_disk}, true)), first);
  // In the next pass every load waits for what the pass before stored for this layer.
  const std::vector<Task> second = whole_pass(generator, {on_disk}, false);
  EXPECT_EQ(second[0].waits, (std::vector<TaskId>{5, 2, 5, 8}));
}

TEST(Schedule, APromptCutInTwoWaitsForItsFirstPart) {
  ScheduleGenerator generator({.sublayers = {{{}, true}}});
  const MicroBatchLoad part{.state = {{4096, 4096}}};
  MicroBatchLoad continued = part;
  continued.continues_previous = true;
  const std::vector<Task> tasks = whole_pass(generator, {part, continued}, false);
  const std::vector<std::string> expected{"0 load KV 0.0 after",    "1 compute 0.0 after 0",
                                          "2 store KV 0.0 after 1", "3 load KV 0.1 after 2",
                                          "4 compute 0.1 after 3",  "5 store KV 0.1 after 4"};
  EXPECT_EQ(words(tasks), expected);
}

TEST(Schedule, StoresOfAPassAreRememberedOverAPassThatTouchesNoKv) {
  ScheduleGenerator generator({.sublayers = {{{}, true}}});
  const std::vector<Task> first = whole_pass(generator, {{.state = {{0, 4096}}}}, true);
  ASSERT_EQ(first.back().kind, TaskKind::kStoreKv);
  whole_pass(generator, {{}}, true);
  const std::vector<Task> third = whole_pass(generator, {{.state = {{4096}}}}, false);
  ASSERT_EQ(third.front().kind, TaskKind::kLoadKv);
  EXPECT_NE(std::find(third.front().waits.begin(), third.front().waits.end(), first.back().id),
            third.front().waits.end());
}

TEST(Schedule, RefusesAShapeThatNoPlanMakes) {
  EXPECT_THROW(ScheduleGenerator({.sublayers = {}}), Error);
  EXPECT_THROW(ScheduleGenerator({.sublayers = {{{{4096}}, false}}, .weight_ring_bytes = 4095}),
               Error);
  ScheduleGenerator generator({.sublayers = {{{}, false}}});
  EXPECT_THROW(whole_pass(generator, {}, false), Error);
}

TEST(Schedule, EveryLaneAndKindHasItsOwnName) {
  std::vector<std::string_view> names;
  for (const LaneSpec& lane : named_lanes()) names.push_back(lane.name);
  for (int kind = 0; kind <= static_cast<int>(TaskKind::kReturnOutputs); ++kind)
    names.push_back(task_kind_name(static_cast<TaskKind>(kind)));
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_FALSE(names.front().empty());
}

TEST(Lanes, EveryMachineBeginsWithTheLanesThatHaveNames) {
  for (const DeviceLanes device :
       {DeviceLanes::kNone, DeviceLanes::kSharedCores, DeviceLanes::kOwnCores}) {
    const LaneTable machine = one_device_lanes(device);
    ASSERT_EQ(machine.size(), 6u);
    const auto at = [&](Lane lane) { return machine[static_cast<size_t>(lane)]; };
    EXPECT_EQ(at(Lane::kDiskRead).from, kDisk);
    EXPECT_EQ(at(Lane::kDiskWrite).to, kDisk);
    EXPECT_EQ(at(Lane::kHostToDevice).to, device_place());
    EXPECT_EQ(at(Lane::kDeviceToHost).from, device_place());
    EXPECT_TRUE(at(Lane::kDeviceCompute).computes());
    EXPECT_EQ(at(Lane::kHostCompute).to, kHost);
    EXPECT_EQ(at(Lane::kHostToDevice).thread == LaneThread::kNone, device == DeviceLanes::kNone);
    EXPECT_EQ(at(Lane::kHostCompute).thread == LaneThread::kOwn, device == DeviceLanes::kOwnCores);
  }
}

}  // namespace
}  // namespace sluice
