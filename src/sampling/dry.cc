#include "src/sampling/dry.h"

#include <algorithm>
#include <cmath>

namespace sluice::sampling {

DryBreakers::DryBreakers(std::span<const std::vector<int32_t>> sequences) {
  for (const std::vector<int32_t>& sequence : sequences) {
    if (sequence.size() == 1) single_.insert(sequence.front());
    if (sequence.size() < 2) continue;
    if (nodes_.empty()) nodes_.emplace_back();
    size_t node = 0;
    for (auto token = sequence.rbegin(); token != sequence.rend(); ++token) {
      const auto [at, is_new] = nodes_[node].before.try_emplace(*token, nodes_.size());
      node = at->second;
      if (is_new) nodes_.emplace_back();
    }
    nodes_[node].is_whole = true;
  }
}

bool DryBreakers::ends_at(std::span<const int32_t> reversed, size_t at) const {
  if (has(reversed[at])) return true;
  if (nodes_.empty()) return false;
  size_t node = 0;
  for (; at < reversed.size(); ++at) {
    const auto next = nodes_[node].before.find(reversed[at]);
    if (next == nodes_[node].before.end()) return false;
    node = next->second;
    if (nodes_[node].is_whole) return true;
  }
  return false;
}

namespace {
// matches[i]: how many tokens text[0..] and text[i..] have in common (the Z function, linear).
void match_with_beginning(std::span<const int32_t> text, std::span<int32_t> matches) {
  const size_t size = text.size();
  size_t left = 0, right = 0;  // [left, right) is the match that reaches furthest
  for (size_t i = 1; i < size; ++i) {
    size_t length = 0;
    if (i < right) length = std::min(right - i, static_cast<size_t>(matches[i - left]));
    while (i + length < size && text[length] == text[i + length]) ++length;
    matches[i] = static_cast<int32_t>(length);
    if (i + length > right) {
      left = i;
      right = i + length;
    }
  }
}
}  // namespace

std::span<const Repeat> Repeats::find(std::span<const int32_t> prompt,
                                      std::span<const int32_t> output, int64_t last_n,
                                      const DryBreakers& breakers, int64_t vocab_size) {
  found_.clear();
  const size_t all = prompt.size() + output.size();
  const size_t size = last_n < 0 ? all : std::min(all, static_cast<size_t>(last_n));
  if (size < 2) return {};
  reversed_.resize(size);
  for (size_t i = 0; i < size; ++i)
    reversed_[i] = i < output.size() ? output[output.size() - 1 - i] : prompt[all - 1 - i];
  if (breakers.has(reversed_.front())) return {};
  matches_.resize(size);
  match_with_beginning(reversed_, matches_);
  const int32_t longest = *std::max_element(matches_.begin() + 1, matches_.end());
  int32_t limit = 0;  // tokens since a breaker ended
  while (limit < longest && !breakers.ends_at(reversed_, static_cast<size_t>(limit))) ++limit;

  if (places_.size() < static_cast<size_t>(vocab_size))
    places_.resize(static_cast<size_t>(vocab_size));
  for (size_t i = 1; i < size; ++i) {
    const int32_t length = std::min(matches_[i], limit);
    const int32_t token = reversed_[i - 1];
    if (length == 0 || token < 0 || token >= vocab_size || breakers.has(token)) continue;
    int32_t& place = places_[static_cast<size_t>(token)];
    if (place == 0) {
      found_.push_back({token, length});
      place = static_cast<int32_t>(found_.size());
    }
    Repeat& repeat = found_[static_cast<size_t>(place) - 1];
    repeat.length = std::max(repeat.length, length);
  }
  for (const Repeat& repeat : found_) places_[static_cast<size_t>(repeat.token)] = 0;
  return found_;
}

int64_t Repeats::bytes() const noexcept {
  return static_cast<int64_t>((reversed_.capacity() + matches_.capacity() + places_.capacity()) *
                                  sizeof(int32_t) +
                              found_.capacity() * sizeof(Repeat));
}

float dry_penalty(float multiplier, float base, int64_t allowed, int64_t length) noexcept {
  constexpr double kMost = 1e30;  // so that no logit becomes infinite
  if (length < allowed) return 0;
  return static_cast<float>(
      std::min(multiplier * std::pow(static_cast<double>(base), length - allowed), kMost));
}

}  // namespace sluice::sampling
