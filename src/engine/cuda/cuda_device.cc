#include "src/engine/cuda/cuda_device.h"

#include <fmt/format.h>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

namespace {
// CUDA's own context, cuBLAS's kernels and the driver's tables, beside what arenas hold.
constexpr int64_t kCudaReserve = 512 * kMiB;

cuda::DeviceProperties properties_of(int index) {
  const auto devices = cuda::devices();
  if (devices.empty())
    throw Error(ErrorKind::kDevice, "--device cuda: CUDA finds no GPU here",
                "sluice doctor says what the driver answers; without a GPU leave --device out");
  if (index < 0 || index >= static_cast<int>(devices.size()))
    throw Error(ErrorKind::kDevice,
                fmt::format("there is no GPU {}: this machine has {}", index, devices.size()),
                "count from 0: --gpu 0 is the first");
  cuda::use_device(index);
  return devices[static_cast<size_t>(index)];
}

int64_t budget(int index, const cuda::DeviceProperties& properties, int64_t asked) {
  const int64_t free = cuda::free_device_bytes(index);
  if (asked > free)
    throw Error(
        ErrorKind::kResource,
        fmt::format("--gpu-mem {}: {} has {} free of {}", format_bytes(asked), properties.name,
                    format_bytes(free), format_bytes(properties.memory_bytes)),
        "ask for less, or end what else uses the GPU (nvidia-smi shows it)");
  return asked > 0 ? asked : free - std::min(kCudaReserve, free / 8);
}
}  // namespace

std::byte* CudaDevice::DeviceSource::take(int64_t bytes) {
  cuda::use_device(index_);
  cuda::DeviceMemory memory(bytes);
  std::byte* data = memory.data();
  const std::lock_guard lock(mutex_);
  ranges_.emplace(data, std::move(memory));
  return data;
}

void CudaDevice::DeviceSource::give_back(std::byte* memory, int64_t) noexcept {
  const std::lock_guard lock(mutex_);
  ranges_.erase(memory);
}

std::byte* CudaDevice::PinnedSource::take(int64_t bytes) {
  std::byte* memory = map_memory(bytes);
  if (!memory) return nullptr;
  const std::lock_guard lock(mutex_);
  try {
    ranges_.emplace(memory, cuda::PinnedRange(memory, bytes));
  } catch (const Error&) {
    // Containers may limit locked memory: copies then go through the driver's own buffers.
    pageable_bytes_ += bytes;
  }
  return memory;
}

void CudaDevice::PinnedSource::give_back(std::byte* memory, int64_t bytes) noexcept {
  {
    const std::lock_guard lock(mutex_);
    ranges_.erase(memory);
  }
  unmap_memory(memory, bytes);
}

CudaDevice::CudaDevice(int index, int64_t memory_bytes)
    : index_(index),
      properties_(properties_of(index)),
      source_(index),
      memory_("GPU memory", budget(index, properties_, memory_bytes), &source_) {}

void CudaDevice::transfer(Direction direction, int64_t,
                          const std::function<void(const Copy&)>& copies) {
  cuda::use_device(index_);
  const bool is_up = direction == Direction::kUp;
  const cuda::Stream stream = (is_up ? up_ : down_).get();
  copies([&](std::byte* to, const std::byte* from, int64_t bytes) {
    if (is_up)
      cuda::copy_to_device(to, from, bytes, stream);
    else
      cuda::copy_to_host(to, from, bytes, stream);
  });
  cuda::synchronize(stream);
}

void CudaDevice::load(std::byte* to, const std::byte* from, int64_t bytes) {
  cuda::use_device(index_);
  cuda::copy_to_device(to, from, bytes, up_.get());
  cuda::synchronize(up_.get());
}

}  // namespace sluice
