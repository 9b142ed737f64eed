#pragma once
// A generation on its way to a caller: whole, or as a stream of the pieces of its form.
#include <deque>
#include <memory>
#include <optional>

#include "src/http/message.h"
#include "src/serve/answer_form.h"
#include "src/serve/api_error.h"
#include "src/serve/generation_service.h"

namespace sluice::serve {

/// Says in a header what was asked for and is not done; none: nothing.
void add_warnings(const std::vector<std::string>& warnings, http::Response& response);

class LiveGeneration final : public http::LiveAnswer {
 public:
  struct Options {
    bool streams = false;
    bool begins_at_once = false;           ///< a stream: before anything is known of how it goes
    std::chrono::seconds request_time{0};  ///< from now to the end; 0: as long as it takes
    std::vector<std::string> warnings{};   ///< for a header of the answer
  };
  LiveGeneration(std::unique_ptr<GenerationService::Ticket> ticket,
                 std::unique_ptr<AnswerForm> answer, Options options);
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
  bool is_end(const Event& event) const;
  http::Response refused(const ApiError& error) const;

  std::unique_ptr<GenerationService::Ticket> ticket_;
  std::unique_ptr<AnswerForm> answer_;
  const Options options_;
  const Clock::time_point deadline_;
  Clock::time_point last_sign_ = Clock::now();
  std::optional<Clock::time_point> started_;  ///< the engine has it
  std::deque<Event> early_;                   ///< heard before the stream's head went out
  bool has_begun_ = false;
};

}  // namespace sluice::serve
