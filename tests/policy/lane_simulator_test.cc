// The simulator's lanes are a table: any machine, with costs given by hand.
#include "policy/lane_simulator.h"

#include <gtest/gtest.h>

#include "tests/schedule/machine.h"

namespace sluice::policy {
namespace {

// Every transfer lane moves 10 bytes a second; compute tasks take 4, 3 and 7 seconds.
class ByHand : public LaneCosts {
 public:
  double seconds(const Task& task, bool) const override {
    if (task.kind != TaskKind::kCompute) return static_cast<double>(task.bytes) / 10;
    return task.id == 2 ? 4 : task.id == 5 ? 3 : 7;
  }
};

Simulation simulate_by_hand(const LaneCosts& costs) {
  Simulation out;
  const LaneTable machine = two_devices_and_a_network();
  LaneSimulator lanes(machine, costs, true, out);
  OneColumn columns(tasks_for_two_devices());
  lanes.run_pass(columns);
  return out;
}

TEST(LaneSimulator, TwoDevicesAndANetwork) {
  const Simulation out = simulate_by_hand(ByHand());
  std::vector<double> ends(7);
  for (const SimulatedTask& task : out.tasks)
    ends[static_cast<size_t>(task.task.id)] = task.end_seconds;
  const std::vector<double> expected{10, 15, 19, 21, 6, 24, 26};
  for (size_t i = 0; i < ends.size(); ++i) EXPECT_NEAR(ends[i], expected[i], 1e-9) << "task " << i;
  EXPECT_NEAR(out.pass_ends.at(0), 26, 1e-9);
  EXPECT_NEAR(out.busy_seconds(kReceive), 10, 1e-9);
  EXPECT_NEAR(out.busy_seconds(kBetween), 2, 1e-9);
  EXPECT_NEAR(out.busy_seconds(kSecondCompute), 3, 1e-9);
  EXPECT_NEAR(out.busy_seconds(Lane::kDeviceCompute), 11, 1e-9);
}

TEST(LaneSimulator, LanesTakeFromEachOtherWhatTheCostsSay) {
  // The network and the way up to the second device have half their rate while both run; both
  // devices together are given to one at a time.
  class Shared final : public ByHand {
   public:
    double share(Lane lane, const LaneSet& running) const override {
      const bool both = running[kReceive] && running[kUpToSecond];
      return both && (lane == kReceive || lane == kUpToSecond) ? 0.5 : 1;
    }
    bool may_start(Lane lane, const LaneSet& running) const override {
      return lane != kSecondCompute || !running[Lane::kDeviceCompute];
    }
  };
  const Simulation out = simulate_by_hand(Shared());
  // The way up: 6 seconds at half rate; then 4 of the network's are left. The second device waits
  // for the first.
  EXPECT_NEAR(out.busy_seconds(kUpToSecond), 12, 1e-9);
  EXPECT_NEAR(out.busy_seconds(kReceive), 16, 1e-9);
  EXPECT_NEAR(out.pass_ends.at(0), 16 + 5 + 4 + 7 + 3, 1e-9);
}

TEST(LaneSimulator, AMemoryThatAllWantIsDealtInProportion) {
  class OneMemory final : public ByHand {
   public:
    double memory_bytes(const Task& task) const override { return static_cast<double>(task.bytes); }
    double memory_rate() const override { return 15; }
  };
  // Both at 10 bytes a second want 20 of 15: the way up takes 8 seconds, of which the network had
  // 60 bytes; the rest alone at its full rate.
  const Simulation out = simulate_by_hand(OneMemory());
  EXPECT_NEAR(out.busy_seconds(kUpToSecond), 8, 1e-9);
  EXPECT_NEAR(out.busy_seconds(kReceive), 8 + 4, 1e-9);
}

}  // namespace
}  // namespace sluice::policy
