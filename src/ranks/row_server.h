#pragma once
// Rank 0's part of a job over ranks: owns the list of rows and the output. Ranks ask, get lines,
// and send records that they have written and synced themselves; here each row's first record is
// appended to the output. So every row is in it exactly once whoever dies, stalls or wakes up late,
// and whoever starts the job again finds what is done. Works in the courier's thread; what other
// threads may call says so.
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policy/plan.h"
#include "src/base/mutex.h"
#include "src/jobs/owned_file.h"
#include "src/jobs/results_file.h"
#include "src/ranks/courier.h"
#include "src/ranks/dealer.h"
#include "src/ranks/wire.h"

namespace sluice::ranks {

/// What is known of one rank.
struct RankAccount {
  std::string host;
  RankState state = RankState::kAbsent;
  int64_t rows = 0;  ///< whose record in the output is this rank's, of this run
  int64_t held = 0;
  Status status;
  std::string why;     ///< it left with an error: its text
  int times_lost = 0;  ///< it may have come back
};

/// What is known of the job.
struct JobAccount {
  int64_t rows = 0, done = 0;  ///< of this run
  int64_t dealt_again = 0;     ///< rows that were taken from a rank
  int64_t ignored = 0;         ///< records that came second
  double seconds = 0;          ///< from the first row dealt to the last record
  bool is_complete = false;
  bool all_are_here = false;  ///< at the end: every rank has said goodbye
  std::vector<RankAccount> ranks;
};

/// What there is to do.
struct RowJob {
  std::string input;  ///< a path that may be opened
  std::vector<Row> rows;
  policy::Workload workload;  ///< of all rows together
  std::string config;         ///< what every rank must have been started with
};

class RowServer {
 public:
  /// Both outlive it; the courier is started later.
  RowServer(Courier& courier, int ranks, const Patience& patience);

  /// For the courier.
  void take(Message&& message);
  void tick(double now);
  void fail(const std::exception_ptr& error);

  /// Called by tick() once a second while the job runs.
  std::function<void(const JobAccount&)> on_progress;

  /// Any thread, once: there is a job now; until then ranks that say hello wait. `results` outlives
  /// the courier.
  void begin(RowJob job, jobs::ResultsFile& results);
  /// Any thread: returns when the job has ended (complete, by an error, because no rank is left,
  /// or `stop`), all have said goodbye or been waited for, and know how to leave.
  JobAccount wait(const std::stop_token& stop);
  /// After wait(). Errors: what ended the job early; kResource where no rank is left; kCancelled.
  void rethrow() const;

 private:
  struct Peer {
    std::string host, why;
    Status status;
    int64_t pid = 0;
    int64_t want = 0;
    bool is_idle = false, has_left = false;
    double heard = 0;
    int times_lost = 0;
  };
  struct Running {
    RowJob job;
    jobs::OwnedFile input;
    jobs::ResultsFile* results;
    Dealer dealer;
  };
  void start(RowJob job, jobs::ResultsFile* results);
  void handle(Message&& message);
  void welcome(int rank, Reader& reader);
  void keep(int rank, std::string_view record);
  void deal_to(int rank);
  bool may_deal() const;
  void deal();
  void watch(double now);
  void end(bool is_complete);
  void part(double now);
  void end_stopped_here() const;
  bool is_anybody_left(double now) const;
  JobAccount account() const;

  Courier& courier_;
  Patience patience_;
  std::vector<Peer> peers_;
  std::vector<Message> early_;  // before there was a job
  std::unique_ptr<Running> running_;
  double now_ = 0, began_ = 0, told_ = -1, ended_ = -1;
  std::optional<std::chrono::steady_clock::time_point> first_dealt_, last_kept_;
  bool is_complete_ = false;
  int64_t ignored_ = 0;
  std::atomic<bool> is_stopped_ = false;

  mutable Mutex mutex_;
  Condition changed_;
  std::optional<std::pair<RowJob, jobs::ResultsFile*>> coming_ SLUICE_GUARDED_BY(mutex_);
  std::optional<JobAccount> ended_account_ SLUICE_GUARDED_BY(mutex_);
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::ranks
