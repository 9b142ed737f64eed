#pragma once
// Which tokens may come next, so that the output as a whole is what a grammar allows: any token
// whose bytes the grammar can read, and an end token where the text may end. What a state allows is
// found once, by a walk through the vocabulary's tree, and kept. One thread (the engine's).
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/guide/automaton.h"
#include "src/guide/token_trie.h"

namespace sluice::guide {

/// What the guide waits for; until then text is free. Nothing: it holds from the start.
struct Trigger {
  std::string text;      ///< anywhere; the network describes what follows it
  bool repeats = false;  ///< free again behind what the network describes
  /// Instead of `text`: a text that begins with one of these, which the network begins with too, is
  /// guided from there on; any other is free to its end.
  std::vector<std::string> beginnings;
};

class Guide {
 public:
  /// `end_tokens`: those that end a text (the model's end-of-text tokens); may be none.
  Guide(Grammar::Network network, std::shared_ptr<const TokenTrie> tokens,
        std::vector<int32_t> end_tokens, Trigger trigger = {},
        std::vector<std::string> relaxed = {});

  using State = Automaton::State;
  State start() const noexcept {
    if (!trigger_.text.empty()) return kFree;
    return trigger_.beginnings.empty() ? automaton_.start() : kMayBegin - automaton_.start();
  }
  /// Bit t: token t may come; no bits at all: every token may. Valid until the next call. Errors:
  /// as Automaton::after().
  std::span<const uint64_t> allowed(State state);
  /// The state behind a token that was allowed; kEnded behind an end token.
  State after(State state, int32_t token);
  static constexpr State kEnded = -3;
  /// Nothing may follow but an end token.
  bool is_complete(State state) const noexcept {
    return state == kEnded || (state >= 0 && automaton_.is_final(state));
  }
  /// It has met so many states that a new one of the same text is better. From any thread.
  bool is_worn() const noexcept { return is_worn_; }
  const std::vector<int32_t>& end_tokens() const noexcept { return end_tokens_; }
  /// What was asked for and is not held (json_schema.h). From any thread.
  const std::vector<std::string>& relaxed() const noexcept { return relaxed_; }

 private:
  // No mask: free to the end; free text of which the last n bytes are the trigger's first ones
  // (kFree - n); text that may become a beginning, at a state of the automaton (kMayBegin - state).
  static constexpr State kFreeForGood = -50, kFree = -100, kMayBegin = -100'000;
  static constexpr bool is_free(State state) { return state <= kFreeForGood; }

  std::vector<uint64_t> find_allowed(State state);
  State after_byte(State state, uint8_t byte);

  Automaton automaton_;
  std::shared_ptr<const TokenTrie> tokens_;
  std::vector<int32_t> end_tokens_;
  Trigger trigger_;
  const std::vector<std::string> relaxed_;
  std::vector<State> begun_;  // where the trigger's beginnings lead
  // By n: the longest beginning of the trigger that its n bytes end with.
  std::vector<State> shorter_;
  std::vector<std::vector<uint64_t>> masks_;  // by state; empty: not looked at
  size_t kept_masks_ = 0;
  std::vector<State> path_;  // by depth, during a walk
  std::atomic<bool> is_worn_ = false;
};

}  // namespace sluice::guide
