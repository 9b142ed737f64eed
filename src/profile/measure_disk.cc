// The disk's rates at the engine's request size and depth: written, read, and both at once.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <utility>
#include <vector>

#include "io/disk_probe.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/profile/measure_parts.h"

namespace sluice {

namespace {
constexpr int64_t kRequestBytes = kMiB;
constexpr int kDepth = 64;
constexpr int64_t kPageRequest = 16 * kKiB;  // about a KV page of a layer
constexpr int64_t kMostPageBytes = 64 * kMiB;

// A file with contents that goes away again.
class ScratchFile {
 public:
  ScratchFile(const std::string& folder, int64_t bytes) : path_(folder + "/sluice-profile-XXXXXX") {
    const int file = mkstemp(path_.data());
    if (file < 0) fail("can't be created");
    std::vector<char> block(static_cast<size_t>(8 * kMiB), 's');
    for (int64_t done = 0; done < bytes; done += static_cast<int64_t>(block.size()))
      if (write(file, block.data(), block.size()) != static_cast<ssize_t>(block.size())) {
        close(file);
        fail("can't be written");
      }
    fdatasync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
  }
  ~ScratchFile() {
    if (!path_.empty()) unlink(path_.c_str());
  }
  /// The file stays; whoever takes the path removes it.
  std::string release() { return std::exchange(path_, {}); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const noexcept { return path_; }

 private:
  [[noreturn]] void fail(const char* what) {
    const int code = errno;
    unlink(path_.c_str());
    throw Error(code == ENOSPC ? ErrorKind::kResource : ErrorKind::kFile,
                fmt::format("{} {}: {}", path_, what, std::strerror(code)),
                "give --offload-dir a folder on the disk to measure, with some free space");
  }
  std::string path_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Where io_uring or direct I/O is refused (containers often do) the engine falls back to plain
// calls, and so does the measurement: the pages are dropped first, so that the disk is read.
double plain_read_rate(const std::string& path, int64_t bytes) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", path, std::strerror(errno)),
                "give --offload-dir a folder on the disk to measure");
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  std::vector<char> block(static_cast<size_t>(std::min(4 * kMiB, bytes)));
  const auto start = std::chrono::steady_clock::now();
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(file, block.data(), block.size(), done);
    if (got <= 0) break;
    done += got;
  }
  const double rate = static_cast<double>(std::max<int64_t>(done, 1)) / seconds_since(start);
  close(file);
  return rate;
}

bool is_refused(const Error& error) {
  return error.kind() == ErrorKind::kDevice || error.kind() == ErrorKind::kFile;
}

double read_rate(const std::string& path, int64_t bytes, int64_t request, int depth) {
  try {
    return io::probe_read_rate(path, bytes, request, depth);
  } catch (const Error& error) {
    if (!is_refused(error)) throw;
    return plain_read_rate(path, bytes);
  }
}

double write_rate(const std::string& folder, int64_t bytes, int64_t request, int depth) {
  try {
    return io::probe_write_rate(folder, bytes, request, depth);
  } catch (const Error& error) {
    if (!is_refused(error)) throw;
    const auto start = std::chrono::steady_clock::now();
    const ScratchFile file(folder, bytes);  // written and synced
    return static_cast<double>(bytes) / seconds_since(start);
  }
}

// What a request of a KV page takes besides its bytes at the large requests' `rate`.
policy::Figure request_seconds(std::vector<double> rates, double rate) {
  for (double& one : rates)
    one = std::max(0.0, static_cast<double>(kPageRequest) * (1 / one - 1 / rate));
  return measured(rates, "16 KiB requests, 64 in flight, less their bytes at the large ones' rate");
}

int64_t free_bytes(const std::string& folder) {
  struct statvfs stats {};
  if (statvfs(folder.c_str(), &stats) != 0)
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", folder, std::strerror(errno)),
                "give --offload-dir a folder that is there");
  return static_cast<int64_t>(stats.f_bavail) * static_cast<int64_t>(stats.f_frsize);
}
}  // namespace

policy::Disk measure_disk(const std::string& folder, int64_t wanted_bytes, int rounds) {
  const int64_t bytes = round_down(std::min(wanted_bytes, free_bytes(folder) / 4), 8 * kMiB);
  if (bytes < 64 * kMiB)
    throw Error(ErrorKind::kResource,
                fmt::format("{} has too little free space to measure the disk", folder),
                "free 256MiB, or give --offload-dir another folder");
  policy::Disk out;
  out.path = folder;
  std::vector<double> writes, reads, mixed_reads, mixed_writes;
  const ScratchFile file(folder, bytes);
  const auto read = [&] { return read_rate(file.path(), bytes, kRequestBytes, kDepth); };
  const auto write = [&] { return write_rate(folder, bytes / 2, kRequestBytes, kDepth); };
  std::vector<double> page_reads, page_writes;
  const int64_t page_bytes = std::min(bytes, kMostPageBytes);
  for (int round = 0; round < rounds; ++round) {
    page_reads.push_back(read_rate(file.path(), page_bytes, kPageRequest, kDepth));
    page_writes.push_back(write_rate(folder, page_bytes, kPageRequest, kDepth));
    reads.push_back(read());
    writes.push_back(write());
    auto writing = std::async(std::launch::async, write);
    mixed_reads.push_back(read());
    mixed_writes.push_back(writing.get());
  }
  const auto latency_start = std::chrono::steady_clock::now();
  constexpr int kSingles = 32;
  for (int i = 0; i < kSingles; ++i) read_rate(file.path(), 4096, 4096, 1);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - latency_start).count();
  out.read = measured(reads, "1 MiB requests, 64 in flight");
  out.write = measured(writes, "1 MiB requests, 64 in flight");
  out.mixed_read = measured(mixed_reads, "while writing");
  out.mixed_write = measured(mixed_writes, "while reading");
  out.mixed_read.value = std::min(out.mixed_read.value, out.read.value);
  out.mixed_write.value = std::min(out.mixed_write.value, out.write.value);
  out.read_request_seconds = request_seconds(page_reads, out.read.value);
  out.write_request_seconds = request_seconds(page_writes, out.write.value);
  out.latency_seconds = measured({seconds / kSingles}, "4 KiB, opened anew each time");
  return out;
}

ReadLoop::ReadLoop(const std::string& folder, int64_t bytes)
    : bytes_(round_down(std::min(bytes, free_bytes(folder) / 4), 8 * kMiB)) {
  ScratchFile file(folder, bytes_);
  path_ = file.release();
}

ReadLoop::~ReadLoop() { unlink(path_.c_str()); }

int64_t ReadLoop::read() const {
  read_rate(path_, bytes_, kRequestBytes, kDepth);
  return bytes_;
}

int64_t disk_space(const std::string& folder) { return free_bytes(folder); }

}  // namespace sluice
