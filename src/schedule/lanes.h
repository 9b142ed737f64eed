#pragma once
// The lanes of a machine, as data: each is an in-order queue of one resource, a compute lane at a
// place or a transfer lane from one place to another. A task names its lane by its number in the
// machine's table. A machine with more devices, links between them or a network has more rows;
// whoever runs, simulates, traces or reports a schedule reads the table.
#include <compare>
#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

/// Number of a lane in its machine's table.
class Lane {
 public:
  constexpr Lane() = default;
  template <std::integral T>
  constexpr explicit Lane(T number) : number_(static_cast<uint8_t>(number)) {}
  template <std::integral T>
  constexpr explicit operator T() const noexcept {
    return static_cast<T>(number_);
  }
  constexpr auto operator<=>(const Lane&) const noexcept = default;

  /// The first lanes of every table, whatever the machine has beside them: those of one disk, the
  /// host and one device. Without a device the host computes on kDeviceCompute.
  static const Lane kDiskRead, kDiskWrite, kHostToDevice, kDeviceToHost, kDeviceCompute,
      kHostCompute;

 private:
  uint8_t number_ = 0;
};
inline constexpr Lane Lane::kDiskRead{0};
inline constexpr Lane Lane::kDiskWrite{1};
inline constexpr Lane Lane::kHostToDevice{2};
inline constexpr Lane Lane::kDeviceToHost{3};
inline constexpr Lane Lane::kDeviceCompute{4};
inline constexpr Lane Lane::kHostCompute{5};

/// Where bytes lie or are computed on.
struct Place {
  enum class Kind : uint8_t { kDisk, kHost, kDevice, kPeer };  ///< kPeer: another machine
  Kind kind = Kind::kHost;
  uint8_t number = 0;  ///< among those of its kind
  constexpr auto operator<=>(const Place&) const noexcept = default;
};
inline constexpr Place kDisk{Place::Kind::kDisk, 0};
inline constexpr Place kHost{Place::Kind::kHost, 0};
constexpr Place device_place(uint8_t number = 0) { return {Place::Kind::kDevice, number}; }
constexpr Place peer_place(uint8_t number = 0) { return {Place::Kind::kPeer, number}; }

/// Who takes a lane's tasks.
enum class LaneThread : uint8_t {
  kNone,    ///< nobody: the machine has none of it, and no schedule uses it
  kOwn,     ///< a thread of its own
  kCaller,  ///< of a compute lane: whoever runs the pass
};

/// One row: a lane that computes at `to`, or moves bytes from one place to another.
struct LaneSpec {
  enum class Kind : uint8_t { kTransfer, kCompute };
  std::string name;
  Kind kind = Kind::kTransfer;
  Place from;
  Place to;
  LaneThread thread = LaneThread::kOwn;

  bool computes() const noexcept { return kind == Kind::kCompute; }
  bool touches(Place::Kind place) const noexcept { return from.kind == place || to.kind == place; }
};
/// Rows of a table.
LaneSpec compute_lane(std::string name, Place at, LaneThread thread);
LaneSpec transfer_lane(std::string name, Place from, Place to);

using LaneTable = std::vector<LaneSpec>;
/// As its table says.
const std::string& lane_name(const LaneTable& machine, Lane lane);

/// What the host is beside a device.
enum class DeviceLanes : uint8_t {
  kNone,         ///< no link; the host computes
  kSharedCores,  ///< the device computes on the host's cores
  kOwnCores      ///< the host computes beside it, on a thread of its own
};
/// One disk, the host and at most one device: the rows that Lane's names are of, in their order.
LaneTable one_device_lanes(DeviceLanes device);
/// The same with everything, for whoever only wants names and kinds.
const LaneTable& named_lanes();

/// Some lanes of a table of at most 64.
class LaneSet {
 public:
  bool operator[](Lane lane) const noexcept { return (bits_ >> static_cast<unsigned>(lane)) & 1; }
  void set(Lane lane, bool is_in = true) noexcept {
    const uint64_t bit = uint64_t{1} << static_cast<unsigned>(lane);
    bits_ = is_in ? bits_ | bit : bits_ & ~bit;
  }

 private:
  uint64_t bits_ = 0;
};

/// A value for each lane of a table.
template <typename T>
class PerLane {
 public:
  PerLane() : PerLane(named_lanes()) {}
  explicit PerLane(size_t lanes) : values_(lanes) {}
  explicit PerLane(const LaneTable& table) : values_(table.size()) {}
  T& operator[](size_t lane) { return values_[lane]; }
  const T& operator[](size_t lane) const { return values_[lane]; }
  T& operator[](Lane lane) { return values_[static_cast<size_t>(lane)]; }
  const T& operator[](Lane lane) const { return values_[static_cast<size_t>(lane)]; }
  size_t size() const noexcept { return values_.size(); }
  auto begin() noexcept { return values_.begin(); }
  auto end() noexcept { return values_.end(); }
  auto begin() const noexcept { return values_.begin(); }
  auto end() const noexcept { return values_.end(); }
  bool operator==(const PerLane&) const = default;

 private:
  std::vector<T> values_;
};

}  // namespace sluice
