#include "src/engine/cuda/cuda_device.h"

#include <fmt/format.h>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/cuda/device_areas.h"

namespace sluice {

namespace {
// CUDA's own context, cuBLAS's kernels and the driver's tables, beside what arenas hold.
constexpr int64_t kCudaReserve = 512 * kMiB;

cuda::DeviceProperties properties_of(int index) {
  const auto devices = cuda::devices();
  if (devices.empty())
    throw Error(ErrorKind::kDevice, "`device` cuda: CUDA finds no GPU here",
                "sluice doctor says what the driver answers; without a GPU leave `device` out");
  if (index < 0 || index >= static_cast<int>(devices.size()))
    throw Error(ErrorKind::kDevice,
                fmt::format("there is no GPU {}: this machine has {}", index, devices.size()),
                "count from 0: `gpu` 0 is the first");
  return devices[static_cast<size_t>(index)];
}

int64_t budget(int index, const cuda::DeviceProperties& properties, int64_t asked) {
  const int64_t free = cuda::free_device_bytes(index);
  if (asked > free)
    throw Error(
        ErrorKind::kResource,
        fmt::format("`device_budget_bytes` {}: {} has {} free of {}", format_bytes(asked),
                    properties.name, format_bytes(free), format_bytes(properties.memory_bytes)),
        "ask for less, or end what else uses the GPU (nvidia-smi shows it)");
  return asked > 0 ? asked : free - std::min(kCudaReserve, free / 8);
}
}  // namespace

std::byte* CudaDevice::DeviceSource::take(int64_t bytes, Registration) {
  const cuda::DeviceScope scope(index_);
  cuda::DeviceMemory memory(bytes);
  std::byte* data = memory.data();
  const MutexLock lock(mutex_);
  ranges_.emplace(data, std::move(memory));
  return data;
}

void CudaDevice::DeviceSource::give_back(std::byte* memory, int64_t) noexcept {
  const MutexLock lock(mutex_);
  ranges_.erase(memory);
}

CudaDevice::CudaDevice(int index, int64_t memory_bytes, const PinnedSource::Sizes& pinning)
    : CudaDevice(properties_of(index), index, memory_bytes, pinning) {}

CudaDevice::CudaDevice(const cuda::DeviceProperties& properties, int index, int64_t memory_bytes,
                       const PinnedSource::Sizes& pinning)
    : CudaDevice(cuda::DeviceScope(index), index, properties, memory_bytes, pinning) {}

// Streams and events are made on the device that is chosen.
CudaDevice::CudaDevice(const cuda::DeviceScope&, int index,
                       const cuda::DeviceProperties& properties, int64_t memory_bytes,
                       const PinnedSource::Sizes& pinning)
    : index_(index),
      properties_(properties),
      source_(index),
      pinned_(index, pinning),
      memory_("GPU memory", budget(index, properties_, memory_bytes), &source_),
      uses_batches_(cuda::copies_in_batches(index)),
      slab_bytes_(kSlabBytes) {}

// Each copy's host side within one registration; batches take page-locked memory alone.
void CudaDevice::queue(const std::vector<RangeCopy>& copies, Direction direction,
                       cuda::Stream stream) {
  const bool is_up = direction == Direction::kUp;
  std::vector<cuda::Copy> pinned, pageable;
  for (const RangeCopy& copy : copies)
    pinned_.cut(
        is_up ? copy.from : copy.to, copy.bytes,
        [&](int64_t offset, int64_t bytes, bool is_pinned) {
          (is_pinned ? pinned : pageable).push_back({copy.to + offset, copy.from + offset, bytes});
        });
  const auto queue_each = [&](const std::vector<cuda::Copy>& parts) {
    for (const cuda::Copy& part : parts)
      if (is_up)
        cuda::copy_to_device(part.to, part.from, part.bytes, stream);
      else
        cuda::copy_to_host(part.to, part.from, part.bytes, stream);
  };
  queue_each(pageable);
  if (pinned.size() > 1 && uses_batches_) {
    try {
      return cuda::copy_batch(pinned, stream);
    } catch (const Error& error) {
      uses_batches_ = false;
      notices_.add(fmt::format("copies to and from {} are made one by one from now on: {}",
                               properties_.name, error.what()));
    }
  }
  queue_each(pinned);
}

void CudaDevice::transfer(Direction direction, int64_t,
                          const std::function<void(const Copy&)>& copies) {
  const cuda::DeviceScope scope(index_);
  Link& link = direction == Direction::kUp ? up_ : down_;
  std::vector<RangeCopy> asked;
  copies([&](std::byte* to, const std::byte* from, int64_t bytes) {
    asked.push_back({to, from, bytes});
  });
  queue(merge_neighbours(std::move(asked)), direction, link.stream.get());
  link.wait();
}

void CudaDevice::load(std::byte* to, const std::byte* from, int64_t bytes) {
  const cuda::DeviceScope scope(index_);
  const MutexLock lock(loading_);
  queue({{to, from, bytes}}, Direction::kUp, loads_.stream.get());
  loads_.wait();
}

}  // namespace sluice
