#pragma once
// Memory that direct I/O accepts: a multiple of 4096 bytes at a multiple of 4096. For the few fixed
// buffers of the streaming readers and writers of checkpoints; model data live in arenas. Move-only
// value.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "src/base/bytes.h"

namespace sluice::io {

class AlignedMemory {
 public:
  static constexpr int64_t kAlignment = 4096;

  AlignedMemory() = default;
  /// At least `bytes`, not initialised. Throws std::bad_alloc.
  explicit AlignedMemory(int64_t bytes) : size_(static_cast<size_t>(round_up(bytes, kAlignment))) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size_)));
    if (data_ == nullptr) throw std::bad_alloc();
  }

  std::byte* data() const noexcept { return data_.get(); }
  size_t size() const noexcept { return size_; }
  std::span<std::byte> span() const noexcept { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

}  // namespace sluice::io
