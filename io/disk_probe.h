#pragma once
// The raw rate of a disk, measured by the plainest loop there is and without the file engine: what
// benchmarks print beside the engine's rate, and the limit that a profile holds. Blocks; allocates
// depth x request_bytes.
#include <cstdint>
#include <string>

namespace sluice::io {

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
