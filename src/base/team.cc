#include "src/base/team.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <system_error>
#include <utility>

namespace sluice {

namespace {
using std::chrono::microseconds;
using std::chrono::nanoseconds;

// How long a helper looks out for the next loop before it sleeps: longer than what lies between two
// of a pass, for waking takes tens of microseconds.
constexpr nanoseconds kLookout = microseconds(60);
// The same of the caller, for those who hold the last shares.
constexpr nanoseconds kLastShares = microseconds(30);
// A helper gives others its core after so long, when it holds no share: sooner than a scheduler
// would take it, which is when it looks once in 4 ms. Half of that and twice as long were no
// better.
constexpr nanoseconds kTurn = microseconds(2000);
// Linux gives a core that falls idle to a thread that waits for another core, but not to one that
// ran within the last half millisecond. Who waits for a thread that may just have lost its core
// falls asleep anew after this, some times.
constexpr nanoseconds kNap = microseconds(300);
constexpr int kNaps = 6;
// How often it is looked at who was without a core.
constexpr nanoseconds kLook = microseconds(200'000);

// Of the gate: open, and the caller sleeps until the last member leaves; the rest counts members.
constexpr uint32_t kOpen = 1u << 31;
constexpr uint32_t kAwaited = 1u << 30;
constexpr uint32_t kMembers = kAwaited - 1;

thread_local Team* team_of_thread = nullptr;

void relax() noexcept {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

// Until `word` is no longer `value`, wake() is called, `most` is over (0: never), or for no reason.
void sleep_on(const std::atomic<uint32_t>& word, uint32_t value, nanoseconds most) noexcept {
  const timespec time{most.count() / 1'000'000'000, most.count() % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, most.count() > 0 ? &time : nullptr, nullptr,
          0);
}

void wake(const std::atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// A name for what a loop does: bodies have functions of their own.
uint64_t kind_of(void (*call)(const void*, const Team::Turn&), int64_t size) noexcept {
  const uint64_t mixed = (reinterpret_cast<uintptr_t>(call) ^ (static_cast<uint64_t>(size) << 20)) *
                         0x9E3779B97F4A7C15u;
  return mixed ^ mixed >> 32;
}

// Looks at done() until it holds or `most` is over.
template <typename Done>
bool look_out(nanoseconds most, const Done& done) noexcept {
  constexpr int kLooks = 16;  // between two looks at the clock
  const Team::Clock::time_point until = Team::Clock::now() + most;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (done()) return true;
      relax();
    }
  } while (Team::Clock::now() < until);
  return done();
}
}  // namespace

// A helper's state, on lines of its own.
struct alignas(64) Team::Helper {
  Helper(int member, const Patience& patience) : turn(member), patience(patience) {}

  Turn turn;                             // the helper's own
  std::atomic<uint32_t> is_asleep = 0;   // set by the helper, cleared by who wakes it
  std::atomic<bool> is_inside = false;   // of the loop
  std::atomic<bool> is_benched = false;  // set and cleared by the caller
  // Nanoseconds of loops for which others had its core, as far as one can see.
  std::atomic<int64_t> lost = 0;
  // The caller's.
  bool is_late = false;
  bool is_on_trial = false;  // was without its core too much, not long ago
  int64_t lost_before = 0;
  Patience patience;
  Clock::time_point benched_until;
  std::jthread thread;
};

Team::Team(int threads, const Patience& patience) {
  for (int member = 1; member < threads; ++member)
    helpers_.push_back(std::make_unique<Helper>(member, patience));
  size_t started = 0;
  try {
    for (; started < helpers_.size(); ++started) {
      Helper& helper = *helpers_[started];
      helper.thread = std::jthread([this, &helper] { help(helper); });
    }
  } catch (const std::system_error&) {
    helpers_.resize(started);  // those that there are do it
  }
}

Team::~Team() {
  is_ending_.store(true);
  calls_.fetch_add(1);
  for (const auto& helper : helpers_)
    if (helper->is_asleep.exchange(0) != 0) wake(helper->is_asleep);
}

Team::Use::Use(Team& team) noexcept : before_(team_of_thread) { team_of_thread = &team; }
Team::Use::~Use() { team_of_thread = before_; }
Team* Team::current() noexcept { return team_of_thread; }

bool Team::join() noexcept {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  while (gate & kOpen)
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire,
                                    std::memory_order_relaxed))
      return true;
  return false;
}

void Team::leave() noexcept {
  if (gate_.fetch_sub(1, std::memory_order_release) == (kAwaited | 1)) wake(gate_);
}

// Returns at the first call that is not `seen`; false when the team ends.
bool Team::await_call(Helper& self, uint32_t& seen) noexcept {
  const auto is_wanted = [&] { return calls_.load() != seen && !self.is_benched.load(); };
  if (!look_out(self.is_benched.load() ? nanoseconds{0} : kLookout, is_wanted)) {
    for (int naps = 0; !is_wanted() && !is_ending_.load(); ++naps) {
      self.is_asleep.store(1);
      // Looked at again, now that callers see it asleep.
      if (!is_wanted() && !is_ending_.load())
        sleep_on(self.is_asleep, 1, naps < kNaps ? kNap : nanoseconds{0});
      self.is_asleep.store(0);
    }
    self.turn.end_ = Clock::now() + kTurn;
  }
  seen = calls_.load();
  return !is_ending_.load();
}

void Team::help(Helper& self) noexcept {
  for (uint32_t seen = 0; await_call(self, seen);) {
    while (!self.is_benched.load(std::memory_order_relaxed) && join()) {
      if (self.turn.member() < most_) {
        self.is_inside.store(true, std::memory_order_relaxed);
        loop_.call(loop_.body, self.turn);
        self.is_inside.store(false, std::memory_order_relaxed);
      }
      leave();
      if (!self.turn.is_over()) break;  // it found nothing more to do
      const Clock::time_point before = Clock::now();
      sched_yield();
      const Clock::time_point now = Clock::now();
      self.lost.fetch_add((now - before).count(), std::memory_order_relaxed);
      self.turn.end_ = now + kTurn;
    }
  }
}

void Team::run(const Loop& loop, int most) noexcept {
  Team* const here = std::exchange(team_of_thread, nullptr);  // loops within this one
  most = std::min(most, threads());
  if (most <= 1) {
    loop.call(loop.body, Turn(0));
  } else {
    const Clock::time_point begun = Clock::now();
    loop_ = loop;
    most_ = most;
    gate_.store(kOpen, std::memory_order_release);
    calls_.fetch_add(1);
    call_helpers(most, begun);
    loop.call(loop.body, Turn(0));
    Clock::time_point ended = Clock::now();
    helped_ += ended - begun;
    if (gate_.fetch_and(~kOpen, std::memory_order_acquire) != kOpen) {
      await_members();
      ended = Clock::now();
    }
    trial_.add(kind_of(loop.call, loop.size), ended - begun, ended.time_since_epoch());
    if (helped_ - looked_ > kLook) look_for_lost();
  }
  team_of_thread = here;
}

// Wakes those who sleep; who looks out has seen the call.
void Team::call_helpers(int most, Clock::time_point now) noexcept {
  benched_ = 0;
  const bool leaves_out = trial_.leaves_out();
  for (int member = 1; member < most; ++member) {
    Helper& helper = *helpers_[static_cast<size_t>(member) - 1];
    if (trial_.is_calm()) helper.is_on_trial = false;
    if (leaves_out && helper.is_on_trial) {
      helper.is_benched.store(true);  // until it is wanted again, below
      ++benched_;
      continue;
    }
    if (helper.is_benched.load(std::memory_order_relaxed)) {
      if (now < helper.benched_until) {
        ++benched_;
        continue;
      }
      helper.patience.resume(helped_);
      helper.is_benched.store(false);
    }
    if (helper.is_asleep.load() != 0 && helper.is_asleep.exchange(0) != 0) wake(helper.is_asleep);
  }
}

void Team::await_members() noexcept {
  const auto is_empty = [&] { return (gate_.load(std::memory_order_acquire) & kMembers) == 0; };
  if (!look_out(kLastShares, is_empty)) {
    const Clock::time_point since = Clock::now();
    for (const auto& helper : helpers_)
      helper->is_late = helper->is_inside.load(std::memory_order_relaxed);
    uint32_t gate = gate_.fetch_or(kAwaited, std::memory_order_acquire) | kAwaited;
    for (; (gate & kMembers) != 0; gate = gate_.load(std::memory_order_acquire))
      sleep_on(gate_, gate, kNap);
    gate_.store(0, std::memory_order_relaxed);
    const Clock::time_point now = Clock::now();
    for (const auto& helper : helpers_)
      if (helper->is_late) {
        helper->lost.fetch_add((now - since).count(), std::memory_order_relaxed);
        bench(*helper, now, now - since);
      }
  }
}

// Helpers that others keep from their cores for more than a little are tried.
void Team::look_for_lost() noexcept {
  constexpr int kLittle = 50;  // one part in so many
  for (const auto& helper : helpers_) {
    const int64_t lost = helper->lost.load(std::memory_order_relaxed);
    if (kLittle * (lost - std::exchange(helper->lost_before, lost)) < (helped_ - looked_).count())
      continue;
    helper->is_on_trial = true;
    trial_.note_late();
  }
  looked_ = helped_;
}

void Team::bench(Helper& helper, Clock::time_point now, nanoseconds waited) noexcept {
  const nanoseconds pause = helper.patience.charge(waited, helped_);
  if (pause <= nanoseconds{0}) return;
  helper.benched_until = now + pause;
  helper.is_benched.store(true);
}

}  // namespace sluice
