// What lanes that share the host's cores take of each other: the cost model's sum beside small
// steps of time at the simulator's shares.
#include "policy/lane_sharing.h"

#include <gtest/gtest.h>

#include "policy/profile.h"
#include "tests/policy/machine_fixture.h"

namespace sluice::policy {
namespace {

// Seconds until `work` seconds of computing are done, while `lane` runs for the first `busy` ones.
double until_done(const LaneSharing& sharing, Lane lane, double work, double busy) {
  constexpr double kStep = 1e-4;
  double at = 0;
  for (; work > 0; at += kStep) {
    LaneSet running;
    running.set(Lane::kDeviceCompute, true);
    if (at < busy) running.set(lane, true);
    work -= kStep * sharing.share(Lane::kDeviceCompute, running);
  }
  return at;
}

TEST(LaneSharing, TheModelsDelayIsThatOfTheSharesInTime) {
  for (const double delay : {0.0, 1e-11, 1e-10, 2e-10}) {
    Profile profile = plain_machine(true);
    profile.shares_cores = true;
    profile.copy_delay.value = profile.read_delay.value = delay;
    const LaneSharing sharing(profile);
    // Computing goes on for as long as the other lane runs, and longer.
    const double copying = 0.7;
    const double copied = copying * profile.link.to_device.value;
    EXPECT_NEAR(sharing.delayed(1, 0, 0, copied),
                until_done(sharing, Lane::kHostToDevice, 1, copying), 1e-3)
        << delay;
    const double reading = 0.5;
    const double read = reading * profile.disk().busy_read.value;
    EXPECT_NEAR(sharing.delayed(1, read, 0, 0), until_done(sharing, Lane::kDiskRead, 1, reading),
                1e-3)
        << delay;
    EXPECT_DOUBLE_EQ(sharing.delayed(1, 0, 0.25, 0), 1.25) << "repacking is the cores' own work";
  }
}

TEST(LaneSharing, ADeviceWithCoresOfItsOwnLosesNothing) {
  Profile profile = plain_machine(true);
  profile.copy_delay.value = profile.read_delay.value = 1e-10;
  const LaneSharing sharing(profile);
  EXPECT_DOUBLE_EQ(sharing.delayed(1, 1e9, 0.5, 1e9), 1);
}

}  // namespace
}  // namespace sluice::policy
