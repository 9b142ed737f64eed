// Every kernel that a pass spends time in, on as many threads as OMP_NUM_THREADS says (default:
// all), with its rate beside what bounds it: of_read is the share of the memory's read rate
// measured just before, of_onednn that of oneDNN's own packed product. Google Benchmark's flags
// apply:
// --benchmark_filter=linear/bf16, --benchmark_format=json. SLUICE_BENCH_ISA lowers the instruction
// set.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <cstdlib>
#include <iostream>

#include "kernels/cpu/isa.h"
#include "src/base/team.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  if (const char* name = std::getenv("SLUICE_BENCH_ISA")) {
    const auto isa = sluice::kernels::parse_isa(name);
    if (!isa) {
      std::cerr << "sluice_kernel_bench: SLUICE_BENCH_ISA=" << name
                << " is none of generic, avx2, avx512, avx512_bf16, amx, neon, neon_bf16\n";
      return 2;
    }
    sluice::kernels::force_isa(*isa);
  }
  benchmark::AddCustomContext("kernels", sluice::kernels::describe_kernels());
  sluice::Team team(omp_get_max_threads());
  const sluice::Team::Use use(team);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
