#pragma once
// A profile that learns: what a run found of its kernels and its disk goes into the rates that
// plans are made of, so that a wrong one mends itself within a run or two. By class: rates of
// products by format, size and rows, attention by KV format, the disk by direction. Other processes
// only make things slower: what was faster than the profile says is believed, what was slower only
// of a run that had the cores for itself; each by as much as there is of it, and no more than
// fourfold at a time.
#include <cstdint>
#include <map>
#include <string>

#include "policy/kernel_times.h"
#include "policy/profile.h"
#include "src/schedule/task.h"

namespace sluice {

/// No rate changes by more in one go: beyond that something else was wrong.
constexpr double kMostChange = 4;

/// What a lane has moved.
struct LaneTransfers {
  int64_t tasks = 0;
  int64_t bytes = 0;
  double busy_seconds = 0;
};

/// What a run found.
struct RunFindings {
  policy::KernelTimes kernels;
  std::map<Lane, LaneTransfers> transfers;  ///< of the profile's own disk and link
  double compute_seconds = 0;               ///< that a compute lane was busy
  double wall_seconds = 0;
  int64_t weight_bytes = 0;  ///< of the model: a small one stays in the caches
  bool is_quiet = true;      ///< no other process had the cores
};

/// How far a run may correct a profile.
enum class Trust : uint8_t {
  kByEvidence,  ///< as above
  kAll          ///< takes everything as found (--recalibrate)
};

/// A corrected profile and what changed most.
struct Lesson {
  policy::Profile profile;
  double most_change = 1;  ///< the largest factor between a rate before and after, >= 1
  std::string of;          ///< which: "products of int4-g64, 8 rows"; empty when nothing changed
};

/// `profile` (a machine's, measured) with what a run found.
Lesson learn(const policy::Profile& profile, const RunFindings& findings,
             Trust trust = Trust::kByEvidence);

}  // namespace sluice
