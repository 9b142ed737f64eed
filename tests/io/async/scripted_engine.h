#pragma once
// A file engine without threads and without a disk, for tests that decide themselves what the
// kernel answers and when. Not thread safe: completions run inside answer() and in the destructor.
#include <optional>
#include <string>

#include "io/async/queued_engine.h"

namespace sluice::io {

class ScriptedEngine : public QueuedEngine {
 public:
  explicit ScriptedEngine(const FileEngineOptions& options, int requests_in_flight = 4)
      : QueuedEngine(options, requests_in_flight) {}
  ~ScriptedEngine() override {
    begin_stop();
    deliver_finished();
  }
  std::string describe() const override { return describe_sizes(); }
  std::optional<Request> take() { return try_next(); }
  /// True: the request is to be carried out again.
  bool answer(Request& request, int64_t result) {
    const bool goes_on = settle(request, result);
    deliver_finished();
    return goes_on;
  }
};

}  // namespace sluice::io
