#pragma once
// The parts of measure_profile, and how samples become a figure.
#include <string>
#include <vector>

#include "policy/profile.h"

namespace sluice {

/// Median and spread.
policy::Figure measured(std::vector<double> samples, std::string note);

/// A file of up to `wanted_bytes` (a quarter of the free space at most) in `folder`, `rounds`
/// samples. Errors: kFile, kResource.
policy::Disk measure_disk(const std::string& folder, int64_t wanted_bytes, int rounds);
int64_t disk_space(const std::string& folder);

}  // namespace sluice
