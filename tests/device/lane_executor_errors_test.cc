#include <gtest/gtest.h>

#include <set>
#include <string>

#include "src/base/error.h"
#include "tests/device/scattered_runner.h"

namespace sluice {
namespace {

// A chain that needs everything: load, compute, store, again and again.
std::vector<Task> chain(int rounds, TaskId first = 0) {
  std::vector<Task> tasks;
  TaskId id = first;
  for (int round = 0; round < rounds; ++round) {
    tasks.push_back(
        make_task(id, kLoad, id > first ? std::vector<TaskId>{id - 1} : std::vector<TaskId>{}));
    tasks.push_back(make_task(id + 1, kCompute, {id}));
    tasks.push_back(make_task(id + 2, kStore, {id + 1}));
    id += 3;
  }
  tasks.push_back(make_task(id, kCompute, {id - 1}));
  return tasks;
}

std::string error_of(LaneExecutor& executor, std::vector<Task> tasks) {
  try {
    executor.run(std::move(tasks));
  } catch (const Error& error) {
    return error.text();
  }
  return "none";
}

TEST(LaneExecutorErrors, EveryTaskOfAChainCanFailInEitherWay) {
  for (TaskId broken = 0; broken < 10; ++broken)
    for (const bool throws : {true, false}) {
      const bool is_compute = broken % 3 == 1 || broken == 9;
      if (is_compute && !throws) continue;
      ScatteredRunner runner(static_cast<unsigned>(broken));
      if (throws)
        runner.throw_at(broken);
      else
        runner.fail_at(broken);
      LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
      EXPECT_EQ(error_of(executor, chain(3)), "task " + std::to_string(broken));
      EXPECT_EQ(runner.in_flight(), 0);
      for (TaskId later = broken + 1; later < 10; ++later)
        EXPECT_FALSE(runner.has_started(later)) << later << " after " << broken;
      EXPECT_EQ(error_of(executor, {make_task(100, kLoad, {}), make_task(101, kCompute, {100})}),
                "task " + std::to_string(broken));
      EXPECT_FALSE(runner.has_started(100)) << "a failed executor starts nothing";
      EXPECT_THROW(executor.finish(), Error);
    }
}

TEST(LaneExecutorErrors, ALaterErrorNeverReplacesTheFirst) {
  // Ends the store, with an error, right after the load has failed.
  class TwoFailures final : public TaskRunner {
   public:
    void compute(const Task&) override {}
    void transfer(const Task& task, std::function<void(std::exception_ptr)> done) override {
      std::unique_lock lock(mutex_);
      if (task.kind == kStore) {
        store_done_ = std::move(done);
        changed_.notify_all();
        return;
      }
      changed_.wait(lock, [&] { return store_done_ != nullptr; });
      done(std::make_exception_ptr(Error(ErrorKind::kFile, "first")));
      store_done_(std::make_exception_ptr(Error(ErrorKind::kDevice, "second")));
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::function<void(std::exception_ptr)> store_done_;
  } runner;
  LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
  EXPECT_EQ(error_of(executor, {make_task(0, kLoad, {}), make_task(1, kStore, {}),
                                make_task(2, kCompute, {0, 1})}),
            "first");
  try {
    executor.finish();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.text(), "first") << "the same error, whoever asks";
  }
}

TEST(LaneExecutorErrors, RunThrowsOnlyAfterEverythingInFlightHasEnded) {
  for (unsigned round = 0; round < 50; ++round) {
    ScatteredRunner runner(round);
    std::vector<Task> tasks;
    for (TaskId id = 0; id < 12; ++id) tasks.push_back(make_task(id, id % 2 ? kLoad : kStore, {}));
    tasks.push_back(make_task(12, kCompute, {0}));
    runner.throw_at(12);
    LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), true);
    EXPECT_EQ(error_of(executor, std::move(tasks)), "task 12");
    EXPECT_EQ(runner.in_flight(), 0);
    std::set<TaskId> started, ended;
    for (const auto& record : runner.history()) (record.is_end ? ended : started).insert(record.id);
    started.erase(12);
    EXPECT_EQ(started, ended);
  }
}

TEST(LaneExecutorErrors, ANonErrorExceptionPassesThroughAsItIs) {
  class Strange final : public TaskRunner {
   public:
    void compute(const Task&) override {}
    void transfer(const Task&, std::function<void(std::exception_ptr)>) override {
      throw std::bad_alloc();
    }
  } runner;
  LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
  EXPECT_THROW(executor.run({make_task(0, kLoad, {}), make_task(1, kCompute, {0})}),
               std::bad_alloc);
}

TEST(LaneExecutorErrors, CancellingStopsBeforeTheNextCompute) {
  std::stop_source source;
  ScatteredRunner runner(1);
  runner.at_compute(1, [&] { source.request_stop(); });
  LaneExecutor executor(runner, source.get_token(), one_device_lanes(DeviceLanes::kNone), false);
  try {
    executor.run(chain(3));
    FAIL() << "a cancelled run ended as if nothing had happened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
  }
  EXPECT_FALSE(runner.has_started(4)) << "the next compute task";
  EXPECT_EQ(runner.in_flight(), 0);
}

TEST(LaneExecutorErrors, AStoreThatFailsAfterItsRunIsToldByTheNextRunAndByFinish) {
  for (const bool by_finish : {true, false}) {
    ScatteredRunner runner(2);
    runner.fail_at(1);
    runner.hold(1);
    LaneExecutor executor(runner, {}, one_device_lanes(DeviceLanes::kNone), false);
    executor.run({make_task(0, kCompute, {}), make_task(1, kStore, {0})});
    runner.wait_for_start(1);
    runner.let_go();
    if (by_finish)
      EXPECT_THROW(executor.finish(), Error);
    else
      EXPECT_EQ(error_of(executor, {make_task(2, kCompute, {})}), "task 1");
  }
}

}  // namespace
}  // namespace sluice
