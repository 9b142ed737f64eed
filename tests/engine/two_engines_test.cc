// Two engines in one process, each with a team of threads of its own: at the same time, and in
// turns, as a draft beside its target.
#include <gtest/gtest.h>

#include <thread>

#include "tests/engine/model_fixtures.h"

namespace sluice::testing {
namespace {

std::unique_ptr<Engine> open(const std::string& model,
                             const std::vector<GenerationRequest>& requests) {
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.threads = 2;
  return Engine::open(fixture_model(model), options);
}

std::map<uint64_t, Answer> answers_of(Engine& engine,
                                      const std::vector<GenerationRequest>& requests) {
  ListSource source(requests);
  CollectingSink sink;
  engine.generate(source, sink);
  return std::move(sink.answers);
}

std::vector<std::vector<int32_t>> tokens_of(const std::map<uint64_t, Answer>& answers) {
  std::vector<std::vector<int32_t>> out;
  for (const auto& [id, answer] : answers) out.push_back(answer.tokens);
  return out;
}

TEST(TwoEngines, AtTheSameTimeEachGivesItsOwnTokens) {
  const std::string names[] = {"stories260k", "qwen3-tiny"};
  const auto requests = greedy_requests({{1, 20, 30, 40}, {1, 50}, {1, 60, 70}}, 24);
  std::vector<std::vector<int32_t>> alone[2], together[2];
  for (int i = 0; i < 2; ++i) alone[i] = tokens_of(answers_of(*open(names[i], requests), requests));
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&, i] {
        const auto engine = open(names[i], requests);
        for (int round = 0; round < 3; ++round)
          together[i] = tokens_of(answers_of(*engine, requests));
      });
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(together[i], alone[i]) << names[i];
}

size_t likeliest(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// A draft proposes four tokens, its target scores them and keeps those that it would have chosen:
// its own greedy tokens, in fewer passes.
TEST(TwoEngines, ADraftAndItsTargetTakeTurnsInOneThread) {
  constexpr size_t kTokens = 24;
  constexpr int kDrafted = 4;
  const std::vector<int32_t> prompt{1, 403, 407, 261};
  const auto wanted = greedy_requests({prompt}, kTokens);
  std::vector<GenerationRequest> longest = wanted;
  longest.front().params.max_tokens += kDrafted;
  const auto target = open("stories260k", longest);
  const auto draft = open("stories260k:int8", longest);
  const auto expected = answers_of(*target, wanted).at(0).tokens;

  std::vector<int32_t> tokens = prompt;
  int rounds = 0;
  for (; tokens.size() < prompt.size() + kTokens; ++rounds) {
    const Answer drafted = answers_of(*draft, greedy_requests({tokens}, kDrafted)).at(0);
    std::vector<int32_t> proposed = tokens;
    proposed.insert(proposed.end(), drafted.tokens.begin(), drafted.tokens.end());
    GenerationRequest scored;
    scored.prompt = proposed;
    scored.score_prompt = true;
    const Answer answer = answers_of(*target, {scored}).at(0);
    ASSERT_EQ(answer.refused, "");
    const std::vector<float>& logits = answer.logits;
    const size_t vocab = logits.size() / proposed.size();
    // What the target says after each token from the last accepted one on.
    for (size_t at = tokens.size() - 1; at < proposed.size(); ++at) {
      tokens.push_back(
          static_cast<int32_t>(likeliest(std::span(logits).subspan(at * vocab, vocab))));
      if (at + 1 == proposed.size() || tokens.back() != proposed[at + 1]) break;
    }
  }
  tokens.resize(prompt.size() + kTokens);
  EXPECT_EQ(std::vector<int32_t>(tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()),
                                 tokens.end()),
            expected);
  EXPECT_LT(rounds, 16) << "the draft agrees most of the time";
}

}  // namespace
}  // namespace sluice::testing
