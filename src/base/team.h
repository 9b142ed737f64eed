#pragma once
// The threads that loops are dealt to: whoever calls, and helpers that come when they can. Work is
// taken in shares by whoever is free. The caller takes them too, and waits for nobody but those who
// hold one when none are left: a helper that another process keeps from its core delays nothing if
// it holds no share, and one that is late too often is benched for a while (src/base/patience.h),
// or as long as loops are faster without it (src/base/trial.h). Who takes which share differs from
// run to run, so results must not depend on it. Thread safety: one thread at a time runs loops on a
// team.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "src/base/patience.h"
#include "src/base/trial.h"

namespace sluice {

class Team {
 public:
  using Clock = std::chrono::steady_clock;

  /// A member's stay in a loop.
  class Turn {
   public:
    /// 0: the caller; helpers count from 1.
    int member() const noexcept { return member_; }
    /// When a helper should return between two shares, to let others have its core without holding
    /// one; it comes back if the loop is still open. Never for the caller.
    bool is_over() const noexcept { return member_ != 0 && Clock::now() >= end_; }

   private:
    friend class Team;
    explicit Turn(int member) noexcept : member_(member) {}
    int member_;
    Clock::time_point end_;
  };

  /// The caller and threads - 1 helpers, fewer where the system grants no more threads. `patience`:
  /// what each helper begins with.
  explicit Team(int threads) : Team(threads, Patience(threads)) {}
  Team(int threads, const Patience& patience);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /// While it lives, loops of the calling thread run on `team`. The innermost counts.
  class Use {
   public:
    explicit Use(Team& team) noexcept;
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Team* before_;
  };
  /// Of the calling thread; null: it runs its loops alone. Null too inside of a loop.
  static Team* current() noexcept;

  /// What a loop without a team has.
  static Turn caller_alone() noexcept { return Turn(0); }

  /// With the caller.
  int threads() const noexcept { return static_cast<int>(helpers_.size()) + 1; }
  /// Helpers that the last loop did without.
  int benched() const noexcept { return benched_; }

  /// Calls body(turn) at once on the caller and on helpers below `most`, each as often as it comes
  /// and maybe never; returns when all that began have returned. When the caller's has returned no
  /// more begin, so that one leaves nothing undone. body throws nothing. `size` tells loops of the
  /// same body apart by the work that they do.
  template <typename Body>
  void run(int most, const Body& body, int64_t size = 0) noexcept {
    run({[](const void* it, const Turn& turn) { (*static_cast<const Body*>(it))(turn); }, &body,
         size},
        most);
  }

 private:
  struct Loop {
    void (*call)(const void* body, const Turn& turn);
    const void* body;
    int64_t size;
  };
  struct Helper;

  void run(const Loop& loop, int most) noexcept;
  void call_helpers(int most, Clock::time_point now) noexcept;
  void await_members() noexcept;
  void look_for_lost() noexcept;
  void bench(Helper& helper, Clock::time_point now, std::chrono::nanoseconds waited) noexcept;
  void help(Helper& self) noexcept;
  bool await_call(Helper& self, uint32_t& seen) noexcept;
  bool join() noexcept;
  void leave() noexcept;

  // What helpers wait for; written by each loop.
  alignas(64) std::atomic<uint32_t> calls_ = 0;
  std::atomic<bool> is_ending_ = false;
  // How many helpers are in the loop, and whether it is open to more.
  alignas(64) std::atomic<uint32_t> gate_ = 0;
  // Written while the gate is shut and nobody inside.
  alignas(64) Loop loop_{};
  int most_ = 0;

  // The caller's.
  std::chrono::nanoseconds helped_{};  // in loops, all together
  std::chrono::nanoseconds looked_{};  // of that, when it was last looked at who was late
  Trial trial_;
  int benched_ = 0;
  std::vector<std::unique_ptr<Helper>> helpers_;  // last: their threads use everything above
};

/// Team::run() on the calling thread's team; the caller alone where it has none.
template <typename Body>
void run_loop(int most, const Body& body) noexcept {
  if (Team* const team = Team::current())
    team->run(most, body);
  else
    body(Team::caller_alone());
}

/// Threads that a loop of the calling thread has.
inline int loop_threads() noexcept {
  const Team* team = Team::current();
  return team ? team->threads() : 1;
}

/// How n things are dealt: in whole multiples of `granule` but for the last share, each half of an
/// even share of what is left, between `least` and `most` (and then rounded down to granules). So a
/// thread goes through long runs first, and none has long to wait for the last one.
struct Shares {
  int64_t granule = 1;
  int64_t least = 1;
  int64_t most = INT64_MAX;
  int members = INT32_MAX;  ///< at most so many threads
};

/// Calls work(begin, end, member) until [0, n) is done, on the calling thread's team if n is more
/// than shares.least; work throws nothing.
template <typename Work>
void deal_to_members(int64_t n, const Shares& shares, const Work& work) {
  if (n <= 0) return;
  Team* const team = Team::current();
  const int members = team ? std::min(team->threads(), shares.members) : 1;
  if (members <= 1 || n <= shares.least) return work(int64_t{0}, n, 0);
  const int64_t divisor = 2 * int64_t{members};
  std::atomic<int64_t> next = 0;
  const auto body = [&](const Team::Turn& turn) {
    for (int64_t begin = next.load(std::memory_order_relaxed); begin < n;) {
      const int64_t wanted = std::max(std::min((n - begin) / divisor, shares.most), shares.least);
      const int64_t end =
          std::min(n, begin + std::max<int64_t>(1, wanted / shares.granule) * shares.granule);
      if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      work(begin, end, turn.member());
      if (turn.is_over()) return;
      begin = next.load(std::memory_order_relaxed);
    }
  };
  team->run(static_cast<int>(std::min<int64_t>(members, n / shares.least + 1)), body, n);
}

/// The same for work(begin, end).
template <typename Work>
void deal(int64_t n, const Shares& shares, const Work& work) {
  deal_to_members(n, shares, [&](int64_t begin, int64_t end, int) { work(begin, end); });
}

/// The same for work(index), on shares of at least `least`.
template <typename Work>
void deal_each(int64_t n, int64_t least, const Work& work) {
  deal(n, {.least = std::max<int64_t>(1, least)}, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(i);
  });
}

}  // namespace sluice
