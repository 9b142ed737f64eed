#pragma once
// Where bytes stop on their way between a home and where they are computed: a value that the plan
// makes and that generator, simulator and stores walk. A path knows its hops, not the machine.
#include <cstdint>
#include <vector>

#include "src/schedule/lanes.h"

namespace sluice {

/// From one stop to the next.
struct Hop {
  Place from;  ///< the stop nearer the home
  Place to;    ///< the one nearer where it is computed
  Lane up;     ///< moves bytes there
  Lane down;   ///< and back
  bool uses_disk() const noexcept { return from.kind == Place::Kind::kDisk; }
  bool operator==(const Hop&) const = default;
};

/// From a home to where the bytes are computed; empty: they are there.
struct Path {
  std::vector<Hop> hops;

  size_t size() const noexcept { return hops.size(); }
  bool empty() const noexcept { return hops.empty(); }
  /// Stops between the home and where it is computed, which need memory of their own.
  int stops_between() const noexcept { return empty() ? 0 : static_cast<int>(size()) - 1; }
  bool uses_disk() const noexcept { return !empty() && hops.front().uses_disk(); }
  /// Whether bytes cross a link, from one memory to another.
  bool crosses_link() const noexcept { return !empty() && !hops.back().uses_disk(); }
  bool operator==(const Path&) const = default;
};

/// The paths of one machine's bytes, by home.
struct MachinePaths {
  Path weights_from_disk;
  Path weights_from_host;
  /// KV and hidden-state rows, from the lowest home: what lies higher enters on the way.
  Path state;
  Lane compute = Lane::kDeviceCompute;     ///< where the paths lead
  Lane host_compute = Lane::kHostCompute;  ///< of attention on the host, one hop below

  const Path& weights(bool from_disk) const noexcept {
    return from_disk ? weights_from_disk : weights_from_host;
  }
  /// Whether weights on disk pass by the host's memory.
  bool disk_reaches_device() const noexcept {
    return weights_from_disk.uses_disk() &&
           weights_from_disk.hops.front().to.kind == Place::Kind::kDevice;
  }
  bool operator==(const MachinePaths&) const = default;
};

/// Without a device: the disk fills and empties the memory that is computed in.
MachinePaths paths_of_host();
/// With one: through host memory, weights perhaps straight from the disk.
MachinePaths paths_of_device(bool disk_reaches_device);

}  // namespace sluice
