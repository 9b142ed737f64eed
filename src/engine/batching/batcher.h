#pragma once
// Which sequences run: admission, KV pages, preemption, the prefix cache, retirement. Computes
// nothing. A sequence is admitted when the block has a place and its pages can be had: those of its
// whole length, or, where lengths are predicted, those of its prompt, if all that run fit at every
// time until they are expected to end (sequences at different steps share room: staggered blocks);
// when the pool then runs dry, the least urgent of the latest gives its pages up and is computed
// again later, or copied back (its tokens stay, so the result is the same). Of a shared source
// (RequestSource::is_shared), a sequence of the caller with the most places gives way likewise to
// one of a caller that has two places less: max-min fairness of places, over the callers' weights.
// Of layers that see a window a sequence has few pages at a time, gives them back as it goes on,
// and is promised so many where lengths are not predicted. The most urgent, oldest sequence never
// gives way and fits the pool alone: there is always progress. A request whose beginning is just
// being computed by another waits for it. A beam search has all places and pages that it may need
// from the start; its beams share pages until they write to them. Not thread safe.
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/passes/sequence.h"
#include "src/engine/stores/recent_kv.h"

namespace sluice {

/// How many sequences run, how long they are, and what pages may be kept for.
struct BatcherLimits {
  int64_t sequences = 1;  ///< that run together
  int64_t page_tokens = 1;
  int64_t context_tokens = 1;
  int64_t vocab_size = 1;
  int64_t max_positions = 1;  ///< of the model, for messages
  bool predicts_length = false;
  bool caches_prefixes = false;
  bool is_static = false;  ///< new requests only when all running ones have ended, for comparison
};

/// What outputs turn out to be, against what was asked for: a running mean and deviation (weight
/// 1/8 and 1/4, as in Jacobson's round-trip estimate) of the output lengths seen.
class LengthPredictor {
 public:
  void observe(int64_t output_tokens);
  /// Mean plus two deviations, at most `most`; `most` until something has been seen.
  int64_t predict(int64_t most) const noexcept;

 private:
  double mean_ = -1;
  double deviation_ = 0;
};

class Batcher {
 public:
  /// `pools` and `recent` outlive it.
  Batcher(StatePools& pools, RecentKv& recent, const BatcherLimits& limits,
          std::vector<int32_t> eos_token_ids);

  /// A new run of generate(): the source is asked again. Requests that choose no adapter have
  /// `adapter`; null: none.
  void begin(AdapterPtr adapter = nullptr) {
    source_is_done_ = false;
    default_adapter_ = std::move(adapter);
  }
  /// Ends what the source has cancelled, resumes what was preempted, then admits new requests while
  /// there is room.
  void admit(RequestSource& source, GenerationSink& sink);
  /// Gives every running sequence the pages of its pending tokens, preempting others where needed.
  /// Returns what has to be copied before they are written, in this order: pages to and from the
  /// swap space, and those that several beams have.
  std::vector<GroupCopy> secure_pages();
  /// After a pass: beam searches go on with the best of what their beams bring, or end.
  void advance_beams(GenerationSink& sink);
  /// Keeps the pages that a pass has filled for later sequences.
  void keep_prefixes();
  /// Seconds to copy a page to or from the swap space, and to compute one.
  void set_page_costs(double copy, double compute) noexcept { pools_.set_costs(copy, compute); }
  /// Ends finished sequences.
  void retire(GenerationSink& sink);
  /// Ends everything as kCancelled.
  void abort(GenerationSink& sink);

  const std::vector<std::unique_ptr<Sequence>>& running() const noexcept { return running_; }
  /// Whether, whatever the running sequences do, another pass will follow.
  bool has_more() const noexcept {
    return waiting_.has_value() || !preempted_.empty() || !source_is_done_;
  }
  /// Nothing runs or waits here; the source may give more.
  bool is_idle() const noexcept {
    return running_.empty() && preempted_.empty() && !waiting_ && source_is_open_;
  }
  void report(PassReport& report) const noexcept;

 private:
  std::optional<std::string> why_refused(const GenerationRequest& request) const;
  /// What became of a request: it runs, was refused, waits for what another computes, or lacks
  /// room.
  enum class Admitted : uint8_t { kRuns, kRefused, kWaits, kHasNoRoom };
  Admitted admit_one(GenerationRequest& request, GenerationSink& sink);
  void admit_shared(RequestSource& source, GenerationSink& sink);
  std::optional<GenerationRequest> ask(RequestSource& source);
  bool resume_one();
  double places_of(const Caller& caller) const noexcept;
  bool give_way_to(const GenerationRequest& request);
  bool place(Sequence& sequence);
  int64_t known_tokens(const Sequence& sequence) const;
  std::vector<int64_t> wanted_pages(const Sequence& sequence) const;
  bool has_room(const Sequence& sequence, const StatePools::Found& found) const;
  bool has_room_later(size_t group, const Sequence& sequence, int64_t known, int64_t used) const;
  bool fill(Sequence& sequence, SequencePages& pages);
  bool fill_group(size_t group, Sequence& sequence, SequencePages& pages, int64_t wanted);
  bool fill_on_a_side(Sequence& sequence, SequencePages& pages);
  bool promise(Sequence& sequence, SequencePages& pages);
  bool is_being_computed(const Beginning& beginning) const;
  void secure_expected();
  bool grow(Sequence& sequence);
  void secure_beam(Sequence& sequence, std::vector<GroupCopy>& copies);
  void secure_beam(size_t group, Sequence& sequence, std::vector<GroupCopy>& copies);
  void fork(const std::vector<std::unique_ptr<Sequence>>& beams,
            std::span<const sampling::BeamSearch::Step> steps,
            std::span<const guide::Guide::State> guide_states);
  void take_back(BeamGroup& beams, SequencePages& pages);
  void preempt(size_t index);
  void cancel(uint64_t id, GenerationSink& sink);
  int64_t most_tokens(const GenerationRequest& request) const noexcept;
  int64_t most_pages_of_beams(size_t group, int64_t prompt_tokens, int64_t total,
                              int64_t beams) const noexcept;
  /// Places of the block that are taken or promised to beams.
  int64_t places() const noexcept;
  int64_t pages_for(int64_t tokens) const noexcept { return pools_.pages_for(tokens); }

  StatePools& pools_;
  RecentKv& recent_;
  BatcherLimits limits_;
  std::vector<int32_t> eos_token_ids_;
  LengthPredictor lengths_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::deque<std::unique_ptr<Sequence>> preempted_;  ///< most urgent first
  std::optional<GenerationRequest> waiting_;         ///< taken from the source, no room for it yet
  AdapterPtr default_adapter_;
  bool source_is_done_ = false;
  bool source_is_open_ = false;
  int64_t arrivals_ = 0;
  int64_t preemptions_ = 0;
};

}  // namespace sluice
