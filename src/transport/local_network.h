#pragma once
// Ranks that are threads of one process: a Transport without a network, for tests and for whoever
// wants several engines in a process to share a job. A rank can be cut off, as a machine that has
// died, or held, as one that is stopped. Each Transport is one thread's; the network is thread
// safe.
#include <memory>
#include <vector>

#include "src/transport/transport.h"

namespace sluice {

class LocalNetwork {
 public:
  explicit LocalNetwork(int ranks);
  ~LocalNetwork();
  LocalNetwork(const LocalNetwork&) = delete;
  LocalNetwork& operator=(const LocalNetwork&) = delete;

  /// Must not outlive the network.
  std::unique_ptr<Transport> join(int rank);
  /// From now on nothing reaches or leaves `rank`; what is under way is lost.
  void cut_off(int rank);
  /// While held, what comes and goes waits; then it arrives late, in order.
  void hold(int rank, bool is_held);

 private:
  struct State;
  class End;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
