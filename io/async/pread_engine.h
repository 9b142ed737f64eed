#pragma once
// The file engine for systems without io_uring: threads that call pread and pwrite. As many
// requests are in flight as there are threads, so there are more threads than cores; they sleep in
// the kernel.
#include <string>
#include <thread>
#include <vector>

#include "io/async/queued_engine.h"

namespace sluice::io {

class PreadEngine : public QueuedEngine {
 public:
  /// Errors: kUser for sizes out of range; kResource when the system gives no threads.
  explicit PreadEngine(const FileEngineOptions& options);
  ~PreadEngine() override;

  std::string describe() const override;

 private:
  void run();

  int threads_per_direction_;
  std::vector<std::jthread> threads_;
};

}  // namespace sluice::io
