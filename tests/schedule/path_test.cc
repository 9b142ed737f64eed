// Paths: what a schedule moves goes hop by hop from its home to where it is computed.
#include "src/schedule/path.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "tests/schedule/machine.h"
#include "tests/schedule/schedule_checker.h"

namespace sluice {
namespace {

TEST(Path, OneMachineWithAndWithoutADevice) {
  const MachinePaths host = paths_of_host();
  EXPECT_EQ(host.weights_from_disk.size(), 1u);
  EXPECT_TRUE(host.weights_from_host.empty()) << "what is there needs no path";
  EXPECT_FALSE(host.state.crosses_link());
  EXPECT_FALSE(host.disk_reaches_device());

  const MachinePaths device = paths_of_device(false);
  EXPECT_EQ(device.weights_from_disk.stops_between(), 1);
  EXPECT_EQ(device.weights_from_disk.hops[0].to, kHost);
  EXPECT_EQ(device.weights_from_disk.hops[1].to, device_place());
  EXPECT_TRUE(device.state.crosses_link());
  EXPECT_TRUE(device.state.uses_disk());
  EXPECT_FALSE(device.weights_from_host.uses_disk());

  const MachinePaths direct = paths_of_device(true);
  EXPECT_TRUE(direct.disk_reaches_device());
  EXPECT_EQ(direct.weights_from_disk.stops_between(), 0);
  EXPECT_FALSE(direct.weights_from_disk.crosses_link());
  EXPECT_EQ(direct.state, device.state) << "only weights go straight there";
}

TEST(Path, EveryPartOfEveryStreamTakesTheHopsOfItsPath) {
  std::mt19937 random(71);
  int64_t hops = 0;
  for (int round = 0; round < 300; ++round) {
    const Stream stream =
        round % 3 == 0 ? random_stream(random, false) : random_device_stream(random);
    std::map<std::tuple<int64_t, int32_t, int32_t>, std::vector<const Task*>> taken;
    for (const Task& task : stream.tasks)
      if (const auto* load = std::get_if<PartLoad>(&task.work))
        taken[{task.pass, task.sublayer, load->part}].push_back(&task);
    for (const auto& [key, tasks] : taken) {
      const auto& parts = stream.shape.sublayers[static_cast<size_t>(std::get<1>(key))].parts;
      const SchedulePart& part = parts[static_cast<size_t>(std::get<2>(key))];
      const Path& path = stream.shape.paths.weights(part.from_disk);
      ASSERT_EQ(tasks.size(), path.size());
      for (size_t i = 0; i < tasks.size(); ++i) {
        ASSERT_EQ(tasks[i]->lane, path.hops[i].up);
        ASSERT_EQ(tasks[i]->part_load().host_offset >= 0, path.stops_between() > 0);
        if (i > 0) {
          const auto& waits = tasks[i]->waits;
          ASSERT_NE(std::find(waits.begin(), waits.end(), tasks[i - 1]->id), waits.end());
        }
        ++hops;
      }
    }
  }
  EXPECT_GT(hops, 5000);
}

// What a plan may say one day: weights that another machine has, and a second device to compute on.
TEST(Path, WeightsOfAPeerGoUpToTheSecondDevice) {
  ScheduleShape shape;
  shape.paths = paths_of_device(false);
  shape.paths.compute = kSecondCompute;
  shape.paths.weights_from_disk = {{{peer_place(), kHost, kReceive, kReceive},
                                    {kHost, device_place(1), kUpToSecond, kUpToSecond}}};
  shape.sublayers = {{{{4096}, {2048}}, false}, {{{1024}}, false}};
  shape.weight_ring_bytes = 16384;
  shape.host_ring_bytes = 4096;
  ScheduleGenerator generator(shape);
  generator.begin_pass({{}}, false);
  EXPECT_TRUE(generator.uses(kReceive));
  EXPECT_TRUE(generator.uses(kSecondCompute));
  EXPECT_FALSE(generator.uses(Lane::kDiskRead));
  int64_t received = 0, sent_up = 0, computed = 0;
  while (generator.has_column())
    for (const Task& task : generator.next_column()) {
      if (task.lane == kReceive) received += task.bytes;
      if (task.lane == kUpToSecond) sent_up += task.bytes;
      computed += task.lane == kSecondCompute;
    }
  EXPECT_EQ(received, 4096 + 2048 + 1024);
  EXPECT_EQ(sent_up, received);
  EXPECT_EQ(computed, 2);
}

}  // namespace
}  // namespace sluice
