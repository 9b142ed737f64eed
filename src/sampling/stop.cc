#include "src/sampling/stop.h"

#include <algorithm>

namespace sluice::sampling {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) : nodes_(1) {
  for (const std::string& stop : stops) {
    insert(stop, static_cast<int32_t>(stop_bytes_.size()));
    stop_bytes_.push_back(static_cast<int32_t>(stop.size()));
  }
  link();
}

int32_t StopMatcher::child(int32_t node, unsigned char byte) const noexcept {
  for (const auto& [edge, target] : nodes_[static_cast<size_t>(node)].children) {
    if (edge == byte) return target;
  }
  return -1;
}

void StopMatcher::insert(std::string_view stop, int32_t index) {
  if (stop.empty()) return;
  int32_t node = 0;
  for (const char c : stop) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      Node fresh;
      fresh.depth = nodes_[static_cast<size_t>(node)].depth + 1;
      nodes_.push_back(std::move(fresh));
      nodes_[static_cast<size_t>(node)].children.emplace_back(byte, next);
    }
    node = next;
  }
  Node& end = nodes_[static_cast<size_t>(node)];
  if (end.found < 0) end.found = index;  // of equal strings the first
}

// Breadth first, so that a node's `shorter` is complete before its children need it.
void StopMatcher::link() {
  std::vector<int32_t> order{0};
  for (size_t next = 0; next < order.size(); ++next) {
    const int32_t node = order[next];
    for (const auto& [byte, target] : nodes_[static_cast<size_t>(node)].children) {
      order.push_back(target);
      if (node == 0) continue;
      int32_t shorter = nodes_[static_cast<size_t>(node)].shorter;
      int32_t found = child(shorter, byte);
      while (found < 0 && shorter != 0) {
        shorter = nodes_[static_cast<size_t>(shorter)].shorter;
        found = child(shorter, byte);
      }
      Node& end = nodes_[static_cast<size_t>(target)];
      end.shorter = std::max(found, 0);
      if (end.found < 0) end.found = nodes_[static_cast<size_t>(end.shorter)].found;
    }
  }
}

StopMatcher::Outcome StopMatcher::push(std::string_view piece) {
  Outcome outcome;
  outcome.stopped = stopped();
  outcome.which = which_;
  if (stopped()) return outcome;
  if (stop_bytes_.empty()) {
    outcome.emit = piece;
    return outcome;
  }
  held_ += piece;
  size_t read = held_.size() - piece.size();
  for (const char c : piece) {
    ++read;
    const auto byte = static_cast<unsigned char>(c);
    int32_t next = child(node_, byte);
    while (next < 0 && node_ != 0) {
      node_ = nodes_[static_cast<size_t>(node_)].shorter;
      next = child(node_, byte);
    }
    node_ = std::max(next, 0);
    which_ = nodes_[static_cast<size_t>(node_)].found;
    if (which_ < 0) continue;
    outcome.stopped = true;
    outcome.which = which_;
    outcome.emit =
        held_.substr(0, read - static_cast<size_t>(stop_bytes_[static_cast<size_t>(which_)]));
    held_.clear();
    return outcome;
  }
  const size_t decided =
      held_.size() - static_cast<size_t>(nodes_[static_cast<size_t>(node_)].depth);
  outcome.emit = held_.substr(0, decided);
  held_.erase(0, decided);
  return outcome;
}

std::string StopMatcher::flush() {
  node_ = 0;
  std::string rest = std::move(held_);
  held_.clear();
  return rest;
}

}  // namespace sluice::sampling
