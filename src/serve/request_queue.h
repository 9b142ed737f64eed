#pragma once
// Requests on their way to the engine: any thread puts them in, the engine's thread takes them out
// whenever the block has room. Bounded: what does not fit is refused at once, so that callers can
// be told to come later. Of several callers that wait, the one that has had the fewest tokens is
// next (the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models",
// OSDI 2024): a prompt's tokens count once, when it starts, those of the answer twice, as they
// come, all over the caller's weight; who comes back from having asked for nothing begins with what
// the least served of the busy callers has. Thread safe.
#include <map>
#include <unordered_map>
#include <vector>

#include "src/base/mutex.h"
#include "src/engine/passes/sequence.h"

namespace sluice::serve {

/// Who of those waiting comes first.
enum class QueueOrder : uint8_t {
  kFirstCome,  ///< by callers' shares; of one caller the first to come
  kPriority,   ///< the lowest GenerationRequest::priority; of equals as kFirstCome
  kShortest    ///< by callers' shares; of one the fewest prompt and new tokens together
};

class RequestQueue final : public RequestSource {
 public:
  /// `most_waiting`: requests that wait, at most.
  RequestQueue(int64_t most_waiting, QueueOrder order)
      : most_waiting_(most_waiting), order_(order) {}

  enum class Outcome : uint8_t { kTaken, kFull, kOverShare, kClosed };
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

  /// Of a request that the engine has: it starts with so many tokens of its prompt known; it has so
  /// many more tokens of an answer; it has ended.
  void started(uint64_t id, int64_t cached_tokens);
  void brought(uint64_t id, int64_t tokens);
  void ended(uint64_t id);
  /// take_back(), and whether it waits again: false where it was cancelled meanwhile. Then the
  /// engine does not hear of it any more.
  bool put_back(GenerationRequest request);

  std::optional<GenerationRequest> next() override;
  bool is_open() override;
  void wait(const std::stop_token& cancel) override;
  bool is_shared() const override { return true; }
  void take_back(GenerationRequest request) override { put_back(std::move(request)); }
  std::vector<uint64_t> take_cancelled() override;

 private:
  // Of a caller with requests here or in the engine; others have none.
  struct Share {
    double served = 0;  // tokens over the weight
    int64_t requests = 0;
  };
  using Callers = std::map<uint64_t, Share>;
  struct Waiting {
    GenerationRequest request;
    uint64_t order;
    Callers::iterator caller;
  };
  struct Given {
    uint64_t order;
    Callers::iterator caller;
    double weight;
  };
  bool comes_before(const Waiting& a, const Waiting& b) const;
  Callers::iterator join(const Caller& caller) SLUICE_REQUIRES(mutex_);
  void leave(Callers::iterator caller) SLUICE_REQUIRES(mutex_);

  const int64_t most_waiting_;
  const QueueOrder order_;
  mutable Mutex mutex_;
  StoppableCondition changed_;
  Callers callers_ SLUICE_GUARDED_BY(mutex_);
  std::vector<Waiting> waiting_ SLUICE_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Given> given_ SLUICE_GUARDED_BY(mutex_);  // by request
  std::vector<uint64_t> cancelled_ SLUICE_GUARDED_BY(mutex_);
  uint64_t counter_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool is_closed_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::serve
