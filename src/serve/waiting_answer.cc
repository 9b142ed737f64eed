#include "src/serve/waiting_answer.h"

#include <utility>

namespace sluice::serve {

void AwaitedResponse::put(http::Response response) {
  const MutexLock lock(mutex_);
  if (is_left_) return;
  response_ = std::move(response);
  if (wake_) wake_();
}

bool AwaitedResponse::is_left() const {
  const MutexLock lock(mutex_);
  return is_left_;
}

std::optional<http::Response> AwaitedResponse::take() {
  const MutexLock lock(mutex_);
  return std::exchange(response_, std::nullopt);
}

void AwaitedResponse::leave() {
  std::optional<http::Response> dropped;  // goes without the lock
  const MutexLock lock(mutex_);
  is_left_ = true;
  wake_ = nullptr;
  dropped.swap(response_);
}

void AwaitedResponse::watch(std::function<void()> wake) {
  const MutexLock lock(mutex_);
  wake_ = std::move(wake);
}

void WaitingAnswer::watch(std::function<void()> wake) {
  wake_ = wake;
  awaited_->watch(std::move(wake));
}

http::Piece WaitingAnswer::next() {
  if (inner_) return inner_->next();
  std::optional<http::Response> response = awaited_->take();
  if (!response) {
    if (http::Clock::now() >= deadline_) return http::Piece::whole(std::move(lateness_));
    return http::Piece::nothing_until(deadline_);
  }
  if (!response->live) return http::Piece::whole(std::move(*response));
  inner_ = std::move(response->live);
  inner_->watch(std::move(wake_));
  return inner_->next();
}

}  // namespace sluice::serve
