#include "kernels/cuda/shim/host_memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "kernels/cuda/shim/host_driver.h"

namespace sluice::cuda::host {

namespace {
constexpr int64_t kPage = 4096;

// Sanitizers know allocations of their own, reads beyond them too.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasWalls = false;
#else
constexpr bool kHasWalls = true;
#endif
// Behind each allocation, looked at when it goes: what a kernel writes there shows.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kGuardBytes = 0;
#else
constexpr int64_t kGuardBytes = 256;
#endif
constexpr unsigned char kGuard = 0xa5;

// Where walls are, for the handler of faults, which can take no lock.
struct Wall {
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<int64_t> bytes{0};
};
std::array<Wall, 4096> walls;

void write_text(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

// Says whose mistake it is, and lets the fault happen again as if nobody had looked.
void on_fault(int, siginfo_t* fault, void*) {
  const auto* at = static_cast<const std::byte*>(fault->si_addr);
  for (const Wall& wall : walls) {
    const std::byte* begin = wall.begin.load();
    if (begin && at >= begin && at < begin + wall.bytes.load())
      write_text("a host thread touched device memory while no work of the GPU's ran\n");
  }
  ::signal(SIGSEGV, SIG_DFL);
}

void watch_faults() {
  static const bool is_watching = [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    return ::sigaction(SIGSEGV, &action, nullptr) == 0;
  }();
  static_cast<void>(is_watching);
}

void tell_wall(const Allocation& allocation) {
  for (Wall& wall : walls)
    if (!wall.begin.load()) {
      wall.bytes = allocation.mapped_bytes;
      wall.begin = allocation.data;
      return;
    }
}

void forget_wall(const Allocation& allocation) {
  for (Wall& wall : walls)
    if (wall.begin.load() == allocation.data) wall.begin = nullptr;
}

// Nobody could catch what a destructor throws.
void require_whole_guard(const Allocation& allocation) {
  const auto* guard = reinterpret_cast<const unsigned char*>(allocation.data) + allocation.bytes;
  if (std::all_of(guard, guard + kGuardBytes, [](unsigned char byte) { return byte == kGuard; }))
    return;
  std::fprintf(stderr, "something wrote behind %lld bytes of device memory\n",
               static_cast<long long>(allocation.bytes));
  std::abort();
}

// The entry that `at` is in or behind; end() where there is none.
template <class Map>
auto entry_before(const Map& map, const void* at) {
  const auto after = map.upper_bound(static_cast<const std::byte*>(at));
  return after == map.begin() ? map.end() : std::prev(after);
}
}  // namespace

bool has_walls() noexcept { return kHasWalls; }

std::byte* DeviceAllocations::take(int device, int64_t bytes) {
  if (bytes > kMemoryBytes - bytes_in_use(device)) return nullptr;
  Allocation made{nullptr, bytes, device, (bytes + kGuardBytes + kPage - 1) / kPage * kPage};
  void* memory = nullptr;
  if (kHasWalls) {
    memory = ::mmap(nullptr, static_cast<size_t>(made.mapped_bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
  } else if (posix_memalign(&memory, 256, static_cast<size_t>(bytes + kGuardBytes)) != 0) {
    return nullptr;
  }
  made.data = static_cast<std::byte*>(memory);
  std::memset(made.data, 0xff, static_cast<size_t>(bytes));
  std::memset(made.data + bytes, kGuard, static_cast<size_t>(kGuardBytes));
  allocations_[made.data] = made;
  if (kHasWalls) {
    watch_faults();
    tell_wall(made);
    ::mprotect(memory, static_cast<size_t>(made.mapped_bytes), PROT_NONE);
  }
  return made.data;
}

bool DeviceAllocations::give_back(void* memory) {
  const auto found = allocations_.find(static_cast<const std::byte*>(memory));
  if (found == allocations_.end()) return false;
  const Allocation gone = found->second;
  allocations_.erase(found);
  const auto mapped = static_cast<size_t>(gone.mapped_bytes);
  if (kHasWalls) ::mprotect(memory, mapped, PROT_READ | PROT_WRITE);
  require_whole_guard(gone);
  if (kHasWalls) {
    forget_wall(gone);
    ::munmap(memory, mapped);
  } else {
    std::free(memory);
  }
  return true;
}

const Allocation* DeviceAllocations::find(const void* at, int64_t bytes) const {
  const auto found = entry_before(allocations_, at);
  if (found == allocations_.end()) return nullptr;
  const Allocation& allocation = found->second;
  const bool is_inside =
      static_cast<const std::byte*>(at) + bytes <= allocation.data + allocation.bytes;
  return is_inside ? &allocation : nullptr;
}

bool DeviceAllocations::touches(const void* at, int64_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(at);
  const auto found = entry_before(allocations_, begin + std::max<int64_t>(bytes, 1) - 1);
  return found != allocations_.end() && begin < found->second.data + found->second.bytes;
}

int64_t DeviceAllocations::bytes_in_use(int device) const {
  int64_t total = 0;
  for (const auto& [at, allocation] : allocations_)
    if (allocation.device == device) total += allocation.bytes;
  return total;
}

int64_t DeviceAllocations::bytes_in_use() const {
  int64_t total = 0;
  for (const auto& [at, allocation] : allocations_) total += allocation.bytes;
  return total;
}

void DeviceAllocations::protect(int device, int access) {
  if (!kHasWalls) return;
  for (const auto& [at, allocation] : allocations_)
    if (device < 0 || allocation.device == device)
      ::mprotect(allocation.data, static_cast<size_t>(allocation.mapped_bytes), access);
}

void DeviceAllocations::open(int device) {
  if (opened_ == device) return;
  close();
  protect(device, PROT_READ | PROT_WRITE);
  opened_ = device;
}

void DeviceAllocations::close() {
  if (opened_ == kNone) return;
  protect(opened_, PROT_NONE);
  opened_ = kNone;
}

bool Registrations::add(void* memory, int64_t bytes) {
  if (of(memory, bytes) != Pinned::kNot) return false;
  ranges_[static_cast<const std::byte*>(memory)] = bytes;
  bytes_ += bytes;
  return true;
}

int64_t Registrations::remove(void* memory) {
  const auto found = ranges_.find(static_cast<const std::byte*>(memory));
  if (found == ranges_.end()) return 0;
  const int64_t bytes = found->second;
  bytes_ -= bytes;
  ranges_.erase(found);
  return bytes;
}

Pinned Registrations::of(const void* at, int64_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(at);
  const std::byte* end = begin + bytes;
  const auto last = entry_before(ranges_, bytes > 0 ? end - 1 : begin);
  if (bytes == 0 || last == ranges_.end() || begin >= last->first + last->second)
    return Pinned::kNot;
  const bool is_whole = begin >= last->first && end <= last->first + last->second;
  return is_whole ? Pinned::kWhole : Pinned::kRefused;
}

bool is_faulted_in(void* memory, size_t bytes) {
  std::vector<unsigned char> pages((bytes + kPage - 1) / kPage);
  if (::mincore(memory, bytes, pages.data()) != 0) return false;
  return std::all_of(pages.begin(), pages.end(),
                     [](unsigned char page) { return (page & 1) != 0; });
}

bool is_mapped(const void* at) {
  const auto page = reinterpret_cast<uintptr_t>(at) / kPage * kPage;
  return ::msync(reinterpret_cast<void*>(page), kPage, MS_ASYNC) == 0;
}

}  // namespace sluice::cuda::host
