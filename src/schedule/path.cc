#include "src/schedule/path.h"

namespace sluice {

namespace {
constexpr Hop kReadToHost{kDisk, kHost, Lane::kDiskRead, Lane::kDiskWrite};
constexpr Hop kReadToDevice{kDisk, device_place(), Lane::kDiskRead, Lane::kDiskWrite};
constexpr Hop kUpLink{kHost, device_place(), Lane::kHostToDevice, Lane::kDeviceToHost};
}  // namespace

MachinePaths paths_of_host() {
  MachinePaths out;
  out.weights_from_disk = out.state = {{kReadToHost}};
  return out;
}

MachinePaths paths_of_device(bool disk_reaches_device) {
  MachinePaths out;
  out.state = {{kReadToHost, kUpLink}};
  out.weights_from_host = {{kUpLink}};
  out.weights_from_disk = disk_reaches_device ? Path{{kReadToDevice}} : out.state;
  return out;
}

}  // namespace sluice
