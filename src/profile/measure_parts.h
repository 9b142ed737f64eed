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
/// Reads a scratch file of `bytes` (at least 64 MiB) again and again.
class ReadLoop {
 public:
  ReadLoop(const std::string& folder, int64_t bytes);
  ~ReadLoop();
  int64_t read() const;  ///< all of it once; bytes read

 private:
  std::string path_;
  int64_t bytes_;
};
int64_t disk_space(const std::string& folder);

}  // namespace sluice
