#include "src/serve/generation_service.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <limits>
#include <random>

#include "src/base/system_error.h"

namespace sluice::serve {

namespace {
constexpr int64_t kMostTogether = 64;  // of the prompts of one request, that wait in the queue

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void Mailbox::put(Event event) {
  {
    const MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    if (watcher_) watcher_();
  }
  filled_.notify_one();
}

void Mailbox::watch(std::function<void()> filled) {
  const MutexLock lock(mutex_);
  watcher_ = std::move(filled);
}

std::optional<Event> Mailbox::take(std::chrono::milliseconds timeout) {
  MutexLock lock(mutex_);
  if (!filled_.wait_for(lock, timeout, [&]() SLUICE_REQUIRES(mutex_) { return !events_.empty(); }))
    return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

// Runs in the engine's thread: only passes on.
class GenerationService::Sink final : public GenerationSink {
 public:
  explicit Sink(GenerationService& service) : service_(service) {}

  bool on_token(uint64_t id, const sampling::Choice& choice) override {
    EngineEvent event{EngineEvent::Kind::kToken};
    event.id = id;
    event.choice = choice;
    service_.happened_.push(std::move(event));
    service_.queue_.brought(id, 1);
    return true;
  }
  void on_hypotheses(uint64_t id, const std::vector<sampling::Hypothesis>& best_first) override {
    EngineEvent event{EngineEvent::Kind::kHypotheses};
    event.id = id;
    event.hypotheses = best_first;
    for (const sampling::Hypothesis& one : best_first)
      service_.queue_.brought(id, std::ssize(one.choices));
    service_.happened_.push(std::move(event));
  }
  void on_finish(uint64_t id, FinishReason reason) override {
    EngineEvent event{EngineEvent::Kind::kFinish};
    event.id = id;
    event.reason = reason;
    service_.happened_.push(std::move(event));
    service_.queue_.ended(id);
    prompts_.erase(id);
    embedded_.erase(id);
  }
  void on_refused(uint64_t id, const std::string& message) override {
    EngineEvent event{EngineEvent::Kind::kRefused};
    event.id = id;
    event.message = message;
    service_.happened_.push(std::move(event));
    service_.queue_.ended(id);
    prompts_.erase(id);
    embedded_.erase(id);
  }
  void on_admitted(uint64_t id, int64_t cached_tokens) override {
    EngineEvent event{EngineEvent::Kind::kAdmitted};
    event.id = id;
    event.cached_tokens = cached_tokens;
    service_.happened_.push(std::move(event));
    service_.queue_.started(id, cached_tokens);
  }
  void on_logits(uint64_t id, int64_t position, std::span<const float> logits) override {
    const auto at = prompts_.find(id);
    if (at == prompts_.end()) return;
    Scored& of = at->second;
    if (of.on_logits) of.on_logits(position, logits);
    const auto next = static_cast<size_t>(position) + 1;
    if (next < of.prompt.size()) {
      of.scores.push_back(sampling::score_token(logits, of.prompt[next], of.alternatives));
      return;
    }
    EngineEvent event{EngineEvent::Kind::kPrompt};
    event.id = id;
    event.prompt = std::move(of.scores);
    service_.happened_.push(std::move(event));
    prompts_.erase(at);
  }
  void on_hidden(uint64_t id, int64_t position, std::span<const float> row) override {
    const auto at = embedded_.find(id);
    if (at == embedded_.end()) return;
    at->second.rows.add(row);
    if (position + 1 < at->second.prompt_tokens) return;
    EngineEvent event{EngineEvent::Kind::kPrompt};
    event.id = id;
    event.embedding = at->second.rows.take();
    service_.happened_.push(std::move(event));
    embedded_.erase(at);
  }
  void on_pass(const PassReport& report) override {
    EngineEvent event{EngineEvent::Kind::kPass};
    event.report = report;
    service_.happened_.push(std::move(event));
  }

  void expect_scores(const GenerationRequest& request) {
    if (request.hidden_rows != HiddenRows::kNone)
      embedded_.insert_or_assign(request.id, Embedded{Pooler(service_.pooling_of(request.id)),
                                                      static_cast<int64_t>(request.prompt.size())});
    if (!request.score_prompt) return;
    Scored& of = prompts_[request.id];
    of.prompt = request.prompt;
    of.alternatives = request.params.logprobs;
    of.on_logits = service_.take_on_logits(request.id);
    of.scores.push_back({request.prompt.front(), std::numeric_limits<float>::quiet_NaN(), {}});
  }
  // It has not begun, and waits again.
  void forget(uint64_t id) {
    if (const auto at = prompts_.find(id); at != prompts_.end()) {
      service_.give_back_on_logits(id, std::move(at->second.on_logits));
      prompts_.erase(at);
    }
    embedded_.erase(id);
  }

 private:
  struct Scored {
    std::vector<int32_t> prompt;
    int alternatives = 0;
    std::vector<sampling::Choice> scores;
    std::function<void(int64_t, std::span<const float>)> on_logits;
  };
  struct Embedded {
    Pooler rows;
    int64_t prompt_tokens;
  };
  GenerationService& service_;
  std::map<uint64_t, Scored> prompts_;
  std::map<uint64_t, Embedded> embedded_;
};

namespace {
// Tells what the engine takes, in its thread, before it does.
template <typename Told>
class ToldSource final : public RequestSource {
 public:
  ToldSource(RequestQueue& queue, Told& told) : queue_(queue), told_(told) {}
  std::optional<GenerationRequest> next() override {
    auto request = queue_.next();
    if (request) told_.expect_scores(*request);
    return request;
  }
  bool is_open() override { return queue_.is_open(); }
  void wait(const std::stop_token& cancel) override { queue_.wait(cancel); }
  bool is_shared() const override { return queue_.is_shared(); }
  void take_back(GenerationRequest request) override {
    const uint64_t id = request.id;
    if (queue_.put_back(std::move(request)))
      told_.forget(id);
    else
      told_.on_finish(id, FinishReason::kCancelled);
  }
  std::vector<uint64_t> take_cancelled() override { return queue_.take_cancelled(); }

 private:
  RequestQueue& queue_;
  Told& told_;
};
}  // namespace

GenerationService::GenerationService(Engine& engine, const text::Tokenizer& tokenizer,
                                     const std::string& model_name, int64_t most_waiting,
                                     QueueOrder order, int64_t most_caller_tokens)
    : engine_(engine),
      tokenizer_(tokenizer),
      guides_(tokenizer, engine.model().eos_token_ids()),
      metrics_(model_name),
      queue_(most_waiting, order),
      shares_(most_caller_tokens),
      post_thread_([this] { post_process(); }),
      compute_thread_([this] { compute(stop_.get_token()); }) {}

GenerationService::~GenerationService() {
  queue_.close();
  stop_.request_stop();
  compute_thread_.join();
  post_thread_.join();
}

void GenerationService::compute(std::stop_token stop) {
  pthread_setname_np(pthread_self(), "engine");
  std::string failure = "the server is shutting down";
  ErrorKind kind = ErrorKind::kCancelled;
  try {
    Sink sink(*this);
    ToldSource<Sink> source(queue_, sink);
    engine_.generate(source, sink, stop);
  } catch (...) {
    const Error error = current_error();
    kind = error.kind();
    if (kind != ErrorKind::kCancelled) failure = error.what();
  }
  queue_.close();
  {
    const MutexLock lock(mutex_);
    failure_.what = std::move(failure);
    failure_.kind = kind;
  }
  happened_.close();
}

void GenerationService::post_process() {
  pthread_setname_np(pthread_self(), "text");
  for (;;) {
    auto taken = happened_.take();
    if (taken.empty()) break;
    for (EngineEvent& event : taken) handle(event);
  }
  // The engine has ended: who still waits will not be answered. What a shutdown broke off keeps
  // what it has; a failure is told to all, for what came before it may be wrong.
  const MutexLock lock(mutex_);
  while (!samples_.empty()) {
    const auto at = samples_.begin();
    Event event{Event::Kind::kFailed};
    event.text = failure_.what;
    if (failure_.kind == ErrorKind::kCancelled && at->second.has_started) {
      end_text(at->second);
      event = Event{Event::Kind::kFinished};
      event.finish_reason = finish_reason_name(FinishReason::kCancelled);
    }
    finish(at, std::move(event));
  }
}

void GenerationService::finish(std::map<uint64_t, Sample>::iterator at, Event event) {
  Sample& sample = at->second;
  const Clock::time_point now = Clock::now();
  RequestTimes times;
  times.started = sample.has_started ? seconds_between(sample.arrival, sample.started) : -1;
  times.first_token =
      sample.output_tokens > 0 ? seconds_between(sample.arrival, sample.first_token) : -1;
  times.finished = seconds_between(sample.arrival, now);
  times.prompt_tokens = sample.prompt_tokens;
  times.output_tokens = sample.output_tokens;
  times.finish_reason = event.kind == Event::Kind::kRefused  ? "refused"
                        : event.kind == Event::Kind::kFailed ? "failed"
                        : sample.is_given_up                 ? "abort"
                                                             : event.finish_reason;
  metrics_.finished(times);
  shares_.remove(sample.caller, sample.most_tokens);
  if (sample.has_started) --running_;
  event.index = sample.index;
  event.output_tokens = sample.output_tokens;
  release_followers(sample);
  // What ends a beam search before it has found anything ends all of its samples.
  const auto siblings = std::exchange(sample.siblings, {});
  sample.mailbox->put(event);
  samples_.erase(at);
  for (uint64_t id : siblings)
    if (const auto its = samples_.find(id); its != samples_.end()) finish(its, event);
  ended_.notify_all();
}

void GenerationService::release_followers(Sample& sample) {
  if (sample.followers.empty()) return;
  queue_.push(std::exchange(sample.followers, {}), /*is_bound=*/true);
}

// Tokens travel with the text that they complete.
void GenerationService::send_text(Sample& sample, std::string text) {
  if (text.empty() && (sample.unsent.empty() || !sample.keeps_choices)) return;
  Event event{Event::Kind::kText};
  event.index = sample.index;
  event.text = std::move(text);
  event.choices = std::exchange(sample.unsent, {});
  sample.mailbox->put(std::move(event));
}

void GenerationService::handle_token(Sample& sample, uint64_t id, const sampling::Choice& choice) {
  if (sample.is_stopped || sample.is_given_up) return;
  const Clock::time_point now = Clock::now();
  if (sample.output_tokens++ == 0) {
    sample.first_token = now;
    first_tokens_.push_back(seconds_between(sample.arrival, now));
  }
  metrics_.generated(sample.output_tokens == 1 ? -1 : seconds_between(sample.last_token, now));
  sample.last_token = now;
  release_followers(sample);
  if (sample.keeps_choices) sample.unsent.push_back(choice);
  auto outcome = sample.stops->push(sample.decoder->push(choice.token));
  if (outcome.stopped && sample.stops_are_kept)
    outcome.emit += sample.stop_strings[static_cast<size_t>(outcome.which)];
  if (!outcome.emit.empty() || outcome.stopped) send_text(sample, std::move(outcome.emit));
  if (!outcome.stopped) return;
  sample.is_stopped = true;
  queue_.cancel(id);
}

// What decoder and stop strings have held back.
void GenerationService::end_text(Sample& sample) {
  if (sample.is_stopped || sample.is_given_up) return;
  auto last = sample.stops->push(sample.decoder->finish());
  send_text(sample, last.emit + sample.stops->flush());
}

// The samples are the best of the search; where masks left fewer, the rest is empty.
void GenerationService::handle_hypotheses(Sample& sample, const EngineEvent& happened) {
  std::vector<uint64_t> ids{happened.id};
  for (uint64_t id : std::exchange(sample.siblings, {})) ids.push_back(id);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto at = samples_.find(ids[i]);
    if (at == samples_.end()) continue;
    Event event{Event::Kind::kFinished};
    event.finish_reason = "stop";
    if (i < happened.hypotheses.size()) {
      for (const sampling::Choice& choice : happened.hypotheses[i].choices)
        handle_token(at->second, ids[i], choice);
      end_text(at->second);
      if (!happened.hypotheses[i].is_stopped) event.finish_reason = "length";
    }
    finish(at, std::move(event));
  }
}

void GenerationService::handle(EngineEvent& happened) {
  const MutexLock lock(mutex_);
  if (happened.kind == EngineEvent::Kind::kPass)
    return metrics_.passed(happened.report, std::exchange(first_tokens_, {}));
  const auto at = samples_.find(happened.id);
  if (at == samples_.end()) return;
  Sample& sample = at->second;
  switch (happened.kind) {
    case EngineEvent::Kind::kAdmitted: {
      sample.has_started = true;
      sample.started = Clock::now();
      metrics_.started(sample.prompt_tokens);
      ++running_;
      Event event{Event::Kind::kStarted};
      event.index = sample.index;
      event.cached_tokens = happened.cached_tokens;
      sample.mailbox->put(std::move(event));
      break;
    }
    case EngineEvent::Kind::kToken: handle_token(sample, happened.id, happened.choice); break;
    case EngineEvent::Kind::kHypotheses: handle_hypotheses(sample, happened); break;
    case EngineEvent::Kind::kPrompt: {
      Event event{Event::Kind::kPrompt};
      event.index = sample.index;
      event.prompt_tokens = std::move(happened.prompt);
      event.embedding = std::move(happened.embedding);
      sample.mailbox->put(std::move(event));
      break;
    }
    case EngineEvent::Kind::kFinish: {
      // Nobody took it back: the run has broken off, and why is known when the engine has ended.
      if (happened.reason == FinishReason::kCancelled && !sample.is_given_up && !sample.is_stopped)
        break;
      end_text(sample);
      Event event{Event::Kind::kFinished};
      event.finish_reason = sample.is_stopped ? "stop" : finish_reason_name(happened.reason);
      if (sample.is_stopped)
        event.stop_string = sample.stop_strings[static_cast<size_t>(sample.stops->which())];
      finish(at, std::move(event));
      break;
    }
    case EngineEvent::Kind::kRefused: {
      Event event{Event::Kind::kRefused};
      event.text = std::move(happened.message);
      finish(at, std::move(event));
      break;
    }
    case EngineEvent::Kind::kPass: break;
  }
}

// Of many prompts so many wait in the queue at a time, each of the others behind one before it:
// a long list leaves room for callers.
void GenerationService::chain(std::vector<GenerationRequest>& leaders) {
  const auto together = static_cast<size_t>(std::min(queue_.most_waiting(), kMostTogether));
  while (leaders.size() > together) {
    Sample& before = samples_.at(leaders[leaders.size() - 1 - together].id);
    before.followers.push_back(std::move(leaders.back()));
    leaders.pop_back();
  }
}

int64_t GenerationService::tokens_of_one(const Submission& submission) {
  return static_cast<int64_t>(submission.prompt.size()) +
         (submission.generates && submission.pooling == Pooling::kNone
              ? int64_t{submission.params.max_tokens}
              : 0);
}

int64_t GenerationService::tokens_of(const std::vector<Submission>& submissions) {
  int64_t tokens = 0;
  for (const Submission& one : submissions) tokens += one.samples * tokens_of_one(one);
  return tokens;
}

bool GenerationService::has_share(const std::vector<Submission>& submissions) const {
  return submissions.empty() ||
         shares_.has_room(submissions.front().caller.id, tokens_of(submissions));
}

int64_t GenerationService::most_caller_tokens() const {
  const MutexLock lock(mutex_);
  return shares_.most();
}

GenerationService::Admission GenerationService::submit(std::vector<Submission> submissions,
                                                       std::shared_ptr<Mailbox> mailbox,
                                                       int first_index) {
  if (!mailbox) mailbox = std::make_shared<Mailbox>();
  std::vector<uint64_t> ids;
  std::vector<GenerationRequest> leaders;
  std::vector<std::shared_ptr<guide::Guide>> guides;
  std::vector<std::string> relaxed;
  for (Submission& submission : submissions) {
    guides.push_back(guides_.make(submission.params.guide));
    if (guides.back() && guides.back()->relaxed().size() > relaxed.size())
      relaxed = guides.back()->relaxed();
    guides_.find_breakers(submission.params);
  }
  const MutexLock lock(mutex_);
  if (!failure_.what.empty()) return {RequestQueue::Outcome::kClosed, nullptr, {}};
  if (!has_share(submissions)) {
    metrics_.rejected();
    return {RequestQueue::Outcome::kOverShare, nullptr, {}};
  }
  int index = first_index;
  for (size_t which = 0; which < submissions.size(); ++which) {
    const Submission& submission = submissions[which];
    uint64_t leader = 0;
    std::vector<GenerationRequest> followers;
    for (int i = 0; i < submission.samples; ++i) {
      GenerationRequest request;
      request.id = next_id_++;
      request.prompt = submission.prompt;
      request.params = submission.params;
      // The first sample of a seed is what the seed gives alone.
      if (!request.params.has_seed)
        request.params.seed = sampling::derive_seed(std::random_device{}(), request.id);
      else if (i > 0)
        request.params.seed = sampling::derive_seed(request.params.seed, static_cast<uint64_t>(i));
      request.score_prompt = submission.scores_prompt && i == 0;
      request.score_only = !submission.generates;
      if (submission.pooling != Pooling::kNone) {
        request.score_prompt = false;
        request.hidden_rows =
            submission.pooling == Pooling::kMean ? HiddenRows::kAll : HiddenRows::kLast;
        // The first token sees nothing of what is behind it.
        if (submission.pooling == Pooling::kFirst && request.prompt.size() > 1)
          request.prompt.resize(1);
      }
      request.priority = submission.priority;
      request.guide = guides[which];
      request.adapter = submission.adapter;
      request.caller = submission.caller;
      Sample& sample = samples_[request.id];
      sample.mailbox = mailbox;
      sample.index = index++;
      sample.decoder = std::make_unique<text::StreamDecoder>(
          tokenizer_, submission.keeps_special ? text::SkipSpecial::kNo : text::SkipSpecial::kYes,
          text::StreamDecoder::Position::kContinues, engine_.model().eos_token_ids());
      sample.stops = std::make_unique<sampling::StopMatcher>(request.params.stop);
      sample.stop_strings = request.params.stop;
      sample.keeps_choices = request.params.logprobs >= 0 || submission.keeps_tokens;
      if (request.score_prompt) sample.on_logits = submission.on_logits;
      sample.pooling = submission.pooling;
      sample.stops_are_kept = submission.stops_are_kept;
      sample.prompt_tokens = static_cast<int64_t>(request.prompt.size());
      sample.arrival = Clock::now();
      sample.caller = submission.caller.id;
      sample.most_tokens = tokens_of_one(submission);
      shares_.add(sample.caller, sample.most_tokens);
      ids.push_back(request.id);
      if (i == 0) {
        leader = request.id;
        leaders.push_back(std::move(request));
      } else if (submission.params.num_beams > 1) {
        samples_.at(leader).siblings.push_back(request.id);
      } else {
        followers.push_back(std::move(request));
      }
    }
    samples_.at(leader).followers = std::move(followers);
  }
  chain(leaders);
  const RequestQueue::Outcome outcome = queue_.push(std::move(leaders));
  if (outcome != RequestQueue::Outcome::kTaken) {
    for (uint64_t id : ids) {
      const auto at = samples_.find(id);
      shares_.remove(at->second.caller, at->second.most_tokens);
      samples_.erase(at);
    }
    if (outcome == RequestQueue::Outcome::kFull) metrics_.rejected();
    return {outcome, nullptr, {}};
  }
  return {outcome, std::make_unique<Ticket>(*this, mailbox, std::move(ids)), std::move(relaxed)};
}

void GenerationService::give_up(const std::vector<uint64_t>& ids) {
  const MutexLock lock(mutex_);
  // Followers go first: what is left of them must not be pushed when their leader ends.
  std::vector<uint64_t> followers;
  for (uint64_t id : ids) {
    const auto at = samples_.find(id);
    if (at == samples_.end()) continue;
    at->second.is_given_up = true;
    for (const GenerationRequest& one : std::exchange(at->second.followers, {}))
      followers.push_back(one.id);
  }
  for (uint64_t id : followers) {
    const auto at = samples_.find(id);
    if (at == samples_.end()) continue;
    Event event{Event::Kind::kFinished};
    event.finish_reason = "cancelled";
    finish(at, std::move(event));
  }
  for (uint64_t id : ids) {
    const auto at = samples_.find(id);
    if (at == samples_.end() || !queue_.cancel(id)) continue;
    Event event{Event::Kind::kFinished};
    event.finish_reason = "cancelled";
    finish(at, std::move(event));
  }
}

std::function<void(int64_t, std::span<const float>)> GenerationService::take_on_logits(
    uint64_t id) {
  const MutexLock lock(mutex_);
  const auto at = samples_.find(id);
  if (at == samples_.end()) return {};
  return std::exchange(at->second.on_logits, {});
}

void GenerationService::give_back_on_logits(
    uint64_t id, std::function<void(int64_t, std::span<const float>)> on_logits) {
  const MutexLock lock(mutex_);
  if (const auto at = samples_.find(id); at != samples_.end())
    at->second.on_logits = std::move(on_logits);
}

Pooling GenerationService::pooling_of(uint64_t id) const {
  const MutexLock lock(mutex_);
  const auto at = samples_.find(id);
  return at == samples_.end() ? Pooling::kLast : at->second.pooling;
}

GenerationService::Ticket::~Ticket() { service_->give_up(ids_); }

void GenerationService::drain(std::chrono::milliseconds timeout) {
  queue_.close();
  {
    MutexLock lock(mutex_);
    ended_.wait_for(lock, timeout, [&]() SLUICE_REQUIRES(mutex_) {
      return samples_.empty() || !failure_.what.empty();
    });
  }
  stop_.request_stop();
}

std::string GenerationService::failure() const {
  const MutexLock lock(mutex_);
  return failure_.what;
}

ErrorKind GenerationService::failure_kind() const {
  const MutexLock lock(mutex_);
  return failure_.kind;
}

int GenerationService::retry_after_seconds() const {
  const int64_t together = std::max<int64_t>(engine_.plan().policy.block_sequences(), 1);
  const double rounds = static_cast<double>(queue_.waiting()) / static_cast<double>(together);
  return static_cast<int>(std::clamp(std::ceil(metrics_.recent_seconds() * rounds), 1.0, 600.0));
}

std::string GenerationService::metrics_text() const {
  std::string out = metrics_.text(running(), waiting());
  const guide::GuideCounts guides = guides_.counts();
  const auto add = [&](const char* name, const char* help, auto value) {
    metric_head(out, name, "counter", help);
    out += fmt::format("{}{{{}}} {}\n", name, metrics_.labels(), value);
  };
  add("sluice:guides_made_total", "Guides that were made of a schema, a grammar or tools.",
      guides.made);
  add("sluice:guides_refused_total", "Guides that could not be made.", guides.refused);
  add("sluice:guide_seconds_total", "Seconds of making guides, refused ones too.", guides.seconds);
  add("sluice:guides_known_total", "Guides and refusals that were asked for again.", guides.known);
  return out;
}

int64_t GenerationService::running() const {
  const MutexLock lock(mutex_);
  return running_;
}

int64_t GenerationService::waiting() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(samples_.size()) - running_;
}

}  // namespace sluice::serve
