#include "src/base/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <utility>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

namespace {
constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = 2 * kMiB;
constexpr int64_t kLargestRange = int64_t{1} << 56;

int64_t mapped_bytes(int64_t size) { return round_up(size, kPage); }
}  // namespace

std::byte* map_memory(int64_t bytes) {
  // Over-map by one huge page so that large ranges start on one; the slack is unmapped at once.
  const bool is_large = bytes >= kHugePage;
  const int64_t total = is_large ? bytes + kHugePage : bytes;
  void* raw = mmap(nullptr, static_cast<size_t>(total), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  if (!is_large) return static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<uintptr_t>(raw);
  const auto start = static_cast<uintptr_t>(round_up(static_cast<int64_t>(address), kHugePage));
  if (start > address) munmap(raw, start - address);
  const uintptr_t end = address + static_cast<uintptr_t>(total);
  const uintptr_t used_end = start + static_cast<uintptr_t>(bytes);
  if (end > used_end) munmap(reinterpret_cast<void*>(used_end), end - used_end);
  madvise(reinterpret_cast<void*>(start), static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return reinterpret_cast<std::byte*>(start);
}

void unmap_memory(std::byte* memory, int64_t bytes) noexcept {
  munmap(memory, static_cast<size_t>(bytes));
}

Buffer::Buffer(Buffer&& other) noexcept
    : arena_(std::exchange(other.arena_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    arena_ = std::exchange(other.arena_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Buffer::~Buffer() { release(); }

void Buffer::release() noexcept {
  if (!data_) return;
  const int64_t mapped = mapped_bytes(size_);
  if (arena_->source_)
    arena_->source_->give_back(data_, mapped);
  else
    unmap_memory(data_, mapped);
  arena_->discharge(mapped);
  data_ = nullptr;
}

Arena::Arena(std::string name, int64_t limit_bytes, MemorySource* source)
    : name_(std::move(name)), limit_(limit_bytes), source_(source) {}

Arena::~Arena() = default;

void Arena::charge(int64_t bytes, const std::string& what) {
  int64_t before = used_.load(std::memory_order_relaxed);
  do {
    if (bytes < 0 || bytes > limit_ - before)
      throw Error(ErrorKind::kResource,
                  fmt::format("{} budget {} is {} short for {}: {} wanted, {} in use", name_,
                              format_bytes(limit_), format_bytes(bytes - (limit_ - before)), what,
                              format_bytes(bytes), format_bytes(before)),
                  fmt::format("raise the {} budget or lower what it has to hold", name_));
  } while (!used_.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
  int64_t peak = peak_.load(std::memory_order_relaxed);
  while (before + bytes > peak &&
         !peak_.compare_exchange_weak(peak, before + bytes, std::memory_order_relaxed)) {
  }
}

void Arena::discharge(int64_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }

Buffer Arena::allocate(int64_t bytes, const std::string& what, Registration registration) {
  SLUICE_ASSERT(bytes >= 0, "sizes are computed, never negative");
  if (bytes == 0) return {};
  // Past the end of the address space whole pages can't even be counted.
  const int64_t mapped = bytes < kLargestRange ? mapped_bytes(bytes) : bytes;
  charge(mapped, what);
  std::byte* data = nullptr;
  try {
    if (bytes < kLargestRange)
      data = source_ ? source_->take(mapped, registration) : map_memory(mapped);
  } catch (...) {
    discharge(mapped);
    throw;
  }
  if (!data) {
    discharge(mapped);
    throw Error(ErrorKind::kResource,
                fmt::format("the system refused {} for {}", format_bytes(mapped), what),
                "close other programs or lower the budget");
  }
  return Buffer(this, data, bytes);
}

}  // namespace sluice
