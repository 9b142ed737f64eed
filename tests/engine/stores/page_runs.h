#pragma once
// Runs that count the pages sequences have.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/engine/model_fixtures.h"

namespace sluice::testing {

class PageSink final : public GenerationSink {
 public:
  bool on_token(uint64_t id, const sampling::Choice& choice) override {
    return inner.on_token(id, choice);
  }
  void on_finish(uint64_t id, FinishReason reason) override { inner.on_finish(id, reason); }
  void on_refused(uint64_t id, const std::string& message) override {
    inner.on_refused(id, message);
  }
  void on_pass(const PassReport& report) override {
    most_used = std::max(most_used, report.kv_pages_used);
    pages = report.kv_pages;
  }

  CollectingSink inner;
  int64_t most_used = 0;
  int64_t pages = 0;
};

struct Ran {
  std::vector<std::vector<int32_t>> tokens;
  int64_t most_used = 0;
  int64_t pages = 0;
  policy::Plan plan;
};

inline Ran run(const std::string& model, const EngineOptions& options,
               const std::vector<GenerationRequest>& requests) {
  const auto engine = Engine::open(fixture_model(model), options);
  ListSource source(requests);
  PageSink sink;
  engine->generate(source, sink);
  Ran out{{}, sink.most_used, sink.pages, engine->plan()};
  for (const GenerationRequest& request : requests) {
    EXPECT_EQ(sink.inner.answers.at(request.id).refused, "");
    out.tokens.push_back(sink.inner.answers.at(request.id).tokens);
  }
  return out;
}

inline std::vector<int32_t> prompt_of(int64_t length, uint32_t seed) {
  Random random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& token : prompt) token = static_cast<int32_t>(pick(random, 3, 100));
  return prompt;
}

/// Of the tokens that small vocabularies have.
inline std::vector<int32_t> short_prompt(int64_t length, uint32_t seed) {
  std::vector<int32_t> prompt = prompt_of(length, seed);
  for (int32_t& token : prompt) token = 3 + token % 50;
  return prompt;
}

inline EngineOptions plain(const std::vector<GenerationRequest>& requests, int64_t page_tokens,
                           int64_t micro_batch_tokens) {
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = KvFormat(DType::kF32);
  options.policy = policy::Policy{};
  options.policy->page_tokens = page_tokens;
  options.policy->micro_batch_tokens = micro_batch_tokens;
  return options;
}

/// On an emulated device, KV below it attended on the host: random chunks, pages and micro-batches.
inline EngineOptions attended_on_host(const std::vector<GenerationRequest>& requests,
                                      uint32_t seed) {
  Random random(seed);
  EngineOptions options = plain(requests, pick(random, 1, 9), pick(random, 4, 40));
  options.device = EmulatedSpec{int64_t{64} << 20, 0, 0, 0, 0};
  options.policy->attention = policy::AttentionPlace::kHost;
  options.policy->host_attention_tokens = seed % 3 == 0 ? pick(random, 1, 20) : 0;
  options.policy->kv =
      seed % 2 == 0 ? policy::TierShares{0.4, 0.3, 0.3} : policy::TierShares{0, 0.5, 0.5};
  options.policy->micro_batch_sequences = pick(random, 1, 3);
  options.policy->micro_batches = pick(random, 1, 3);
  return options;
}

/// Keeps what was known of each beginning.
class AdmittedSink final : public GenerationSink {
 public:
  bool on_token(uint64_t id, const sampling::Choice& choice) override {
    tokens[id].push_back(choice.token);
    return true;
  }
  void on_finish(uint64_t, FinishReason) override {}
  void on_refused(uint64_t, const std::string& message) override { ADD_FAILURE() << message; }
  void on_admitted(uint64_t id, int64_t cached_tokens) override { cached[id] = cached_tokens; }

  std::map<uint64_t, std::vector<int32_t>> tokens;
  std::map<uint64_t, int64_t> cached;
};

/// One request after another at one engine.
inline AdmittedSink in_turn(const std::string& model, const EngineOptions& options,
                            const std::vector<GenerationRequest>& requests) {
  const auto engine = Engine::open(fixture_model(model), options);
  AdmittedSink sink;
  for (const GenerationRequest& request : requests) {
    ListSource source({request});
    engine->generate(source, sink);
  }
  return sink;
}

/// A prompt of 45 tokens, the same again and its first 30, with pages of 8: the tokens are those of
/// an engine that takes up no beginnings, and nothing is known of the first prompt. What was of the
/// others.
inline std::map<uint64_t, int64_t> known_beginnings(const std::string& model) {
  const std::vector<int32_t> first = short_prompt(45, 3);
  std::vector<int32_t> within = first;
  within.resize(30);
  const auto requests = greedy_requests({first, first, within}, 40);
  EngineOptions options = plain(requests, 8, 16);
  options.context_tokens = 200;
  options.workload.sequences = 3;
  options.policy->micro_batch_sequences = 3;
  options.cache_prefixes = false;
  const AdmittedSink expected = in_turn(model, options, requests);
  options.cache_prefixes = true;
  const AdmittedSink actual = in_turn(model, options, requests);
  EXPECT_EQ(actual.tokens, expected.tokens) << model;
  EXPECT_EQ(actual.cached.at(0), 0) << model;
  return actual.cached;
}

/// Random sizes of chunks, pages, micro-batches and passes, KV on disk too, preemption and known
/// beginnings: the tokens of one page and one chunk for everything. Requests of at most 160 tokens.
inline void expect_same_tokens_however_cut(const std::string& model,
                                           const std::vector<GenerationRequest>& requests,
                                           uint32_t rounds) {
  const Ran whole = run(model, plain(requests, 160, 256), requests);
  for (uint32_t seed = 1; seed <= rounds; ++seed) {
    Random random(seed);
    EngineOptions options = plain(requests, pick(random, 1, 9), pick(random, 1, 30));
    options.policy->micro_batch_sequences = pick(random, 1, 3);
    options.policy->micro_batches = pick(random, 1, 2);
    if (seed % 3 == 0) options.policy->kv = {0.4, 0, 0.6};
    if (seed % 2 == 0) options.policy->pass_tokens = pick(random, 6, 60);
    if (seed % 4 == 0) options.predict_lengths = true;
    options.cache_prefixes = seed % 5 < 3;
    const Ran actual = run(model, options, requests);
    EXPECT_EQ(actual.tokens, whole.tokens)
        << model << " " << seed << " " << policy::policy_to_json(*options.policy);
  }
}

}  // namespace sluice::testing
