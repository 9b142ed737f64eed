#include "src/engine/cuda/gpu_state.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

namespace sluice {

namespace {
// NVML's interface, as its documentation gives it; functions return 0 when all is well.
using NvmlDevice = void*;
constexpr int kSmClock = 1;
constexpr int kMemoryClock = 2;
constexpr int kGpuSensor = 0;
constexpr unsigned long long kPowerReasons = 0x04 | 0x80;  // software cap, brake of the board
constexpr unsigned long long kHeatReasons = 0x20 | 0x40;   // software, hardware
constexpr unsigned long long kSlowdown = 0x08;             // hardware, either reason

class Nvml {
 public:
  explicit Nvml(const char* library) : library_(::dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
    is_open_ = library_ && call<int()>("nvmlInit_v2") == 0;
  }
  ~Nvml() {
    if (is_open_) call<int()>("nvmlShutdown");
    if (library_) ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  bool is_open() const noexcept { return is_open_; }

  /// -1 where the library has no such function.
  template <typename Function, typename... Arguments>
  int call(const char* name, Arguments... arguments) const noexcept {
    auto* const function = reinterpret_cast<Function*>(::dlsym(library_, name));
    return function ? function(arguments...) : -1;
  }

 private:
  void* library_;
  bool is_open_ = false;
};

std::string reasons(unsigned long long bits) {
  std::string out;
  const auto add = [&](bool is_one, const char* reason) {
    if (is_one) out += (out.empty() ? "" : " and ") + std::string(reason);
  };
  add((bits & kPowerReasons) != 0, "power");
  add((bits & kHeatReasons) != 0, "heat");
  add(out.empty() && (bits & kSlowdown) != 0, "the board");
  return out;
}

std::optional<GpuState> read_state(const Nvml& nvml, const std::string& pci_bus_id) {
  NvmlDevice device = nullptr;
  if (nvml.call<int(const char*, NvmlDevice*)>("nvmlDeviceGetHandleByPciBusId_v2",
                                               pci_bus_id.c_str(), &device) != 0)
    return std::nullopt;
  using Clock = int(NvmlDevice, int, unsigned*);
  unsigned value = 0;
  GpuState state;
  const auto take = [&](auto& field, int status) {
    if (status == 0) field = static_cast<int>(value);
    return status == 0;
  };
  if (!take(state.sm_mhz, nvml.call<Clock>("nvmlDeviceGetClockInfo", device, kSmClock, &value)))
    return std::nullopt;
  take(state.most_sm_mhz, nvml.call<Clock>("nvmlDeviceGetMaxClockInfo", device, kSmClock, &value));
  take(state.memory_mhz, nvml.call<Clock>("nvmlDeviceGetClockInfo", device, kMemoryClock, &value));
  take(state.celsius, nvml.call<Clock>("nvmlDeviceGetTemperature", device, kGpuSensor, &value));
  if (nvml.call<int(NvmlDevice, unsigned*)>("nvmlDeviceGetPowerUsage", device, &value) == 0)
    state.watts = value / 1000.0;
  unsigned long long bits = 0;
  if (nvml.call<int(NvmlDevice, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons",
                                                      device, &bits) == 0)
    state.held_back_by = reasons(bits);
  return state;
}
}  // namespace

std::optional<GpuState> read_gpu_state(const std::string& pci_bus_id,
                                       const char* library) noexcept {
  try {
    const Nvml nvml(library);
    return nvml.is_open() ? read_state(nvml, pci_bus_id) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;  // no memory for a text
  }
}

std::string describe(const std::optional<GpuState>& before, const std::optional<GpuState>& after) {
  if (!after) return {};
  std::string text = fmt::format("SM {}", after->sm_mhz);
  if (after->most_sm_mhz > 0) text += fmt::format(" of {}", after->most_sm_mhz);
  text += " MHz";
  if (after->memory_mhz > 0) text += fmt::format(", memory {} MHz", after->memory_mhz);
  if (after->celsius > 0) text += fmt::format(", {} C", after->celsius);
  if (after->celsius > 0 && before && before->celsius > 0)
    text += fmt::format(" ({} before)", before->celsius);
  if (after->watts > 0) text += fmt::format(", {:.0f} W", after->watts);
  if (!after->held_back_by.empty()) text += ", held back by " + after->held_back_by;
  return text;
}

}  // namespace sluice
