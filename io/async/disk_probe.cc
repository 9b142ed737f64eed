#include "io/async/disk_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "io/async/file_engine.h"
#include "io/async/offload_file.h"
#include "io/files/owned_fd.h"
#include "src/base/arena.h"
#include "src/base/bytes.h"
#include "src/base/system_error.h"

namespace sluice::io {

namespace {

/// Touched memory in huge pages where the system gives them, as the engine's own buffers are: a
/// request into 4 KiB pages is cut into as many segments, and reads slower.
class ProbeMemory {
 public:
  explicit ProbeMemory(int64_t bytes)
      : arena_("disk probe", bytes + kDirectAlignment), memory_(arena_.allocate(bytes, "buffers")) {
    std::memset(memory_.data(), 0x5a, static_cast<size_t>(bytes));
  }
  std::byte* at(int64_t offset) const { return memory_.data() + offset; }
  size_t size() const { return static_cast<size_t>(memory_.size()); }

 private:
  Arena arena_;
  Buffer memory_;
};

class ProbeRing {
 public:
  explicit ProbeRing(int depth) {
    const int result = io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0);
    if (result < 0) {
      throw Error(ErrorKind::kDevice, "the disk probe can't use io_uring: " + error_text(-result),
                  "allow io_uring (kernel.io_uring_disabled, the container's seccomp profile)");
    }
  }
  ~ProbeRing() { io_uring_queue_exit(&ring_); }
  ProbeRing(const ProbeRing&) = delete;
  ProbeRing& operator=(const ProbeRing&) = delete;
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
};

struct Probe {
  int fd;
  std::string name;
  ProbeRequest request;
  bool is_write;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

[[noreturn]] void stopped(const Probe& probe) {
  throw Error(ErrorKind::kCancelled, "probing " + probe.name + " was stopped");
}

void check_sizes(int64_t bytes, int64_t request_bytes, int depth) {
  if (request_bytes < kDirectAlignment || request_bytes % kDirectAlignment != 0 ||
      request_bytes > 256 * kMiB || depth < 1 || depth > 1024 || bytes < request_bytes) {
    throw Error(ErrorKind::kUser,
                fmt::format("a disk probe of {} bytes with {} requests of {} bytes can't be made",
                            bytes, depth, request_bytes),
                "choose requests in multiples of 4096 up to 256MiB, a depth of 1 to 1024, and at "
                "least one whole request");
  }
}

/// Waits for one completion and gives its slot; throws what went wrong in it.
uint64_t take_completion(io_uring* ring, const Probe& probe) {
  io_uring_cqe* cqe = nullptr;
  int result = 0;
  do {
    result = io_uring_submit_and_wait(ring, 1);
    if (result >= 0) result = io_uring_peek_cqe(ring, &cqe);
  } while (result == -EINTR || result == -EAGAIN);
  if (result < 0) throw system_error(-result, "waiting for the disk probe of " + probe.name);
  const uint64_t slot = cqe->user_data;
  const int moved = cqe->res;
  io_uring_cqe_seen(ring, cqe);
  if (moved < 0) throw system_error(-moved, "probing " + probe.name);
  if (moved != probe.request.request_bytes) {
    throw Error(ErrorKind::kFile,
                fmt::format("probing {}: a request of {} moved {} bytes only", probe.name,
                            format_bytes(probe.request.request_bytes), moved),
                "probe again while nobody changes the file");
  }
  return slot;
}

ProbeResult run(const Probe& probe) {
  const ProbeRequest& wanted = probe.request;
  const int64_t requests = wanted.bytes / wanted.request_bytes;
  const int64_t depth = std::min<int64_t>(requests, wanted.depth);
  // Before the ring: it is gone, with all that it had in flight, before the memory goes.
  const ProbeMemory memory(wanted.request_bytes * depth);
  ProbeRing ring(static_cast<int>(depth));
  const iovec whole{memory.at(0), memory.size()};
  const bool is_fixed = io_uring_register_buffers(ring.get(), &whole, 1) == 0;
  int64_t issued = 0;
  const auto issue = [&](uint64_t slot) {
    io_uring_sqe* sqe = io_uring_get_sqe(ring.get());
    std::byte* at = memory.at(static_cast<int64_t>(slot) * wanted.request_bytes);
    const auto bytes = static_cast<unsigned>(wanted.request_bytes);
    const auto offset = static_cast<uint64_t>(wanted.offset + issued++ * wanted.request_bytes);
    if (is_fixed) {
      probe.is_write ? io_uring_prep_write_fixed(sqe, probe.fd, at, bytes, offset, 0)
                     : io_uring_prep_read_fixed(sqe, probe.fd, at, bytes, offset, 0);
    } else {
      probe.is_write ? io_uring_prep_write(sqe, probe.fd, at, bytes, offset)
                     : io_uring_prep_read(sqe, probe.fd, at, bytes, offset);
    }
    sqe->user_data = slot;
  };
  const auto start = std::chrono::steady_clock::now();
  for (int64_t slot = 0; slot < depth; ++slot) issue(static_cast<uint64_t>(slot));
  int64_t completed = 0;
  while (completed < issued) {
    const uint64_t slot = take_completion(ring.get(), probe);
    ++completed;
    const bool is_over =
        wanted.cancel.stop_requested() || seconds_since(start) > wanted.most_seconds;
    if (issued < requests && !is_over) issue(slot);
  }
  if (wanted.cancel.stop_requested()) stopped(probe);
  return {completed * wanted.request_bytes, seconds_since(start)};
}

// One request after the other, where io_uring or direct I/O is refused (containers often do): what
// the engine falls back to. The pages are dropped first, so that the disk is read.
ProbeResult run_plain(const Probe& probe) {
  const ProbeRequest& wanted = probe.request;
  const ProbeMemory memory(wanted.request_bytes);
  posix_fadvise(probe.fd, wanted.offset, wanted.bytes, POSIX_FADV_DONTNEED);
  const auto start = std::chrono::steady_clock::now();
  int64_t done = 0;
  while (done + wanted.request_bytes <= wanted.bytes &&
         seconds_since(start) < wanted.most_seconds) {
    if (wanted.cancel.stop_requested()) stopped(probe);
    const auto bytes = static_cast<size_t>(wanted.request_bytes);
    const off_t at = wanted.offset + done;
    const ssize_t moved = probe.is_write ? ::pwrite(probe.fd, memory.at(0), bytes, at)
                                         : ::pread(probe.fd, memory.at(0), bytes, at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) throw system_error(errno, "probing " + probe.name);
    if (moved == 0) break;
    done += moved;
  }
  if (probe.is_write) ::fdatasync(probe.fd);
  return {std::max<int64_t>(done, 1), seconds_since(start)};
}

ProbeResult probe_file(const OffloadFile& file, const ProbeRequest& request, bool is_write) {
  check_sizes(request.bytes, request.request_bytes, request.depth);
  const Probe probe{file.fd(), file.name(), request, is_write};
  if (!file.is_direct()) return run_plain(probe);
  try {
    return run(probe);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kDevice) throw;
    return run_plain(probe);
  }
}

}  // namespace

ProbeResult probe_reads(const OffloadFile& file, const ProbeRequest& request) {
  return probe_file(file, request, false);
}

ProbeResult probe_writes(const OffloadFile& file, const ProbeRequest& request) {
  return probe_file(file, request, true);
}

double probe_read_rate(const std::string& path, int64_t bytes, int64_t request_bytes, int depth) {
  check_sizes(bytes, request_bytes, depth);
  const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!fd && errno == EINVAL) {
    throw Error(ErrorKind::kFile, "probing " + path + ": its file system refuses direct I/O",
                "probe a file on a local disk");
  }
  if (!fd) throw system_error(errno, "opening " + path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw system_error(errno, "opening " + path);
  if (!S_ISREG(status.st_mode) || status.st_size < request_bytes) {
    throw Error(
        ErrorKind::kFile,
        fmt::format("probing {}: not a file of at least {}", path, format_bytes(request_bytes)),
        "name a large file");
  }
  const int64_t there = std::min<int64_t>(bytes, status.st_size);
  return run({fd.get(),
              path,
              {.bytes = there, .request_bytes = request_bytes, .depth = depth},
              false})
      .rate();
}

double probe_write_rate(const std::string& directory, int64_t bytes, int64_t request_bytes,
                        int depth) {
  check_sizes(bytes, request_bytes, depth);
  const OffloadFile file = OffloadFile::create(directory, bytes, "disk probe");
  if (!file.is_direct()) {
    throw Error(ErrorKind::kFile, "probing " + directory + ": its file system refuses direct I/O",
                "probe a folder on a local disk");
  }
  return probe_writes(file, {.bytes = bytes, .request_bytes = request_bytes, .depth = depth})
      .rate();
}

}  // namespace sluice::io
