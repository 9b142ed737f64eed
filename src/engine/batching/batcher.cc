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

Batcher::Batcher(PagePool& pool, RecentKv& recent, const BatcherLimits& limits,
                 std::vector<int32_t> eos_token_ids)
    : pool_(pool),
      recent_(recent),
      limits_(limits),
      eos_token_ids_(std::move(eos_token_ids)),
      prefixes_(pool, limits.page_tokens, limits.swap_pages) {
  // The newest tokens' 16-bit copies belong to a sequence and can't be shared.
  limits_.caches_prefixes = limits.caches_prefixes && !recent.is_used();
}

int64_t Batcher::most_tokens(const GenerationRequest& request) const noexcept {
  const auto length = static_cast<int64_t>(request.prompt.size());
  const bool generates = !request.score_prompt || !request.score_only;
  return std::min(length + (generates ? int64_t{request.params.max_tokens} : 0),
                  limits_.context_tokens);
}

int64_t Batcher::most_pages(const GenerationRequest& request) const noexcept {
  const int64_t total = most_tokens(request);
  return request.params.num_beams == 1
             ? pages_for(total)
             : most_pages_of_beams(static_cast<int64_t>(request.prompt.size()), total,
                                   request.params.num_beams);
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
  const int64_t room = request.score_prompt && request.score_only ? 0 : 1;
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
  if (beams > 1 && recent_.is_used())
    return "beam search does not go with `kv_recent_tokens`: beams share their KV pages";
  if (beams > limits_.sequences)
    return fmt::format(
        "{} beams run as so many sequences, and {} run together here; lower num_beams or let more "
        "sequences run together",
        beams, limits_.sequences);
  if (request.params.guide.kind != sampling::GuideKind::kNone && !request.guide)
    return "guided output needs the model's tokenizer; copy its files beside the weights";
  if (beams > 1 && request.guide && request.guide->end_tokens().empty())
    return "a guided beam search needs an end-of-text token, and the model has none";
  if (most_pages(request) > pool_.most_pages_of_one())
    return fmt::format(
        "prompt and output of {} tokens{} need more KV than the plan's {} tokens; raise "
        "`memory_budget_bytes` or lower max_tokens",
        most_tokens(request), beams > 1 ? fmt::format(" in {} beams", beams) : "",
        pool_.most_pages_of_one() * limits_.page_tokens);
  return std::nullopt;
}

bool Batcher::extend(PageTable& table, int64_t count) {
  while (!pool_.extend(table, count))
    if (!prefixes_.evict_one()) return false;
  return true;
}

// Whether a running prompt is computing full pages that this one begins with too, beyond those that
// are known already: soon they need not be computed twice.
bool Batcher::is_being_computed(std::span<const int32_t> prompt) const {
  if (!limits_.caches_prefixes) return false;
  const int64_t usable = (static_cast<int64_t>(prompt.size()) - 1) / limits_.page_tokens;
  for (const auto& sequence : running_) {
    if (sequence->computed >= sequence->prompt_tokens) continue;
    const auto other = sequence->prompt();
    const auto differ = std::mismatch(prompt.begin(), prompt.end(), other.begin(), other.end());
    const int64_t alike = (differ.first - prompt.begin()) / limits_.page_tokens;
    if (std::min(alike, usable) > sequence->computed / limits_.page_tokens) return true;
  }
  return false;
}

// Whether the pages suffice at all times to come, each sequence a token longer at every step and
// gone where it is expected to end: what matters is not what all need in the end, but what they
// need together. `known`: pages of the new sequence that are there; `used`: of all sequences now.
bool Batcher::has_room_later(const Sequence& sequence, int64_t known, int64_t used) const {
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
  add(sequence, known, 0);
  for (const auto& one : running_)
    if (!one->group) {
      const auto pages = static_cast<int64_t>(one->pages.size());
      add(*one, pages, pages - one->known_pages);
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
    const int64_t needed = (tokens + alive * one.steps) / limits_.page_tokens + (alive + 1) / 2;
    if (used + std::max<int64_t>(needed - pages, 0) - given_back > pool_.total_pages())
      return false;
  }
  return true;
}

// Pages for the sequence to start or start again: what is known of its beginning, and new ones.
bool Batcher::place(Sequence& sequence) {
  if (!recent_.has_free_slot()) return false;
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  int64_t wanted = 0;
  if (sequence.group) {
    wanted = most_pages_of_beams(sequence.prompt_tokens, sequence.most_tokens,
                                 sequence.sampler.params().num_beams);
  } else if (limits_.predicts_length) {
    sequence.expected_tokens = std::min(
        sequence.most_tokens,
        sequence.prompt_tokens + lengths_.predict(sequence.most_tokens - sequence.prompt_tokens));
    // The rest comes as it is written.
    wanted = pages_for(std::min(length + 1, sequence.most_tokens));
  } else {
    wanted = pages_for(sequence.most_tokens);
  }
  PageTable pages;
  PrefixCache::Cursor cached;
  // At least one token is computed: its logits are wanted. Scored prompts are computed whole.
  const bool may_know = limits_.caches_prefixes &&
                        (!sequence.score_prompt || sequence.scored >= sequence.prompt_tokens);
  const int64_t usable = may_know ? (length - 1) / limits_.page_tokens : 0;
  const PrefixCache::Found found = prefixes_.find(sequence.tokens, usable);
  if (!running_.empty()) {
    const int64_t idle = prefixes_.idle_pages();
    // Nothing is brought back from the swap space for a sequence that finds no room in the end.
    if (wanted - found.resident > pool_.free_pages() + idle - found.idle) return false;
    const int64_t used = pool_.total_pages() - pool_.free_pages() - idle + found.idle;
    if (limits_.predicts_length && !sequence.group &&
        !has_room_later(sequence, found.resident, used))
      return false;
  }
  if (may_know) pages = prefixes_.match(sequence.tokens, usable, cached);
  const int64_t known = static_cast<int64_t>(pages.size()) * limits_.page_tokens;
  if (!extend(pages, wanted - static_cast<int64_t>(pages.size()))) {
    pool_.release(pages);
    // Nobody gives pages back, so what was found stands in its own way (it lies in the tier that
    // is full): without it there is room, or the pool is not as the checks at admission assume.
    if (!running_.empty()) return false;
    cached = {};
    const bool is_placed = extend(pages, wanted);
    SLUICE_ASSERT(is_placed, "a sequence that fits the pool alone finds room in an empty one");
    sequence.computed = 0;
  } else {
    sequence.computed = known;
  }
  if (sequence.group) {
    const auto others = pages.begin() + static_cast<std::ptrdiff_t>(pages_for(length));
    sequence.group->reserve.assign(others, pages.end());
    pages.erase(others, pages.end());
  }
  sequence.known_pages = sequence.computed / limits_.page_tokens;
  sequence.pages = std::move(pages);
  sequence.cached = cached;
  sequence.recent_slot = recent_.take_slot();
  return true;
}

// False: no room yet, the request is kept.
bool Batcher::admit_one(GenerationRequest request, GenerationSink& sink) {
  if (const auto reason = why_refused(request)) {
    sink.on_refused(request.id, *reason);
    return true;
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
               .cached = {},
               .group = nullptr,
               .beam = 0,
               .guide = request.guide,
               .guide_state = request.guide ? request.guide->start() : 0});
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
  const bool waits = !request.score_prompt && is_being_computed(sequence->tokens);
  if (waits || places() + params.num_beams > limits_.sequences || !place(*sequence)) {
    waiting_ = std::move(request);
    return false;
  }
  ++arrivals_;
  sequence->tokens.reserve(static_cast<size_t>(sequence->most_tokens + 1));
  sink.on_admitted(sequence->id, sequence->computed);
  running_.push_back(std::move(sequence));
  return true;
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

void Batcher::admit(RequestSource& source, GenerationSink& sink) {
  for (uint64_t id : source.take_cancelled()) cancel(id, sink);
  retire(sink);
  const auto has_place = [&] { return places() < limits_.sequences; };
  while (has_place() && !preempted_.empty()) {
    if (!place(*preempted_.front())) return;
    running_.push_back(std::move(preempted_.front()));
    preempted_.pop_front();
  }
  source_is_open_ = !source_is_done_;
  if (limits_.is_static && !running_.empty()) return;
  while (has_place()) {
    std::optional<GenerationRequest> request;
    if (waiting_) {
      request = std::move(waiting_);
      waiting_.reset();
    } else {
      if (source_is_done_) break;
      request = source.next();
      if (!request) {
        source_is_open_ = source.is_open();
        source_is_done_ = !source_is_open_;
        break;
      }
    }
    if (!admit_one(std::move(*request), sink)) break;
  }
}

void Batcher::preempt(size_t index) {
  std::unique_ptr<Sequence> sequence = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  pool_.release(sequence->pages);
  recent_.give_back(sequence->recent_slot);
  sequence->recent_slot = -1;
  sequence->computed = 0;
  sequence->cached = {};
  ++preemptions_;
  const auto before = std::find_if(preempted_.begin(), preempted_.end(),
                                   [&](const auto& other) { return gives_way(*other, *sequence); });
  preempted_.insert(before, std::move(sequence));
}

std::vector<PageCopy> Batcher::secure_pages() {
  std::vector<PageCopy> of_beams;
  for (const auto& sequence : running_)
    if (sequence->group) secure_beam(*sequence, of_beams);
  if (limits_.predicts_length) secure_expected();
  // A page that a beam gets may be one whose tokens go to the swap space: that comes first.
  std::vector<PageCopy> copies = prefixes_.take_copies();
  copies.insert(copies.end(), of_beams.begin(), of_beams.end());
  return copies;
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
    const int64_t missing = pages_for(static_cast<int64_t>(sequence.tokens.size())) -
                            static_cast<int64_t>(sequence.pages.size());
    if (missing <= 0 || extend(sequence.pages, missing)) {
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
    // The pages behind a beam search's prompt are the group's, to be used again.
    const int64_t computed = sequence->group ? std::min(sequence->computed, sequence->prompt_tokens)
                                             : sequence->computed;
    prefixes_.insert(sequence->tokens, computed, sequence->pages, sequence->cached);
  }
}

void Batcher::retire(GenerationSink& sink) {
  for (auto& sequence : running_) {
    if (!sequence->finished) continue;
    const bool is_complete =
        *sequence->finished == FinishReason::kStop || *sequence->finished == FinishReason::kLength;
    if (is_complete && !sequence->group)
      lengths_.observe(static_cast<int64_t>(sequence->output().size()));
    pool_.release(sequence->pages);
    recent_.give_back(sequence->recent_slot);
    if (sequence->beam > 0) continue;
    if (sequence->group) pool_.release(sequence->group->reserve);
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
  prefixes_.clear();
}

void Batcher::report(PassReport& report) const noexcept {
  report.running = static_cast<int64_t>(running_.size());
  report.preempted = static_cast<int64_t>(preempted_.size());
  report.preemptions = preemptions_;
  report.kv_pages = pool_.total_pages();
  report.kv_pages_used = pool_.total_pages() - pool_.free_pages() - prefixes_.idle_pages();
  report.prefix_queried_tokens = prefixes_.queried_tokens();
  report.prefix_hit_tokens = prefixes_.hit_tokens();
  report.saved_pages = prefixes_.saved_pages();
  report.restored_pages = prefixes_.restored_pages();
}

}  // namespace sluice
