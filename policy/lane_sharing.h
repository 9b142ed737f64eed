#pragma once
// How the lanes of one machine share what serves several of them: the disk's two directions, the
// link's, the host's cores. The one place that says so: the cost model and the LP take the pairs
// and the mean delay, the simulator what each lane gets of its rate while others run.
#include <span>
#include <vector>

#include "policy/profile.h"
#include "src/schedule/lanes.h"

namespace sluice::policy {

class LaneSharing {
 public:
  /// `profile` stays where it is. `repacking`: by how many seconds a second of the host's cores
  /// takes longer while the disk's lane is busy, since some of them repack what it brings.
  explicit LaneSharing(const Profile& profile, double repacking = 0);

  /// Two lanes that take at least the sum of their seconds over `capacity` together.
  struct Pair {
    Lane a;
    Lane b;
    double capacity = 1;
  };
  std::span<const Pair> pairs() const noexcept { return pairs_; }
  /// `compute_seconds` of the device's lane with what it loses to reading the disk, to repacking
  /// (`repack_seconds` of all cores) and to copies: while these run a second is worth 1 / (1 + d),
  /// so they take d / (1 + d) of theirs, not d.
  double delayed(double compute_seconds, double read_bytes, double repack_seconds,
                 double copied_bytes) const noexcept;

  /// False while another lane has all of what this one needs.
  bool may_start(Lane lane, const LaneSet& running) const noexcept;
  /// Share of its full rate that a lane has beside those that run.
  double share(Lane lane, const LaneSet& running) const noexcept;

 private:
  bool host_computes(const LaneSet& running) const noexcept;
  double compute_share(Lane lane, const LaneSet& running) const noexcept;
  double copies_take(const LaneSet& running) const noexcept;

  const Profile& profile_;
  double repacking_;
  bool on_cores_;  // the device's lane computes on the host's cores
  std::vector<Pair> pairs_;
};

}  // namespace sluice::policy
