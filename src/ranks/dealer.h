#pragma once
// Who computes which row of a job: a list, long rows first, dealt to ranks as they ask. A rank that
// is silent or gets nowhere for too long loses its unfinished rows to the others; what it finishes
// all the same counts if it is the first to. Never deals a row to a rank that may still be
// computing it. Pure: no clock, no file, no network; one thread.
#include <cstdint>
#include <deque>
#include <unordered_set>
#include <vector>

#include "src/jobs/content_key.h"

namespace sluice::ranks {

/// A row of the job: where its line lies, and what is expected of it.
struct Row {
  int64_t line = 0;    // of the input, from 1
  int64_t offset = 0;  // of the line's first byte
  int64_t bytes = 0;   // of the line
  int64_t length = 0;  // predicted tokens, prompt and output
  jobs::ContentKey key;
};

/// How long a rank may take before its rows go to others.
struct Patience {
  double silence_seconds = 60;  // without a word: the process or its machine is gone
  double stall_seconds = 900;   // with rows and words, but no pass: its disk or engine hangs
};

/// What a rank is to the dealer.
enum class RankState {
  kAbsent,   // not heard of yet
  kWorking,  // may be dealt rows
  kLost,     // silent or stalled for too long; may come back
  kLeft,     // said goodbye
};

class Dealer {
 public:
  Dealer(std::vector<Row> rows, int ranks, const Patience& patience);

  /// The rank may be dealt rows. `now`: seconds on any clock that only rises, here and below.
  void join(int rank, double now);
  /// The rank has this row's record and will send it. False: no row of the list, or done.
  bool hold(int rank, const jobs::ContentKey& key);
  /// Up to `want` rows that the rank now holds; fewer the fewer are left (half of an even share:
  /// guided self-scheduling, Polychronopoulos and Kuck 1987), none where it has lost its right to
  /// them. `is_idle`: it would begin them at once; others get none of the last rows ahead of need.
  std::vector<Row> deal(int rank, int64_t want, bool is_idle, double now);
  /// A record of this row came from the rank. True: the first, to be kept.
  bool finish(int rank, const jobs::ContentKey& key);
  /// A word of the rank, which has made so many passes. Brings a lost one back.
  void hear(int rank, int64_t passes, double now);
  /// The rank is gone by its own word; its rows go to the others.
  void leave(int rank);
  /// Takes the rows of those who were silent or stalled too long; returns who is lost by that.
  std::vector<int> give_up(double now);

  bool is_done() const noexcept { return left_ == 0; }
  int64_t rows() const noexcept { return static_cast<int64_t>(rows_.size()); }
  /// Rows without a record.
  int64_t left() const noexcept { return left_; }
  /// Of these, with nobody.
  int64_t waiting() const noexcept { return waiting_; }
  RankState state(int rank) const { return ranks_[static_cast<size_t>(rank)].state; }
  int64_t held(int rank) const {
    return static_cast<int64_t>(ranks_[static_cast<size_t>(rank)].held.size());
  }
  int64_t finished(int rank) const { return ranks_[static_cast<size_t>(rank)].finished; }
  /// How many rows were taken from ranks that were lost or left.
  int64_t dealt_again() const noexcept { return dealt_again_; }
  /// Ranks that may be dealt rows.
  int working() const noexcept;

 private:
  static constexpr int kNobody = -1;
  struct Entry {
    Row row;
    int holder = kNobody;
    bool is_done = false;
  };
  struct Rank {
    RankState state = RankState::kAbsent;
    double heard = 0, moved = 0;
    int64_t passes = 0;
    int64_t finished = 0;
    std::unordered_set<int32_t> held;  // rows that it may be computing, also after they were taken
  };

  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  int32_t find(const jobs::ContentKey& key) const;
  void take_rows(int rank);
  bool give(int rank, int32_t index, std::vector<Row>& out, double now);

  std::vector<Entry> rows_;                                   // long ones first
  std::vector<std::pair<jobs::ContentKey, int32_t>> by_key_;  // sorted
  size_t next_ = 0;                                           // never dealt from here on
  std::deque<int32_t> returned_;                              // taken from others
  std::vector<Rank> ranks_;
  Patience patience_;
  int64_t left_ = 0, waiting_ = 0, dealt_again_ = 0;
};

}  // namespace sluice::ranks
