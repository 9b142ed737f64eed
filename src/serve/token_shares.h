#pragma once
// How many tokens each caller has waiting or running, prompts and answers, and how many it may
// have. Not thread safe.
#include <cstdint>
#include <limits>
#include <map>

namespace sluice::serve {

class TokenShares {
 public:
  explicit TokenShares(int64_t most = std::numeric_limits<int64_t>::max()) : most_(most) {}

  int64_t most() const noexcept { return most_; }
  bool has_room(uint64_t caller, int64_t tokens) const {
    const auto at = held_.find(caller);
    return tokens <= most_ - (at == held_.end() ? 0 : at->second);
  }
  void add(uint64_t caller, int64_t tokens) { held_[caller] += tokens; }
  void remove(uint64_t caller, int64_t tokens) {
    const auto at = held_.find(caller);
    if (at != held_.end() && (at->second -= tokens) <= 0) held_.erase(at);
  }

 private:
  int64_t most_;
  std::map<uint64_t, int64_t> held_;
};

}  // namespace sluice::serve
