#pragma once
// Writes the experts that a run's tokens go to into a file (src/cache/routing_trace.h), pass after
// pass as they are computed. A disk that fills up ends the recording, not the run.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/error.h"
#include "src/engine/runners/sublayer_runner.h"
#include "src/jobs/owned_file.h"
#include "src/model/bound_model.h"

namespace sluice::app {

/// Errors: kUser, with the flag, where the model has no experts.
void require_experts(const BoundModel& model, const std::string& flag);

/// One run's, or several runs' of one engine after the other. One thread at a time.
class RoutingRecorder {
 public:
  /// Begins the file anew. `tell`: one line at a time. Errors: kFile, kResource.
  RoutingRecorder(std::string path, const BoundModel& model,
                  std::function<void(std::string_view)> tell);
  /// Where finish() was not called, the pass that was under way is left out.
  ~RoutingRecorder();
  RoutingRecorder(const RoutingRecorder&) = delete;
  RoutingRecorder& operator=(const RoutingRecorder&) = delete;

  /// Throws nothing of the file's: what can't be written is told once, and the file ends with the
  /// last pass that is whole.
  void take(const RoutedRows& rows);
  /// The run has ended: writes what is left, and tells how much there is.
  void finish();

 private:
  void begin_pass();
  void write();
  void give_up(const Error& error);
  /// Bytes of the file with what waits.
  int64_t end() const noexcept { return written_ + std::ssize(waiting_); }

  jobs::OwnedFile file_;
  std::function<void(std::string_view)> tell_;
  std::vector<int64_t> layers_;  ///< [sublayer]
  std::string waiting_;          ///< to be written behind `written_`
  int64_t written_ = 0;
  int64_t pass_begin_ = 0;  ///< of the pass under way, in the file
  int64_t whole_ = 0;       ///< the latest of these that is written
  int64_t engine_pass_ = -1;
  size_t sublayer_ = 0;
  int64_t pass_ = -1;
  int64_t choices_ = 0;
  std::vector<RoutedTo> by_weight_;
  bool is_over_ = false;
};

}  // namespace sluice::app
