#include "src/schedule/lanes.h"

namespace sluice {

LaneSpec compute_lane(std::string name, Place at, LaneThread thread) {
  return {std::move(name), LaneSpec::Kind::kCompute, at, at, thread};
}

LaneSpec transfer_lane(std::string name, Place from, Place to) {
  return {std::move(name), LaneSpec::Kind::kTransfer, from, to, LaneThread::kOwn};
}

const std::string& lane_name(const LaneTable& machine, Lane lane) {
  return machine.at(static_cast<size_t>(lane)).name;
}

LaneTable one_device_lanes(DeviceLanes device) {
  LaneTable out{transfer_lane("disk read", kDisk, kHost),
                transfer_lane("disk write", kHost, kDisk),
                transfer_lane("host to device", kHost, device_place()),
                transfer_lane("device to host", device_place(), kHost),
                compute_lane("device compute", device_place(), LaneThread::kCaller),
                compute_lane("host compute", kHost, LaneThread::kCaller)};
  const auto row = [&](Lane lane) -> LaneSpec& { return out[static_cast<size_t>(lane)]; };
  if (device == DeviceLanes::kNone)
    row(Lane::kHostToDevice).thread = row(Lane::kDeviceToHost).thread = LaneThread::kNone;
  if (device == DeviceLanes::kOwnCores) row(Lane::kHostCompute).thread = LaneThread::kOwn;
  return out;
}

const LaneTable& named_lanes() {
  static const LaneTable table = one_device_lanes(DeviceLanes::kOwnCores);
  return table;
}

}  // namespace sluice
