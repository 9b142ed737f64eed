// Bodies of llama.cpp's /completion, and its routes over a real connection.
#include <gtest/gtest.h>
#include <httplib.h>

#include <sstream>

#include "src/serve/llama_request.h"
#include "tests/serve/running_server.h"

namespace sluice::serve {
namespace {

using nlohmann::json;

LlamaRequest llama(std::string_view body) { return parse_llama_completion(body, {}, 512); }

ApiError llama_refusal(const std::string& body) {
  try {
    llama(body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400) << body;
    return in_llama_words(error);
  }
  ADD_FAILURE() << "taken: " << body;
  return {};
}

TEST(LlamaRequest, ReadsItsNamesForWhatIsHere) {
  const LlamaRequest asked =
      llama(R"({"prompt": "Hi", "n_predict": 7, "stream": true, "temperature": 0.5,
      "top_k": 3, "top_p": 0.25, "min_p": 0.125, "typical_p": 0.5, "top_n_sigma": -1, "xtc_probability": 0.5,
      "mirostat": 2, "mirostat_tau": 3, "dry_multiplier": 0.5, "dry_sequence_breakers": ["x"], "repeat_penalty": 1.5,
      "repeat_last_n": -1, "presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 9, "stop": ["a"],
      "ignore_eos": true, "logit_bias": [[5, 2.5], [6, false]], "n_probs": 4, "cache_prompt": true, "id_slot": -1,
      "n_keep": 5, "samplers": null, "lora": [], "return_tokens": true})");
  const CompletionRequest& call = asked.call;
  EXPECT_EQ(std::get<std::string>(call.prompts.at(0)), "Hi");
  EXPECT_TRUE(call.streams && call.keeps_tokens && call.generates && !call.fills_context);
  const sampling::SamplingParams& p = call.params;
  EXPECT_EQ(p.max_tokens, 7);
  EXPECT_FLOAT_EQ(p.temperature, 0.5F);
  EXPECT_EQ(p.top_k, 3);
  EXPECT_FLOAT_EQ(p.repetition_penalty, 1.5F);
  EXPECT_FLOAT_EQ(p.typical_p, 0.5F);
  EXPECT_EQ(p.top_n_sigma, 0);
  EXPECT_EQ(p.mirostat, 2);
  EXPECT_FLOAT_EQ(p.dry_multiplier, 0.5F);
  EXPECT_EQ(p.dry_sequence_breakers, std::vector<std::string>{"x"});
  EXPECT_EQ(p.logprobs, 4);
  EXPECT_EQ(p.seed, 9u);
  EXPECT_TRUE(p.has_seed && p.ignore_eos);
  EXPECT_EQ(p.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, 2.5F}, {6, -100.0F}}));
  EXPECT_EQ(asked.settings["repeat_penalty"], 1.5);
}

TEST(LlamaRequest, WhatIsLeftOutIsTheModelsOwn) {
  const LlamaRequest asked = llama(R"({"prompt": [1, 2, 3], "seed": -1, "n_probs": 0, "grammar": "",
                                       "repeat_last_n": 64, "json_schema": {}})");
  EXPECT_EQ(std::get<std::vector<int32_t>>(asked.call.prompts.at(0)),
            (std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(asked.call.fills_context && asked.call.generates);
  EXPECT_FALSE(asked.call.has_max_tokens || asked.call.params.has_seed || asked.call.keeps_tokens);
  EXPECT_EQ(asked.call.params.logprobs, -1);
  EXPECT_EQ(asked.call.params.guide.kind, sampling::GuideKind::kNone);
  EXPECT_TRUE(llama(R"({"prompt": "a", "n_predict": -1})").call.fills_context);
  EXPECT_FALSE(llama(R"({"prompt": "a", "n_predict": 0})").call.generates);
  const auto kind = [](const char* more) {
    return llama(std::string(R"({"prompt": "a", )") + more + "}").call.params.guide.kind;
  };
  EXPECT_EQ(kind(R"("grammar": "root ::= [a]")"), sampling::GuideKind::kGrammar);
  EXPECT_EQ(kind(R"("json_schema": {"type": "null"})"), sampling::GuideKind::kJsonSchema);
}

TEST(LlamaRequest, MixedPromptsStayInParts) {
  const LlamaRequest asked = llama(R"({"prompt": [12, "a text", 34, "more"], "n_predict": 1})");
  ASSERT_EQ(asked.parts.size(), 4u);
  EXPECT_EQ(std::get<int32_t>(asked.parts[2]), 34);
  EXPECT_EQ(std::get<std::string>(asked.parts[3]), "more");
  EXPECT_TRUE(asked.call.prompts.empty());
  EXPECT_EQ(llama(R"({"prompt": ["a", "b"]})").call.prompts.size(), 2u);
  EXPECT_EQ(llama(R"({"prompt": ["a", [1, 2]]})").call.prompts.size(), 2u);
}

TEST(LlamaRequest, RefusesByName) {
  const std::string asked = R"({"prompt": "a", )";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"n_predict": 3})", "prompt"},
      {R"({"prompt": []})", "prompt"},
      {R"({"prompt": [1, "a", null]})", "prompt"},
      {R"({"prompt": [1, "a", 1.5]})", "prompt"},
      {R"({"prompt": [-1, "a"]})", "prompt"},
      {R"({"prompt": {"prompt_string": "a"}})", "prompt"},
      {asked + R"("n_predict": -3})", "n_predict"},
      {asked + R"("n_predict": "many"})", "n_predict"},
      {asked + R"("n_probs": 99})", "n_probs"},
      {asked + R"("n_probs": -1})", "n_probs"},
      {asked + R"("repeat_penalty": 0})", "repeat_penalty"},
      {asked + R"("repeat_penalty": 1.5, "repeat_last_n": 64})", "repeat_last_n"},
      {asked + R"("repeat_last_n": "x"})", "repeat_last_n"},
      {asked + R"("temperature": -1})", "temperature"},
      {asked + R"("id_slot": 3})", "id_slot"},
      {asked + R"("cache_prompt": "yes"})", "cache_prompt"},
      {asked + R"("samplers": ["top_k"]})", "samplers"},
      {asked + R"("dynatemp_range": 0.5})", "dynatemp_range"},
      {asked + R"("image_data": [{"id": 1}]})", "image_data"},
      {asked + R"("lora": [{"id": 0, "scale": 0.5}]})", "lora"},
      {asked + R"("post_sampling_probs": true})", "post_sampling_probs"},
      {asked + R"("logit_bias": [["Hello", 1]]})", "logit_bias"},
      {asked + R"("logit_bias": [[1, true]]})", "logit_bias"},
      {asked + R"("logit_bias": [[1, 2, 3]]})", "logit_bias"},
      {asked + R"("logit_bias": 7})", "logit_bias"},
      {asked + R"("mirostat": 3})", "mirostat"},
      {asked + R"("grammar": 7})", "grammar"},
      {asked + R"("grammar": "root ::= [a]", "json_schema": {"type": "null"}})", "json_schema"},
      {asked + R"("n": 2})", "n"},
      {asked + R"("echo": true})", "echo"},
      {asked + R"("wat": 1})", "wat"}};
  for (const auto& [body, field] : cases) {
    const ApiError error = llama_refusal(body);
    EXPECT_EQ(error.param, field) << body << ": " << error.message;
    EXPECT_NE(error.message.find(field), std::string::npos) << body << ": " << error.message;
  }
  llama_refusal("[]");
  llama_refusal("{");
}

const json kLlamaAsked = {{"prompt", "Once upon a time"}, {"n_predict", 12}, {"temperature", 0}};

json llama_with(const json& more) {
  json body = kLlamaAsked;
  body.update(more);
  return body;
}

TEST(HttpLlama, AnswersWhatACompletionAnswers) {
  const RunningServer server;
  const json expected = server.post(
      "/v1/completions", {{"prompt", "Once upon a time"}, {"max_tokens", 12}, {"temperature", 0}});
  for (const char* path : {"/completion", "/completions"}) {
    const json answer = server.post(path, kLlamaAsked);
    EXPECT_EQ(answer["content"], expected["choices"][0]["text"]);
    EXPECT_EQ(answer["stop"], true);
    EXPECT_EQ(answer["stop_type"], "limit");
    EXPECT_EQ(answer["tokens_predicted"], 12);
    EXPECT_EQ(answer["tokens_evaluated"], expected["usage"]["prompt_tokens"]);
    EXPECT_EQ(answer["tokens"], json::array());
    EXPECT_EQ(answer["prompt"], "Once upon a time");
    EXPECT_EQ(answer["model"], "stories");
    EXPECT_EQ(answer["generation_settings"]["n_predict"], 12);
    EXPECT_EQ(answer["timings"]["predicted_n"], 12);
    EXPECT_EQ(answer["timings"]["prompt_n"].get<int>() + answer["timings"]["cache_n"].get<int>(),
              answer["tokens_evaluated"]);
    EXPECT_GE(answer["timings"]["predicted_ms"].get<double>(), 0);
    EXPECT_FALSE(answer.contains("completion_probabilities"));
  }
}

TEST(HttpLlama, StreamsPiecesAndTellsTheLast) {
  const RunningServer server;
  const json whole = server.post("/completion", llama_with({{"return_tokens", true}}));
  const auto response = server.client().Post(
      "/completion", llama_with({{"stream", true}, {"n_probs", 2}}).dump(), "application/json");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->get_header_value("Content-Type"), "text/event-stream");
  std::istringstream lines(response->body);
  std::string text;
  json tokens = json::array(), last;
  size_t probabilities = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: ")) continue;
    EXPECT_TRUE(last.is_null()) << "nothing follows the last: " << line;
    const json piece = json::parse(line.substr(6));
    text += piece["content"].get<std::string>();
    tokens.insert(tokens.end(), piece["tokens"].begin(), piece["tokens"].end());
    for (const json& one : piece["completion_probabilities"]) {
      EXPECT_EQ(one["top_logprobs"].size(), 2u);
      EXPECT_EQ(one["top_logprobs"][0]["id"], one["id"]) << "greedy";
      EXPECT_LE(one["logprob"].get<double>(), 0);
      ++probabilities;
    }
    if (piece["stop"] == true) last = piece;
  }
  EXPECT_EQ(text, whole["content"]);
  EXPECT_EQ(tokens, whole["tokens"]);
  EXPECT_EQ(probabilities, 12u);
  EXPECT_EQ(last["stop_type"], "limit");
  EXPECT_EQ(last["tokens_predicted"], 12);
}

TEST(HttpLlama, TellsWhatHasEndedIt) {
  const RunningServer server;
  const json word =
      server.post("/completion", llama_with({{"stop", {" girl"}}, {"n_predict", 40}}));
  EXPECT_EQ(word["stop_type"], "word");
  EXPECT_EQ(word["stopping_word"], " girl");
  EXPECT_EQ(word["content"].get<std::string>().find(" girl"), std::string::npos);
  const json grammar =
      server.post("/completion", llama_with({{"grammar", "root ::= \" yes\" | \" no\""}}));
  EXPECT_TRUE(grammar["content"] == " yes" || grammar["content"] == " no") << grammar;
  EXPECT_EQ(grammar["stop_type"], "eos");
  const json nothing = server.post("/completion", llama_with({{"n_predict", 0}}));
  EXPECT_EQ(nothing["content"], "");
  EXPECT_EQ(nothing["tokens_predicted"], 0);
  const json all =
      server.post("/completion", llama_with({{"n_predict", -1}, {"ignore_eos", true}}));
  EXPECT_EQ(all["tokens_predicted"].get<int64_t>() + all["tokens_evaluated"].get<int64_t>(),
            json::parse(server.client().Get("/props")->body)["default_generation_settings"]["n_ctx"]
                .get<int64_t>());
}

TEST(HttpLlama, PropertiesSayWhetherSumsAreARowsOwn) {
  const RunningServer server;
  EXPECT_EQ(json::parse(server.client().Get("/props")->body)["batch_invariant"], false);
}

TEST(HttpLlama, TakesPromptsInEveryForm) {
  const RunningServer server;
  const json ids = server.post("/tokenize", {{"content", "Once upon a time"}})["tokens"];
  const std::string text = server.post("/completion", kLlamaAsked)["content"];
  EXPECT_EQ(server.post("/completion", llama_with({{"prompt", ids}}))["content"], text);
  // The first ids by themselves, what is left as a text.
  const json begin = {ids[0], ids[1]};
  const std::string rest =
      server.post("/detokenize", {{"tokens", json(ids.begin() + 2, ids.end())}})["content"];
  json mixed = begin;
  mixed.push_back(rest);
  EXPECT_EQ(server.post("/completion", llama_with({{"prompt", mixed}}))["tokens_evaluated"],
            server.post("/tokenize", {{"content", rest}, {"add_special_tokens", false}})["count"]
                    .get<int>() +
                2);
  const json both =
      server.post("/completion", llama_with({{"prompt", {"Once upon a time", "Lily"}}}));
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0]["content"], text);
  EXPECT_EQ(both[1]["index"], 1);
  EXPECT_EQ(both[1]["prompt"], "Lily");
  EXPECT_EQ(server.post("/completion", llama_with({{"prompt", {"Lily"}}}))["content"],
            both[1]["content"]);
}

TEST(HttpLlama, ErrorsNameTheFieldInItsWords) {
  const RunningServer server;
  const auto answer = [&](const json& body) {
    const auto response = server.client().Post("/completion", body.dump(), "application/json");
    EXPECT_EQ(response->status, 400);
    return json::parse(response->body)["error"];
  };
  EXPECT_EQ(answer(llama_with({{"n_predict", -7}}))["param"], "n_predict");
  EXPECT_EQ(answer(llama_with({{"grammar", "root ::= x"}}))["param"], "grammar");
  EXPECT_EQ(answer(llama_with({{"prompt", json::array({100000, "a"})}}))["param"], "prompt");
  EXPECT_EQ(answer(llama_with({{"prompt", json::array()}}))["param"], "prompt");
}

}  // namespace
}  // namespace sluice::serve
