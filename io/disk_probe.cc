#include "io/disk_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "io/file_engine.h"
#include "io/io_errors.h"
#include "io/offload_file.h"
#include "io/owned_fd.h"
#include "src/base/arena.h"
#include "src/base/bytes.h"

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
  int64_t bytes;
  int64_t request_bytes;
  int depth;
  bool is_write;
};

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
  if (moved != probe.request_bytes) {
    throw Error(ErrorKind::kFile,
                fmt::format("probing {}: a request of {} moved {} bytes only", probe.name,
                            format_bytes(probe.request_bytes), moved),
                "probe again while nobody changes the file");
  }
  return slot;
}

double run(const Probe& probe) {
  // Before the ring: it is gone, with all that it had in flight, before the memory goes.
  const ProbeMemory memory(probe.request_bytes * probe.depth);
  ProbeRing ring(probe.depth);
  const iovec whole{memory.at(0), memory.size()};
  const bool is_fixed = io_uring_register_buffers(ring.get(), &whole, 1) == 0;
  const int64_t requests = probe.bytes / probe.request_bytes;
  int64_t issued = 0;
  const auto issue = [&](uint64_t slot) {
    io_uring_sqe* sqe = io_uring_get_sqe(ring.get());
    std::byte* at = memory.at(static_cast<int64_t>(slot) * probe.request_bytes);
    const auto bytes = static_cast<unsigned>(probe.request_bytes);
    const auto offset = static_cast<uint64_t>(issued++ * probe.request_bytes);
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
  const int64_t first = std::min<int64_t>(requests, probe.depth);
  for (int64_t slot = 0; slot < first; ++slot) issue(static_cast<uint64_t>(slot));
  for (int64_t completed = 0; completed < requests; ++completed) {
    const uint64_t slot = take_completion(ring.get(), probe);
    if (issued < requests) issue(slot);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(requests * probe.request_bytes) / seconds.count();
}

}  // namespace

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
  return run(
      {fd.get(), path, std::min<int64_t>(bytes, status.st_size), request_bytes, depth, false});
}

double probe_write_rate(const std::string& directory, int64_t bytes, int64_t request_bytes,
                        int depth) {
  check_sizes(bytes, request_bytes, depth);
  const OffloadFile file = OffloadFile::create(directory, bytes, "disk probe");
  if (!file.is_direct()) {
    throw Error(ErrorKind::kFile, "probing " + directory + ": its file system refuses direct I/O",
                "probe a folder on a local disk");
  }
  return run({file.fd(), file.name(), bytes, request_bytes, depth, true});
}

}  // namespace sluice::io
