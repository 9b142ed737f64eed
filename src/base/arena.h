#pragma once
// Hard memory budgets. Every large byte range comes from an Arena and goes back when its Buffer
// dies. Invariants: used() <= limit() always; peak() is the largest used() ever; a Buffer never
// outlives its Arena. Thread safe: allocate and release may be called from any thread.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice {

class Arena;

/// How a range may be told to a device's driver, where its source does that: one copy must lie
/// within one registration.
enum class Registration : uint8_t {
  kInPieces,  ///< Device::transfer() and load() copy from and to it: they cut where a piece ends
  kWhole      ///< its owner makes copies of its own
};

/// Where an arena's ranges come from, when it is not anonymous memory: a device's, or host memory
/// that a device knows of. Thread safe.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// `bytes` (whole 4 KiB pages), aligned to 256 bytes at least; null when there is no more.
  /// May throw, having taken nothing.
  virtual std::byte* take(int64_t bytes, Registration registration) = 0;
  virtual void give_back(std::byte* memory, int64_t bytes) noexcept = 0;
};

/// Anonymous memory, zeroed, in whole 4 KiB pages; large ranges begin on a huge page and ask for
/// more of them. Null when the system refuses.
std::byte* map_memory(int64_t bytes);
void unmap_memory(std::byte* memory, int64_t bytes) noexcept;

/// Move-only owner of one range of an Arena; gives it back when it dies. Empty when default made or
/// moved from.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const noexcept { return data_; }
  int64_t size() const noexcept { return size_; }
  std::span<std::byte> span() const noexcept { return {data_, static_cast<size_t>(size_)}; }
  template <typename T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }
  explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  friend class Arena;
  Buffer(Arena* arena, std::byte* data, int64_t size) noexcept
      : arena_(arena), data_(data), size_(size) {}
  void release() noexcept;
  Arena* arena_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

class Arena {
 public:
  /// `name` appears in errors ("host"); `limit_bytes` is never exceeded. With a `source` (which
  /// outlives the arena) ranges are as it gives them, not zeroed.
  Arena(std::string name, int64_t limit_bytes, MemorySource* source = nullptr);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// `bytes` zeroed, 4096-aligned (2 MiB aligned with huge pages asked for when larger), counted in
  /// whole 4 KiB pages. `what` names the use in errors and reports. Errors: kResource with what,
  /// size, used and limit; what a source throws.
  Buffer allocate(int64_t bytes, const std::string& what,
                  Registration registration = Registration::kInPieces);
  /// Counts `bytes` that live elsewhere (a library's own allocation) against the limit; same
  /// errors.
  void charge(int64_t bytes, const std::string& what);
  void discharge(int64_t bytes) noexcept;

  const std::string& name() const noexcept { return name_; }
  int64_t limit() const noexcept { return limit_; }
  int64_t used() const noexcept { return used_.load(std::memory_order_relaxed); }
  int64_t peak() const noexcept { return peak_.load(std::memory_order_relaxed); }

 private:
  friend class Buffer;
  std::string name_;
  int64_t limit_;
  MemorySource* source_;
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> peak_{0};
};

}  // namespace sluice
