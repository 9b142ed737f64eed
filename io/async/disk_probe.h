#pragma once
// The raw rate of a disk, measured by the plainest loop there is and without the file engine: what
// benchmarks print beside the engine's rate, and the limit that a profile holds. Blocks; allocates
// depth x request_bytes.
#include <cstdint>
#include <limits>
#include <stop_token>
#include <string>

#include "io/async/offload_file.h"

namespace sluice::io {

/// What is read or written.
struct ProbeRequest {
  int64_t bytes = 0;  ///< from the file's beginning, or from `offset`
  int64_t request_bytes = 1 << 20;
  int depth = 64;  ///< requests in flight
  int64_t offset = 0;
  /// Where the disk is slow, no request starts after so long.
  double most_seconds = std::numeric_limits<double>::infinity();
  std::stop_token cancel;
};

/// What came of it.
struct ProbeResult {
  int64_t bytes = 0;  ///< moved
  double seconds = 0;
  double rate() const noexcept { return static_cast<double>(bytes) / seconds; }
};

/// Reads of a range that has been written, or writes into it, in rising order: direct over io_uring
/// where the file is and the system lets us, else by plain calls. Errors: kUser for sizes out of
/// range; kFile, kResource from the disk; kCancelled.
ProbeResult probe_reads(const OffloadFile& file, const ProbeRequest& request);
ProbeResult probe_writes(const OffloadFile& file, const ProbeRequest& request);

/// Bytes per second of sequential direct reads of the first `bytes` of `path` with `depth` requests
/// of `request_bytes` in flight over io_uring. `bytes` is cut to the file's size; whole requests
/// only. Errors: kUser for sizes out of range; kFile when the file is missing, shorter than one
/// request, or its file system refuses direct I/O; kDevice when io_uring is refused.
double probe_read_rate(const std::string& path, int64_t bytes, int64_t request_bytes, int depth);

/// The same with writes: fills a scratch file of `bytes` in `directory`, which vanishes. Errors:
/// also kResource.
double probe_write_rate(const std::string& directory, int64_t bytes, int64_t request_bytes,
                        int depth);

}  // namespace sluice::io
