#pragma once
// The one owner of a file descriptor: closes it when it dies. Used by everything in io/ that opens
// a file. Move-only; an empty one holds -1. Not thread safe, like any value.
#include <unistd.h>

#include <utility>

namespace sluice::io {

class OwnedFd {
 public:
  OwnedFd() = default;
  /// Takes over `fd`; a negative number makes an empty one.
  explicit OwnedFd(int fd) noexcept : fd_(fd < 0 ? -1 : fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  ~OwnedFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Closes what is held and holds `fd` from now on.
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }
  /// Hands the descriptor to the caller, who closes it.
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace sluice::io
