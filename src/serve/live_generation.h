#pragma once
// A generation on its way to a caller: whole, or as a stream of server-sent events.
#include <deque>
#include <memory>
#include <optional>

#include "src/http/message.h"
#include "src/serve/api_answer.h"
#include "src/serve/api_error.h"
#include "src/serve/generation_service.h"

namespace sluice::serve {

/// An error as a whole answer: its body, Retry-After, WWW-Authenticate.
http::Response error_response(const ApiError& error);

class LiveGeneration final : public http::LiveAnswer {
 public:
  struct Options {
    bool streams = false;
    bool begins_at_once = false;           ///< a stream: before anything is known of how it goes
    std::chrono::seconds request_time{0};  ///< from now to the end; 0: as long as it takes
  };
  LiveGeneration(std::unique_ptr<GenerationService::Ticket> ticket, std::unique_ptr<Answer> answer,
                 Options options);
  /// Gives the request up when it has not ended.
  ~LiveGeneration() override;

  void watch(std::function<void()> wake) override;
  http::Piece next() override;
  std::string sign_of_life() override;

 private:
  using Clock = http::Clock;
  http::Piece next_whole();
  http::Piece begin();
  http::Piece stream();
  bool is_late() const { return Clock::now() >= deadline_; }
  ApiError lateness() const;

  std::unique_ptr<GenerationService::Ticket> ticket_;
  std::unique_ptr<Answer> answer_;
  const Options options_;
  const Clock::time_point deadline_;
  Clock::time_point last_sign_ = Clock::now();
  std::optional<Clock::time_point> started_;  ///< the engine has it
  std::deque<Event> early_;                   ///< heard before the stream's head went out
  bool has_begun_ = false;
};

}  // namespace sluice::serve
