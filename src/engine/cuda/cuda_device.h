#pragma once
// A GPU as the engine's Device: memory taken from CUDA once, at the start, and host memory pinned
// in the ranges that the arenas take, so that copies need no core. Who waits for a transfer sleeps:
// its core belongs to attention on the host. Thread safe as Device.
#include <atomic>
#include <map>

#include "kernels/cuda/driver.h"
#include "src/base/mutex.h"
#include "src/device/device.h"
#include "src/device/merged_copies.h"
#include "src/engine/cuda/pinned_source.h"

namespace sluice {

class CudaDevice final : public Device {
 public:
  /// `memory_bytes` of GPU `index`; 0: what is free now, less a reserve for CUDA itself. Errors:
  /// kDevice (no such GPU), kResource.
  CudaDevice(int index, int64_t memory_bytes, const PinnedSource::Sizes& pinning = {});

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
  /// Of the dense products of quantised matrices (device_areas.h); set before an engine is opened.
  int64_t slab_bytes() const noexcept { return slab_bytes_; }
  void set_slab_bytes(int64_t bytes) noexcept { slab_bytes_ = bytes; }
  int64_t pinned_bytes() const noexcept override { return pinned_.pinned_bytes(); }
  int64_t pageable_bytes() const noexcept override { return pinned_.pageable_bytes(); }
  Notices* notices() noexcept override { return &notices_; }

 private:
  class DeviceSource final : public MemorySource {
   public:
    explicit DeviceSource(int index) : index_(index) {}
    std::byte* take(int64_t bytes, Registration registration) override;
    void give_back(std::byte* memory, int64_t bytes) noexcept override;

   private:
    int index_;
    Mutex mutex_;
    std::map<std::byte*, cuda::DeviceMemory> ranges_ SLUICE_GUARDED_BY(mutex_);
  };
  // A direction's lane: one thread at a time.
  struct Link {
    cuda::OwnedStream stream;
    cuda::Event end{cuda::Waiting::kSleeps};
    void wait() {
      end.record(stream.get());
      end.synchronize();
    }
  };
  void queue(const std::vector<RangeCopy>& copies, Direction direction, cuda::Stream stream);

  CudaDevice(const cuda::DeviceProperties& properties, int index, int64_t memory_bytes,
             const PinnedSource::Sizes& pinning);
  CudaDevice(const cuda::DeviceScope& scope, int index, const cuda::DeviceProperties& properties,
             int64_t memory_bytes, const PinnedSource::Sizes& pinning);

  int index_;
  cuda::DeviceProperties properties_;
  DeviceSource source_;
  PinnedSource pinned_;
  Arena memory_;
  cuda::OwnedStream compute_;
  Link up_;
  Link down_;
  Mutex loading_;
  Link loads_ SLUICE_GUARDED_BY(loading_);
  std::atomic<bool> uses_batches_;
  Notices notices_;
  int64_t slab_bytes_;
};

}  // namespace sluice
