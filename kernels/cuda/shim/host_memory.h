#pragma once
// The memory of the stand-in's GPUs, and what it knows of host memory: which ranges are
// page-locked. Says of a copy what CUDA says. A GPU's memory has no access but while queued work
// runs: a host thread that touches it then ends the process, as with a true GPU (not under
// sanitizers, which look at the ends of allocations instead). Not thread safe: host_runtime.cc's
// lock guards it.
#include <cstddef>
#include <cstdint>
#include <map>

namespace sluice::cuda::host {

/// Bytes of each GPU.
constexpr int64_t kMemoryBytes = int64_t{8} << 30;
/// The most GPUs that there are.
constexpr int kMostDevices = 8;

struct Allocation {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int device = 0;
  int64_t mapped_bytes = 0;
};

class DeviceAllocations {
 public:
  /// Filled with NaN, guarded at its end; null: there is no more.
  std::byte* take(int device, int64_t bytes);
  /// False where it is no allocation's beginning. Ends the process where something wrote behind it.
  bool give_back(void* memory);
  /// Whose memory all of [at, at + bytes) is; null: none's.
  const Allocation* find(const void* at, int64_t bytes) const;
  /// Whether any byte of [at, at + bytes) is some allocation's.
  bool touches(const void* at, int64_t bytes) const;
  int64_t bytes_in_use(int device) const;
  int64_t bytes_in_use() const;

  /// Until close(), memory of `device` (-1: of all) may be touched.
  void open(int device);
  void close();

 private:
  void protect(int device, int access);

  std::map<const std::byte*, Allocation> allocations_;
  int opened_ = kNone;
  static constexpr int kNone = -2;
};

/// How a range of host memory is page-locked, to a copy.
enum class Pinned : uint8_t {
  kNot,     ///< no byte is
  kWhole,   ///< one registration has all of it
  kRefused  ///< in part, or by several registrations: CUDA copies no such range
};

class Registrations {
 public:
  /// False where some of it is registered already.
  bool add(void* memory, int64_t bytes);
  /// Bytes of the registration that begins there; 0: none does.
  int64_t remove(void* memory);
  Pinned of(const void* at, int64_t bytes) const;
  int64_t bytes() const noexcept { return bytes_; }

 private:
  std::map<const std::byte*, int64_t> ranges_;
  int64_t bytes_ = 0;
};

/// Whether every page of the range has been touched.
bool is_faulted_in(void* memory, size_t bytes);
/// Whether the process has memory there.
bool is_mapped(const void* at);

}  // namespace sluice::cuda::host
