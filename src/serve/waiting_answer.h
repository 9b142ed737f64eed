#pragma once
// Answers of requests that wait for their model, and of requests that keep it in memory.
#include <memory>
#include <optional>
#include <string>

#include "src/base/mutex.h"
#include "src/http/message.h"
#include "src/serve/api_error.h"
#include "src/serve/error_response.h"

namespace sluice::serve {

/// Where an answer arrives when what it waits for is there. Thread safe.
class AwaitedResponse {
 public:
  /// Once. Where nobody listens any more, the response is dropped.
  void put(http::Response response);
  /// The caller has gone: nothing need be done.
  bool is_left() const;

 private:
  friend class WaitingAnswer;
  std::optional<http::Response> take();
  void leave();
  void watch(std::function<void()> wake);

  mutable Mutex mutex_;
  std::function<void()> wake_ SLUICE_GUARDED_BY(mutex_);
  std::optional<http::Response> response_ SLUICE_GUARDED_BY(mutex_);
  bool is_left_ SLUICE_GUARDED_BY(mutex_) = false;
};

/// Says nothing until the awaited response is there, and then what that says.
class WaitingAnswer final : public http::LiveAnswer {
 public:
  /// From `deadline` on it is answered with `lateness`.
  WaitingAnswer(std::shared_ptr<AwaitedResponse> awaited, http::Clock::time_point deadline,
                http::Response lateness)
      : awaited_(std::move(awaited)), deadline_(deadline), lateness_(std::move(lateness)) {}
  ~WaitingAnswer() override { awaited_->leave(); }

  void watch(std::function<void()> wake) override;
  http::Piece next() override;
  std::string sign_of_life() override { return inner_ ? inner_->sign_of_life() : std::string(); }

 private:
  const std::shared_ptr<AwaitedResponse> awaited_;
  const http::Clock::time_point deadline_;
  http::Response lateness_;
  std::function<void()> wake_;
  std::shared_ptr<http::LiveAnswer> inner_;
};

/// An answer that keeps something until it has ended.
class HoldingAnswer final : public http::LiveAnswer {
 public:
  HoldingAnswer(std::shared_ptr<http::LiveAnswer> answer, std::shared_ptr<const void> held)
      : held_(std::move(held)), answer_(std::move(answer)) {}

  void watch(std::function<void()> wake) override { answer_->watch(std::move(wake)); }
  http::Piece next() override { return answer_->next(); }
  std::string sign_of_life() override { return answer_->sign_of_life(); }

 private:
  std::shared_ptr<const void> held_;  // goes after the answer
  std::shared_ptr<http::LiveAnswer> answer_;
};

}  // namespace sluice::serve
