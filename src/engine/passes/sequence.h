#pragma once
// What the engine is asked for and how it answers; and one running sequence. Requests come from a
// source whenever the block has room, tokens go to a sink as they are chosen.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "src/cache/state_pools.h"
#include "src/engine/passes/placed_adapter.h"
#include "src/guide/guide.h"
#include "src/sampling/beam_search.h"
#include "src/sampling/sampler.h"
#include "src/schedule/task.h"

namespace sluice {

/// Rows behind the final norm, of the prompt's tokens, that go to the sink instead of anything that
/// the head would make of them; nothing is generated.
enum class HiddenRows : uint8_t {
  kNone,
  kLast,  ///< of the last token
  kAll
};

/// Who asks, where several share an engine.
struct Caller {
  uint64_t id = 0;
  double weight = 1;  ///< of its share, against another caller's
};

/// A prompt and how it is to be continued.
struct GenerationRequest {
  uint64_t id = 0;  ///< the asker's; given back with every event
  std::vector<int32_t> prompt;
  sampling::SamplingParams params;
  bool score_prompt = false;  ///< hand the logits of every prompt position to the sink
  bool score_only = true;     ///< with score_prompt: generate nothing after it
  int32_t priority = 0;       ///< lower is more urgent: who gives way where KV pages run short
  std::shared_ptr<guide::Guide> guide;  ///< of params.guide (GuideMaker); null: none is asked for
  AdapterPtr adapter = nullptr;         ///< of this engine's bank; null: the model as it is
  HiddenRows hidden_rows = HiddenRows::kNone;  ///< without score_prompt
  Caller caller{};                             ///< of a source that is shared

  bool generates() const noexcept {
    return hidden_rows == HiddenRows::kNone && !(score_prompt && score_only);
  }
};

/// Why a sequence ended.
enum class FinishReason : uint8_t {
  kStop,       ///< end-of-text or a stop token; or the sink said so (a stop string)
  kLength,     ///< max_tokens, or the context is full
  kScored,     ///< score_prompt, hidden_rows: all rows were handed over
  kCancelled,  ///< the run ended before the sequence did, or the source took it back
};
/// "stop", "length", "scored", "cancelled".
const char* finish_reason_name(FinishReason reason) noexcept;

/// All calls come from the thread that called Engine::generate.
class RequestSource {
 public:
  virtual ~RequestSource() = default;
  /// The next request, or nothing when there is none now.
  virtual std::optional<GenerationRequest> next() = 0;
  /// After next() gave nothing: whether it may give one later.
  virtual bool is_open() { return false; }
  /// Nothing runs, and an open source gave nothing: returns when next() may give one, when the
  /// source has closed, or when `cancel` is asked for.
  virtual void wait(const std::stop_token& cancel) { static_cast<void>(cancel); }
  /// Whether several callers share it. Then places of the block are theirs by weight: who has fewer
  /// gets one before who has more, from a running sequence of the latter if need be, and a request
  /// that finds no place goes back, so that next() may give another caller's before it.
  virtual bool is_shared() const { return false; }
  /// Of a shared source: a request that next() gave.
  virtual void take_back(GenerationRequest request) { static_cast<void>(request); }
  /// Requests given before that nobody waits for any more, each once: they end with kCancelled
  /// before the next pass. Ids that have ended are ignored.
  virtual std::vector<uint64_t> take_cancelled() { return {}; }
};

/// After each pass: how far things are.
struct PassReport {
  int64_t pass = 0;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t running = 0;
  double seconds = 0;
  size_t pass_class = 0;      ///< of the plan's: how it was computed
  int64_t from_tokens = 0;    ///< the least tokens of the plan's passes of that class
  int64_t preempted = 0;      ///< sequences that gave their pages up and wait to be computed again
  int64_t preemptions = 0;    ///< so far
  int64_t kv_pages = 0;       ///< all
  int64_t kv_pages_used = 0;  ///< by sequences; those only the prefix cache holds are free
  int64_t prefix_queried_tokens = 0;  ///< so far: of prompts admitted
  int64_t prefix_hit_tokens = 0;      ///< so far: of these, found in the prefix cache
  int64_t saved_pages = 0;            ///< so far: of the prefix cache, to the swap space
  int64_t restored_pages = 0;         ///< so far: from there
  int64_t experts_asked = 0;          ///< so far: of experts that have slots, one by one
  int64_t experts_found = 0;          ///< so far: of these, in their slots
  int64_t experts_guessed = 0;        ///< so far: loaded before they were asked for
  int64_t guesses_right = 0;          ///< so far: of these, asked for
  struct LaneReport {
    int64_t bytes = 0;        ///< so far in this run
    double busy_seconds = 0;  ///< likewise
  };
  PerLane<LaneReport> lanes{};
  const LaneTable* machine = &named_lanes();  ///< whose they are
};

/// All calls come from the thread that called Engine::generate.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  /// A token was chosen. False ends the sequence as kStop. Not called for beam searches.
  virtual bool on_token(uint64_t id, const sampling::Choice& choice) = 0;
  /// A beam search has ended: at most num_beams, best first, at least one. on_finish follows.
  virtual void on_hypotheses(uint64_t id, const std::vector<sampling::Hypothesis>& best_first);
  virtual void on_finish(uint64_t id, FinishReason reason) = 0;
  /// A request that can't run (empty or too long prompt, no token left by its penalties); the
  /// others go on. `message` says why and how to mend it. One that ran already ends as kCancelled
  /// after it.
  virtual void on_refused(uint64_t id, const std::string& message) = 0;
  /// score_prompt: logits [vocab_size] of the prompt's position `position`, in rising order.
  virtual void on_logits(uint64_t id, int64_t position, std::span<const float> logits);
  /// hidden_rows: the row [hidden_size] behind the final norm of the prompt's position `position`,
  /// in rising order.
  virtual void on_hidden(uint64_t id, int64_t position, std::span<const float> row);
  /// The sequence runs; `cached_tokens` of its prompt were known to the prefix cache. Not called
  /// again when it resumes after a preemption.
  virtual void on_admitted(uint64_t id, int64_t cached_tokens);
  virtual void on_pass(const PassReport& report);
};

/// The beams of one request, which run as sequences of the same id.
struct BeamGroup {
  sampling::BeamSearch search;
  /// Pages that nobody uses now: what the group may ever need is its own from the start, so that it
  /// never waits and never gives way.
  SequencePages reserve;
  std::vector<std::vector<sampling::BeamCandidate>> candidates;   ///< by beam; of this pass
  std::vector<std::vector<sampling::TokenLogprob>> alternatives;  ///< by beam; where asked for
  std::string refusal;  ///< why the search can't go on; empty: it can
};

/// A running sequence. tokens = prompt, then output.
struct Sequence {
  uint64_t id = 0;
  std::vector<int32_t> tokens;
  int64_t prompt_tokens = 0;
  int64_t computed = 0;  ///< tokens whose KV is in the cache
  SequencePages pages;
  sampling::Sampler sampler;
  bool score_prompt = false;
  std::optional<FinishReason> finished;
  int32_t recent_slot = -1;  ///< of RecentKv
  bool score_only = true;
  int32_t priority = 0;
  int64_t arrival = 0;                  ///< rising in the order of first admission
  int64_t most_tokens = 0;              ///< it can ever have
  int64_t expected_tokens = 0;          ///< it will have, where lengths are predicted
  int64_t known_pages = 0;              ///< that the prefix cache had when it was placed
  int64_t scored = 0;                   ///< prompt positions whose rows the sink has got
  std::shared_ptr<BeamGroup> group;     ///< null: no beam search
  size_t beam = 0;                      ///< its rank in the group
  std::shared_ptr<guide::Guide> guide;  ///< null: every token may come
  guide::Guide::State guide_state = 0;
  double surprise_drift = 0;     ///< sampling::History's: what Mirostat has learnt from the output
  AdapterPtr adapter = nullptr;  ///< null: the model as it is
  HiddenRows hidden_rows = HiddenRows::kNone;
  Caller caller{};

  bool generates() const noexcept {
    return hidden_rows == HiddenRows::kNone && !(score_prompt && score_only);
  }
  /// Whether the rows of all tokens of its prompt are wanted, each once.
  bool wants_all_rows() const noexcept { return score_prompt || hidden_rows == HiddenRows::kAll; }
  /// What the prefix cache knows it by.
  Beginning beginning() const noexcept { return {tokens, adapter_id(adapter)}; }
  /// What may come next, and what is there. Errors: kUser where a guide has grown too large.
  sampling::History history() {
    return {prompt(), output(), guide ? guide->allowed(guide_state) : std::span<const uint64_t>(),
            surprise_drift};
  }
  int64_t pending() const noexcept { return static_cast<int64_t>(tokens.size()) - computed; }
  std::span<const int32_t> prompt() const noexcept {
    return {tokens.data(), static_cast<size_t>(prompt_tokens)};
  }
  std::span<const int32_t> output() const noexcept {
    return std::span<const int32_t>(tokens).subspan(static_cast<size_t>(prompt_tokens));
  }
};

}  // namespace sluice
