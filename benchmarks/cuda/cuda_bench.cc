// Kernels on a GPU: each on random operands that take turns, timed by the device's clock where the
// host has no part in it. Figures of the profile are not repeated here (sluice profile --gpu).
#include <benchmark/benchmark.h>

#include <cstdio>

#include "kernels/cuda/driver.h"
#include "src/engine/cuda/gpu_state.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto devices = sluice::cuda::devices();
  if (devices.empty()) {
    std::fputs("sluice_cuda_bench: no GPU here\n", stderr);
    return 1;
  }
  const std::string& bus = devices.front().pci_bus_id;
  const auto before = sluice::read_gpu_state(bus);
  benchmark::RunSpecifiedBenchmarks();
  const std::string state = sluice::describe(before, sluice::read_gpu_state(bus));
  std::printf("GPU: %s, at %s\n", devices.front().name.c_str(),
              state.empty() ? "clocks that are not known" : state.c_str());
}
