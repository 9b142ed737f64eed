#include "src/serve/request_queue.h"

#include <algorithm>
#include <tuple>

namespace sluice::serve {

bool RequestQueue::comes_before(const Waiting& a, const Waiting& b) const {
  const auto length = [](const Waiting& one) {
    return static_cast<int64_t>(one.request.prompt.size()) + one.request.params.max_tokens;
  };
  switch (order_) {
    case QueueOrder::kPriority:
      return std::tie(a.request.priority, a.order) < std::tie(b.request.priority, b.order);
    case QueueOrder::kShortest:
      return std::make_tuple(length(a), a.order) < std::make_tuple(length(b), b.order);
    case QueueOrder::kFirstCome: break;
  }
  return a.order < b.order;
}

RequestQueue::Outcome RequestQueue::push(std::vector<GenerationRequest> requests, bool is_bound) {
  {
    const MutexLock lock(mutex_);
    if (is_closed_ && !is_bound) return Outcome::kClosed;
    if (!is_bound && static_cast<int64_t>(waiting_.size() + requests.size()) > most_waiting_)
      return Outcome::kFull;
    for (GenerationRequest& request : requests)
      waiting_.push_back({std::move(request), counter_++});
  }
  changed_.notify_all();
  return Outcome::kTaken;
}

bool RequestQueue::cancel(uint64_t id) {
  const MutexLock lock(mutex_);
  if (std::erase_if(waiting_, [&](const Waiting& one) { return one.request.id == id; }) > 0)
    return true;
  cancelled_.push_back(id);
  return false;
}

void RequestQueue::close() {
  {
    const MutexLock lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
}

int64_t RequestQueue::waiting() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(waiting_.size());
}

std::optional<GenerationRequest> RequestQueue::next() {
  const MutexLock lock(mutex_);
  const auto first =
      std::min_element(waiting_.begin(), waiting_.end(),
                       [&](const Waiting& a, const Waiting& b) { return comes_before(a, b); });
  if (first == waiting_.end()) return std::nullopt;
  GenerationRequest request = std::move(first->request);
  waiting_.erase(first);
  return request;
}

bool RequestQueue::is_open() {
  const MutexLock lock(mutex_);
  return !is_closed_ || !waiting_.empty();
}

void RequestQueue::wait(const std::stop_token& cancel) {
  MutexLock lock(mutex_);
  changed_.wait(lock, cancel,
                [&]() SLUICE_REQUIRES(mutex_) { return !waiting_.empty() || is_closed_; });
}

std::vector<uint64_t> RequestQueue::take_cancelled() {
  const MutexLock lock(mutex_);
  return std::exchange(cancelled_, {});
}

}  // namespace sluice::serve
