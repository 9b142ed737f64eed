#include "src/engine/batching/batcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "src/base/error.h"

namespace sluice {

namespace {
// Whether `a` gives way before `b`: less urgent first, then the later one.
bool gives_way(const Sequence& a, const Sequence& b) {
  return std::tie(a.priority, a.arrival) > std::tie(b.priority, b.arrival);
}
}  // namespace

void LengthPredictor::observe(int64_t output_tokens) {
  const auto length = static_cast<double>(output_tokens);
  if (mean_ < 0) {
    mean_ = length;
    deviation_ = length / 2;
    return;
  }
  deviation_ += (std::abs(length - mean_) - deviation_) / 4;
  mean_ += (length - mean_) / 8;
}

int64_t LengthPredictor::predict(int64_t most) const noexcept {
  if (mean_ < 0) return most;
  return std::min(most, static_cast<int64_t>(std::ceil(mean_ + 2 * deviation_)));
}

Batcher::Batcher(StatePools& pools, RecentKv& recent, const BatcherLimits& limits,
                 std::vector<int32_t> eos_token_ids)
    : pools_(pools), recent_(recent), limits_(limits), eos_token_ids_(std::move(eos_token_ids)) {
  // The newest tokens' 16-bit copies belong to a sequence and can't be shared.
  limits_.caches_prefixes = limits.caches_prefixes && !recent.is_used();
}

int64_t Batcher::most_tokens(const GenerationRequest& request) const noexcept {
  const auto length = static_cast<int64_t>(request.prompt.size());
  return std::min(length + (request.generates() ? int64_t{request.params.max_tokens} : 0),
                  limits_.context_tokens);
}

int64_t Batcher::places() const noexcept {
  int64_t places = 0;
  for (const auto& sequence : running_)
    if (sequence->beam == 0) places += sequence->sampler.params().num_beams;
  return places;
}

std::optional<std::string> Batcher::why_refused(const GenerationRequest& request) const {
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0)
    return "the prompt is empty; give at least one token (most tokenizers add one themselves)";
  const int64_t room = request.generates() ? 1 : 0;
  if (length + room > limits_.context_tokens)
    return fmt::format(
        "the prompt has {} tokens, the context holds {}; shorten it or raise `context_tokens` (the "
        "model has {} positions)",
        length, limits_.context_tokens, limits_.max_positions);
  for (int32_t id : request.prompt)
    if (id < 0 || id >= limits_.vocab_size)
      return fmt::format(
          "token id {} is outside the vocabulary of {}; use the model's own tokenizer", id,
          limits_.vocab_size);
  const int beams = request.params.num_beams;
  if (beams > 1 && request.score_prompt)
    return "a beam search does not score its prompt; score it in a request of its own";
  if (beams > 1 && !request.generates())
    return "a beam search gives no rows of its prompt; ask for these in a request of their own";
  if (beams > 1 && recent_.is_used())
    return "beam search does not go with `kv_recent_tokens`: beams share their KV pages";
  if (beams > limits_.sequences)
    return fmt::format(
        "{} beams run as so many sequences, and {} run together here; lower num_beams or let more "
        "sequences run together",
        beams, limits_.sequences);
  if (request.params.guide.kind != sampling::GuideKind::kNone && !request.guide)
    return "guided output needs the model's tokenizer; copy its files beside the weights";
  if (request.params.dry_multiplier > 0 && !request.params.dry_sequence_breakers.empty() &&
      !request.params.dry_breakers)
    return "texts among dry_sequence_breakers need the model's tokenizer; give token ids, or none";
  if (beams > 1 && request.guide && request.guide->end_tokens().empty())
    return "a guided beam search needs an end-of-text token, and the model has none";
  for (size_t group = 0; group < pools_.groups(); ++group) {
    const int64_t most = pools_.pool(group).most_pages_of_one();
    const int64_t total = most_tokens(request);
    const int64_t pages = most_pages_of_beams(group, length, total, beams);
    if (pages > most)
      return fmt::format(
          "prompt and output of {} tokens{} need more KV than the plan's {} tokens; raise "
          "`memory_budget_bytes` or lower max_tokens",
          total, beams > 1 ? fmt::format(" in {} beams", beams) : "", most * limits_.page_tokens);
  }
  return std::nullopt;
}

// Whether a running prompt is computing full pages that this one begins with too, beyond those that
// are known already: soon they need not be computed twice.
bool Batcher::is_being_computed(const Beginning& beginning) const {
  if (!limits_.caches_prefixes) return false;
  const std::span<const int32_t> prompt = beginning.tokens;
  const int64_t usable = (static_cast<int64_t>(prompt.size()) - 1) / limits_.page_tokens;
  for (const auto& sequence : running_) {
    if (sequence->computed >= sequence->prompt_tokens) continue;
    if (adapter_id(sequence->adapter) != beginning.weights) continue;
    const auto other = sequence->prompt();
    const auto differ = std::mismatch(prompt.begin(), prompt.end(), other.begin(), other.end());
    const int64_t alike = (differ.first - prompt.begin()) / limits_.page_tokens;
    if (std::min(alike, usable) > sequence->computed / limits_.page_tokens) return true;
  }
  return false;
}

// Whether a group's pages suffice at all times to come, each sequence a token longer at every step
// and gone where it is expected to end: what matters is not what all need in the end, but what they
// need together. `known`: pages of the new sequence that are there; `used`: of all sequences now.
bool Batcher::has_room_later(size_t group, const Sequence& sequence, int64_t known,
                             int64_t used) const {
  struct Growth {
    int64_t steps;  // until it ends
    int64_t tokens, pages;
    int64_t given_back;  // of its pages, when it ends
  };
  std::vector<Growth> all;
  const auto add = [&](const Sequence& one, int64_t pages, int64_t given_back) {
    const auto tokens = static_cast<int64_t>(one.tokens.size());
    // Longer than expected already: no end in sight.
    const int64_t end = one.expected_tokens > tokens ? one.expected_tokens : one.most_tokens;
    all.push_back({end - tokens, tokens, pages, given_back});
  };
  const bool has_window = pools_.has_window(group);
  add(sequence, known, 0);
  for (const auto& one : running_)
    if (!one->group) {
      int64_t pages = 0;
      pools_.for_each(group, one->pages.groups[group], [&](const PageRef&) { ++pages; });
      add(*one, pages, has_window ? pages : pages - one->known_pages);
    }
  std::sort(all.begin(), all.end(),
            [](const Growth& a, const Growth& b) { return a.steps > b.steps; });
  int64_t given_back = 0, tokens = 0, pages = 0, alive = 0;
  for (const Growth& one : all) given_back += one.given_back;
  // From the last to end to the first: each time just before one ends.
  for (const Growth& one : all) {
    ++alive;
    tokens += one.tokens;
    pages += one.pages;
    given_back -= one.given_back;
    // Half a page of each is empty on average.
    int64_t needed = (tokens + alive * one.steps) / limits_.page_tokens + (alive + 1) / 2;
    if (has_window) {
      needed = 0;
      for (int64_t i = 0; i < alive; ++i)
        needed += pools_.most_pages(group, all[static_cast<size_t>(i)].tokens + one.steps);
    }
    if (used + std::max<int64_t>(needed - pages, 0) - given_back > pools_.pool(group).total_pages())
      return false;
  }
  return true;
}

// Of a sequence that starts, how many tokens may be taken over from others. At least one token is
// computed: its logits are wanted. Prompts of which all rows are wanted are computed whole. The
// beams of a search have their pages from the start; of layers with a window what they took over
// would be theirs beside them.
int64_t Batcher::known_tokens(const Sequence& sequence) const {
  const bool may_know = limits_.caches_prefixes &&
                        (!sequence.wants_all_rows() || sequence.scored >= sequence.prompt_tokens) &&
                        !(sequence.group && pools_.has_windows());
  return may_know ? static_cast<int64_t>(sequence.tokens.size()) - 1 : 0;
}

// By group: pages that a sequence gets when it starts; with a window and beams, those of all.
std::vector<int64_t> Batcher::wanted_pages(const Sequence& sequence) const {
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  std::vector<int64_t> wanted;
  for (size_t group = 0; group < pools_.groups(); ++group) {
    if (sequence.group)
      wanted.push_back(most_pages_of_beams(group, sequence.prompt_tokens, sequence.most_tokens,
                                           sequence.sampler.params().num_beams));
    else if (pools_.has_window(group))
      wanted.push_back(pools_.most_pages(group, length));  // others follow as these are given back
    else if (limits_.predicts_length)                      // the rest comes as it is written
      wanted.push_back(pages_for(std::min(length + 1, sequence.most_tokens)));
    else
      wanted.push_back(pages_for(sequence.most_tokens));
  }
  return wanted;
}

// Whether the sequence can start beside those that run.
bool Batcher::has_room(const Sequence& sequence, const StatePools::Found& found) const {
  const std::vector<int64_t> wanted = wanted_pages(sequence);
  for (size_t group = 0; group < pools_.groups(); ++group) {
    const PagePool& pool = pools_.pool(group);
    const PrefixCache::Found& known = found.groups[group];
    const int64_t idle = pool.idle_pages();
    // Nothing is brought back from the swap space for a sequence that finds no room in the end.
    if (wanted[group] - known.resident > pool.free_pages() + idle - known.idle) return false;
    const int64_t used = pool.total_pages() - pool.free_pages() - idle + known.idle;
    if (limits_.predicts_length && !sequence.group &&
        !has_room_later(group, sequence, known.resident, used))
      return false;
    if (!limits_.predicts_length && pools_.has_window(group) &&
        !pool.could_promise(sequence.group ? wanted[group]
                                           : pools_.most_pages(group, sequence.most_tokens)))
      return false;
  }
  return true;
}

// A sequence's pages in a group, and of a beam search the others for its reserve.
bool Batcher::fill_group(size_t group, Sequence& sequence, SequencePages& pages, int64_t wanted) {
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  PageTable& table = pages.groups[group].pages;
  if (!sequence.group)
    return pools_.has_window(group)
               ? pools_.grow(group, pages, length)
               : pools_.extend(group, table, wanted - std::ssize(table), pages.side);
  PageTable& reserve = sequence.group->reserve.groups[group].pages;
  if (!pools_.extend(group, reserve, wanted - std::ssize(table), pages.side)) return false;
  const auto from_reserve = [&](PageTable& to) {
    to.push_back(reserve.front());
    reserve.erase(reserve.begin());
    return true;
  };
  return pools_.grow(group, pages.groups[group], length, from_reserve);
}

// Where lengths are not predicted nothing that runs gives way: what a window wants is promised.
bool Batcher::promise(Sequence& sequence, SequencePages& pages) {
  if (limits_.predicts_length || !pools_.has_windows()) return true;
  const std::vector<int64_t> wanted = wanted_pages(sequence);
  std::vector<int64_t> counts(pools_.groups(), 0);
  for (size_t group = 0; group < pools_.groups(); ++group) {
    if (!pools_.has_window(group)) continue;
    // Pages that others have too are not used again.
    const GroupPages& known = pages.groups[group];
    counts[group] = sequence.group ? wanted[group]
                                   : std::min(pages_for(sequence.most_tokens),
                                              pools_.most_pages(group, sequence.most_tokens) +
                                                  std::ssize(known.pages) - known.first);
  }
  if (!sequence.group) return pools_.promise(pages, counts);
  sequence.group->reserve.side = pages.side;
  return pools_.promise(sequence.group->reserve, counts);
}

bool Batcher::fill_on_a_side(Sequence& sequence, SequencePages& pages) {
  if (sequence.group) sequence.group->reserve.groups.resize(pools_.groups());
  const std::vector<int64_t> wanted = wanted_pages(sequence);
  bool is_filled = promise(sequence, pages);
  for (size_t group = 0; is_filled && group < pools_.groups(); ++group)
    is_filled = fill_group(group, sequence, pages, wanted[group]);
  if (is_filled) return true;
  pools_.release(pages);
  if (sequence.group) pools_.release(sequence.group->reserve);
  return false;
}

// Pages for the sequence, beside those of its known beginning that it has. False: it has none.
bool Batcher::fill(Sequence& sequence, SequencePages& pages) {
  const bool is_settled = pages.side != PageSide::kAny;
  const std::vector<PageSide> sides =
      is_settled ? std::vector<PageSide>{pages.side} : pools_.pool(0).sides();
  for (const PageSide side : sides) {
    // Without a side nothing is known yet, or there is but one.
    pages.groups.resize(pools_.groups());
    pages.cursors.resize(pools_.groups());
    pages.side = side;
    if (fill_on_a_side(sequence, pages)) return true;
  }
  return false;
}

// Pages for the sequence to start or start again: what is known of its beginning, and new ones.
bool Batcher::place(Sequence& sequence) {
  if (!recent_.has_free_slot()) return false;
  if (limits_.predicts_length && !sequence.group)
    sequence.expected_tokens = std::min(
        sequence.most_tokens,
        sequence.prompt_tokens + lengths_.predict(sequence.most_tokens - sequence.prompt_tokens));
  const int64_t usable = known_tokens(sequence) / limits_.page_tokens;
  if (!running_.empty() && !has_room(sequence, pools_.find(sequence.beginning(), usable)))
    return false;
  SequencePages pages;
  int64_t known = 0;
  if (known_tokens(sequence) > 0) known = pools_.match(sequence.beginning(), usable, pages);
  if (!fill(sequence, pages)) {
    // Nobody gives pages back, so what was found stands in its own way (it lies in the tier that
    // is full): without it there is room, or the pool is not as the checks at admission assume.
    if (!running_.empty()) return false;
    known = 0;
    const bool is_placed = fill(sequence, pages);
    SLUICE_ASSERT(is_placed, "a sequence that fits the pool alone finds room in an empty one");
  }
  sequence.computed = known * limits_.page_tokens;
  sequence.known_pages = known;
  sequence.pages = std::move(pages);
  sequence.recent_slot = recent_.take_slot();
  return true;
}

// The request stays as it is.
Batcher::Admitted Batcher::admit_one(GenerationRequest& request, GenerationSink& sink) {
  if (const auto reason = why_refused(request)) {
    sink.on_refused(request.id, *reason);
    return Admitted::kRefused;
  }
  std::vector<int32_t> eos = request.params.ignore_eos ? std::vector<int32_t>{} : eos_token_ids_;
  auto sequence = std::make_unique<Sequence>(
      Sequence{.id = request.id,
               .tokens = request.prompt,
               .prompt_tokens = static_cast<int64_t>(request.prompt.size()),
               .computed = 0,
               .pages = {},
               .sampler = sampling::Sampler(request.params, std::move(eos)),
               .score_prompt = request.score_prompt,
               .finished = std::nullopt,
               .recent_slot = -1,
               .score_only = request.score_only,
               .priority = request.priority,
               .arrival = arrivals_,
               .most_tokens = most_tokens(request),
               .expected_tokens = 0,
               .known_pages = 0,
               .scored = 0,
               .group = nullptr,
               .beam = 0,
               .guide = request.guide,
               .guide_state = request.guide ? request.guide->start() : 0,
               .adapter = request.adapter ? request.adapter : default_adapter_,
               .hidden_rows = request.hidden_rows,
               .caller = request.caller});
  const sampling::SamplingParams& params = sequence->sampler.params();
  if (params.num_beams > 1) {
    std::vector<int32_t> ends = sequence->sampler.eos_token_ids();
    ends.insert(ends.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
    if (request.guide)
      for (int32_t token : request.guide->end_tokens())
        if (std::find(ends.begin(), ends.end(), token) == ends.end()) ends.push_back(token);
    sequence->group = std::make_shared<BeamGroup>(
        BeamGroup{.search = sampling::BeamSearch(params, std::move(ends),
                                                 sequence->most_tokens - sequence->prompt_tokens),
                  .reserve = {},
                  .candidates = std::vector<std::vector<sampling::BeamCandidate>>(1),
                  .alternatives = std::vector<std::vector<sampling::TokenLogprob>>(1),
                  .refusal = {}});
  }
  if (!sequence->wants_all_rows() && is_being_computed(sequence->beginning()))
    return Admitted::kWaits;
  if (places() + params.num_beams > limits_.sequences || !place(*sequence))
    return Admitted::kHasNoRoom;
  ++arrivals_;
  sequence->tokens.reserve(static_cast<size_t>(sequence->most_tokens + 1));
  sink.on_admitted(sequence->id, sequence->computed);
  running_.push_back(std::move(sequence));
  return Admitted::kRuns;
}

void Batcher::cancel(uint64_t id, GenerationSink& sink) {
  for (auto& sequence : running_)
    if (sequence->id == id && !sequence->finished) sequence->finished = FinishReason::kCancelled;
  if (std::erase_if(preempted_, [&](const auto& sequence) { return sequence->id == id; }) > 0)
    sink.on_finish(id, FinishReason::kCancelled);
  if (waiting_ && waiting_->id == id) {
    waiting_.reset();
    sink.on_finish(id, FinishReason::kCancelled);
  }
}

std::optional<GenerationRequest> Batcher::ask(RequestSource& source) {
  if (source_is_done_) return std::nullopt;
  std::optional<GenerationRequest> request = source.next();
  if (!request) {
    source_is_open_ = source.is_open();
    source_is_done_ = !source_is_open_;
  }
  return request;
}

// False: the first of the preempted finds no room yet.
bool Batcher::resume_one() {
  if (places() >= limits_.sequences || !place(*preempted_.front())) return false;
  running_.push_back(std::move(preempted_.front()));
  preempted_.pop_front();
  return true;
}

void Batcher::admit(RequestSource& source, GenerationSink& sink) {
  for (uint64_t id : source.take_cancelled()) cancel(id, sink);
  retire(sink);
  source_is_open_ = !source_is_done_;
  if (source.is_shared() && !limits_.is_static) return admit_shared(source, sink);
  while (places() < limits_.sequences && !preempted_.empty())
    if (!resume_one()) return;
  if (limits_.is_static && !running_.empty()) return;
  while (places() < limits_.sequences) {
    std::optional<GenerationRequest> request =
        waiting_ ? std::exchange(waiting_, std::nullopt) : ask(source);
    if (!request) break;
    const Admitted admitted = admit_one(*request, sink);
    if (admitted == Admitted::kRuns || admitted == Admitted::kRefused) continue;
    waiting_ = std::move(request);
    break;
  }
}

// Over its weight.
double Batcher::places_of(const Caller& caller) const noexcept {
  int64_t places = 0;
  for (const auto& sequence : running_)
    if (sequence->beam == 0 && sequence->caller.id == caller.id)
      places += sequence->sampler.params().num_beams;
  return static_cast<double>(places) / caller.weight;
}

// Whoever holds fewer places is next, of those that gave way and of those that ask; of equals who
// gave way.
void Batcher::admit_shared(RequestSource& source, GenerationSink& sink) {
  for (;;) {
    std::optional<GenerationRequest> request = ask(source);
    const bool resumes =
        !preempted_.empty() &&
        (!request || places_of(preempted_.front()->caller) <= places_of(request->caller));
    if (resumes) {
      if (request) source.take_back(std::move(*request));
      if (!resume_one()) return;
      continue;
    }
    if (!request) return;
    const Admitted admitted = admit_one(*request, sink);
    if (admitted == Admitted::kRuns || admitted == Admitted::kRefused) continue;
    const bool has_room_now = admitted == Admitted::kHasNoRoom && give_way_to(*request);
    source.take_back(std::move(*request));
    if (!has_room_now) return;
  }
}

// Takes a place of the caller that holds the most, where it stays no poorer than who asks becomes;
// false: there is none. Beams share pages, and stay.
bool Batcher::give_way_to(const GenerationRequest& request) {
  const double becomes = places_of(request.caller) + 1 / request.caller.weight;
  size_t victim = running_.size();
  double most = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    const Sequence& one = *running_[i];
    if (one.group || one.finished || one.caller.id == request.caller.id ||
        one.priority < request.priority)
      continue;
    const double held = places_of(one.caller);
    if (held - 1 / one.caller.weight < becomes) continue;
    const bool is_first = victim == running_.size() || held > most;
    if (is_first || (held == most && gives_way(one, *running_[victim]))) {
      victim = i;
      most = held;
    }
  }
  if (victim == running_.size()) return false;
  preempt(victim);
  return true;
}

void Batcher::preempt(size_t index) {
  std::unique_ptr<Sequence> sequence = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  pools_.release(sequence->pages);
  recent_.give_back(sequence->recent_slot);
  sequence->recent_slot = -1;
  sequence->computed = 0;
  ++preemptions_;
  const auto before = std::find_if(preempted_.begin(), preempted_.end(),
                                   [&](const auto& other) { return gives_way(*other, *sequence); });
  preempted_.insert(before, std::move(sequence));
}

std::vector<GroupCopy> Batcher::secure_pages() {
  std::vector<GroupCopy> of_beams;
  for (const auto& sequence : running_)
    if (sequence->group)
      secure_beam(*sequence, of_beams);
    else
      pools_.pass(sequence->pages, sequence->computed);
  if (limits_.predicts_length || pools_.has_windows()) secure_expected();
  // A page that a beam gets may be one whose tokens go to the swap space: that comes first.
  std::vector<GroupCopy> copies = pools_.take_copies();
  copies.insert(copies.end(), of_beams.begin(), of_beams.end());
  return copies;
}

// Pages for all that the sequence will compute next.
bool Batcher::grow(Sequence& sequence) {
  const auto tokens = static_cast<int64_t>(sequence.tokens.size());
  for (size_t group = 0; group < pools_.groups(); ++group)
    if (!pools_.grow(group, sequence.pages, tokens)) return false;
  return true;
}

// Where lengths are predicted, pages may lack.
void Batcher::secure_expected() {
  // The most urgent first, so that whoever needs a page takes it from those after it.
  std::vector<Sequence*> order;
  for (const auto& sequence : running_)
    if (!sequence->group) order.push_back(sequence.get());
  std::sort(order.begin(), order.end(),
            [](const Sequence* a, const Sequence* b) { return gives_way(*b, *a); });
  while (!order.empty()) {
    Sequence& sequence = *order.front();
    if (grow(sequence)) {
      order.erase(order.begin());
      continue;
    }
    Sequence* victim = order.back();  // itself at last: it starts again where there is more room
    order.pop_back();
    const auto at = std::find_if(running_.begin(), running_.end(),
                                 [&](const auto& other) { return other.get() == victim; });
    preempt(static_cast<size_t>(at - running_.begin()));
  }
}

void Batcher::keep_prefixes() {
  if (!limits_.caches_prefixes) return;
  for (const auto& sequence : running_) {
    // The pages behind a beam search's prompt are the group's, to be used again; and so are all of
    // layers with a window.
    const int64_t computed = sequence->group ? std::min(sequence->computed, sequence->prompt_tokens)
                                             : sequence->computed;
    const bool is_whole = !sequence->group && sequence->pending() <= 1;
    pools_.insert(sequence->beginning(), computed, is_whole, sequence->prompt_tokens,
                  sequence->pages);
  }
}

void Batcher::retire(GenerationSink& sink) {
  for (auto& sequence : running_) {
    if (!sequence->finished) continue;
    const bool is_complete =
        *sequence->finished == FinishReason::kStop || *sequence->finished == FinishReason::kLength;
    if (is_complete && !sequence->group)
      lengths_.observe(static_cast<int64_t>(sequence->output().size()));
    pools_.release(sequence->pages);
    recent_.give_back(sequence->recent_slot);
    if (sequence->beam > 0) continue;
    if (sequence->group) pools_.release(sequence->group->reserve);
    sink.on_finish(sequence->id, *sequence->finished);
  }
  std::erase_if(running_, [](const auto& sequence) { return sequence->finished.has_value(); });
}

void Batcher::abort(GenerationSink& sink) {
  for (auto& sequence : running_)
    if (!sequence->finished) sequence->finished = FinishReason::kCancelled;
  waiting_.reset();
  for (const auto& sequence : preempted_) sink.on_finish(sequence->id, FinishReason::kCancelled);
  preempted_.clear();
  retire(sink);
  // A pass that broke off may have left pages half written.
  pools_.clear();
}

void Batcher::report(PassReport& report) const noexcept {
  report.running = static_cast<int64_t>(running_.size());
  report.preempted = static_cast<int64_t>(preempted_.size());
  report.preemptions = preemptions_;
  report.kv_pages = pools_.total_pages();
  report.kv_pages_used = pools_.used_pages();
  report.prefix_queried_tokens = pools_.queried_tokens();
  report.prefix_hit_tokens = pools_.hit_tokens();
  report.saved_pages = pools_.saved_pages();
  report.restored_pages = pools_.restored_pages();
}

}  // namespace sluice
