#pragma once
// Messages between the processes (ranks) of one job. Narrow on purpose: a rank, a size, send,
// receive, leave. A message arrives whole; those between two ranks arrive in order. Nothing here
// waits for a peer, so a rank that is dead, stopped or slow delays nobody: who needs an answer sets
// a deadline of its own, and "lost" is that rank's word, not the network's. One thread at a time,
// but for rank() and size().
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

/// What has arrived.
struct Message {
  int from = 0;
  std::string bytes;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const noexcept = 0;  ///< from 0
  virtual int size() const noexcept = 0;
  /// Queues `bytes` for `to`, which may be this rank, and returns at once. To a rank that is gone
  /// they are lost without an error. Errors: kDevice where the transport itself has broken.
  virtual void send(int to, std::string bytes) = 0;
  /// The next message that has arrived, or nothing. Also moves what is queued. Errors: kDevice.
  virtual std::optional<Message> receive() = 0;
  /// Whether all that was queued for `to` has left this process.
  virtual bool has_left(int to) = 0;
  /// Ends the job for this rank: with all the others where `all_are_here`, and returns; otherwise,
  /// on rank 0, ends the processes of all ranks, this one's too, with `exit_code` (on other ranks:
  /// waits for that). Nothing may be called after it.
  virtual void leave(bool all_are_here, int exit_code) = 0;
};

/// Whether this process was started as one of several by mpirun or srun --mpi; needs no MPI.
/// `variable` is getenv.
bool is_started_by_mpi(const char* (*variable)(const char*));
/// Whether this build has MPI.
bool has_mpi() noexcept;
/// The ranks that mpirun started. At most once a process. Errors: kDevice where MPI does not begin;
/// kUser where the build has none.
std::unique_ptr<Transport> open_mpi();

}  // namespace sluice
