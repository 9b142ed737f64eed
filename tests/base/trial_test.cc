#include "src/base/trial.h"

#include <gtest/gtest.h>

#include <functional>

namespace sluice {
namespace {

using Nanoseconds = Trial::Nanoseconds;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Machine {
  Trial trial;
  Nanoseconds now{};
  Nanoseconds without{};  // time spent so

  // Loops of 154 kinds in turn for `length`; `cost` says what one takes with and without helpers.
  void run(Nanoseconds length, const std::function<double(bool)>& cost, bool is_late) {
    const Nanoseconds end = now + length;
    for (uint64_t i = 0; now < end; ++i) {
      const uint64_t kind = i % 154 < 20 ? 1 + i % 154 : 21;
      const double unit = kind == 21 ? 1 : static_cast<double>(kind);
      const bool is_without = trial.leaves_out();
      const auto took = Nanoseconds(static_cast<int64_t>(1e5 * unit * cost(is_without)));
      now += took;
      if (is_without) without += took;
      if (is_late && !is_without && i % 50 == 0) trial.note_late();
      trial.add(kind, took, now);
    }
  }
};

TEST(Trial, NothingIsTriedWhileNobodyIsLate) {
  Machine machine;
  machine.run(
      seconds(5), [](bool) { return 1.0; }, false);
  EXPECT_TRUE(machine.trial.is_calm());
  EXPECT_EQ(machine.without, Nanoseconds{});
}

TEST(Trial, TheBetterWayIsKept) {
  for (const double alone : {0.8, 0.95}) {
    Machine machine;
    machine.run(
        seconds(60), [&](bool is_without) { return is_without ? alone : 1.0; }, true);
    EXPECT_GT(machine.without, seconds(50)) << alone;
  }
  for (const double alone : {1.0, 1.05, 1.9}) {
    Machine machine;
    machine.run(
        seconds(60), [&](bool is_without) { return is_without ? alone : 1.0; }, true);
    EXPECT_LT(machine.without, seconds(5)) << alone;
  }
}

TEST(Trial, AChangeIsNoticed) {
  Machine machine;
  machine.run(
      seconds(30), [](bool is_without) { return is_without ? 0.8 : 1.0; }, true);
  machine.without = {};
  machine.run(
      seconds(25), [](bool is_without) { return is_without ? 2.0 : 1.0; }, false);
  EXPECT_LT(machine.without, Trial::kLongestStay + seconds(2));
  EXPECT_TRUE(machine.trial.is_calm());
  machine.without = {};
  machine.run(
      seconds(20), [](bool is_without) { return is_without ? 0.8 : 1.0; }, true);
  EXPECT_GT(machine.without, seconds(15));
}

// Other work in one window than in the other: no word about helpers.
TEST(Trial, UnlikeWorkIsNotCompared) {
  Trial trial;
  Nanoseconds now{};
  Nanoseconds without{};
  while (now < seconds(60)) {
    const bool is_without = trial.leaves_out();
    const Nanoseconds took = is_without ? microseconds(50) : microseconds(500);
    now += took;
    if (is_without) without += took;
    trial.note_late();
    trial.add(is_without ? 7 : 3, took, now);
  }
  EXPECT_GT(without, Nanoseconds{}) << "it was tried";
  EXPECT_LT(without, seconds(5));
}

TEST(Trial, ManyKindsDoNoHarm) {
  Trial trial;
  Nanoseconds now{};
  for (uint64_t i = 0; i < 100000; ++i) {
    now += microseconds(100);
    if (i % 9 == 0) trial.note_late();
    trial.add(i * 0x9E3779B97F4A7C15u, microseconds(100), now);
  }
  EXPECT_FALSE(trial.is_calm());
}

}  // namespace
}  // namespace sluice
