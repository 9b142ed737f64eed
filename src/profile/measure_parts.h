#pragma once
// The parts of measure_profile, and how samples become a figure. Other processes only make things
// slower, and come and go: a figure is the best of samples that lie apart.
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "io/async/offload_file.h"
#include "policy/profile.h"
#include "src/profile/measure.h"

namespace sluice {

/// The largest of `samples`, and their spread.
policy::Figure best_of(std::vector<double> samples, std::string note);
/// The middle one, and their spread.
policy::Figure median_of(std::vector<double> samples, std::string note);
/// Errors: kCancelled, when it has been asked for.
void stop_if_asked(const std::stop_token& cancel);

/// What a measurement may use of memory and time.
struct MeasureLimits {
  int64_t memory_bytes = 0;  ///< everything that is alive at a time
  double product_seconds = 0;
  int threads = 1;
  bool quick = false;
  int64_t most_rows = INT64_MAX;
  std::stop_token cancel;
};

/// Products, attention and memory on the host's cores: rounds until `limits.product_seconds` are
/// over, more of them while others have the cores. `cores_taken` gets what they had in the
/// quietest.
policy::Processor measure_host_processor(const MeasureLimits& limits, double& cores_taken);
/// Copies by one core: Profile::copy_rate, and Profile::copy_delay at a part of it.
void measure_copies(const MeasureLimits& limits, policy::Profile& out);

/// The disk of a folder. The file that it writes and reads has no name and is gone with the
/// process.
class DiskMeasurement {
 public:
  /// A file of up to `wanted_bytes` (a quarter of the free space at most; of the memory, where the
  /// folder is kept there). Errors: kFile, kResource.
  DiskMeasurement(const std::string& folder, int64_t wanted_bytes, const MeasureLimits& limits);
  policy::Disk measure();
  /// The disk and the cores beside each other: the delay of products by a byte that is read, and
  /// the disk's rate meanwhile.
  void measure_beside_products(policy::Profile& out);

 private:
  double read(int64_t bytes, int64_t request_bytes, double most_seconds);
  double write(int64_t bytes, int64_t request_bytes, double most_seconds);
  double single_read_seconds();
  int depth(int64_t request_bytes) const;

  MeasureLimits limits_;
  std::string folder_;
  io::OffloadFile file_;
  int64_t bytes_;        // of the file
  int64_t written_ = 0;  // of these, from its beginning
};
/// Bytes free for files in a folder.
int64_t disk_space(const std::string& folder);

}  // namespace sluice
