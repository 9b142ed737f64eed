// Kernels on a GPU: each on random operands that take turns, timed by the device's clock where the
// host has no part in it. Figures of the profile are not repeated here (sluice profile --gpu).
#include <benchmark/benchmark.h>

#include <cstdio>

#include "kernels/cuda/driver.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  if (sluice::cuda::devices().empty()) {
    std::fputs("sluice_cuda_bench: no GPU here\n", stderr);
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
}
