#pragma once
// A rank's side of a job over ranks: takes lines from rank 0 as its engine has room, sends the
// records that its own file holds, says once a second how it is, and ends when rank 0 says so or
// has said nothing for too long. Rank 0 has one too. take, tick and fail are the courier's
// thread's, the rest one other thread's.
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <stop_token>
#include <string>

#include "policy/plan.h"
#include "src/base/mutex.h"
#include "src/jobs/results_file.h"
#include "src/ranks/courier.h"
#include "src/ranks/dealer.h"
#include "src/ranks/wire.h"

namespace sluice::ranks {

/// A line of the input, as it is there.
struct Line {
  int64_t number = 0;
  std::string text;
};

class RowClient {
 public:
  /// `courier` outlives it. `silence_seconds`: of rank 0.
  RowClient(Courier& courier, double silence_seconds);

  void take(const Message& message);
  void tick(double now);
  void fail(const std::exception_ptr& error);

  /// Says hello with what `own` holds, sends of it what rank 0 lacks, and from now on whatever is
  /// written to it. Returns what to plan for; nothing where the job ended before. Errors: kUser
  /// where rank 0 refuses this rank, kDevice where it is silent, kCancelled.
  std::optional<policy::Workload> join(const std::string& config, jobs::ResultsFile& own,
                                       const std::stop_token& stop);
  /// Rows to have in store beside those that the engine runs, and how many it can run.
  void set_room(int64_t store, int64_t block);
  /// The next line, or nothing now. Never waits.
  std::optional<Line> next();
  /// More lines may come.
  bool is_open() const;
  /// Returns when there is a line, or none will come, or `stop`.
  void wait(const std::stop_token& stop);
  void set_status(const Status& status);
  /// Stops when the job ends: whoever computes may do so too. Any thread.
  std::stop_token ending() const { return ending_.get_token(); }

  /// This rank computes no more; `why`: an error's text, or none.
  void say_goodbye(const std::string& why);
  /// After that: waits for rank 0's word how to leave. True: with all the others; false also where
  /// rank 0 is silent.
  bool wait_to_leave();
  /// After the end: every row has its record.
  bool is_complete() const;
  /// Errors: kDevice where rank 0 was silent, what broke the courier.
  void rethrow() const;

 private:
  void ask(bool is_idle) SLUICE_REQUIRES(mutex_);

  Courier& courier_;
  double silence_seconds_;
  double heard_ = 0, told_ = -1;  // the courier's
  bool has_begun_ = false;        // to listen
  std::stop_source ending_;

  mutable Mutex mutex_;
  StoppableCondition changed_;
  std::deque<Line> lines_ SLUICE_GUARDED_BY(mutex_);
  std::optional<std::string> welcome_ SLUICE_GUARDED_BY(mutex_);
  Status status_ SLUICE_GUARDED_BY(mutex_);
  int64_t store_ SLUICE_GUARDED_BY(mutex_) = 1;
  int64_t block_ SLUICE_GUARDED_BY(mutex_) = 1;
  bool has_asked_ SLUICE_GUARDED_BY(mutex_) = false;
  bool has_asked_idle_ SLUICE_GUARDED_BY(mutex_) = false;
  bool has_ended_ SLUICE_GUARDED_BY(mutex_) = false;
  bool is_complete_ SLUICE_GUARDED_BY(mutex_) = false;
  std::optional<bool> leaving_ SLUICE_GUARDED_BY(mutex_);
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::ranks
