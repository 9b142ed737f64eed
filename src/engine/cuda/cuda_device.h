#pragma once
// A GPU as the engine's Device: memory taken from CUDA once, at the start, and host memory pinned
// in the ranges that the arenas take, so that copies need no core. Thread safe as Device.
#include <map>
#include <mutex>

#include "kernels/cuda/driver.h"
#include "src/device/device.h"

namespace sluice {

class CudaDevice final : public Device {
 public:
  /// `memory_bytes` of GPU `index`; 0: what is free now, less a reserve for CUDA itself. Errors:
  /// kDevice (no such GPU), kResource.
  CudaDevice(int index, int64_t memory_bytes);

  Arena& memory() noexcept override { return memory_; }
  void transfer(Direction direction, int64_t bytes,
                const std::function<void(const Copy&)>& copies) override;
  void load(std::byte* to, const std::byte* from, int64_t bytes) override;
  bool is_in_host_memory() const noexcept override { return false; }
  bool has_own_cores() const noexcept override { return true; }
  MemorySource* host_memory_source() noexcept override { return &pinned_; }

  int index() const noexcept { return index_; }
  const cuda::DeviceProperties& properties() const noexcept { return properties_; }
  cuda::Stream compute_stream() const noexcept { return compute_.get(); }
  /// Bytes of host memory that could not be pinned.
  int64_t pageable_bytes() const noexcept { return pinned_.pageable_bytes(); }

 private:
  class DeviceSource final : public MemorySource {
   public:
    explicit DeviceSource(int index) : index_(index) {}
    std::byte* take(int64_t bytes) override;
    void give_back(std::byte* memory, int64_t bytes) noexcept override;

   private:
    int index_;
    std::mutex mutex_;  // guards ranges_
    std::map<std::byte*, cuda::DeviceMemory> ranges_;
  };
  class PinnedSource final : public MemorySource {
   public:
    std::byte* take(int64_t bytes) override;
    void give_back(std::byte* memory, int64_t bytes) noexcept override;
    int64_t pageable_bytes() const noexcept { return pageable_bytes_; }

   private:
    std::mutex mutex_;  // guards ranges_
    std::map<std::byte*, cuda::PinnedRange> ranges_;
    int64_t pageable_bytes_ = 0;
  };

  int index_;
  cuda::DeviceProperties properties_;
  DeviceSource source_;
  PinnedSource pinned_;
  Arena memory_;
  cuda::OwnedStream compute_;
  cuda::OwnedStream up_;
  cuda::OwnedStream down_;
};

}  // namespace sluice
