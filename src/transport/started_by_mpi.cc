#include <cstdlib>
#include <string_view>

#include "src/transport/transport.h"

namespace sluice {

bool is_started_by_mpi(const char* (*variable)(const char*)) {
  // mpirun says of how many; srun --mpi=pmix only that there is a server to ask, and Slurm of how
  // many.
  if (const char* size = variable("OMPI_COMM_WORLD_SIZE")) return std::string_view(size) != "1";
  if (!variable("PMIX_RANK") || !variable("SLURM_STEP_ID")) return false;
  const char* tasks = variable("SLURM_NTASKS");
  return tasks && std::string_view(tasks) != "1";
}

}  // namespace sluice
