#include "src/jobs/request.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <set>

#include "tests/jobs/batch_line.h"

namespace sluice::jobs {
namespace {

using sampling::SamplingParams;

Request parse(std::string_view line, const SamplingParams& defaults = {}, int64_t line_number = 1) {
  ParsedLine parsed = parse_request(line, defaults, line_number);
  if (const auto* error = std::get_if<RequestError>(&parsed)) {
    ADD_FAILURE() << line << ": " << error->code << ": " << error->message;
    return {};
  }
  return std::get<Request>(std::move(parsed));
}

TEST(Request, OpenAiBatchLineWithEveryField) {
  const Request request = parse(batch_line(R"({"model": "m", "prompt": "Hi \u00e9", "max_tokens": 7,
      "min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1,
      "presence_penalty": -1, "frequency_penalty": 0.25, "seed": 99, "stop": ["a", "\n"], "stop_token_ids": [3, 4],
      "ignore_eos": true, "logprobs": 3, "logit_bias": {"5": -100, "17": 2.5}, "n": 1, "best_of": 1, "echo": false,
      "stream": false, "stream_options": null, "suffix": null, "user": "u", "metadata": {"k": "v"}})"),
                                {}, 12);
  EXPECT_EQ(request.custom_id, "r1");
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.url, "/v1/completions");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.prompt, "Hi \xC3\xA9");
  EXPECT_EQ(request.line_number, 12);
  EXPECT_EQ(request.key.size(), 32U);
  SamplingParams expected;
  expected.max_tokens = 7;
  expected.min_tokens = 2;
  expected.temperature = 0.5F;
  expected.top_p = 0.9F;
  expected.top_k = 40;
  expected.min_p = 0.05F;
  expected.repetition_penalty = 1.1F;
  expected.presence_penalty = -1;
  expected.frequency_penalty = 0.25F;
  expected.seed = 99;
  expected.has_seed = true;
  expected.stop = {"a", "\n"};
  expected.stop_token_ids = {3, 4};
  expected.ignore_eos = true;
  expected.logprobs = 3;
  expected.logit_bias = {{17, 2.5F}, {5, -100.0F}};  // in the order of the keys' text
  EXPECT_EQ(request.params, expected);
}

TEST(Request, GrammarsComeUnderThreeNames) {
  const sampling::GuideSpec expected{sampling::GuideKind::kGrammar, "root ::= \"a\"", {}};
  for (const char* field : {"\"grammar\": ", "\"guided_grammar\": "})
    EXPECT_EQ(
        parse(std::string("{\"prompt\": \"x\", ") + field + R"("root ::= \"a\""})").params.guide,
        expected);
  EXPECT_EQ(
      parse(R"({"prompt": "x", "structured_outputs": {"grammar": "root ::= \"a\""}})").params.guide,
      expected);
}

TEST(Request, SamplersBeyondOpenAis) {
  SamplingParams expected;
  expected.typical_p = 0.5F;
  expected.top_n_sigma = 1.5F;
  expected.xtc_probability = 0.25F;
  expected.xtc_threshold = 0.125F;
  expected.mirostat = 2;
  expected.mirostat_tau = 3;
  expected.mirostat_eta = 0.5F;
  expected.dry_multiplier = 0.75F;
  expected.dry_base = 1.5F;
  expected.dry_allowed_length = 3;
  expected.dry_penalty_last_n = 64;
  expected.dry_sequence_breakers = {"\n", "and"};
  expected.dry_breaker_tokens = {{5}, {6, 7}};
  EXPECT_EQ(parse(R"({"prompt": "x", "typical_p": 0.5, "top_n_sigma": 1.5, "xtc_probability": 0.25,
      "xtc_threshold": 0.125, "mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.5, "dry_multiplier": 0.75,
      "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 64,
      "dry_sequence_breakers": ["\n", [5], "and", [6, 7]]})")
                .params,
            expected);
  EXPECT_EQ(parse(R"({"prompt": "x", "top_n_sigma": -1, "dry_sequence_breakers": null})").params,
            SamplingParams());
  EXPECT_TRUE(parse(R"({"prompt": "x", "dry_sequence_breakers": []})")
                  .params.dry_sequence_breakers.empty());
}

TEST(Request, ChatLines) {
  std::ifstream file(SLUICE_FIXTURES "/jobs/openai_example_batch.jsonl");
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const Request request = parse(line);
    EXPECT_TRUE(request.is_chat);
    EXPECT_EQ(request.params.max_tokens, 1000);
    EXPECT_NE(request.prompt.find(R"("content":"Hello world!")"), std::string::npos);
  }
  EXPECT_EQ(lines, 2);
  const Request plain = parse(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
          "logprobs": true, "top_logprobs": 2})");
  EXPECT_TRUE(plain.is_chat);
  EXPECT_EQ(plain.prompt, R"([{"content":"a\nb","role":"user"}])");
  EXPECT_EQ(plain.params.logprobs, 2);
  EXPECT_EQ(parse(R"({"messages": [{"role": "user"}], "logprobs": true})").params.logprobs, 0);
  EXPECT_EQ(parse(R"({"messages": [{"role": "user"}], "logprobs": false})").params.logprobs, -1);
}

TEST(Request, ToolsOfAChatAreKeptAndMakeItAnotherRequest) {
  const std::string before = R"({"messages": [{"role": "user", "content": "x"}])";
  const Request plain = parse(before + "}");
  EXPECT_EQ(plain.chat, "");
  EXPECT_EQ(parse(before + R"(, "tools": null})").key, plain.key);
  const Request tools =
      parse(before + R"(, "tools": [{"type": "function"}], "tool_choice": "auto"})");
  EXPECT_EQ(tools.chat, R"({"tools":[{"type":"function"}],"tool_choice":"auto"})");
  EXPECT_NE(tools.key, plain.key);
  EXPECT_NE(parse(before + R"(, "tools": [{"type": "function"}], "tool_choice": "none"})").key,
            tools.key);
}

TEST(Request, PlainLineTakesDefaults) {
  SamplingParams defaults;
  defaults.temperature = 0;
  defaults.max_tokens = 99;
  defaults.stop = {"END"};
  const Request request = parse(R"({"prompt": "x"})", defaults, 4);
  EXPECT_EQ(request.params, defaults);
  EXPECT_EQ(request.custom_id, "line-4");
  EXPECT_EQ(
      parse(R"({"prompt": "x", "stop": [], "max_tokens": null})", defaults).params.stop.size(), 0U);
  EXPECT_EQ(parse(R"({"prompt": "x", "stop": null, "max_tokens": null})", defaults).params,
            defaults);
}

TEST(Request, PlainLineNames) {
  EXPECT_EQ(parse(R"({"id": "a", "prompt": "x"})").custom_id, "a");
  EXPECT_EQ(parse(R"({"custom_id": "b", "prompt": "x"})").custom_id, "b");
  EXPECT_EQ(parse(R"({"id": 17, "prompt": "x"})").custom_id, "17");
}

TEST(Request, PromptsOfTokenIds) {
  EXPECT_EQ(parse(R"({"prompt": [1, 0, 2147483647]})").prompt_ids,
            (std::vector<int32_t>{1, 0, 2147483647}));
  EXPECT_EQ(parse(R"({"prompt": [[7, 8]]})").prompt_ids, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(parse(R"({"prompt": ["text"]})").prompt, "text");
}

TEST(Request, SeedsMayBeNegativeOrLarge) {
  EXPECT_EQ(parse(R"({"prompt": "x", "seed": -1})").params.seed, ~uint64_t{0});
  EXPECT_EQ(parse(R"({"prompt": "x", "seed": 18446744073709551615})").params.seed, ~uint64_t{0});
  EXPECT_TRUE(parse(R"({"prompt": "x", "seed": 0})").params.has_seed);
  EXPECT_FALSE(parse(R"({"prompt": "x"})").params.has_seed);
}

TEST(Request, TopKOffAsVllmWritesIt) {
  SamplingParams defaults;
  defaults.top_k = 5;
  EXPECT_EQ(parse(R"({"prompt": "x", "top_k": -1})", defaults).params.top_k, 0);
}

TEST(Request, VocabularyIsCheckedWhenKnown) {
  const char* line = R"({"prompt": [99]})";
  EXPECT_TRUE(std::holds_alternative<Request>(parse_request(line, {}, 1)));
  EXPECT_TRUE(std::holds_alternative<Request>(parse_request(line, {}, 1, 100)));
  for (const char* bad : {R"({"prompt": [100]})", R"({"prompt": "x", "stop_token_ids": [100]})",
                          R"({"prompt": "x", "logit_bias": {"100": 1}})"}) {
    const ParsedLine parsed = parse_request(bad, {}, 1, 100);
    ASSERT_TRUE(std::holds_alternative<RequestError>(parsed)) << bad;
    EXPECT_NE(std::get<RequestError>(parsed).message.find("0 to 99"), std::string::npos);
  }
}

TEST(Request, KeyChangesWithAllThatDecidesTheAnswerAndNothingElse) {
  const std::string base = R"({"custom_id": "a", "prompt": "x")";
  std::set<std::string> keys;
  const std::vector<std::string> changes = {
      "",
      R"(, "max_tokens": 17)",
      R"(, "min_tokens": 1)",
      R"(, "temperature": 0)",
      R"(, "top_k": 3)",
      R"(, "top_p": 0.5)",
      R"(, "min_p": 0.5)",
      R"(, "repetition_penalty": 1.5)",
      R"(, "presence_penalty": 1)",
      R"(, "frequency_penalty": 1)",
      R"(, "seed": 0)",
      R"(, "seed": 1)",
      R"(, "stop": "a")",
      R"(, "stop": ["a", "b"])",
      R"(, "stop": "ab")",
      R"(, "stop_token_ids": [1])",
      R"(, "stop_token_ids": [1, 1])",
      R"(, "ignore_eos": true)",
      R"(, "logprobs": 0)",
      R"(, "logit_bias": {"1": 1})",
      R"(, "num_beams": 2)",
      R"(, "num_beams": 3)",
      R"(, "num_beams": 3, "length_penalty": 0.5)",
      R"(, "num_beams": 3, "early_stopping": true)",
      R"(, "guided_regex": "a")",
      R"(, "guided_regex": "b")",
      R"(, "guided_choice": ["a"])",
      R"(, "guided_grammar": "a")",
      R"(, "typical_p": 0.5)",
      R"(, "top_n_sigma": 1)",
      R"(, "xtc_probability": 1)",
      R"(, "xtc_probability": 1, "xtc_threshold": 0.2)",
      R"(, "mirostat": 1)",
      R"(, "mirostat": 2)",
      R"(, "mirostat": 2, "mirostat_tau": 3)",
      R"(, "mirostat": 2, "mirostat_eta": 1)",
      R"(, "dry_multiplier": 1)",
      R"(, "dry_multiplier": 1, "dry_base": 2)",
      R"(, "dry_multiplier": 1, "dry_allowed_length": 3)",
      R"(, "dry_multiplier": 1, "dry_penalty_last_n": 3)",
      R"(, "dry_multiplier": 1, "dry_sequence_breakers": [])",
      R"(, "dry_multiplier": 1, "dry_sequence_breakers": [[1]])",
      R"(, "guided_json": {"type": "null"})",
      R"(, "response_format": {"type": "json_object"})"};
  for (const std::string& change : changes) keys.insert(parse(base + change + "}").key);
  keys.insert(parse(R"({"custom_id": "b", "prompt": "x"})").key);
  keys.insert(parse(R"({"custom_id": "a", "prompt": "y"})").key);
  keys.insert(parse(R"({"custom_id": "a", "prompt": [1, 2]})").key);
  keys.insert(parse(R"({"custom_id": "a", "prompt": "1,2"})").key);
  EXPECT_EQ(keys.size(), changes.size() + 4);

  const std::string key = parse(base + "}").key;
  EXPECT_EQ(
      parse(R"({"prompt":"x","custom_id":"a","user":"someone","model":"m","temperature":1.0})", {},
            77)
          .key,
      key);
}

// Written into results files: if this fails, every running job loses its place.
TEST(Request, KeyIsFixedForever) {
  EXPECT_EQ(
      parse(R"({"custom_id": "a", "prompt": "x", "temperature": 0.7, "stop": ["\n"], "seed": 5})")
          .key,
      "6362a65ddb4e7326e84e4d450c4ef3e0");
}

}  // namespace
}  // namespace sluice::jobs
