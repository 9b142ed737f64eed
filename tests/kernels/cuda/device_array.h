#pragma once
// Arrays on the device for tests, exactly as large as asked for; the same test runs on a GPU and on
// the host's stand-in.
#include <stdexcept>
#include <vector>

#include "kernels/cuda/driver.h"

namespace sluice::cuda {

/// The GPU that tests run on. Throws when there is none.
inline DeviceProperties first_device() {
  const auto all = devices();
  if (all.empty()) throw std::runtime_error("no GPU here");
  return all.front();
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size), memory_(bytes()) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    if (size_ == 0) return;
    copy_to_device(memory_.data(), values.data(), bytes(), nullptr);
    synchronize(nullptr);
  }

  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  size_t size() const { return size_; }
  /// After all work on the default stream.
  std::vector<T> values() const {
    std::vector<T> out(size_);
    if (size_ > 0) copy_to_host(out.data(), memory_.data(), bytes(), nullptr);
    synchronize(nullptr);
    return out;
  }

 private:
  int64_t bytes() const { return static_cast<int64_t>(size_ * sizeof(T)); }
  size_t size_;
  DeviceMemory memory_;
};

}  // namespace sluice::cuda
