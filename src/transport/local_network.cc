#include "src/transport/local_network.h"

#include <deque>

#include "src/base/mutex.h"

namespace sluice {

struct LocalNetwork::State {
  struct Rank {
    std::deque<Message> inbox;
    std::deque<std::pair<int, std::string>> held_back;  // sent while held: to whom
    bool is_cut = false, is_held = false;
  };
  Mutex mutex;
  std::vector<Rank> ranks SLUICE_GUARDED_BY(mutex);

  void deliver(int from, int to, std::string bytes) SLUICE_REQUIRES(mutex) {
    Rank& target = ranks[static_cast<size_t>(to)];
    if (!target.is_cut) target.inbox.push_back({from, std::move(bytes)});
  }
};

class LocalNetwork::End final : public Transport {
 public:
  End(State& state, int rank, int size) : state_(state), rank_(rank), size_(size) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  void send(int to, std::string bytes) override {
    const MutexLock lock(state_.mutex);
    State::Rank& own = state_.ranks[static_cast<size_t>(rank_)];
    if (own.is_cut) return;
    if (own.is_held)
      own.held_back.emplace_back(to, std::move(bytes));
    else
      state_.deliver(rank_, to, std::move(bytes));
  }

  std::optional<Message> receive() override {
    const MutexLock lock(state_.mutex);
    State::Rank& own = state_.ranks[static_cast<size_t>(rank_)];
    if (own.is_held || own.inbox.empty()) return std::nullopt;
    Message out = std::move(own.inbox.front());
    own.inbox.pop_front();
    return out;
  }

  bool has_left(int) override { return true; }
  void leave(bool, int) override {}

 private:
  State& state_;
  int rank_, size_;
};

LocalNetwork::LocalNetwork(int ranks) : state_(std::make_unique<State>()) {
  const MutexLock lock(state_->mutex);
  state_->ranks.resize(static_cast<size_t>(ranks));
}

LocalNetwork::~LocalNetwork() = default;

std::unique_ptr<Transport> LocalNetwork::join(int rank) {
  const MutexLock lock(state_->mutex);
  return std::make_unique<End>(*state_, rank, static_cast<int>(state_->ranks.size()));
}

void LocalNetwork::cut_off(int rank) {
  const MutexLock lock(state_->mutex);
  State::Rank& one = state_->ranks[static_cast<size_t>(rank)];
  one.is_cut = true;
  one.inbox.clear();
  one.held_back.clear();
}

void LocalNetwork::hold(int rank, bool is_held) {
  const MutexLock lock(state_->mutex);
  State::Rank& one = state_->ranks[static_cast<size_t>(rank)];
  one.is_held = is_held;
  if (is_held) return;
  for (auto& [to, bytes] : one.held_back) state_->deliver(rank, to, std::move(bytes));
  one.held_back.clear();
}

}  // namespace sluice
