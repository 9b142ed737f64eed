#include "tools/interrupts.h"

#include <signal.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tools/output.h"

namespace sluice::tools {

namespace {
std::atomic<bool> is_counting = false;
std::atomic<bool> was_interrupted = false;

// The next signal that is not a counted Ctrl-C.
void wait_for_stop(const sigset_t& set) {
  for (;;) {
    int signal = 0;
    sigwait(&set, &signal);
    if (signal != SIGINT || !is_counting) return;
    was_interrupted = true;
  }
}
}  // namespace

void watch_signals(std::stop_source stop) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  // A terminal that closes asks the same, unless it was told not to (nohup).
  struct sigaction hang_up {};
  if (::sigaction(SIGHUP, nullptr, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN)
    sigaddset(&set, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([set, stop]() mutable {
    wait_for_stop(set);
    message_start();  // the line ends in any case: a terminal shows ^C
    std::fprintf(stderr, "\nsluice: stopping (once more to end at once)\n");
    stop.request_stop();
    wait_for_stop(set);
    std::_Exit(130);
  }).detach();
}

InterruptCounter::InterruptCounter() {
  was_interrupted = false;
  is_counting = true;
}

InterruptCounter::~InterruptCounter() { is_counting = false; }

bool InterruptCounter::take() { return was_interrupted.exchange(false); }

}  // namespace sluice::tools
