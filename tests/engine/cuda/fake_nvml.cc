// NVML's calls for one GPU at 0000:3b:00.0: loaded by tests in its place.
#include "tests/engine/cuda/fake_nvml.h"

#include <cstring>

namespace {
sluice::FakeNvmlState state;
int gpu;  // its address is the handle
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kSm = 1;

int answer(bool is_sm_clock, unsigned value, unsigned* out) {
  if (state.knows_only_clock && !is_sm_clock) return kNotSupported;
  *out = value;
  return 0;
}
}  // namespace

extern "C" {
sluice::FakeNvmlState* fake_nvml() { return &state; }

int nvmlInit_v2() {
  if (state.refuses) return 9;  // the driver is not loaded
  ++state.open;
  return 0;
}
int nvmlShutdown() {
  --state.open;
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  if (std::strcmp(id, "0000:3b:00.0") != 0) return kNotFound;
  *device = &gpu;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int clock, unsigned* mhz) {
  if (state.knows_no_clock) return kNotSupported;
  return answer(clock == kSm, clock == kSm ? state.sm_mhz : 2619, mhz);
}
int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* mhz) { return answer(false, 1980, mhz); }
int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) { return answer(false, 61, celsius); }
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  return answer(false, 689000, milliwatts);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* bits) {
  if (state.knows_only_clock) return kNotSupported;
  *bits = state.bits;
  return 0;
}
}
