#pragma once
// Clocks, temperature and power of a GPU, as NVIDIA's management library (NVML, which comes with
// the driver and is loaded at run time) says: what a measured rate was measured at. Nothing is ever
// set.
#include <optional>
#include <string>

namespace sluice {

struct GpuState {
  int sm_mhz = 0;
  int most_sm_mhz = 0;  ///< 0: not known, as what follows
  int memory_mhz = 0;
  int celsius = 0;
  double watts = 0;
  std::string held_back_by;  ///< why clocks are lower than they may be: "power", "heat"; empty: no
};

/// As NVIDIA's driver installs it.
constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

/// Of the GPU at that address of the PCI bus ("0000:3b:00.0"). Nothing where the library, the GPU
/// or its clocks are not there; never throws.
std::optional<GpuState> read_gpu_state(const std::string& pci_bus_id,
                                       const char* library = kNvmlLibrary) noexcept;

/// "SM 1755 of 1980 MHz, memory 2619 MHz, 61 C (38 before), 689 W, held back by power"; empty where
/// nothing is known. `after` is the state under load.
std::string describe(const std::optional<GpuState>& before, const std::optional<GpuState>& after);

}  // namespace sluice
