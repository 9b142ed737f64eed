#include "src/serve/request_queue.h"

#include <algorithm>
#include <tuple>

namespace sluice::serve {

namespace {
constexpr double kTokensOfAnOutput = 2;  // what a token of an answer counts for
}  // namespace

bool RequestQueue::comes_before(const Waiting& a, const Waiting& b) const {
  const auto key = [this](const Waiting& one) {
    const GenerationRequest& request = one.request;
    const int64_t length = static_cast<int64_t>(request.prompt.size()) + request.params.max_tokens;
    return std::make_tuple(order_ == QueueOrder::kPriority ? request.priority : 0,
                           one.caller->second.served, order_ == QueueOrder::kShortest ? length : 0,
                           one.order);
  };
  return key(a) < key(b);
}

RequestQueue::Callers::iterator RequestQueue::join(const Caller& caller) {
  const auto [at, is_new] = callers_.try_emplace(caller.id);
  if (is_new) {
    double least = -1;
    for (const auto& [id, share] : callers_)
      if (share.requests > 0 && (least < 0 || share.served < least)) least = share.served;
    at->second.served = std::max(least, 0.0);
  }
  ++at->second.requests;
  return at;
}

void RequestQueue::leave(Callers::iterator caller) {
  if (--caller->second.requests == 0) callers_.erase(caller);
}

RequestQueue::Outcome RequestQueue::push(std::vector<GenerationRequest> requests, bool is_bound) {
  {
    const MutexLock lock(mutex_);
    if (is_closed_ && !is_bound) return Outcome::kClosed;
    if (!is_bound && static_cast<int64_t>(waiting_.size() + requests.size()) > most_waiting_)
      return Outcome::kFull;
    for (GenerationRequest& request : requests) {
      const auto caller = join(request.caller);
      waiting_.push_back({std::move(request), counter_++, caller});
    }
  }
  changed_.notify_all();
  return Outcome::kTaken;
}

bool RequestQueue::cancel(uint64_t id) {
  const MutexLock lock(mutex_);
  const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                               [&](const Waiting& one) { return one.request.id == id; });
  if (at != waiting_.end()) {
    leave(at->caller);
    waiting_.erase(at);
    return true;
  }
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

void RequestQueue::started(uint64_t id, int64_t cached_tokens) {
  const MutexLock lock(mutex_);
  if (const auto at = given_.find(id); at != given_.end())
    at->second.caller->second.served -= static_cast<double>(cached_tokens) / at->second.weight;
}

void RequestQueue::brought(uint64_t id, int64_t tokens) {
  const MutexLock lock(mutex_);
  if (const auto at = given_.find(id); at != given_.end())
    at->second.caller->second.served +=
        kTokensOfAnOutput * static_cast<double>(tokens) / at->second.weight;
}

void RequestQueue::ended(uint64_t id) {
  const MutexLock lock(mutex_);
  const auto at = given_.find(id);
  if (at == given_.end()) return;
  leave(at->second.caller);
  given_.erase(at);
}

std::optional<GenerationRequest> RequestQueue::next() {
  const MutexLock lock(mutex_);
  const auto first =
      std::min_element(waiting_.begin(), waiting_.end(),
                       [&](const Waiting& a, const Waiting& b) { return comes_before(a, b); });
  if (first == waiting_.end()) return std::nullopt;
  GenerationRequest request = std::move(first->request);
  first->caller->second.served +=
      static_cast<double>(request.prompt.size()) / request.caller.weight;
  given_.insert_or_assign(request.id, Given{first->order, first->caller, request.caller.weight});
  waiting_.erase(first);
  return request;
}

bool RequestQueue::put_back(GenerationRequest request) {
  const MutexLock lock(mutex_);
  const auto at = given_.find(request.id);
  if (at == given_.end()) return false;
  const Given given = at->second;
  given_.erase(at);
  given.caller->second.served -= static_cast<double>(request.prompt.size()) / given.weight;
  if (std::erase(cancelled_, request.id) > 0) {
    leave(given.caller);
    return false;
  }
  waiting_.push_back({std::move(request), given.order, given.caller});
  return true;
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
