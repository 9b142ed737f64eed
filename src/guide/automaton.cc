#include "src/guide/automaton.h"

#include <algorithm>
#include <set>

#include "src/base/error.h"

namespace sluice::guide {

namespace {
constexpr Automaton::State kUnknown = -2;
constexpr size_t kMostStates = 60'000;
constexpr size_t kMostPoints = 50'000;  // looked at for one state
constexpr int32_t kMostCalls = 256;     // one in another: deeper texts are not offered
}  // namespace

Automaton::Automaton(Grammar::Network network) : nodes_(std::move(network.nodes)) {
  start_ = intern({{network.start, 0}});
}

int32_t Automaton::push(int32_t node, int32_t outer) {
  // A call at the end of a rule returns to where the rule does.
  if (nodes_[static_cast<size_t>(node)].kind == Node::Kind::kReturn) return outer;
  const int32_t depth = calls_[static_cast<size_t>(outer)].depth + 1;
  if (depth > kMostCalls) return -1;
  const auto [entry, is_new] =
      call_ids_.try_emplace({node, outer}, static_cast<int32_t>(calls_.size()));
  if (is_new) calls_.push_back({node, outer, depth});
  return entry->second;
}

// The state of all points that `from` leads to without reading.
Automaton::State Automaton::intern(std::vector<Point> from) {
  std::set<Point> seen(from.begin(), from.end());
  std::vector<Point> reading;
  bool is_accepting = false;
  const auto visit = [&](Point point) {
    if (point.calls >= 0 && seen.insert(point).second) from.push_back(point);
  };
  while (!from.empty()) {
    if (seen.size() > kMostPoints)
      throw Error(ErrorKind::kUser, "the guide can be read in too many ways at once",
                  "make its alternatives and nested repetitions simpler");
    const Point point = from.back();
    from.pop_back();
    const Node& node = nodes_[static_cast<size_t>(point.node)];
    switch (node.kind) {
      case Node::Kind::kRange: reading.push_back(point); break;
      case Node::Kind::kSplit:
        visit({node.next, point.calls});
        visit({node.other, point.calls});
        break;
      case Node::Kind::kCall: visit({node.other, push(node.next, point.calls)}); break;
      case Node::Kind::kReturn:
        if (point.calls == 0) {
          is_accepting = true;
        } else {
          const Call call = calls_[static_cast<size_t>(point.calls)];
          visit({call.node, call.outer});
        }
        break;
    }
  }
  if (reading.empty() && !is_accepting) return kDead;
  std::sort(reading.begin(), reading.end());
  const auto [entry, is_new] =
      ids_.try_emplace({is_accepting, std::move(reading)}, static_cast<State>(states_.size()));
  if (is_new) {
    if (states_.size() >= kMostStates) {
      ids_.erase(entry);
      throw Error(ErrorKind::kUser, "the guide has led to too many different states",
                  "make it simpler: fewer nested optional parts, shorter bounded repetitions");
    }
    auto set = std::make_unique<Set>();
    set->points = entry->first.second;
    set->is_accepting = is_accepting;
    states_.push_back(std::move(set));
  }
  return entry->second;
}

Automaton::State Automaton::after(State state, uint8_t byte) {
  Set& set = *states_[static_cast<size_t>(state)];
  if (!set.next) set.next = std::make_unique<std::vector<State>>(256, kUnknown);
  State& known = (*set.next)[byte];
  if (known != kUnknown) return known;
  std::vector<Point> next;
  for (const Point& point : set.points) {
    const Node& node = nodes_[static_cast<size_t>(point.node)];
    if (byte >= node.low && byte <= node.high) next.push_back({node.next, point.calls});
  }
  std::sort(next.begin(), next.end());
  next.erase(std::unique(next.begin(), next.end()), next.end());
  known = next.empty() ? kDead : intern(std::move(next));
  return known;
}

}  // namespace sluice::guide
