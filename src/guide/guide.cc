#include "src/guide/guide.h"

#include <algorithm>

#include "src/base/error.h"

namespace sluice::guide {

namespace {
constexpr size_t kManyStates = 30'000;               // of the 60 000 that an automaton may have
constexpr size_t kMostMaskBytes = size_t{64} << 20;  // kept for one guide
}  // namespace

Guide::Guide(Grammar::Network network, std::shared_ptr<const TokenTrie> tokens,
             std::vector<int32_t> end_tokens, Trigger trigger, std::vector<std::string> relaxed)
    : automaton_(std::move(network)),
      tokens_(std::move(tokens)),
      end_tokens_(std::move(end_tokens)),
      trigger_(std::move(trigger)),
      relaxed_(std::move(relaxed)),
      shorter_(trigger_.text.size(), 0),
      path_(static_cast<size_t>(tokens_->most_depth()) + 1) {
  // Knuth, Morris and Pratt's table.
  for (size_t n = 2; n < trigger_.text.size(); ++n) {
    State k = shorter_[n - 1];
    while (k > 0 && trigger_.text[static_cast<size_t>(k)] != trigger_.text[n - 1])
      k = shorter_[static_cast<size_t>(k)];
    shorter_[n] = k + (trigger_.text[static_cast<size_t>(k)] == trigger_.text[n - 1] ? 1 : 0);
  }
  for (const std::string& beginning : trigger_.beginnings) {
    State state = automaton_.start();
    for (char c : beginning) state = automaton_.after(state, static_cast<uint8_t>(c));
    SLUICE_ASSERT(state != Automaton::kDead, "the network begins with every beginning");
    begun_.push_back(state);
  }
  if (automaton_.start() == Automaton::kDead)
    throw Error(ErrorKind::kUser, "the guide allows no text at all");
}

std::vector<uint64_t> Guide::find_allowed(State state) {
  int32_t largest = tokens_->vocab_size();
  for (int32_t token : end_tokens_) largest = std::max(largest, token + 1);
  std::vector<uint64_t> mask(static_cast<size_t>(largest + 63) / 64, 0);
  const auto allow = [&](int32_t token) {
    mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << token % 64;
  };
  const auto& nodes = tokens_->nodes();
  path_[0] = state;
  for (size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const auto depth = static_cast<size_t>(node.depth);
    const State next = automaton_.after(path_[depth - 1], node.byte);
    if (next == Automaton::kDead) {
      i = static_cast<size_t>(node.end);
      continue;
    }
    path_[depth] = next;
    for (int32_t token = node.token; token >= 0; token = tokens_->next_alike(token)) allow(token);
    ++i;
  }
  if (automaton_.is_accepting(state))
    for (int32_t token : end_tokens_) allow(token);
  return mask;
}

std::span<const uint64_t> Guide::allowed(State state) {
  if (is_free(state)) return {};
  const auto index = static_cast<size_t>(state);
  if (masks_.size() <= index) masks_.resize(index + 1);
  if (masks_[index].empty()) {
    std::vector<uint64_t> mask = find_allowed(state);
    if ((kept_masks_ + 1) * mask.size() * sizeof(uint64_t) > kMostMaskBytes) {
      for (auto& kept : masks_) kept = {};
      kept_masks_ = 0;
    }
    ++kept_masks_;
    if (automaton_.states() > kManyStates) is_worn_ = true;
    masks_[index] = std::move(mask);
  }
  return masks_[index];
}

Guide::State Guide::after(State state, int32_t token) {
  if (std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end()) return kEnded;
  const bool was_free = is_free(state);
  for (char c : tokens_->bytes(token)) {
    state = after_byte(state, static_cast<uint8_t>(c));
    // One token may hold the trigger and what can't follow it: then no call has begun.
    if (state == Automaton::kDead && was_free) return trigger_.text.empty() ? kFreeForGood : kFree;
    SLUICE_ASSERT(state != Automaton::kDead, "only tokens that are allowed are taken");
  }
  return state;
}

Guide::State Guide::after_byte(State state, uint8_t byte) {
  if (state == kFreeForGood) return state;
  if (state <= kMayBegin) {
    state = automaton_.after(kMayBegin - state, byte);
    const bool has_begun = std::find(begun_.begin(), begun_.end(), state) != begun_.end();
    return state == Automaton::kDead || has_begun ? state : kMayBegin - state;
  }
  if (!is_free(state)) {
    state = automaton_.after(state, byte);
    const bool is_over = state >= 0 && trigger_.repeats && automaton_.is_final(state);
    return is_over ? kFree : state;
  }
  State n = kFree - state;
  const auto at = [&](State index) {
    return static_cast<uint8_t>(trigger_.text[static_cast<size_t>(index)]);
  };
  while (n > 0 && at(n) != byte) n = shorter_[static_cast<size_t>(n)];
  if (at(n) == byte) ++n;
  return n == static_cast<State>(trigger_.text.size()) ? automaton_.start() : kFree - n;
}

}  // namespace sluice::guide
