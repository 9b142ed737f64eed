#pragma once
// How a pass is cut: which pending tokens of which sequences it takes, and into which micro-batches
// they go. Decoding sequences advance one token; a prompt goes in whole where the limits allow,
// else in chunks over micro-batches and passes. One with pages below the compute tier is not cut
// where a fresh micro-batch, or the next pass, takes it whole: each chunk after the first would
// bring those pages up again. The engine cuts real sequences by these rules, the planner imagined
// ones. Pure.
#include <cstdint>
#include <span>
#include <vector>

#include "src/shape/layer_state.h"

namespace sluice {

/// Pages of a sequence below the compute tier.
struct LowerPages {
  int64_t all = 0;
  int64_t on_disk = 0;
};

/// Of a group of layers that keep alike.
struct GroupLimits {
  LayerState state;
  int64_t most_pages = INT64_MAX;           ///< of a sequence that a micro-batch works on
  LowerPages staged{INT64_MAX, INT64_MAX};  ///< of a micro-batch, that a staging slot holds
};

/// What passes and micro-batches may hold.
struct PassLimits {
  int64_t micro_batch_sequences = 1;
  int64_t micro_batch_tokens = 1;
  int64_t pass_tokens = 1;
  int64_t page_tokens = 1;
  bool attends_on_host = false;       ///< sequences whose pages are below the device
  int64_t host_attention_tokens = 0;  ///< of these, longer runs on the device; 0: none
  std::vector<GroupLimits> groups;    ///< of layers
};

/// What a sequence has to compute.
struct PendingTokens {
  int64_t first = 0;  ///< position of the first token that is not computed
  int64_t count = 0;
  bool decodes = false;   ///< its prompt is behind it
  bool is_lower = false;  ///< what is known of it lies, in part, below the compute tier
};

/// Neighbouring tokens of one sequence.
struct TokenRun {
  int64_t sequence = 0;  ///< index in what was given
  int64_t first = 0;
  int64_t count = 0;
  bool is_whole = false;  ///< one micro-batch takes it whole or not at all
  bool is_lower = false;  ///< its sequence has pages below the compute tier
};

/// Where a micro-batch's sequences below the device are attended: those of one are so in one way.
enum class LowerAttention : uint8_t { kNone, kHost, kDevice };

/// The tokens that one pass takes: every decoding sequence's, and of prompts what pass_tokens
/// leaves, in the order given; of the room of a prompt that is cut, shorter ones behind it that fit
/// whole have up to half, the shortest first: a short prompt does not wait for a long one's end.
struct PassTokens {
  std::vector<TokenRun> runs;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
};
PassTokens take_tokens(std::span<const PendingTokens> pending, const PassLimits& limits);

/// Where a sequence's pages are, for limits on what is staged.
class PageMap {
 public:
  virtual ~PageMap() = default;
  /// Those of a group that one micro-batch may work on at most; and those that hold the sequence's
  /// first `tokens` tokens, as far as they matter to `count` of them.
  virtual LowerPages lower_pages(int64_t sequence, int32_t group) const = 0;
  virtual LowerPages lower_pages(int64_t sequence, int32_t group, int64_t tokens,
                                 int64_t count) const = 0;
};

/// One micro-batch of a pass.
struct MicroBatchCut {
  std::vector<TokenRun> runs;
  int64_t rows = 0;
  /// Begins with a later chunk of a run that the micro-batch before it ends with.
  bool continues_previous = false;
  std::vector<LowerPages> staged;  ///< with a map: by group
  LowerAttention lower = LowerAttention::kNone;
};

/// Appends runs to the last micro-batch, or opens a new one when it is full, or has no room for all
/// of a run that stays whole.
class MicroBatchCutter {
 public:
  /// Both stay where they are. Without a map nothing is staged.
  explicit MicroBatchCutter(const PassLimits& limits, const PageMap* pages = nullptr)
      : limits_(limits), pages_(pages) {}
  void add(TokenRun run);
  std::vector<MicroBatchCut> take() { return std::move(cuts_); }

 private:
  bool has_slot_room(const MicroBatchCut& cut, int64_t sequence, LowerAttention lower) const;
  LowerAttention attention_of(const TokenRun& run) const noexcept;
  MicroBatchCut& open(int64_t sequence, int64_t rows, LowerAttention lower);

  const PassLimits& limits_;
  const PageMap* pages_;
  std::vector<MicroBatchCut> cuts_;
};

/// Pages of `page_tokens` tokens that a run works on: [begin, end) holds itself and its history,
/// from position `seen_from` on; [begin, with_history) tokens computed before, [first_changed, end)
/// new ones.
struct PagesOfRun {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t with_history = 0;
  int64_t first_changed = 0;
};
constexpr PagesOfRun pages_of_run(int64_t first, int64_t count, int64_t page_tokens,
                                  int64_t seen_from = 0) {
  return {seen_from / page_tokens, (first + count + page_tokens - 1) / page_tokens,
          (first + page_tokens - 1) / page_tokens, first / page_tokens};
}

/// Calls visit(page, has_history, is_changed) for each page that a run works on, in rising order.
/// Of a recurrent state these are the one that the token before the run left, and those that it
/// leaves itself: behind its last token, and at the last border of a page before that.
template <typename Visit>
void for_each_page(const LayerState& state, int64_t first, int64_t count, int64_t page_tokens,
                   const Visit& visit) {
  const PagesOfRun pages = pages_of_run(first, count, page_tokens, state.first_seen(first));
  for (int64_t page = pages.begin; page < pages.end; ++page) {
    const bool has_history = page < pages.with_history;
    bool is_changed = page >= pages.first_changed;
    if (state.is_recurrent()) {
      is_changed = is_changed && page + LayerState::kRecurrentPages >= pages.end;
      if (!has_history && !is_changed) continue;
    }
    visit(page, has_history, is_changed);
  }
}
/// Pages of a recurrent state that a run works on, at most.
constexpr int64_t kMostRecurrentPages = LayerState::kRecurrentPages + 1;

/// Pages that a sequence needs at a time of layers that see `window` positions, when at most
/// `chunk` tokens of it are computed together: a page may be used again for the one so many behind
/// it. What sees page q ends at position (q + 1) page_tokens + window - 2; no chunk reaches from
/// there to the first position of page q + most_window_pages().
constexpr int64_t most_window_pages(int64_t window, int64_t chunk, int64_t page_tokens) {
  return 1 + (window + chunk - 2 + page_tokens - 1) / page_tokens;
}

/// A prompt from its first token: the device attends to what it has itself.
constexpr bool is_fresh_run(int64_t first, int64_t count) { return first == 0 && count > 1; }

/// What attention on the host exchanges for rows of f32: keys and values of all of them go down,
/// queries of those that the host attends go down and their outputs come up. `kept_cols`: what a
/// layer keeps of a token (LayerState::elements_per_token).
struct ExchangedBytes {
  int64_t queries = 0;
  int64_t outputs = 0;
};
constexpr ExchangedBytes exchanged_bytes(int64_t lower_rows, int64_t host_rows, int64_t q_cols,
                                         int64_t kept_cols) {
  return {4 * (host_rows * q_cols + lower_rows * kept_cols), 4 * host_rows * q_cols};
}

}  // namespace sluice
