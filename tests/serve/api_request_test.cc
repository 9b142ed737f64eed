#include "src/serve/api_request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

namespace sluice::serve {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kVocab = 100;

CompletionRequest completion(const std::string& body) { return parse_completion(body, {}, kVocab); }
ChatRequest chat(const std::string& body) { return parse_chat(body, {}, kVocab); }

template <typename Parse>
ApiError error_of(const Parse& parse, const std::string& body) {
  try {
    parse(body);
  } catch (const ApiError& error) {
    EXPECT_FALSE(error.message.empty()) << body;
    return error;
  }
  ADD_FAILURE() << "taken: " << body;
  return {};
}

TEST(ApiRequest, ReadsCompletions) {
  const CompletionRequest all = completion(
      R"({"model": "m", "prompt": ["a", "b"], "max_tokens": 7, "temperature": 0.5, "n": 2, "best_of": 3, "logprobs": 2,
          "stop": "x", "seed": 9, "echo": true, "priority": -2, "logit_bias": {"5": 1.5}, "user": "u", "suffix": null,
          "add_special_tokens": false, "include_stop_str_in_output": true, "response_format": {"type": "text"}})");
  EXPECT_EQ(all.prompts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(all.prompts[1]), "b");
  EXPECT_EQ(all.params.max_tokens, 7);
  EXPECT_EQ(all.samples, 2);
  EXPECT_EQ(all.best_of, 3);
  EXPECT_EQ(all.params.logprobs, 2);
  EXPECT_EQ(all.params.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(all.params.logit_bias.front(), (std::pair<int32_t, float>{5, 1.5f}));
  EXPECT_TRUE(all.echoes && all.keeps_stop && all.generates);
  EXPECT_EQ(all.adds_special, false);
  EXPECT_EQ(all.priority, -2);
  const CompletionRequest ids = completion(R"({"prompt": [1, 2, 3]})");
  EXPECT_EQ(std::get<std::vector<int32_t>>(ids.prompts[0]), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(ids.params.max_tokens, 16);
  EXPECT_EQ(completion(R"({"prompt": [[1], [2, 3]]})").prompts.size(), 2u);
  const CompletionRequest scored =
      completion(R"({"prompt": "a", "max_tokens": 0, "echo": true, "logprobs": 0})");
  EXPECT_FALSE(scored.generates);
  const CompletionRequest streamed =
      completion(R"({"prompt": "a", "stream": true, "stream_options": {"include_usage": true}})");
  EXPECT_TRUE(streamed.streams && streamed.includes_usage);
}

TEST(ApiRequest, ReadsChats) {
  const ChatRequest all = chat(
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}],
          "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 3, "chat_template_kwargs": {"enable_thinking": false},
          "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"})");
  EXPECT_EQ(all.messages.size(), 2u);
  EXPECT_EQ(all.params.max_tokens, 5);
  EXPECT_TRUE(all.has_max_tokens);
  EXPECT_EQ(all.params.logprobs, 3);
  EXPECT_EQ(all.tools.size(), 1u);
  EXPECT_EQ(all.variables["enable_thinking"], false);
  EXPECT_FALSE(chat(R"({"messages": [{"role": "user", "content": "hi"}]})").has_max_tokens);
  EXPECT_EQ(chat(R"({"messages": [{"role": "user", "content": "hi"}], "logprobs": true})")
                .params.logprobs,
            0);
}

TEST(ApiRequest, ReadsTools) {
  const auto with = [](const std::string& more) {
    return chat(R"({"messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": true}},
                  {"type": "function", "function": {"name": "g-1.x"}}])" +
                more + "}");
  };
  const ChatRequest all = with("");
  EXPECT_EQ(all.tools.size(), 2u);
  ASSERT_EQ(all.callable.size(), 2u);
  EXPECT_EQ(all.callable[0].name, "f");
  EXPECT_TRUE(all.callable[0].is_strict);
  EXPECT_EQ(all.callable[0].parameters["type"], "object");
  EXPECT_TRUE(all.callable[1].parameters.is_null());
  EXPECT_TRUE(!all.must_call && all.calls_many);
  EXPECT_TRUE(with(R"(, "tool_choice": "required")").must_call);
  EXPECT_TRUE(with(R"(, "tool_choice": "none")").callable.empty());
  EXPECT_FALSE(with(R"(, "tool_choice": "auto", "parallel_tool_calls": false)").calls_many);
  const ChatRequest one =
      with(R"(, "tool_choice": {"type": "function", "function": {"name": "g-1.x"}})");
  ASSERT_EQ(one.callable.size(), 1u);
  EXPECT_EQ(one.callable[0].name, "g-1.x");
  EXPECT_TRUE(one.must_call);
  EXPECT_TRUE(
      chat(R"({"messages": [{"role": "user", "content": "hi"}], "tools": []})").tools.is_null());
}

TEST(ApiRequest, ReadsBeamsAndGuides) {
  const CompletionRequest beams = completion(
      R"({"prompt": "a", "num_beams": 4, "n": 2, "length_penalty": 0.5, "early_stopping": "never", "temperature": 0})");
  EXPECT_EQ(beams.params.num_beams, 4);
  EXPECT_EQ(beams.best_of, 2) << "the search ranks them itself";
  EXPECT_EQ(beams.params.length_penalty, 0.5f);
  EXPECT_EQ(beams.params.early_stopping, sampling::EarlyStopping::kNever);
  EXPECT_EQ(completion(R"({"prompt": "a", "use_beam_search": true, "n": 3})").params.num_beams, 3);
  EXPECT_EQ(
      completion(R"({"prompt": "a", "use_beam_search": true, "best_of": 5})").params.num_beams, 5);

  using sampling::GuideKind;
  const auto guide = [](const std::string& fields) {
    return chat(R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}")
        .params.guide;
  };
  const auto by_schema = guide(
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}})");
  EXPECT_EQ(by_schema.kind, GuideKind::kJsonSchema);
  EXPECT_EQ(by_schema.text, R"({"type":"object","properties":{"b":{},"a":{}}})") << "in its order";
  EXPECT_EQ(guide(R"("guided_json": "{\"type\": \"null\"}")").text, R"({"type": "null"})");
  EXPECT_EQ(guide(R"("response_format": {"type": "json_object"})").kind, GuideKind::kJson);
  EXPECT_EQ(guide(R"("response_format": {"type": "text"})").kind, GuideKind::kNone);
  EXPECT_EQ(guide(R"("guided_regex": "a+")").text, "a+");
  EXPECT_EQ(guide(R"("structured_outputs": {"choice": ["a", "b"]})").choices.size(), 2u);
}

TEST(ApiRequest, RefusesByName) {
  const auto refused = [](const std::string& body, const std::string& param,
                          const std::string& words) {
    const ApiError error = error_of(completion, body);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, param) << body;
    EXPECT_NE(error.message.find(words), std::string::npos) << error.message;
  };
  refused("", "", "not valid JSON");
  refused("[1]", "", "JSON object");
  refused("{\"prompt\": \"a\", \"prompt\": \"b\"}", "prompt", "given twice");
  refused("{\"prompt\": \"\xff\"}", "", "not UTF-8");
  refused(R"({})", "prompt", "missing");
  refused(R"({"prompt": []})", "prompt", "not empty");
  refused(R"({"prompt": [1, "a"]})", "prompt", "integer");
  refused(R"({"prompt": ["a", 1]})", "prompt", "string");
  refused(R"({"prompt": "a", "nonsense": 1})", "nonsense", "unknown");
  refused(R"({"prompt": "a", "n": 0})", "n", "1 to");
  refused(R"({"prompt": "a", "n": 3, "best_of": 2})", "best_of", "at least n");
  refused(R"({"prompt": "a", "best_of": 3, "stream": true})", "best_of", "streamed");
  refused(R"({"prompt": "a", "max_tokens": 0})", "max_tokens", "echo");
  refused(R"({"prompt": "a", "max_tokens": -3})", "max_tokens", "max_tokens");
  refused(R"({"prompt": "a", "temperature": 1e9})", "temperature", "temperature");
  refused(R"({"prompt": "a", "temperature": "hot"})", "temperature", "temperature");
  refused(R"({"prompt": "a", "suffix": "b"})", "suffix", "not supported");
  refused(R"({"prompt": "a", "guided_grammar": 7})", "guided_grammar", "a string");
  refused(R"({"prompt": "a", "response_format": {"type": "xml"}})", "response_format",
          "json_object");
  refused(R"({"prompt": "a", "use_beam_search": true})", "use_beam_search", "2 or more");
  refused(R"({"prompt": "a", "num_beams": 2, "n": 3})", "n", "2 beams");
  refused(R"({"prompt": "a", "num_beams": 2, "temperature": 0.7})", "temperature", "no effect");
  refused(R"({"prompt": "a", "num_beams": 2, "top_p": 0.7})", "top_p", "no effect");
  refused(R"({"prompt": "a", "num_beams": 2, "echo": true, "logprobs": 1})", "echo", "score");
  refused(R"({"prompt": "a", "logit_bias": {"100": 1}})", "logit_bias", "0 to 99");
  refused(R"({"prompt": "a", "stream_options": {"include_usage": true}})", "stream_options",
          "stream");
  EXPECT_NE(error_of(completion, std::string(100, '[')).message.find("nested"), std::string::npos);

  const auto chat_refused = [](const std::string& body, const std::string& param) {
    EXPECT_EQ(error_of(chat, body).param, param) << body;
  };
  chat_refused(R"({"messages": []})", "messages");
  chat_refused(R"({"messages": ["hi"]})", "messages");
  chat_refused(R"({"messages": [{"content": "hi"}]})", "messages");
  chat_refused(R"({"messages": [{"role": "user", "content": 5}]})", "messages");
  chat_refused(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
               "messages");
  chat_refused(R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2})",
               "top_logprobs");
  const auto tools_refused = [&](const std::string& more, const std::string& param) {
    chat_refused(R"({"messages": [{"role": "user", "content": "a"}], )" + more + "}", param);
  };
  const std::string tool = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  tools_refused(R"("tools": [{}])", "tools");
  tools_refused(R"("tools": {})", "tools");
  tools_refused(R"("tools": [{"type": "function", "function": {"name": "a b"}}])", "tools");
  tools_refused(R"("tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}])",
                "tools");
  tools_refused(R"("tools": [{"type": "web_search", "function": {"name": "a"}}])", "tools");
  tools_refused(R"("tool_choice": "required")", "tool_choice");
  tools_refused(tool + R"(, "tool_choice": "sometimes")", "tool_choice");
  tools_refused(tool + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})",
                "tool_choice");
  tools_refused(tool + R"(, "guided_regex": "a+")", "tools");
}

TEST(ApiError, HasOpenAisForm) {
  const auto json = nlohmann::json::parse(
      ApiError{404, "no such \"model\"", "model_not_found", "model", 0}.body());
  EXPECT_EQ(json["error"]["message"], "no such \"model\"");
  EXPECT_EQ(json["error"]["type"], "not_found_error");
  EXPECT_EQ(json["error"]["param"], "model");
  EXPECT_EQ(json["error"]["code"], "model_not_found");
}

// Random cuts and doublings of bodies: an ApiError or a request, nothing else.
TEST(ApiRequest, Nonsense) {
  const std::vector<std::string> seeds = {
      R"({"model": "m", "prompt": ["a", "b"], "max_tokens": 7, "temperature": 0.5, "n": 2, "logprobs": 2, "stop": ["x"],
          "logit_bias": {"5": 1.5}, "stream": true, "stream_options": {"include_usage": true}})",
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "é"}]}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
          "tool_choice": "auto", "logprobs": true, "top_logprobs": 3, "max_completion_tokens": 5})"};
  std::mt19937 random(11);
  int taken = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string body = seeds[round % 2];
    for (int change = 1 + static_cast<int>(random() % 3); change > 0; --change) {
      const size_t at = random() % body.size(), length = random() % 8;
      switch (random() % 4) {
        case 0: body.erase(at, length); break;
        case 1: body.insert(at, body.substr(random() % body.size(), length)); break;
        case 2: body[at] = static_cast<char>(random()); break;
        default: body[at] = "{}[]\",:0-1e9ntf \\"[random() % 17];
      }
      if (body.empty()) body = "{";
    }
    try {
      if (round % 2 == 0)
        completion(body);
      else
        chat(body);
      ++taken;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
    }
  }
  EXPECT_GT(taken, 50);
}

// docs/serving.md lists them: each is taken with what changes nothing, and refused by name
// otherwise.
TEST(ApiRequest, TakesStandardFieldsThatChangeNothing) {
  struct Field {
    const char* name;
    const char* taken;
    const char* refused;  // null: anything of the kind is taken
  };
  const Field fields[] = {
      {"user", "\"u\"", nullptr},
      {"metadata", R"({"a": "b"})", nullptr},
      {"safety_identifier", "\"x\"", nullptr},
      {"request_id", "\"x\"", nullptr},
      {"store", "false", "true"},
      {"service_tier", "\"auto\"", "\"flex\""},
      {"prompt_cache_key", "\"x\"", nullptr},
      {"prompt_cache_retention", "\"24h\"", nullptr},
      {"cache_salt", "\"x\"", nullptr},
      {"cache_prompt", "true", nullptr},
      {"prediction", R"({"type": "content", "content": "x"})", nullptr},
      {"modalities", R"(["text"])", R"(["text", "audio"])"},
      {"suffix", "\"\"", "\"x\""},
      {"skip_special_tokens", "true", "false"},
      {"spaces_between_special_tokens", "true", "false"},
      {"include_reasoning", "true", "false"},
      {"return_token_ids", "false", "true"},
      {"return_tokens_as_token_ids", "false", "true"},
      {"bad_words", "[]", R"(["x"])"},
      {"mm_processor_kwargs", "{}", R"({"a": 1})"},
      {"vllm_xargs", "{}", R"({"a": 1})"},
      {"stream_options", R"({"include_obfuscation": true})", R"({"more": true})"},
      {"max_completion_tokens", "5", "0"}};
  for (const Field& field : fields) {
    SCOPED_TRACE(field.name);
    const auto bodies = [&](const char* value) {
      const std::string more = fmt::format(", \"{}\": {}}}", field.name, value);
      const std::string streams =
          std::string(field.name) == "stream_options" ? ", \"stream\": true" : "";
      return std::pair{"{\"prompt\": \"a\"" + streams + more,
                       R"({"messages": [{"role": "user", "content": "hi"}])" + streams + more};
    };
    const auto [text, messages] = bodies(field.taken);
    EXPECT_NO_THROW(completion(text)) << text;
    EXPECT_NO_THROW(chat(messages)) << messages;
    if (!field.refused) continue;
    const auto [bad_text, bad_messages] = bodies(field.refused);
    EXPECT_EQ(error_of(completion, bad_text).param, field.name);
    EXPECT_EQ(error_of(chat, bad_messages).param, field.name);
  }
  EXPECT_EQ(completion(R"({"prompt": "a", "max_completion_tokens": 5})").params.max_tokens, 5);
  const ChatRequest hinted = chat(
      R"({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low", "verbosity": "high"})");
  EXPECT_EQ(hinted.hints.at("reasoning_effort"), "low");
  EXPECT_EQ(hinted.hints.at("verbosity"), "high");
}

// Clients' mistakes: a 400 that names the field.
TEST(ApiRequest, NamesTheFieldOfEveryMistake) {
  const std::pair<const char*, const char*> completions[] = {
      {R"({"prompt": "a", "temperature": -1})", "temperature"},
      {R"({"prompt": "a", "temperature": "hot"})", "temperature"},
      {R"({"prompt": "a", "max_tokens": -3})", "max_tokens"},
      {R"({"prompt": "a", "stop": ["a", 5]})", "stop"},
      {R"({"prompt": "a", "stop": [""]})", "stop"},
      {R"({"prompt": "a", "logit_bias": {"x": 1}})", "logit_bias"},
      {R"({"prompt": "a", "logit_bias": {"5": 1000}})", "logit_bias"},
      {R"({"prompt": "a", "logit_bias": {"100": 1}})", "logit_bias"},
      {R"({"prompt": "a", "seed": "x"})", "seed"},
      {R"({"prompt": "a", "response_format": {"type": {}}})", "response_format"},
      {R"({"prompt": "a", "guided_json": 5})", "guided_json"},
      {R"({"prompt": "a", "guided_json": "{"})", "guided_json"},
      {R"({"prompt": "a", "wat": 1})", "wat"},
      {R"({"prompt": "a", "prompt_logprobs": 21})", "prompt_logprobs"},
      {R"({"prompt": "a", "prompt_logprobs": true})", "prompt_logprobs"},
      {R"({"prompt": "a", "prompt_logprobs": 1, "stream": true})", "prompt_logprobs"},
      {R"({"prompt": "a", "prompt_logprobs": 1, "num_beams": 2})", "prompt_logprobs"},
      {R"({"prompt": {}})", "prompt"},
      {R"({"max_tokens": 1})", "prompt"}};
  for (const auto& [body, param] : completions) {
    const ApiError error = error_of(completion, body);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, param) << body << ": " << error.message;
  }
  const std::string hi = R"("messages": [{"role": "user", "content": "hi"}])";
  const std::pair<std::string, const char*> chats[] = {
      {R"({"messages": [{"role": "user", "content": null}]})", "messages"},
      {R"({"messages": [{"role": "user"}]})", "messages"},
      {R"({"messages": [{"role": "user", "content": {}}]})", "messages"},
      {R"({"messages": [{"role": {}, "content": "a"}]})", "messages"},
      {R"({"messages": [{"role": "user", "content": [{"type": {}}]}]})", "messages"},
      {"{" + hi + R"(, "tools": [{"type": {}, "function": {"name": "f"}}]})", "tools"},
      {"{" + hi + R"(, "tools": [{"type": "function", "function": {"name": {}}}]})", "tools"},
      {"{" + hi +
           R"(, "tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]})",
       "tools"},
      {"{" + hi + R"(, "tools": [{"type": "function", "function": {"name": "f", "strict": 5}}]})",
       "tools"},
      {"{" + hi + R"(, "tools": [5]})", "tools"},
      {"{" + hi +
           R"(, "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type": {}}})",
       "tool_choice"},
      {"{" + hi + R"(, "stream_options": 5, "stream": true})", "stream_options"},
      {"{" + hi + R"(, "top_logprobs": 3})", "top_logprobs"},
      {"{" + hi + R"(, "reasoning_effort": 3})", "reasoning_effort"},
      {"{" + hi + R"(, "documents": "x"})", "documents"},
      {"{" + hi + R"(, "documents": ["x"]})", "documents"},
      {"{" + hi + R"(, "chat_template": 5})", "chat_template"},
      {"{" + hi + R"(, "truncate_prompt_tokens": 0})", "truncate_prompt_tokens"},
      {"{" + hi + R"(, "truncate_prompt_tokens": -2})", "truncate_prompt_tokens"},
      {"{" + hi + R"(, "continue_final_message": true, "add_generation_prompt": true})",
       "continue_final_message"},
      {R"({"messages": [{"role": "assistant", "content": ""}], "continue_final_message": true})",
       "continue_final_message"},
      {R"({"messages": [{"role": "assistant"}], "continue_final_message": true})",
       "continue_final_message"},
      {"{" + hi +
           R"(, "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required", "continue_final_message": true})",
       "continue_final_message"}};
  for (const auto& [body, param] : chats) {
    const ApiError error = error_of(chat, body);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, param) << body << ": " << error.message;
  }
  EXPECT_NO_THROW(chat(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}, {"role": "user", "content": "b"}]})"));
}

TEST(ApiRequest, AToolByNameIsCalledOnce) {
  EXPECT_FALSE(
      chat(
          R"({"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": {"name": "f"}}],
      "tool_choice": {"type": "function", "function": {"name": "f"}}})")
          .calls_many);
}

// As many keys as go, in many objects: time by their number. One more is refused.
TEST(ApiRequest, BoundsKeys) {
  std::string bias, objects;
  for (int i = 0; i < 4096; ++i) bias += fmt::format("{}\"{}\": 1", i ? "," : "", i);
  for (int i = 0; i < 100; ++i) objects += fmt::format("{}{{{}}}", i ? "," : "", bias);
  EXPECT_EQ(parse_completion("{\"prompt\": \"a\", \"logit_bias\": {" + bias + "}}", {}, 5000)
                .params.logit_bias.size(),
            4096u);
  EXPECT_NO_THROW(completion(R"({"prompt": "a", "metadata": [)" + objects + "]}"));
  EXPECT_NE(
      error_of(completion, "{\"prompt\": \"a\", \"logit_bias\": {" + bias + R"(, "5000": 1}})")
          .message.find("4096"),
      std::string::npos);
  const std::string text = ordered_json("{\"properties\": {" + bias + ", \"x\": 1}}").dump();
  EXPECT_EQ(error_of(completion, R"({"prompt": "a", "guided_json": )" + text + "}").param,
            "guided_json");
}

}  // namespace
}  // namespace sluice::serve
