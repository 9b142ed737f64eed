#include "policy/lane_sharing.h"

#include <algorithm>

namespace sluice::policy {

LaneSharing::LaneSharing(const Profile& profile, double repacking)
    : profile_(profile), repacking_(repacking), on_cores_(profile.shares_cores || !profile.device) {
  const Disk& disk = profile.disk();
  const double both =
      disk.mixed_read.value / disk.read.value + disk.mixed_write.value / disk.write.value;
  pairs_.push_back({Lane::kDiskRead, Lane::kDiskWrite, std::max(1.0, both)});
  if (profile.device)
    pairs_.push_back({Lane::kHostToDevice, Lane::kDeviceToHost, 2 * profile.link.both_share.value});
  if (on_cores_) pairs_.push_back({Lane::kDeviceCompute, Lane::kHostCompute, 1});
}

// On an emulated device copies take the cores' time; reading takes some of the host's.
double LaneSharing::delayed(double compute_seconds, double read_bytes, double repack_seconds,
                            double copied_bytes) const noexcept {
  const auto lost = [](double bytes, double delay, double rate) {
    return bytes * delay / (1 + rate * delay);
  };
  if (profile_.shares_cores)
    compute_seconds += lost(copied_bytes, profile_.copy_delay.value,
                            std::max(profile_.link.to_device.value, profile_.link.to_host.value));
  if (on_cores_)
    compute_seconds +=
        lost(read_bytes, profile_.read_delay.value, profile_.disk().busy_read.value) +
        repack_seconds;
  return compute_seconds;
}

bool LaneSharing::may_start(Lane lane, const LaneSet& running) const noexcept {
  if (!on_cores_) return true;
  if (lane == Lane::kDeviceCompute) return !running[Lane::kHostCompute];
  return lane != Lane::kHostCompute || !running[Lane::kDeviceCompute];
}

double LaneSharing::share(Lane lane, const LaneSet& running) const noexcept {
  const Disk& disk = profile_.disk();
  if (lane == Lane::kDiskRead)
    return (running[Lane::kDiskWrite] ? disk.mixed_read.value / disk.read.value : 1) *
           (host_computes(running) ? disk.busy_read.value / disk.read.value : 1);
  if (lane == Lane::kDiskWrite)
    return running[Lane::kDiskRead] ? disk.mixed_write.value / disk.write.value : 1;
  if (lane == Lane::kHostToDevice)
    return running[Lane::kDeviceToHost] ? profile_.link.both_share.value : 1;
  if (lane == Lane::kDeviceToHost)
    return running[Lane::kHostToDevice] ? profile_.link.both_share.value : 1;
  return compute_share(lane, running);
}

bool LaneSharing::host_computes(const LaneSet& running) const noexcept {
  return running[Lane::kHostCompute] || (on_cores_ && running[Lane::kDeviceCompute]);
}

double LaneSharing::compute_share(Lane lane, const LaneSet& running) const noexcept {
  constexpr double kLeast = 0.2;
  if (!on_cores_ && lane != Lane::kHostCompute) return 1;
  double taken = 0;
  if (running[Lane::kDiskRead])
    taken += profile_.disk().busy_read.value * profile_.read_delay.value + repacking_;
  return std::max(1 / (1 + taken + copies_take(running)), kLeast);
}

double LaneSharing::copies_take(const LaneSet& running) const noexcept {
  if (!profile_.shares_cores) return 0;
  double taken = 0;
  for (const Lane lane : {Lane::kHostToDevice, Lane::kDeviceToHost}) {
    if (!running[lane]) continue;
    const double rate =
        lane == Lane::kHostToDevice ? profile_.link.to_device.value : profile_.link.to_host.value;
    taken += rate * share(lane, running) * profile_.copy_delay.value;
  }
  return taken;
}

}  // namespace sluice::policy
