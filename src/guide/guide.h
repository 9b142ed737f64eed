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

/// Text that the guide waits for; what comes before it is free.
struct Trigger {
  std::string text;      ///< empty: the guide holds from the start
  bool repeats = false;  ///< free again behind what the network describes
};

class Guide {
 public:
  /// `end_tokens`: those that end a text (the model's end-of-text tokens); may be none.
  Guide(Grammar::Network network, std::shared_ptr<const TokenTrie> tokens,
        std::vector<int32_t> end_tokens, Trigger trigger = {});

  using State = Automaton::State;
  State start() const noexcept { return trigger_.text.empty() ? automaton_.start() : kFree; }
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

 private:
  // Free text of which the last n bytes are the trigger's first ones: kFree - n.
  static constexpr State kFree = -100;

  std::vector<uint64_t> find_allowed(State state);
  State after_byte(State state, uint8_t byte);

  Automaton automaton_;
  std::shared_ptr<const TokenTrie> tokens_;
  std::vector<int32_t> end_tokens_;
  Trigger trigger_;
  std::vector<State>
      shorter_;  // by n: the longest beginning of the trigger that its n bytes end with
  std::vector<std::vector<uint64_t>> masks_;  // by state; empty: not looked at
  size_t kept_masks_ = 0;
  std::vector<State> path_;  // by depth, during a walk
  std::atomic<bool> is_worn_ = false;
};

}  // namespace sluice::guide
