#include "src/ranks/courier.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace sluice::ranks {

namespace {
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Nobody wakes who waits for MPI: it is looked at. Often while something comes, up to 200 times a
// second else: some tenths of a per cent of a core.
constexpr microseconds kShortest{200}, kLongest{5000};
constexpr double kTickSeconds = 0.1;
// A process that was stopped has not waited for anybody meanwhile.
constexpr double kLongestStep = 1.0;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}
}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

void Courier::start() {
  thread_ = std::jthread([this](const std::stop_token& stop) {
    pthread_setname_np(pthread_self(), "courier");
    try {
      run(stop);
    } catch (...) {
      if (on_error) on_error(std::current_exception());
    }
  });
}

void Courier::send(int to, std::string bytes) {
  const MutexLock lock(mutex_);
  queued_.emplace_back(to, std::move(bytes));
}

bool Courier::send_queued() {
  std::vector<std::pair<int, std::string>> now;
  {
    const MutexLock lock(mutex_);
    now.swap(queued_);
  }
  for (auto& [to, bytes] : now) transport_.send(to, std::move(bytes));
  return !now.empty();
}

void Courier::run(const std::stop_token& stop) {
  double awake = 0, ticked = -kTickSeconds;
  Clock::time_point last = Clock::now();
  microseconds pause = kShortest;
  while (!stop.stop_requested()) {
    bool is_busy = send_queued();
    for (int i = 0; i < 256; ++i) {
      auto message = transport_.receive();
      if (!message) break;
      is_busy = true;
      if (on_message) on_message(std::move(*message));
    }
    const Clock::time_point now = Clock::now();
    awake += std::min(seconds_between(last, now), kLongestStep);
    last = now;
    if (awake - ticked >= kTickSeconds) {
      ticked = awake;
      if (on_tick) on_tick(awake);
    }
    pause = is_busy ? kShortest : std::min(pause * 2, kLongest);
    if (!is_busy) std::this_thread::sleep_for(pause);
  }
}

void Courier::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void Courier::flush(double seconds) {
  const Clock::time_point began = Clock::now();
  try {
    send_queued();
    const auto is_left = [this] {
      for (int to = 0; to < transport_.size(); ++to)
        if (!transport_.has_left(to)) return false;
      return true;
    };
    while (seconds_between(began, Clock::now()) < seconds && !is_left())
      std::this_thread::sleep_for(kLongest);
  } catch (...) {
    if (on_error) on_error(std::current_exception());
  }
}

}  // namespace sluice::ranks
