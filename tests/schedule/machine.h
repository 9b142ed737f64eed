#pragma once
// A machine of two devices with a link between them and a network, and a schedule of seven tasks
// written out by hand for it.
#include <vector>

#include "src/schedule/task.h"

namespace sluice {

inline constexpr Lane kUpToSecond{6};
inline constexpr Lane kSecondCompute{7};
inline constexpr Lane kBetween{8};
inline constexpr Lane kReceive{9};

inline LaneTable two_devices_and_a_network() {
  LaneTable machine = one_device_lanes(DeviceLanes::kOwnCores);
  machine.push_back(transfer_lane("host to device 1", kHost, device_place(1)));
  machine.push_back(compute_lane("device 1 compute", device_place(1), LaneThread::kOwn));
  machine.push_back(transfer_lane("device 0 to device 1", device_place(0), device_place(1)));
  machine.push_back(transfer_lane("network receive", peer_place(), kHost));
  return machine;
}

/// Rows come over the network, pass through both devices, and the first goes on meanwhile.
inline std::vector<Task> tasks_for_two_devices() {
  const auto task = [](TaskId id, Lane lane, int64_t bytes, std::vector<TaskId> waits) {
    Task out;
    out.id = id;
    out.lane = lane;
    out.kind = bytes > 0 ? TaskKind::kLoadActivations : TaskKind::kCompute;
    if (bytes > 0) out.work = StateMove{};
    out.bytes = bytes;
    out.waits = std::move(waits);
    return out;
  };
  return {task(0, kReceive, 100, {}),
          task(1, Lane::kHostToDevice, 50, {0}),
          task(2, Lane::kDeviceCompute, 0, {1}),
          task(3, kBetween, 20, {2}),
          task(4, kUpToSecond, 60, {}),
          task(5, kSecondCompute, 0, {3, 4}),
          task(6, Lane::kDeviceCompute, 0, {2})};
}

}  // namespace sluice
