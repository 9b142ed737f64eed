#pragma once
// Takes a live answer to its connection: asks it for pieces in a crew's thread whenever it has some
// and the connection has written most of what there was before.
#include <atomic>
#include <functional>
#include <memory>

#include "src/http/crew.h"
#include "src/http/message.h"

namespace sluice::http {

class Pump : public std::enable_shared_from_this<Pump> {
 public:
  /// Called in the crew's thread with every piece but kNothingYet.
  using Deliver = std::function<void(Piece)>;

  /// `crew` has one thread and outlives it.
  static std::shared_ptr<Pump> start(Crew& crew, std::shared_ptr<LiveAnswer> live, Deliver deliver);

  /// So many bytes of what was delivered are written. From any thread, like the next two.
  void written(int64_t bytes);
  /// Delivers a sign of life, if the answer has one.
  void probe();
  /// Nothing more is delivered but what is on its way; the answer is destroyed soon, in the crew's
  /// thread.
  void close();

 private:
  Pump(Crew& crew, std::shared_ptr<LiveAnswer> live, Deliver deliver)
      : crew_(crew), live_(std::move(live)), deliver_(std::move(deliver)) {}
  void wake();
  void run();
  void arm(Clock::time_point time);
  void end();

  Crew& crew_;
  std::shared_ptr<LiveAnswer> live_;  // the crew's thread only, like the next two
  Deliver deliver_;
  Clock::time_point alarm_ = Clock::time_point::max();
  std::atomic<int64_t> unwritten_{0};
  std::atomic<bool> is_woken_{false};
};

}  // namespace sluice::http
