#pragma once
// Bytes that many requests hold together, bounded: who wants more than is left is refused at once.
// Thread safe.
#include <atomic>
#include <cstdint>

namespace sluice::http {

class ByteBudget {
 public:
  explicit ByteBudget(int64_t most) : most_(most) {}
  /// False: so many are not left; nothing is taken.
  bool take(int64_t bytes) noexcept {
    int64_t used = used_.load();
    do {
      if (bytes > most_ - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes));
    return true;
  }
  void give(int64_t bytes) noexcept { used_ -= bytes; }
  int64_t used() const noexcept { return used_.load(); }

 private:
  const int64_t most_;
  std::atomic<int64_t> used_{0};
};

/// What one request has of a budget; gives it back in its destructor. One thread at a time.
class ByteShare {
 public:
  explicit ByteShare(ByteBudget& budget) : budget_(budget) {}
  ~ByteShare() { budget_.give(bytes_); }
  ByteShare(const ByteShare&) = delete;
  ByteShare& operator=(const ByteShare&) = delete;
  /// False: so many are not left; the share stays as it is.
  bool grow_to(int64_t bytes) noexcept {
    if (bytes <= bytes_) return true;
    if (!budget_.take(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }

 private:
  ByteBudget& budget_;
  int64_t bytes_ = 0;
};

}  // namespace sluice::http
