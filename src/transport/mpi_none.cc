// A build without MPI.
#include "src/base/error.h"
#include "src/transport/transport.h"

namespace sluice {

bool has_mpi() noexcept { return false; }

std::unique_ptr<Transport> open_mpi() {
  throw Error(ErrorKind::kUser,
              "mpirun started several of this program, which is built without MPI: each would do "
              "the whole job",
              "give `shard` auto, or install Open MPI (libopenmpi-dev) and build again");
}

}  // namespace sluice
