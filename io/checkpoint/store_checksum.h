#pragma once
// The checksum of a whole file, read at the disk's speed. Shared by conversion (continuing) and
// verification.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>

namespace sluice::io {

/// CRC32C of the first `bytes` of the file. `progress` gets the bytes done so far, may be empty;
/// `stop` may be null. Errors: kFile (also when the file is shorter), kCancelled.
uint32_t file_checksum(const std::filesystem::path& path, int64_t bytes,
                       const std::function<void(int64_t done_bytes)>& progress,
                       const std::atomic<bool>* stop);

}  // namespace sluice::io
