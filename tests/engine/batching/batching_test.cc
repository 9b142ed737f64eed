// Continuous batching: whatever else runs, arrives, is cancelled or preempted, shares a beginning
// or is refused, a request gets the tokens that it gets alone; and nothing leaks or stalls.
#include <gtest/gtest.h>

#include <deque>
#include <mutex>
#include <thread>

#include "src/base/error.h"
#include "src/engine/batching/batcher.h"
#include "tests/engine/model_fixtures.h"
#include "tests/rounds.h"

namespace sluice::testing {
namespace {

// Requests that arrive at given passes, cancels likewise; the sink's passes are the clock, and
// waiting moves it.
class TimedSource final : public RequestSource {
 public:
  struct Arrival {
    int64_t pass;
    GenerationRequest request;
  };

  TimedSource(std::vector<Arrival> arrivals, std::map<int64_t, std::vector<uint64_t>> cancels)
      : arrivals_(arrivals.begin(), arrivals.end()), cancels_(std::move(cancels)) {}

  std::optional<GenerationRequest> next() override {
    if (arrivals_.empty() || arrivals_.front().pass > pass) return std::nullopt;
    GenerationRequest request = std::move(arrivals_.front().request);
    arrivals_.pop_front();
    return request;
  }
  bool is_open() override { return !arrivals_.empty(); }
  bool is_shared() const override { return has_callers; }
  // Another that has arrived may come before it.
  void take_back(GenerationRequest request) override {
    ++taken_back;
    const auto behind = std::find_if(arrivals_.begin(), arrivals_.end(),
                                     [this](const Arrival& one) { return one.pass > pass; });
    arrivals_.insert(taken_back % 2 == 0 ? behind : arrivals_.begin(), {pass, std::move(request)});
  }
  void wait(const std::stop_token&) override {
    ++waits;
    pass = std::max(pass, arrivals_.front().pass);
  }
  std::vector<uint64_t> take_cancelled() override {
    std::vector<uint64_t> out;
    while (!cancels_.empty() && cancels_.begin()->first <= pass) {
      out.insert(out.end(), cancels_.begin()->second.begin(), cancels_.begin()->second.end());
      cancels_.erase(cancels_.begin());
    }
    return out;
  }

  int64_t pass = 0;
  int64_t waits = 0;
  bool has_callers = false;
  int64_t taken_back = 0;

 private:
  std::deque<Arrival> arrivals_;
  std::map<int64_t, std::vector<uint64_t>> cancels_;
};

class TimedSink final : public GenerationSink {
 public:
  explicit TimedSink(TimedSource& source) : source_(source) {}
  bool on_token(uint64_t id, const sampling::Choice& choice) override {
    return inner.on_token(id, choice);
  }
  void on_hypotheses(uint64_t id, const std::vector<sampling::Hypothesis>& best_first) override {
    inner.on_hypotheses(id, best_first);
  }
  void on_finish(uint64_t id, FinishReason reason) override { inner.on_finish(id, reason); }
  void on_refused(uint64_t id, const std::string& message) override {
    inner.on_refused(id, message);
  }
  void on_logits(uint64_t id, int64_t position, std::span<const float> logits) override {
    inner.on_logits(id, position, logits);
  }
  void on_admitted(uint64_t id, int64_t cached) override {
    EXPECT_TRUE(cached_tokens.emplace(id, cached).second) << "admitted twice";
  }
  void on_pass(const PassReport& report) override {
    ++source_.pass;
    last = report;
  }

  CollectingSink inner;
  std::map<uint64_t, int64_t> cached_tokens;
  PassReport last;

 private:
  TimedSource& source_;
};

// Prompts of which many begin alike.
std::vector<std::vector<int32_t>> related_prompts(Random& random, int64_t count, int64_t vocab) {
  auto prompts = random_prompts(random, count, vocab);
  for (size_t i = 1; i < prompts.size(); ++i) {
    if (pick(random, 0, 2) == 0) continue;
    const auto& other = prompts[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(i) - 1))];
    const auto shared =
        static_cast<std::ptrdiff_t>(pick(random, 1, static_cast<int64_t>(other.size())));
    prompts[i].insert(prompts[i].begin(), other.begin(), other.begin() + shared);
    if (prompts[i].size() > 45) prompts[i].resize(45);
  }
  return prompts;
}

policy::Policy batching_policy(Random& random) {
  policy::Policy policy;
  const auto share = [&] { return pick(random, 0, 2) == 0 ? 0.6 : 1.0; };
  const double weights = share(), kv = share();
  policy.weights = {weights, 0, 1 - weights};
  policy.kv = {kv, 0, 1 - kv};
  policy.micro_batch_sequences = pick(random, 1, 3);
  policy.micro_batches = pick(random, 1, 3);
  policy.micro_batch_tokens = pick(random, 4, 40);
  policy.page_tokens = pick(random, 1, 9);
  return policy;
}

struct Outcome {
  std::map<uint64_t, Answer> answers;
  std::map<uint64_t, int64_t> cached;
  EngineStats stats;
  PassReport last;
};

Outcome run_timed(const std::string& model, const EngineOptions& options,
                  std::vector<TimedSource::Arrival> arrivals,
                  std::map<int64_t, std::vector<uint64_t>> cancels, bool has_callers = false) {
  const auto engine = Engine::open(fixture_model(model), options);
  TimedSource source(std::move(arrivals), std::move(cancels));
  source.has_callers = has_callers;
  TimedSink sink(source);
  engine->generate(source, sink);
  return {std::move(sink.inner.answers), std::move(sink.cached_tokens), engine->stats(), sink.last};
}

std::vector<int32_t> tokens_of(const sampling::Hypothesis& hypothesis) {
  std::vector<int32_t> tokens;
  for (const sampling::Choice& choice : hypothesis.choices) tokens.push_back(choice.token);
  return tokens;
}

class Batching : public ::testing::TestWithParam<std::string> {};

TEST_P(Batching, GivesEveryRequestTheTokensItGetsAlone) {
  if (is_left_to_release(GetParam(), "alone")) GTEST_SKIP() << "tried without sanitizers";
  const int64_t vocab = BoundModel::open(fixture_model(GetParam())).shape().vocab_size;
  int64_t preemptions = 0, hits = 0, copied = 0, saved = 0, restored = 0;
  for (uint32_t seed = 1; seed <= 24; ++seed) {
    Random random(seed + 900);
    const auto prompts = related_prompts(random, pick(random, 6, 20), vocab);
    auto requests = greedy_requests(prompts, 1);
    const policy::Policy policy = batching_policy(random);
    for (GenerationRequest& request : requests) {
      // Mostly short, so that a long one is longer than expected.
      request.params.max_tokens =
          static_cast<int>(pick(random, 0, 3) == 0 ? pick(random, 16, 30) : pick(random, 1, 3));
      request.priority = static_cast<int32_t>(pick(random, 0, 2));
      request.score_prompt = pick(random, 0, 4) == 0;
      request.score_only = pick(random, 0, 1) == 0;
      request.caller = {static_cast<uint64_t>(pick(random, 0, 3)),
                        static_cast<double>(pick(random, 1, 2))};
      if (pick(random, 0, 3) == 0) {
        request.params.temperature = 0.8f;
        request.params.seed = seed;
        // What Mirostat has learnt, and what DRY and XTC look at, outlive preemptions.
        request.params.mirostat = static_cast<int>(seed % 3);
        request.params.xtc_probability = seed % 2 == 0 ? 0.5f : 0;
        request.params.dry_multiplier = seed % 4 < 2 ? 0.8f : 0;
        request.params.dry_sequence_breakers.clear();
      }
      if (pick(random, 0, 4) == 0 && !request.score_prompt) {
        request.params.mirostat = 0;
        request.params.num_beams =
            static_cast<int>(std::min(pick(random, 1, 4), policy.block_sequences()));
        if (request.params.num_beams > 1)
          request.params.stop_token_ids = {static_cast<int32_t>(pick(random, 3, vocab - 1))};
      }
    }
    EngineOptions options = options_for(requests);
    options.compute = ComputeChoice::kF32;
    options.kv_dtype = KvFormat(DType::kF32);
    const auto expected = run_all(GetParam(), options, requests);

    options.policy = policy;
    options.predict_lengths = seed % 4 != 0;
    options.cache_prefixes = seed % 3 != 0;
    options.swap_bytes = seed % 5 < 3 ? pick(random, 0, 400'000) : 0;
    options.swaps_always = seed % 5 != 2;
    if (seed % 2 == 0) {
      options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
      options.policy->attention =
          seed % 4 == 0 ? policy::AttentionPlace::kHost : policy::AttentionPlace::kDevice;
    }
    // Room for little more than the longest.
    options.workload.sequences = options.workload.beams;
    options.workload.total_tokens = 0;
    std::vector<TimedSource::Arrival> arrivals;
    std::map<int64_t, std::vector<uint64_t>> cancels;
    int64_t pass = 0;
    for (const GenerationRequest& request : requests) {
      pass += pick(random, 0, 3) == 0 ? pick(random, 0, 6) : 0;
      arrivals.push_back({pass, request});
      if (pick(random, 0, 5) == 0) cancels[pass + pick(random, 0, 9)].push_back(request.id);
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + policy::policy_to_json(*options.policy));
    const bool has_callers = seed % 2 == 1;
    const Outcome run = run_timed(GetParam(), options, arrivals, cancels, has_callers);
    for (const GenerationRequest& request : requests) {
      const Answer& actual = run.answers.at(request.id);
      const Answer& alone = expected.at(request.id);
      ASSERT_TRUE(actual.finish) << request.id;
      const bool is_cancelled = actual.finish == FinishReason::kCancelled;
      if (is_cancelled) {
        EXPECT_LE(actual.tokens.size(), alone.tokens.size());
        EXPECT_TRUE(std::equal(actual.tokens.begin(), actual.tokens.end(), alone.tokens.begin()));
      } else {
        EXPECT_EQ(actual.tokens, alone.tokens) << "request " << request.id;
        EXPECT_EQ(actual.finish, alone.finish);
        EXPECT_EQ(actual.logits.size(), alone.logits.size());
        ASSERT_EQ(actual.hypotheses.size(), alone.hypotheses.size());
        for (size_t i = 0; i < alone.hypotheses.size(); ++i)
          EXPECT_EQ(tokens_of(actual.hypotheses[i]), tokens_of(alone.hypotheses[i]));
      }
    }
    EXPECT_EQ(run.last.running, 0);
    EXPECT_EQ(run.last.kv_pages_used, 0) << "pages leaked";
    copied += run.stats.copied_pages - run.stats.saved_pages - run.stats.restored_pages;
    saved += run.stats.saved_pages;
    restored += run.stats.restored_pages;
    EXPECT_EQ(run.last.preempted, 0);
    preemptions += run.stats.preemptions;
    hits += run.stats.prefix_hit_tokens;
    if (!options.cache_prefixes) {
      EXPECT_EQ(run.stats.prefix_hit_tokens, 0);
    }
    if (!options.predict_lengths && !has_callers) {
      EXPECT_EQ(run.stats.preemptions, 0);
    }
  }
  // Where all layers have a window, what is expected of sequences is what they come to need.
  if (GetParam() != "mistral-tiny") {
    EXPECT_GT(preemptions, 0) << "the pools were meant to be too small";
  }
  EXPECT_GT(hits, 0);
  EXPECT_GT(copied, 0) << "beams were meant to write to shared pages";
  EXPECT_GT(saved, 0) << "pages were meant to go to the swap space";
  EXPECT_GT(restored, 0) << "and to come back";
}

INSTANTIATE_TEST_SUITE_P(Models, Batching,
                         ::testing::Values("llama-tiny-gqa", "opt-tiny", "llama-tiny-mha",
                                           "mistral-tiny", "qwen3-windows", "qwen3-5-tiny",
                                           "qwen3-5-odd", "mamba2-odd", "granitemoehybrid-tiny",
                                           "youtu-tiny", "minicpm3-odd", "gemma4-tiny",
                                           "qwen3-5-moe-odd", "qwen3-next-odd",
                                           "glm4-moe-lite-tiny", "gemma4-moe-tiny", "llama4-odd"),
                         [](const auto& info) { return test_name(info.param); });

TEST(BatchingSource, AnOpenSourceIsWaitedForAndAskedAgain) {
  auto requests = greedy_requests({{5, 6, 7}, {8, 9}}, 4);
  const EngineOptions options = options_for(requests);
  const auto expected = run_all("llama-tiny-gqa", options, requests);
  const auto engine = Engine::open(fixture_model("llama-tiny-gqa"), options);
  TimedSource source({{0, requests[0]}, {50, requests[1]}}, {});
  TimedSink sink(source);
  engine->generate(source, sink);
  EXPECT_EQ(source.waits, 1);
  EXPECT_EQ(sink.inner.answers[1].tokens, expected.at(1).tokens);
}

// A source that never ends by itself, filled by another thread: the stop token ends the run.
// One caller has asked for far more than there are places, another comes with a little at pass 10.
class TwoCallers final : public RequestSource, public GenerationSink {
 public:
  TwoCallers(std::vector<GenerationRequest> requests, bool shared)
      : requests_(requests.begin(), requests.end()), is_shared_(shared) {}
  std::optional<GenerationRequest> next() override {
    if (requests_.empty()) return std::nullopt;
    auto first = requests_.begin();
    const auto second =
        std::find_if(first, requests_.end(), [](const auto& one) { return one.caller.id == 2; });
    if (is_shared_ && pass_ >= 10 && second != requests_.end()) first = second;
    if (first->caller.id == 2 && pass_ < 10) return std::nullopt;
    GenerationRequest request = std::move(*first);
    requests_.erase(first);
    return request;
  }
  bool is_open() override { return !requests_.empty(); }
  bool is_shared() const override { return is_shared_; }
  void take_back(GenerationRequest request) override { requests_.push_front(std::move(request)); }

  bool on_token(uint64_t id, const sampling::Choice& choice) override {
    return inner.on_token(id, choice);
  }
  void on_finish(uint64_t id, FinishReason reason) override {
    ended[id] = pass_;
    inner.on_finish(id, reason);
  }
  void on_refused(uint64_t id, const std::string& why) override { inner.on_refused(id, why); }
  void on_pass(const PassReport&) override { ++pass_; }

  CollectingSink inner;
  std::map<uint64_t, int64_t> ended;

 private:
  std::deque<GenerationRequest> requests_;
  const bool is_shared_;
  int64_t pass_ = 0;
};

TEST(BatchingSource, ACallerWithFewPlacesGetsOneAtOnce) {
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 14; ++i) prompts.push_back({5 + i, 6, 7, 8});
  auto requests = greedy_requests(prompts, 40);
  for (size_t i = 0; i < 14; ++i) {
    requests[i].caller = {i < 12 ? 1u : 2u, 1};
    if (i >= 12) requests[i].params.max_tokens = 4;
  }
  EngineOptions options = options_for(requests);
  const auto expected = run_all("llama-tiny-gqa", options, requests);
  options.policy = policy::Policy{};
  options.policy->micro_batch_sequences = 4;
  options.policy->pass_tokens = 64;
  options.workload.sequences = 4;
  options.predict_lengths = true;
  options.cache_prefixes = true;
  for (const bool shared : {false, true}) {
    const auto engine = Engine::open(fixture_model("llama-tiny-gqa"), options);
    TwoCallers callers(requests, shared);
    engine->generate(callers, callers);
    for (const GenerationRequest& request : requests)
      EXPECT_EQ(callers.inner.answers[request.id].tokens, expected.at(request.id).tokens);
    const int64_t last = callers.ended[requests[13].id];
    if (shared) {
      EXPECT_LE(last, 15);
      EXPECT_EQ(engine->stats().preemptions, 2) << "the second caller has two places of four";
    } else {
      EXPECT_GT(last, 100);
      EXPECT_EQ(engine->stats().preemptions, 0);
    }
  }
}

TEST(BatchingSource, AStopTokenEndsTheWait) {
  class Endless final : public RequestSource {
   public:
    std::optional<GenerationRequest> next() override { return std::nullopt; }
    bool is_open() override { return true; }
    void wait(const std::stop_token& cancel) override {
      is_waiting = true;
      while (!cancel.stop_requested()) std::this_thread::yield();
    }
    std::atomic<bool> is_waiting = false;
  };
  const auto engine =
      Engine::open(fixture_model("llama-tiny-gqa"), options_for(greedy_requests({{5}}, 4)));
  Endless source;
  CollectingSink sink;
  std::stop_source stop;
  std::jthread stopper([&] {
    while (!source.is_waiting) std::this_thread::yield();
    stop.request_stop();
  });
  try {
    engine->generate(source, sink, stop.get_token());
    FAIL() << "the run went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
  }
}

TEST(BatchingSource, StaticBatchesTakeMorePassesForTheSameTokens) {
  auto requests = greedy_requests({{5, 6, 7}, {8, 9}, {4, 4}, {11, 3}}, 4);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].params.max_tokens = i % 2 == 0 ? 12 : 2;
  EngineOptions options = options_for(requests);
  options.policy = policy::Policy{};
  options.policy->micro_batch_sequences = 2;
  int64_t passes[2] = {};
  std::map<uint64_t, Answer> answers[2];
  for (const bool is_static : {false, true}) {
    options.static_batches = is_static;
    const auto engine = Engine::open(fixture_model("llama-tiny-gqa"), options);
    ListSource source(requests);
    CollectingSink sink;
    engine->generate(source, sink);
    passes[is_static] = engine->stats().passes;
    answers[is_static] = sink.answers;
  }
  EXPECT_EQ(passes[true], 24) << "two batches, each as long as its longest";
  EXPECT_LT(passes[false], 20);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(answers[0][i].tokens, answers[1][i].tokens);
}

// Of a model that streams, the time is that of the passes: how many there are for the same tokens
// with the same pages, when sequences of scattered lengths are admitted by what they need in the
// end, or by what all need together at each time to come.
TEST(BatchingSource, AdmissionByWhatIsNeededTogetherTakesFewerPasses) {
  Random random(17);
  std::vector<std::vector<int32_t>> prompts(120, {5, 6, 7, 8});
  auto requests = greedy_requests(prompts, 1);
  for (GenerationRequest& request : requests) {
    const double length = std::exponential_distribution<double>(1.0 / 24)(random);
    request.params.max_tokens = static_cast<int>(std::clamp(length, 1.0, 90.0));
    request.params.ignore_eos = true;
  }
  EngineOptions options = options_for(requests);
  options.workload.sequences = 40;
  options.workload.total_tokens = 40 * 8;  // the pages of some ten sequences
  options.policy = policy::Policy{};
  options.policy->page_tokens = 4;
  options.policy->micro_batch_sequences = 40;
  EngineStats stats[2];
  std::map<uint64_t, Answer> answers[2];
  for (const bool predicts : {false, true}) {
    options.predict_lengths = predicts;
    const auto engine = Engine::open(fixture_model("llama-tiny-gqa"), options);
    ListSource source(requests);
    CollectingSink sink;
    engine->generate(source, sink);
    stats[predicts] = engine->stats();
    answers[predicts] = sink.answers;
  }
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(answers[0][i].tokens, answers[1][i].tokens);
  RecordProperty("passes_by_whole_lengths", static_cast<int>(stats[0].passes));
  RecordProperty("passes_by_need", static_cast<int>(stats[1].passes));
  EXPECT_LT(stats[1].passes * 5, stats[0].passes * 4)
      << stats[1].passes << " of " << stats[0].passes;
  EXPECT_LT(stats[1].preemptions, 12);
}

// `count` prompts that begin with `shared` and end each with a token of its own.
std::vector<std::vector<int32_t>> prompts_after(const std::vector<int32_t>& shared, size_t count) {
  std::vector<std::vector<int32_t>> prompts(count, shared);
  for (size_t i = 0; i < count; ++i) prompts[i].push_back(static_cast<int32_t>(20 + i));
  return prompts;
}

void cache_pages_of_8(EngineOptions& options) {
  options.cache_prefixes = true;
  options.policy = policy::Policy{};
  options.policy->page_tokens = 8;
  options.policy->micro_batch_sequences = 8;
}

TEST(BatchingPrefixes, ASharedPromptIsComputedOnce) {
  std::vector<int32_t> shared(40);
  for (size_t i = 0; i < shared.size(); ++i) shared[i] = static_cast<int32_t>(3 + i % 17);
  auto prompts = prompts_after(shared, 6);
  auto requests = greedy_requests(prompts, 5);
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  const auto expected = run_all("llama-tiny-gqa", options, requests);
  cache_pages_of_8(options);
  std::vector<TimedSource::Arrival> arrivals{{0, requests[0]}};
  for (size_t i = 1; i < requests.size(); ++i) arrivals.push_back({1, requests[i]});
  const Outcome run = run_timed("llama-tiny-gqa", options, arrivals, {});
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(run.answers.at(i).tokens, expected.at(i).tokens);
    EXPECT_EQ(run.cached.at(i), i == 0 ? 0 : 40);
  }
  EXPECT_EQ(run.stats.prefill_tokens, 41 + 5);
  EXPECT_EQ(run.stats.prefix_hit_tokens, 5 * 40);
}

// All at once: the others wait for the first to have computed what they share.
TEST(BatchingPrefixes, RequestsThatComeTogetherComputeTheirBeginningOnce) {
  std::vector<int32_t> shared(32, 9);
  auto prompts = prompts_after(shared, 5);
  prompts.push_back({4, 5, 6});
  auto requests = greedy_requests(prompts, 5);
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  const auto expected = run_all("llama-tiny-gqa", options, requests);
  cache_pages_of_8(options);
  options.policy->pass_tokens = 12;  // the first prompt takes several passes
  const auto engine = Engine::open(fixture_model("llama-tiny-gqa"), options);
  ListSource source(requests);
  CollectingSink sink;
  engine->generate(source, sink);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(sink.answers.at(i).tokens, expected.at(i).tokens);
  EXPECT_EQ(engine->stats().prefill_tokens, 33 + 4 + 3);
}

TEST(LengthPredictor, LearnsAndStaysBelowWhatWasAskedFor) {
  LengthPredictor lengths;
  EXPECT_EQ(lengths.predict(100), 100);
  for (int i = 0; i < 60; ++i) lengths.observe(10);
  EXPECT_GE(lengths.predict(100), 10);
  EXPECT_LE(lengths.predict(100), 14);
  EXPECT_EQ(lengths.predict(5), 5);
  for (int i = 0; i < 20; ++i) lengths.observe(i % 2 == 0 ? 2 : 60);
  EXPECT_GT(lengths.predict(1000), 60) << "scattered lengths ask for room";
}

}  // namespace
}  // namespace sluice::testing
