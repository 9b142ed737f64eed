#include "src/device/lane_executor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <map>
#include <random>
#include <thread>

#include "src/base/error.h"
#include "src/schedule/column_source.h"
#include "tests/device/scattered_runner.h"
#include "tests/schedule/flat_task.h"
#include "tests/schedule/machine.h"

namespace sluice {
namespace {

// Random tasks of three lanes, each waiting for a few earlier ones.
std::vector<Task> random_tasks(std::mt19937& random, TaskId first, int count, TaskId oldest_wait) {
  std::vector<Task> tasks;
  for (int i = 0; i < count; ++i) {
    const TaskId id = first + i;
    std::vector<TaskId> waits;
    for (unsigned n = random() % 3; n > 0 && id > oldest_wait; --n)
      waits.push_back(oldest_wait +
                      static_cast<TaskId>(random() % static_cast<unsigned>(id - oldest_wait)));
    const TaskKind kinds[] = {kCompute, kLoad, kStore};
    tasks.push_back(make_task(id, kinds[random() % 3], std::move(waits)));
    if (tasks.back().kind == kCompute && random() % 2 == 0) tasks.back().lane = Lane::kHostCompute;
  }
  // A pass ends with compute that needs all of its loads.
  std::vector<TaskId> loads;
  for (const Task& task : tasks)
    if (task.kind == kLoad) loads.push_back(task.id);
  tasks.push_back(make_task(first + count, kCompute, std::move(loads)));
  return tasks;
}

void check_history(const std::vector<Task>& tasks,
                   const std::vector<ScatteredRunner::Record>& history) {
  std::map<TaskId, size_t> started, ended;
  for (size_t place = 0; place < history.size(); ++place)
    ASSERT_TRUE((history[place].is_end ? ended : started).emplace(history[place].id, place).second);
  std::map<Lane, size_t> last_start, last_end;
  for (const Task& task : tasks) {
    ASSERT_TRUE(started.contains(task.id)) << task.id;
    ASSERT_TRUE(ended.contains(task.id)) << task.id;
    for (TaskId wait : task.waits)
      ASSERT_LT(ended[wait], started[task.id]) << task.id << " did not wait for " << wait;
    if (last_start.contains(task.lane)) {
      ASSERT_LT(last_start[task.lane], started[task.id]) << "a lane changed its order";
    }
    last_start[task.lane] = started[task.id];
  }
}

TEST(LaneExecutor, RandomStreamsKeepOrderAndWaits) {
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    ScatteredRunner runner(static_cast<unsigned>(round));
    std::vector<Task> all;
    std::vector<TaskId> stores_before, stores_now;
    {
      const auto lanes = round % 3 == 0   ? one_device_lanes(DeviceLanes::kOwnCores)
                         : round % 3 == 1 ? one_device_lanes(DeviceLanes::kSharedCores)
                                          : one_device_lanes(DeviceLanes::kNone);
      LaneExecutor executor(runner, {}, lanes, round % 2 == 0);
      for (int pass = 0; pass < 4; ++pass) {
        const auto first = static_cast<TaskId>(all.size());
        std::vector<Task> tasks = random_tasks(random, first, 1 + static_cast<int>(random() % 40),
                                               std::max<TaskId>(0, first - 30));
        all.insert(all.end(), tasks.begin(), tasks.end());
        executor.run(tasks);
        stores_now.clear();
        for (const Task& task : tasks)
          if (task.kind == kStore) stores_now.push_back(task.id);
        std::map<TaskId, bool> ended;
        for (const auto& record : runner.history())
          if (record.is_end) ended[record.id] = true;
        for (const Task& task : tasks)
          if (task.kind == kCompute) {
            ASSERT_TRUE(ended[task.id]) << "run() returned before its last compute";
          }
        for (TaskId store : stores_before)
          ASSERT_TRUE(ended[store]) << "a store of the pass before is unfinished";
        stores_before = stores_now;
      }
      // One pass more waits for all stores of the fourth; then nothing is queued any more.
      const auto first = static_cast<TaskId>(all.size());
      std::vector<TaskId> everything;
      for (const Task& task : all) everything.push_back(task.id);
      all.push_back(make_task(first, kCompute, everything));
      executor.run({all.back()});
      executor.finish();
      EXPECT_EQ(executor.events().size(), round % 2 == 0 ? all.size() : 0u);
    }
    ASSERT_NO_FATAL_FAILURE(check_history(all, runner.history()));
  }
}

TEST(LaneExecutor, RunsWhatTheGeneratorMakes) {
  const std::vector<ScheduleSublayer> sublayers{{{{4096}}, false},
                                                {{{4096}, {4096}}, true},
                                                {{{12288}}, false},
                                                {{{8192}}, true},
                                                {{{4096}}, false}};
  ScheduleGenerator generator({.sublayers = sublayers, .weight_ring_bytes = 32768});
  ScatteredRunner runner(5);
  std::vector<Task> all;
  {
    LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
    const MicroBatchLoad load{.state = {{8192, 4096}}, .activation_bytes = 4096};
    for (int pass = 0; pass < 20; ++pass) {
      std::vector<Task> tasks = whole_pass(generator, {load, load, load}, pass < 19);
      all.insert(all.end(), tasks.begin(), tasks.end());
      executor.run(std::move(tasks));
    }
    // The last pass's stores may still be queued: a task that waits for them brings them in.
    std::vector<TaskId> everything;
    for (const Task& task : all) everything.push_back(task.id);
    all.push_back(make_task(static_cast<TaskId>(all.size()), kCompute, everything));
    executor.run({all.back()});
    int64_t read = 0;
    int64_t tasks_read = 0;
    for (const Task& task : all)
      if (task.lane == Lane::kDiskRead) read += task.bytes, ++tasks_read;
    EXPECT_EQ(executor.stats(Lane::kDiskRead).bytes, read);
    EXPECT_EQ(executor.stats(Lane::kDiskRead).tasks, tasks_read);
    EXPECT_GE(executor.stats(Lane::kDeviceCompute).wait_seconds, 0);
    EXPECT_GT(executor.stats(Lane::kDiskRead).busy_seconds, 0);
  }
  ASSERT_NO_FATAL_FAILURE(check_history(all, runner.history()));
}

TEST(LaneExecutor, ColumnsAreTakenWhenALaneHasNothingLeft) {
  // Each column's load waits for the compute before: the lane of loads always has one.
  struct Columns final : ColumnSource {
    int taken = 0;
    bool has_column() const override { return taken < 20; }
    TaskId awaited() const override { return kNoTask; }
    bool uses(Lane lane) const override {
      return lane == Lane::kDiskRead || lane == Lane::kDeviceCompute;
    }
    std::vector<Task> next_column() override {
      const TaskId first = 2 * taken++;
      return {make_task(first, kCompute, {}),
              make_task(first + 1, kLoad, std::vector<TaskId>{first})};
    }
  } columns;
  ScatteredRunner runner(4);
  int taken_at_first = 0;
  runner.at_compute(0, [&] { taken_at_first = columns.taken; });
  LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
  executor.run(columns);
  EXPECT_EQ(taken_at_first, 2) << "one that runs and one behind it";
  EXPECT_EQ(columns.taken, 20);
  EXPECT_EQ(executor.stats(Lane::kDeviceCompute).tasks, 20);
}

TEST(LaneExecutor, WhatIsDroppedBeforeItHasBegunIsAsIfItHadEnded) {
  // Load 1 waits for the compute that runs; load 3 has begun when it is dropped.
  struct Columns final : ColumnSource {
    int taken = 0;
    bool has_column() const override { return taken < 3; }
    TaskId awaited() const override { return kNoTask; }
    bool uses(Lane lane) const override { return lane == Lane::kDeviceCompute; }
    std::vector<Task> next_column() override {
      ++taken;
      if (taken == 1) return {make_task(0, kCompute, {}), make_task(1, kLoad, {0})};
      if (taken == 2)
        return {make_task(2, kCompute, {1}), make_task(3, kLoad, {}), make_task(4, kCompute, {3})};
      return {make_task(5, kCompute, {4})};
    }
    std::vector<TaskId> take_dropped() override {
      if (taken == 2) return {1};
      return taken == 3 ? std::vector<TaskId>{3, 0, 77} : std::vector<TaskId>{};
    }
  } columns;
  ScatteredRunner runner(4);
  LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
  executor.run(columns);
  EXPECT_EQ(executor.stats(Lane::kDeviceCompute).tasks, 4);
  EXPECT_EQ(executor.stats(Lane::kDiskRead).tasks, 1);
}

// A dropped load's memory is another's only when those have ended that the dropped one waited for.
TEST(LaneExecutor, WhatFollowsADroppedTaskWaitsForWhatThatWaitedFor) {
  struct Columns final : ColumnSource {
    int taken = 0;
    bool has_column() const override { return taken < 3; }
    TaskId awaited() const override { return kNoTask; }
    bool uses(Lane lane) const override { return lane == Lane::kDeviceCompute; }
    std::vector<Task> next_column() override {
      ++taken;
      // 1 is a read that is held until 2, which waits for it, is dropped; 4 has 2's memory.
      if (taken == 1) return {make_task(0, kCompute, {}), make_task(1, kLoad, {})};
      // So is 6, which waits for 2 and is dropped before it.
      if (taken == 2)
        return {make_task(2, kLoad, {1}), make_task(3, kCompute, {}), make_task(6, kLoad, {2})};
      return {make_task(4, kLoad, {2, 6}), make_task(5, kCompute, {4})};
    }
    std::vector<TaskId> take_dropped() override {
      return taken == 3 ? std::vector<TaskId>{6, 2} : std::vector<TaskId>{};
    }
  } columns;
  for (unsigned round = 0; round < 20; ++round) {
    columns.taken = 0;
    ScatteredRunner runner(round);
    runner.hold(1);
    // Before it runs, the last column has been taken.
    runner.at_compute(3, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      EXPECT_FALSE(runner.has_started(4)) << "1 still reads what 4 writes";
      runner.let_go();
    });
    LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
    executor.run(columns);
    bool has_ended = false;
    for (const auto& record : runner.history()) {
      EXPECT_TRUE(record.id != 2 && record.id != 6) << "they were dropped";
      if (record.id == 1 && record.is_end) has_ended = true;
      if (record.id == 4) EXPECT_TRUE(has_ended) << "1 still reads what 4 writes";
    }
  }
}

ScheduleSublayer sublayer_of_experts(int32_t experts) {
  ScheduleSublayer sublayer;
  sublayer.experts = {experts, 1, {0}};
  for (int32_t e = 0; e < experts; ++e) sublayer.parts.push_back({512, true, ~uint32_t{0}, e});
  return sublayer;
}

TEST(LaneExecutor, ARouteRunsBeforeWhatItAsksForIsLoaded) {
  std::vector<ScheduleSublayer> sublayers(1);
  sublayers[0].parts = {{4096}};
  sublayers.push_back(sublayer_of_experts(3));
  sublayers.push_back(sublayer_of_experts(2));
  ScheduleGenerator generator({.sublayers = sublayers, .weight_ring_bytes = 8192});
  ScatteredRunner runner(6);
  LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
  uint64_t hash = 0;
  int64_t routes = 0;
  PassColumns columns(generator, hash, [&](const AwaitedRoute& route) {
    bool has_ended = false;
    for (const auto& record : runner.history())
      has_ended = has_ended || (record.id == route.task && record.is_end);
    EXPECT_TRUE(has_ended) << "asked before the route has run";
    ++routes;
    return route.sublayer == 1 ? Routed{{{route.micro_batch % 2, 1}, {2, 1}}, 1} : Routed{{}, 1};
  });
  for (int pass = 1; pass <= 20; ++pass) {
    generator.begin_pass({{}, {}, {}, {}}, pass < 20, {0, 0, true, true});
    executor.run(columns);
    EXPECT_EQ(routes, 8 * pass);
    // Of four micro-batches: a route, each expert by itself, what is behind them.
    EXPECT_EQ(executor.stats(Lane::kDeviceCompute).tasks, (4 + 4 * (1 + 2 + 1) + 4 * 2) * pass);
  }
  const ExpertCache::Counts& counts = generator.expert_cache(1)->counts();
  EXPECT_EQ(counts.asked, 20 * 4 * 2);
  EXPECT_EQ(executor.stats(Lane::kDiskRead).tasks, 20 + counts.asked - counts.found);
}

TEST(LaneExecutor, AnErrorOfTheRouterEndsThePass) {
  ScheduleGenerator generator({.sublayers = {sublayer_of_experts(2)}, .weight_ring_bytes = 4096});
  ScatteredRunner runner(9);
  LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
  uint64_t hash = 0;
  PassColumns columns(generator, hash, [](const AwaitedRoute&) -> Routed {
    throw Error(ErrorKind::kDevice, "no such expert");
  });
  generator.begin_pass({{}}, false, {0, 0, true, true});
  EXPECT_THROW(executor.run(columns), Error);
  EXPECT_THROW(executor.run({make_task(9, kCompute, {})}), Error);
}

TEST(LaneExecutor, RunsOnTwoDevicesAndANetwork) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    ScatteredRunner runner(seed);
    const LaneTable machine = two_devices_and_a_network();
    const std::vector<Task> tasks = tasks_for_two_devices();
    {
      LaneExecutor executor(runner, {}, machine, true);
      executor.run(tasks);
      for (const Task& task : tasks) EXPECT_GE(executor.stats(task.lane).tasks, 1);
      EXPECT_EQ(executor.stats(Lane::kDeviceCompute).tasks, 2);
      EXPECT_EQ(executor.stats(kReceive).bytes, 100);
      EXPECT_EQ(executor.stats(kBetween).bytes, 20);
      EXPECT_EQ(executor.events().size(), tasks.size()) << "run() waits for both devices";
    }
    ASSERT_NO_FATAL_FAILURE(check_history(tasks, runner.history()));
  }
}

TEST(LaneExecutor, TwoDevicesComputeAtTheSameTime) {
  class Meeting final : public TaskRunner {
   public:
    void compute(const Task&) override { both_.arrive_and_wait(); }
    void transfer(const Task&, std::function<void(std::exception_ptr)> done) override {
      done(nullptr);
    }

   private:
    std::latch both_{2};
  } runner;
  Task second = make_task(0, kCompute, {});
  second.lane = kSecondCompute;
  LaneExecutor executor(runner, {}, two_devices_and_a_network(), false);
  executor.run({second, make_task(1, kCompute, {})});
  EXPECT_EQ(executor.stats(kSecondCompute).tasks, 1);
}

TEST(LaneExecutor, LoadsForTheNextPassMayOutliveTheirRun) {
  ScatteredRunner runner(1);
  runner.hold(1);
  {
    LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
    executor.run(
        {make_task(0, kCompute, {}), make_task(1, kLoad, {}), make_task(2, kCompute, {0})});
    runner.wait_for_start(1);
    EXPECT_EQ(runner.in_flight(), 1) << "run() returned with the load under way";
    runner.let_go();
    executor.run({make_task(3, kCompute, {1})});
  }
  EXPECT_EQ(runner.in_flight(), 0);
}

TEST(LaneExecutor, ALaneIsNotHeldUpByTheOther) {
  ScatteredRunner runner(1);
  runner.hold(1);  // the store does not end before compute 3 lets it go
  runner.at_compute(3, [&] { runner.let_go(); });
  LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
  executor.run({make_task(0, kCompute, {}), make_task(1, kStore, {0}), make_task(2, kLoad, {0}),
                make_task(3, kCompute, {2}), make_task(4, kCompute, {1})});
  EXPECT_TRUE(runner.has_started(4));
}

TEST(LaneExecutor, TheHostComputesBesideADeviceWithCoresOfItsOwn) {
  // Each task ends only after the other has begun.
  class Meeting final : public TaskRunner {
   public:
    void compute(const Task& task) override {
      if (task.id < 2) both_.arrive_and_wait();
    }
    void transfer(const Task&, std::function<void(std::exception_ptr)> done) override {
      done(nullptr);
    }

   private:
    std::latch both_{2};
  } runner;
  Task host = make_task(0, kCompute, {});
  host.lane = Lane::kHostCompute;
  LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kOwnCores), false);
  executor.run({host, make_task(1, kCompute, {}), make_task(2, kCompute, {0, 1})});
  EXPECT_EQ(executor.stats(Lane::kHostCompute).tasks, 1);
  EXPECT_EQ(executor.stats(Lane::kDeviceCompute).tasks, 2);
}

TEST(LaneExecutor, AnErrorOfTheHostsOwnThreadStopsTheOthers) {
  ScatteredRunner runner(2);
  runner.throw_at(1);
  Task host = make_task(1, kCompute, {0});
  host.lane = Lane::kHostCompute;
  LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kOwnCores), false);
  EXPECT_THROW(executor.run({make_task(0, kLoad, {}), host, make_task(2, kCompute, {1})}), Error);
  EXPECT_FALSE(runner.has_started(2));
}

TEST(LaneExecutor, FinishDropsWhatIsQueuedAndWaitsForTheRest) {
  ScatteredRunner runner(1);
  runner.hold(1);
  LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
  // Load 2 can't start before load 1 ends; nothing ends load 1 until finish() is already waiting or
  // about to.
  executor.run({make_task(0, kCompute, {}), make_task(1, kLoad, {}), make_task(2, kLoad, {1})});
  runner.wait_for_start(1);
  std::jthread helper([&] { runner.let_go(); });
  executor.finish();
  EXPECT_EQ(runner.in_flight(), 0);
  const auto records = runner.history().size();
  executor.finish();
  EXPECT_EQ(runner.history().size(), records) << "nothing starts after finish()";
}

TEST(LaneExecutor, DyingWithTransfersQueuedAndUnderWayIsClean) {
  for (unsigned round = 0; round < 100; ++round) {
    ScatteredRunner runner(round);
    {
      LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), true);
      std::vector<Task> tasks{make_task(0, kCompute, {})};
      for (TaskId id = 1; id < 20; ++id)
        tasks.push_back(make_task(id, id % 3 ? kLoad : kStore,
                                  id % 4 ? std::vector<TaskId>{} : std::vector<TaskId>{id - 1}));
      executor.run(std::move(tasks));
    }
    ASSERT_EQ(runner.in_flight(), 0);
  }
}

TEST(LaneExecutor, KeepsTheTimesOfEveryTaskForATrace) {
  ScatteredRunner runner(3);
  LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), true);
  executor.run({make_task(0, kLoad, {}), make_task(1, kCompute, {0}), make_task(2, kStore, {1}),
                make_task(3, kCompute, {2})});
  executor.finish();
  ASSERT_EQ(executor.events().size(), 4u);
  std::map<TaskId, TaskEvent> events;
  for (const TaskEvent& event : executor.events()) {
    EXPECT_GE(event.start_seconds, 0);
    EXPECT_GE(event.end_seconds, event.start_seconds);
    EXPECT_LE(event.end_seconds, executor.seconds_since_start());
    events[event.task.id] = event;
  }
  for (TaskId id = 1; id < 4; ++id) EXPECT_GE(events[id].start_seconds, events[id - 1].end_seconds);
}

}  // namespace
}  // namespace sluice
