#include "src/engine/cuda/measure_gpu.h"

#include <algorithm>
#include <optional>

#include "kernels/cuda/rows.h"
#include "src/base/bytes.h"
#include "src/engine/cuda/gpu_state.h"
#include "src/engine/cuda/measure_attention.h"
#include "src/engine/cuda/measure_products.h"
#include "src/engine/cuda/operands.h"
#include "src/engine/cuda/stopwatch.h"

namespace sluice {

namespace {
class Measurement {
 public:
  Measurement(CudaDevice& device, const MeasureGpuOptions& options)
      : device_(device),
        options_(options),
        stream_(device.compute_stream()),
        stopwatch_(stream_, options.samples) {
    const int64_t free = device.memory().limit() - device.memory().used();
    options_.copy_bytes = std::min(options.copy_bytes, round_down(free / 4, 4096));
    options_.link_bytes = std::min(options.link_bytes, options_.copy_bytes);
    options_.rotate_bytes = std::min(options.rotate_bytes, free / 4);
  }

  void warm_up() {
    const Buffer memory = device_.memory().allocate(2 * options_.link_bytes, "memory to warm up");
    double spent = 0;
    while (spent < options_.warm_up_seconds)
      spent += 8 * stopwatch_
                       .of_work(8,
                                [&](int) {
                                  cuda::copy_on_device(memory.data(),
                                                       memory.data() + options_.link_bytes,
                                                       options_.link_bytes, stream_);
                                })
                       .value;
  }

  void link(policy::Link& link) {
    Arena host("host memory", 4 * options_.link_bytes, device_.host_memory_source());
    const Buffer below =
        host.allocate(2 * options_.link_bytes, "copies to measure", Registration::kWhole);
    const Buffer above = device_.memory().allocate(2 * options_.link_bytes, "copies to measure");
    fill_values(DType::kF32, above.size() / 4, above.data(), stream_);
    cuda::copy_to_host(below.data(), above.data(), above.size(), stream_);
    cuda::synchronize(stream_);
    const auto bytes = static_cast<double>(options_.link_bytes);
    std::byte* second_above = above.data() + options_.link_bytes;
    std::byte* second_below = below.data() + options_.link_bytes;
    const auto up = [&](int) {
      cuda::copy_to_device(above.data(), below.data(), options_.link_bytes, stream_);
    };
    const auto down = [&](cuda::Stream stream) {
      cuda::copy_to_host(second_below, second_above, options_.link_bytes, stream);
    };
    link.to_device = rate_of(bytes, stopwatch_.of_work(2, up));
    link.to_host = rate_of(bytes, stopwatch_.of_work(2, [&](int) { down(stream_); }));
    const cuda::OwnedStream other;
    cuda::Event is_begun;
    cuda::Event is_down;
    const policy::Figure both = stopwatch_.of_work(1, [&](int round) {
      is_begun.record(stream_);
      is_begun.make_wait(other.get());
      down(other.get());
      is_down.record(other.get());
      up(round);
      is_down.make_wait(stream_);
    });
    const double alone = std::max(bytes / link.to_device.value, bytes / link.to_host.value);
    link.both_share = {std::min(1.0, alone / both.value), both.spread,
                       policy::FigureSource::kMeasured, ""};
    link.latency_seconds = stopwatch_.of_host(
        1, [&](int) { cuda::copy_to_device(above.data(), below.data(), 64, stream_); });
  }

  void processor(policy::Processor& gpu) {
    gpu.name = device_.properties().name;
    const std::string pci = device_.properties().pci_bus_id;
    const std::optional<GpuState> before = read_gpu_state(pci);
    memory_and_launches(gpu);
    gpu.matmul = measure_products(device_, options_, stopwatch_);
    const std::optional<GpuState> after = read_gpu_state(pci);
    for (const KvFormat& format : kv_formats())
      gpu.attention.push_back(measure_attention(device_, options_, format, stopwatch_));
    gpu.conditions = describe(before, after);
  }

 private:
  std::vector<KvFormat> kv_formats() const {
    std::vector<KvFormat> out{DType::kF16};
    out.insert(out.end(), kQuantisedKv.begin(), kQuantisedKv.end());
    if (device_.properties().has_bf16) out.insert(out.begin(), KvFormat(DType::kBF16));
    return out;
  }

  void memory_and_launches(policy::Processor& gpu) {
    const Buffer memory = device_.memory().allocate(2 * options_.copy_bytes, "memory to measure");
    fill_values(DType::kF32, memory.size() / 4, memory.data(), stream_);
    // A copy reads and writes each byte.
    gpu.memory_read =
        rate_of(2 * static_cast<double>(options_.copy_bytes), stopwatch_.of_kernels(4, [&](int) {
          cuda::copy_on_device(memory.data(), memory.data() + options_.copy_bytes,
                               options_.copy_bytes, stream_);
        }));
    auto* floats = reinterpret_cast<float*>(memory.data());
    cuda::fill_zero(floats, 4096, stream_);
    const auto launch = [&](int) { cuda::add_inplace(floats, floats + 512, 512, stream_); };
    constexpr int kLaunches = 50;
    gpu.launch_seconds = stopwatch_.of_host(kLaunches, launch);
    // As a runner waits whose plan has something below the device.
    cuda::Event is_done(cuda::Waiting::kSleeps);
    gpu.synchronise_seconds = stopwatch_.of_host(1, [&](int round) {
      launch(round);
      is_done.record(stream_);
      is_done.synchronize();
    });
  }

  CudaDevice& device_;
  MeasureGpuOptions options_;
  cuda::Stream stream_;
  Stopwatch stopwatch_;
};
}  // namespace

policy::Profile measure_gpu(const policy::Profile& machine, CudaDevice& device,
                            const MeasureGpuOptions& options) {
  policy::Profile out = machine;
  out.name = machine.name + " with " + device.properties().name;
  const cuda::DeviceScope scope(device.index());
  Measurement measurement(device, options);
  out.device.emplace();
  measurement.warm_up();
  measurement.link(out.link);
  measurement.processor(*out.device);
  out.device_bytes = device.memory().limit();
  return out;
}

}  // namespace sluice
