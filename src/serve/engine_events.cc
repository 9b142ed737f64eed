#include "src/serve/engine_events.h"

#include <utility>

namespace sluice::serve {
namespace {

constexpr size_t kMostEvents = 8192;  // tokens that may wait to become text

}  // namespace

void EngineEvents::push(EngineEvent event) {
  {
    MutexLock lock(mutex_);
    emptied_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) { return events_.size() < kMostEvents; });
    events_.push_back(std::move(event));
  }
  filled_.notify_one();
}

void EngineEvents::close() {
  {
    const MutexLock lock(mutex_);
    is_closed_ = true;
  }
  filled_.notify_all();
}

std::deque<EngineEvent> EngineEvents::take() {
  std::deque<EngineEvent> taken;
  {
    MutexLock lock(mutex_);
    filled_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) { return !events_.empty() || is_closed_; });
    taken.swap(events_);
  }
  emptied_.notify_all();
  return taken;
}

}  // namespace sluice::serve
