// libcufile's calls where GPU memory is the host's: loaded by tests in its place. It holds callers
// to the rules of the real one, reads a little less than asked now and then, and fails on request.
#include "tests/engine/cuda/fake_cufile.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {
struct Status {
  int error;
  int cuda_error;
};
struct Descriptor {
  int type;
  union {
    int fd;
    void* handle;
  } file;
  const void* operations;
};
struct File {
  int fd;
};

constexpr int kNoDriver = 5001;
constexpr int kBadMemory = 5022;
constexpr int kBadHandle = 5023;

std::mutex mutex;  // guards what follows
std::map<const char*, size_t> memory;
std::set<const File*> files;
FakeCufile state;

bool is_in(const char* base, size_t length, const char* at) {
  return at >= base && at < base + length;
}
}  // namespace

extern "C" {
FakeCufile* fake_cufile() { return &state; }

Status cuFileDriverOpen() {
  const std::lock_guard lock(mutex);
  if (state.has_no_driver) return {kNoDriver, 0};
  ++state.open_drivers;
  return {0, 0};
}
Status cuFileDriverClose() {
  const std::lock_guard lock(mutex);
  --state.open_drivers;
  return {0, 0};
}
Status cuFileHandleRegister(void** handle, Descriptor* descriptor) {
  const std::lock_guard lock(mutex);
  if (descriptor->type != 1 || descriptor->operations) return {kBadHandle, 0};
  // Any range can be read, also of a file that is open for direct I/O.
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor->file.fd);
  auto* file = new File{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  files.insert(file);
  *handle = file;
  state.open_files = static_cast<int64_t>(files.size());
  return {0, 0};
}
void cuFileHandleDeregister(void* handle) {
  const std::lock_guard lock(mutex);
  files.erase(static_cast<File*>(handle));
  ::close(static_cast<File*>(handle)->fd);
  delete static_cast<File*>(handle);
  state.open_files = static_cast<int64_t>(files.size());
}
Status cuFileBufRegister(const void* base, size_t length, int) {
  const std::lock_guard lock(mutex);
  if (state.maps_no_memory) return {kBadMemory, 801};
  memory[static_cast<const char*>(base)] = length;
  state.mapped_ranges = static_cast<int64_t>(memory.size());
  return {0, 0};
}
Status cuFileBufDeregister(const void* base) {
  const std::lock_guard lock(mutex);
  memory.erase(static_cast<const char*>(base));
  state.mapped_ranges = static_cast<int64_t>(memory.size());
  return {0, 0};
}
ssize_t cuFileRead(void* handle, void* base, size_t bytes, off_t offset, off_t at) {
  auto* to = static_cast<char*>(base) + at;
  int fd = -1;
  {
    const std::lock_guard lock(mutex);
    const auto* file = static_cast<const File*>(handle);
    if (!files.contains(file)) return -kBadHandle;
    fd = file->fd;
    for (const auto& [first, length] : memory)
      if (is_in(first, length, to) && (base != first || !is_in(first, length, to + bytes - 1)))
        return -kBadMemory;  // of mapped memory the beginning is wanted, and no more than it
    if (state.fails_after == 0) return -kBadHandle;
    if (state.fails_after > 0) --state.fails_after;
    if (++state.reads % 3 == 0 && bytes > 1) bytes -= bytes / 3;
  }
  // The stand-in walls the device's memory while no work of its own runs: this is such work.
  ssize_t moved = 0;
  do {
    constexpr uintptr_t kPage = 4096;
    const auto begin = reinterpret_cast<uintptr_t>(to) / kPage * kPage;
    ::mprotect(reinterpret_cast<void*>(begin), reinterpret_cast<uintptr_t>(to) + bytes - begin,
               PROT_READ | PROT_WRITE);
    moved = ::pread(fd, to, bytes, offset);
  } while (moved < 0 && errno == EFAULT);
  const std::lock_guard lock(mutex);
  if (moved > 0) state.read_bytes += moved;
  return moved;
}
}
