#pragma once
// Ctrl-C, SIGTERM and SIGHUP, for main.cc and for commands that have a use of their own for Ctrl-C.
#include <stop_token>

namespace sluice::tools {

/// Ctrl-C, SIGTERM or SIGHUP: the first asks for a clean stop, the second ends at once. A thread
/// takes the signals, so nothing is interrupted half-way. Call it before other threads are started.
void watch_signals(std::stop_source stop);

/// While one lives, Ctrl-C is counted here and stops nothing. One at a time; one thread asks.
class InterruptCounter {
 public:
  InterruptCounter();
  ~InterruptCounter();
  InterruptCounter(const InterruptCounter&) = delete;
  InterruptCounter& operator=(const InterruptCounter&) = delete;

  /// Whether Ctrl-C came since the last time it was asked.
  bool take();
};

}  // namespace sluice::tools
