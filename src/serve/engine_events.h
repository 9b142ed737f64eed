#pragma once
// What the engine's thread says to the thread that makes text of it, and the bounded queue between
// them. One thread pushes, one takes; a full queue holds the engine up rather than growing.
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "src/base/mutex.h"
#include "src/engine/engine.h"
#include "src/sampling/beam_search.h"
#include "src/sampling/sampler.h"

namespace sluice::serve {

/// One thing that happened to a request, or (kPass) to all: what else is set depends on the kind.
struct EngineEvent {
  enum class Kind : uint8_t {
    kAdmitted,    ///< cached_tokens
    kToken,       ///< choice
    kHypotheses,  ///< hypotheses, best first
    kFinish,      ///< reason
    kRefused,     ///< message
    kPrompt,      ///< prompt, or embedding
    kPass         ///< report; no id
  } kind;
  uint64_t id = 0;
  int64_t cached_tokens = 0;
  sampling::Choice choice;
  FinishReason reason = FinishReason::kStop;
  std::string message;
  std::vector<sampling::Choice> prompt;  ///< scores of a prompt's tokens
  std::vector<float> embedding;
  std::vector<sampling::Hypothesis> hypotheses;
  PassReport report;
};

class EngineEvents {
 public:
  /// Waits while the queue is full.
  void push(EngineEvent event);
  /// No more will be pushed.
  void close();
  /// All there are, oldest first; waits for one. Empty: closed, and all taken.
  std::deque<EngineEvent> take();

 private:
  Mutex mutex_;
  Condition filled_, emptied_;
  std::deque<EngineEvent> events_ SLUICE_GUARDED_BY(mutex_);
  bool is_closed_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::serve
