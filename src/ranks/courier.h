#pragma once
// The one thread of a process that speaks to the other ranks: sends what it is given, hands over
// what comes, and ticks. So no engine waits for a network, and nothing of a network is called from
// two threads.
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/mutex.h"
#include "src/transport/transport.h"

namespace sluice::ranks {

/// A message may be this old before its sender says again how far it is.
constexpr double kTellSeconds = 0.5;

/// What this machine calls itself; empty when it has no name.
std::string host_name();

class Courier {
 public:
  /// `transport` outlives it.
  explicit Courier(Transport& transport) : transport_(transport) {}
  ~Courier() { stop(); }
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  /// All three are called from the courier's thread; set them before start(). An exception from one
  /// goes to on_error, and no message is handed over after it.
  std::function<void(Message&&)> on_message;
  std::function<void(double awake_seconds)> on_tick;  ///< some ten a second
  std::function<void(std::exception_ptr)> on_error;

  void start();
  /// Queues a message; from any thread.
  void send(int to, std::string bytes);
  /// Ends the thread; what is queued stays. Once or more often.
  void stop();
  /// After stop(): sends what is queued, for at most `seconds`.
  void flush(double seconds);

 private:
  void run(const std::stop_token& stop);
  bool send_queued();

  Transport& transport_;
  Mutex mutex_;
  std::vector<std::pair<int, std::string>> queued_ SLUICE_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace sluice::ranks
