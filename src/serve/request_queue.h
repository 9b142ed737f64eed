#pragma once
// Requests on their way to the engine: any thread puts them in, the engine's thread takes them out
// whenever the block has room. Bounded: what does not fit is refused at once, so that callers can
// be told to come later. Thread safe.
#include <vector>

#include "src/base/mutex.h"
#include "src/engine/passes/sequence.h"

namespace sluice::serve {

/// Who of those waiting comes first.
enum class QueueOrder : uint8_t {
  kFirstCome,
  kPriority,  ///< the lowest GenerationRequest::priority, then the first to come
  kShortest   ///< the fewest prompt and new tokens together, then the first to come
};

class RequestQueue final : public RequestSource {
 public:
  /// `most_waiting`: requests that wait, at most.
  RequestQueue(int64_t most_waiting, QueueOrder order)
      : most_waiting_(most_waiting), order_(order) {}

  enum class Outcome : uint8_t { kTaken, kFull, kClosed };
  /// All of `requests` or none of them. With `is_bound` even beyond the limit: they belong to a
  /// request that was taken before.
  Outcome push(std::vector<GenerationRequest> requests, bool is_bound = false);
  /// Whether the request still waited; then it is gone and the engine never hears of it. Otherwise
  /// the engine ends it before its next pass.
  bool cancel(uint64_t id);
  /// Takes no more; what waits is still given out.
  void close();
  int64_t waiting() const;
  int64_t most_waiting() const noexcept { return most_waiting_; }

  std::optional<GenerationRequest> next() override;
  bool is_open() override;
  void wait(const std::stop_token& cancel) override;
  std::vector<uint64_t> take_cancelled() override;

 private:
  struct Waiting {
    GenerationRequest request;
    uint64_t order;
  };
  bool comes_before(const Waiting& a, const Waiting& b) const;

  const int64_t most_waiting_;
  const QueueOrder order_;
  mutable Mutex mutex_;
  StoppableCondition changed_;
  std::vector<Waiting> waiting_ SLUICE_GUARDED_BY(mutex_);
  std::vector<uint64_t> cancelled_ SLUICE_GUARDED_BY(mutex_);
  uint64_t counter_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool is_closed_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::serve
