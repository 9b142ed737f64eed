#pragma once
// One line of progress on standard error, the same in every command: "what: amount rate, time
// left". In a terminal it is redrawn and goes when the work ends; elsewhere it is a plain line now
// and then.
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "io/checkpoint/packed_store.h"
#include "src/base/mutex.h"
#include "src/engine/engine_options.h"

namespace sluice::tools {

/// Of work of which `came` was done in `seconds` and `missing` is left: how long that takes.
/// Nothing where it is too early to say, or nothing is missing.
std::optional<double> seconds_left(double seconds, int64_t came, int64_t missing);

/// Of work that can be counted. One thread at a time.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows "<what>: <amount> <rate>, <time left>" when it is time for a line again. The time left
  /// follows from what was done since the first call: what came before (a profile, an earlier run's
  /// share) says nothing of this work's rate.
  void update(int64_t done, int64_t total, const std::string& amount, const std::string& rate);
  /// Whether update() would do anything: for callers that come often, before they write texts.
  bool is_due() const;
  /// The line goes until the next one; what is measured goes on.
  void hide();
  /// The work has ended: the line goes. Another update() begins anew.
  void end();
  double seconds() const;  ///< since the first update
  /// Of so many bytes since then, as people read it; empty where it is too early to say.
  std::string rate(int64_t bytes) const;
  /// For io::verify_store(); this outlives it.
  std::function<void(const io::VerifyProgress&)> shows_verifying();

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  Clock::time_point last_;     // shown; at first begun
  Clock::time_point started_;  // of the work: when the first update came
  int64_t started_with_ = -1;  // done by then; -1: none has come
  bool has_shown_ = false;
};

/// Of work that nobody can count: "<what>: <so long>", once it has taken two seconds.
class Waiting {
 public:
  explicit Waiting(std::string what);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  void show(std::stop_token stop);
  std::string what_;
  Mutex mutex_;
  StoppableCondition ends_;
  std::jthread thread_;  // last: it uses the others
};

/// Of an engine's passes, as EngineOptions::pass_progress: the prompts first, then new tokens.
/// Any thread.
class TokenProgress {
 public:
  /// What is to come in all, as far as it is known; 0: what the engine says is waiting.
  /// `new_tokens` 0: nothing is shown behind the prompts, as where text is seen as it comes.
  explicit TokenProgress(std::string name = {}, int64_t prompt_tokens = 0, int64_t new_tokens = 0);
  void show(const RunningPass& pass);
  /// Nothing is shown any more until begin().
  void end();
  void begin();
  /// For open_engine(): the engine shows its passes here. This outlives the engine.
  std::function<void(EngineOptions&)> listens();

 private:
  Mutex mutex_;
  const int64_t prompt_total_, new_total_;
  bool is_on_ SLUICE_GUARDED_BY(mutex_) = true;
  int64_t pass_ SLUICE_GUARDED_BY(mutex_) = -1;          // under way; -1: none
  int64_t prompt_tokens_ SLUICE_GUARDED_BY(mutex_) = 0;  // of it
  int64_t new_tokens_ SLUICE_GUARDED_BY(mutex_) = 0;
  int64_t prompts_behind_ SLUICE_GUARDED_BY(mutex_) = 0;  // of passes before
  int64_t new_behind_ SLUICE_GUARDED_BY(mutex_) = 0;
  Progress prompts_ SLUICE_GUARDED_BY(mutex_);
  Progress answers_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::tools
