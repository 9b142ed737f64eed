#include "src/device/emulated_device.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {
namespace {

TEST(EmulatedSpec, ReadsEveryKeyAndKeepsTheOthers) {
  const EmulatedSpec all = parse_emulated_spec(
      "emulated:mem=2GiB,h2d=12GB/s,d2h=6GiB/s,latency=10us,flops=2TFLOP/s,"
      "host_flops=300GFLOP/s");
  EXPECT_EQ(all.memory_bytes, 2 * kGiB);
  EXPECT_DOUBLE_EQ(all.to_device, 12e9);
  EXPECT_DOUBLE_EQ(all.to_host, 6.0 * static_cast<double>(kGiB));
  EXPECT_DOUBLE_EQ(all.latency_seconds, 10e-6);
  EXPECT_DOUBLE_EQ(all.flops, 2e12);
  EXPECT_DOUBLE_EQ(all.host_flops, 3e11);
  const EmulatedSpec none = parse_emulated_spec("emulated");
  EXPECT_EQ(none.memory_bytes, EmulatedSpec{}.memory_bytes);
  EXPECT_DOUBLE_EQ(parse_emulated_spec("emulated:h2d=0").to_device, 0);
  EXPECT_DOUBLE_EQ(parse_emulated_spec("emulated:d2h=800MB/s,flops=5e11").to_host, 8e8);
  EXPECT_DOUBLE_EQ(parse_emulated_spec("emulated:latency=0.5ms").latency_seconds, 5e-4);
}

TEST(EmulatedSpec, RefusesWhatItDoesNotKnowByName) {
  for (const char* text :
       {"", "cuda", "emulatedx", "emulated:memory=1GiB", "emulated:mem=", "emulated:mem=0",
        "emulated:mem=-1GiB", "emulated:h2d=-1GB/s", "emulated:h2d=fast", "emulated:h2d=1GB",
        "emulated:latency=10", "emulated:latency=2s", "emulated:latency=-1us", "emulated:flops=2P",
        "emulated:host_flops=2P", "emulated:h2d=nan", "emulated:h2d=inf", "emulated:mem=1GiB,,"}) {
    try {
      parse_emulated_spec(text);
      if (std::string(text) != "emulated:mem=1GiB,,") ADD_FAILURE() << text << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser) << text;
      EXPECT_FALSE(error.mend().empty()) << text;
    }
  }
}

TEST(Link, CopiesQueueAndSmallOnesPass) {
  Link link(1e9, 1e-3);
  const auto seconds = [](Link::Clock::duration d) {
    return std::chrono::duration<double>(d).count();
  };
  const auto before = Link::Clock::now();
  const auto first = link.queue(1'000'000'000);
  const auto second = link.queue(500'000'000);
  EXPECT_GE(seconds(first - before), 1.001);
  EXPECT_DOUBLE_EQ(std::round(seconds(second - first) * 1e6) / 1e6, 0.501);
  const auto small = link.squeeze_in(1000);
  EXPECT_LT(small, first) << "it does not wait for the queue";
  const auto third = link.queue(0);
  EXPECT_NEAR(seconds(third - second), 0.001 + 0.001001, 1e-6) << "the queue waits for it";
  Link open(0, 0);
  const auto at_once = open.queue(int64_t{1} << 40);
  EXPECT_LE(at_once, Link::Clock::now()) << "no limit";
}

TEST(EmulatedDevice, ItsMemoryHasALimitOfItsOwn) {
  EmulatedDevice device(EmulatedSpec{kMiB, 0, 0, 0, 0});
  const Buffer half = device.memory().allocate(kMiB / 2, "half");
  EXPECT_THROW(device.memory().allocate(kMiB, "too much"), Error);
  device.finish_compute(std::chrono::steady_clock::now(), 1e18);  // no limit: comes back at once
}

}  // namespace
}  // namespace sluice
