// Guided output through the engine: whatever the model would like to say, the text is what was
// asked for; with sampling, beams, preemption and shared guides.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/guide/guide_maker.h"
#include "tests/engine/model_fixtures.h"
#include "tests/guide/byte_tokenizer.h"

namespace sluice::testing {
namespace {

using sampling::GuideKind;
using sampling::GuideSpec;

constexpr const char* kModel = "llama-tiny-gqa";
const GuideSpec kSchema{
    GuideKind::kJsonSchema,
    R"({"type":"object","properties":{"a":{"type":"integer","minimum":0,"maximum":999},"b":{"type":"boolean"}},"required":["a","b"]})",
    {}};

class Guided : public ::testing::Test {
 protected:
  GenerationRequest request(uint64_t id, const GuideSpec& spec) {
    GenerationRequest out = greedy_requests({{5, 6, 7, static_cast<int32_t>(3 + id)}}, 60)[0];
    out.id = id;
    out.params.guide = spec;
    out.guide = maker.make(spec);
    return out;
  }
  std::string text_of(const std::vector<int32_t>& tokens) {
    return tokenizer.decode(tokens, text::SkipSpecial::kYes);
  }
  int64_t vocab = BoundModel::open(fixture_model(kModel)).shape().vocab_size;
  ListTokenizer tokenizer = json_tokenizer(static_cast<size_t>(vocab));
  guide::GuideMaker maker{tokenizer, {2}};
};

TEST_F(Guided, TheTextIsWhatTheSchemaSays) {
  std::vector<GenerationRequest> requests;
  for (uint64_t id = 0; id < 12; ++id) {
    requests.push_back(request(id, kSchema));
    if (id % 2 == 0) continue;
    requests.back().params.temperature = 1.5f;
    requests.back().params.seed = id;
  }
  EngineOptions options = options_for(requests);
  const auto expected = run_all(kModel, options, requests);
  for (const auto& [id, answer] : expected) {
    ASSERT_EQ(answer.refused, "");
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    const auto json = nlohmann::json::parse(text_of(answer.tokens), nullptr, false);
    ASSERT_TRUE(json.is_object()) << text_of(answer.tokens);
    EXPECT_EQ(json.size(), 2u);
    EXPECT_LE(json.at("a").get<int>(), 999);
    EXPECT_TRUE(json.at("b").is_boolean());
  }
  // Few pages and expected lengths: sequences are computed again, their guides go on.
  options.policy = policy::Policy{};
  options.policy->page_tokens = 2;
  options.policy->micro_batch_sequences = 4;
  options.predict_lengths = true;
  options.workload.sequences = 1;
  options.workload.total_tokens = 0;
  const auto tight = run_all(kModel, options, requests);
  for (const auto& [id, answer] : expected) EXPECT_EQ(tight.at(id).tokens, answer.tokens);
}

TEST_F(Guided, TheTextIsWhatTheGrammarSays) {
  const GuideSpec grammar{
      GuideKind::kGrammar, "root ::= \"(\" root \")\" | [ab]{2,3} | root2\nroot2 ::= \"12\"", {}};
  std::vector<GenerationRequest> requests;
  for (uint64_t id = 0; id < 8; ++id) {
    requests.push_back(request(id, grammar));
    requests.back().params.temperature = 2;
    requests.back().params.seed = id;
  }
  for (const auto& [id, answer] : run_all(kModel, options_for(requests), requests)) {
    ASSERT_EQ(answer.refused, "");
    if (answer.finish != FinishReason::kStop) continue;  // so many brackets
    const std::string text = text_of(answer.tokens);
    const size_t open = text.find_first_not_of('('), close = text.find(')');
    const std::string inner = text.substr(open, close == text.npos ? close : close - open);
    EXPECT_EQ(text, std::string(open, '(') + inner + std::string(open, ')'));
    EXPECT_TRUE(inner == "12" || (inner.find_first_not_of("ab") == inner.npos &&
                                  (inner.size() == 2 || inner.size() == 3)))
        << text;
  }
}

TEST_F(Guided, BeamsKeepToItToo) {
  std::vector<GenerationRequest> requests{
      request(0, kSchema), request(1, {GuideKind::kChoice, {}, {"true", "abc", "12"}})};
  for (GenerationRequest& one : requests) one.params.num_beams = 3;
  const auto answers = run_all(kModel, options_for(requests), requests);
  ASSERT_EQ(answers.at(0).hypotheses.size(), 3u);
  for (const auto& hypothesis : answers.at(0).hypotheses) {
    std::vector<int32_t> tokens;
    for (const auto& choice : hypothesis.choices) tokens.push_back(choice.token);
    EXPECT_TRUE(nlohmann::json::accept(text_of(tokens))) << text_of(tokens);
  }
  ASSERT_EQ(answers.at(1).hypotheses.size(), 3u);
  std::set<std::string> texts;
  for (const auto& hypothesis : answers.at(1).hypotheses) {
    std::vector<int32_t> tokens;
    for (const auto& choice : hypothesis.choices) tokens.push_back(choice.token);
    texts.insert(text_of(tokens));
  }
  for (const std::string& text : texts)
    EXPECT_TRUE(text == "true" || text == "abc" || text == "12") << text;
}

TEST_F(Guided, EndsWithoutAnEndTokenWhereNothingMayFollow) {
  std::vector<GenerationRequest> requests{request(0, {GuideKind::kChoice, {}, {"abc"}})};
  requests[0].params.ignore_eos = true;
  const auto answers = run_all(kModel, options_for(requests), requests);
  EXPECT_EQ(text_of(answers.at(0).tokens), "abc");
  EXPECT_EQ(answers.at(0).finish, FinishReason::kStop);
}

TEST_F(Guided, WhatCanNotBeWrittenIsRefusedAlone) {
  std::vector<GenerationRequest> requests{request(0, {GuideKind::kRegex, "\\x01\\x02", {}}),
                                          request(1, kSchema)};
  requests.push_back(request(2, kSchema));
  requests[2].guide = nullptr;
  const auto answers = run_all(kModel, options_for(requests), requests);
  EXPECT_NE(answers.at(0).refused.find("no token"), std::string::npos) << answers.at(0).refused;
  EXPECT_EQ(answers.at(1).refused, "");
  EXPECT_NE(answers.at(2).refused.find("tokenizer"), std::string::npos) << answers.at(2).refused;
}

TEST_F(Guided, BreakersOfDryThatNobodyHasReadAreRefused) {
  std::vector<GenerationRequest> requests = greedy_requests({{5, 6}, {5, 6}, {5, 6}}, 4);
  for (GenerationRequest& one : requests) one.params.dry_multiplier = 1;
  maker.find_breakers(requests[1].params);
  requests[2].params.dry_sequence_breakers.clear();
  const auto answers = run_all(kModel, options_for(requests), requests);
  EXPECT_NE(answers.at(0).refused.find("dry_sequence_breakers"), std::string::npos);
  EXPECT_EQ(answers.at(1).tokens.size(), 4u);
  EXPECT_EQ(answers.at(2).tokens.size(), 4u);
}

}  // namespace
}  // namespace sluice::testing
