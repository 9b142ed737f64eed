#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "src/jobs/request.h"
#include "tests/jobs/batch_line.h"

namespace sluice::jobs {
namespace {

RequestError refuse(const std::string& line) {
  ParsedLine parsed = parse_request(line, {}, 3);
  if (std::holds_alternative<Request>(parsed)) {
    ADD_FAILURE() << "accepted: " << line.substr(0, 200);
    return {};
  }
  return std::get<RequestError>(std::move(parsed));
}

struct Case {
  std::string line;
  const char* code;
  const char* words;  // in the message
};

TEST(RequestErrors, PlainLines) {
  const Case cases[] = {
      {R"({"prompt": "x")", "invalid_json", "byte"},
      {R"(hello)", "invalid_json", "not valid JSON"},
      {R"({"prompt": "x"} {})", "invalid_json", "not valid JSON"},
      {R"({"prompt": "\ud800"})", "invalid_json", "not valid JSON"},
      {R"({"prompt": "x", "temperature": 1e999})", "invalid_json", "out of range"},
      {R"({"metadata": )" + std::string(70, '[') + "1" + std::string(70, ']') + "}", "invalid_json",
       "deeper"},
      {R"({"prompt": "x", "response_format": {"type": "xml"}})", "invalid_request", "json_schema"},
      {R"({"prompt": "x", "response_format": {"type": "json_schema"}})", "invalid_request",
       "\"schema\""},
      {R"({"prompt": "x", "guided_choice": "a"})", "invalid_request", "list of strings"},
      {R"({"prompt": "x", "guided_choice": []})", "invalid_request", "choices"},
      {R"({"prompt": "x", "guided_choice": [""]})", "invalid_request", "choice"},
      {R"({"prompt": "x", "guided_regex": "a", "guided_json": {}})", "invalid_request", "second"},
      {R"({"prompt": "x", "structured_outputs": {"structural_tag": "a"}})", "unsupported",
       "structural_tag"},
      {R"({"prompt": "x", "num_beams": 0})", "invalid_request", "num_beams"},
      {R"({"prompt": "x", "num_beams": 2, "stop": "a"})", "invalid_request", "stop"},
      {R"({"prompt": "x", "early_stopping": "soon"})", "invalid_request", "never"},
      {R"({"prompt": "x", "use_beam_search": true})", "unsupported", "num_beams"},
      {R"([1])", "invalid_request", "a list"},
      {R"("x")", "invalid_request", "must be an object"},
      {R"({})", "invalid_request", "prompt is missing"},
      {R"({"prompt": null})", "invalid_request", "prompt is missing"},
      {R"({"prompt": ""})", "invalid_request", "prompt is empty"},
      {R"({"prompt": []})", "invalid_request", "prompt is empty"},
      {R"({"prompt": [[]]})", "invalid_request", "prompt is empty"},
      {R"({"prompt": 5})", "invalid_request", "prompt is the number 5"},
      {R"({"prompt": [1, "a"]})", "invalid_request", "must be an integer"},
      {R"({"prompt": [1.5]})", "invalid_request", "1.5"},
      {R"({"prompt": [-1]})", "invalid_request", "0 or more"},
      {R"({"prompt": [4294967296]})", "invalid_request", "32-bit"},
      {R"({"prompt": [{}]})", "invalid_request", "list of token ids"},
      {R"({"prompt": ["a", "b"]})", "unsupported", "line of its own"},
      {R"({"prompt": "x", "prompt": "y"})", "invalid_request", "\"prompt\" is given twice"},
      {R"({"prompt": "x", "temprature": 0})", "unsupported", "\"temprature\" is unknown"},
      {R"({"prompt": "x", "temperature": "0"})", "invalid_request", "temperature is the string"},
      {R"({"prompt": "x", "temperature": -1})", "invalid_request", "temperature is -1"},
      {R"({"prompt": "x", "temperature": 1e300})", "invalid_request", "temperature"},
      {R"({"prompt": "x", "max_tokens": 1.5})", "invalid_request", "max_tokens"},
      {R"({"prompt": "x", "max_tokens": 0})", "invalid_request", "max_tokens is 0"},
      {R"({"prompt": "x", "max_tokens": 99999999999})", "invalid_request", "99999999999"},
      {R"({"prompt": "x", "max_tokens": 18446744073709551615})", "invalid_request",
       "18446744073709551615"},
      {R"({"prompt": "x", "min_tokens": 17})", "invalid_request", "min_tokens is 17"},
      {R"({"prompt": "x", "top_p": 2})", "invalid_request", "0 to 1"},
      {R"({"prompt": "x", "top_k": -2})", "invalid_request", "top_k is -2"},
      {R"({"prompt": "x", "stop": [1]})", "invalid_request", "stop is the number 1"},
      {R"({"prompt": "x", "stop": ""})", "invalid_request", "stop[0]"},
      {R"({"prompt": "x", "stop": {}})", "invalid_request", "stop is an object"},
      {R"({"prompt": "x", "seed": 0.5})", "invalid_request", "seed"},
      {R"({"prompt": "x", "ignore_eos": 1})", "invalid_request", "true or false"},
      {R"({"prompt": "x", "logprobs": 21})", "invalid_request", "logprobs is 21"},
      {R"({"prompt": "x", "logprobs": true})", "invalid_request", "logprobs is true"},
      {R"({"prompt": "x", "logit_bias": {"a": 1}})", "invalid_request", "\"a\""},
      {R"({"prompt": "x", "logit_bias": {"-1": 1}})", "invalid_request", "\"-1\""},
      {R"({"prompt": "x", "logit_bias": {"1 ": 1}})", "invalid_request", "token id"},
      {R"({"prompt": "x", "logit_bias": {"1": 101}})", "invalid_request", "-100 to 100"},
      {R"({"prompt": "x", "logit_bias": [1]})", "invalid_request", "logit_bias is a list"},
      {R"({"prompt": "x", "n": 2})", "unsupported", "n is 2"},
      {R"({"prompt": "x", "echo": true})", "unsupported", "echo is true"},
      {R"({"prompt": "x", "stream": true})", "unsupported", "stream is true"},
      {R"({"prompt": "x", "suffix": "y"})", "unsupported", "suffix"},
      {R"({"messages": []})", "invalid_request", "messages is a list"},
      {R"({"messages": [{"content": "x"}]})", "invalid_request", "role"},
      {R"({"messages": [{"role": "user", "content": 5}]})", "invalid_request",
       "content is the number"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "unsupported",
       "no text"},
      {R"({"messages": [{"role": "user", "content": "x"}], "prompt": "y"})", "invalid_request",
       "both given"},
      {R"({"messages": [{"role": "user", "content": "x"}], "logprobs": 3})", "invalid_request",
       "logprobs is the number"},
      {R"({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 3})", "invalid_request",
       "\"logprobs\": true"},
      {R"({"prompt": "x", "tools": []})", "unsupported", "tools belongs to"},
      {R"({"messages": [{"role": "user", "content": "x"}], "functions": []})", "unsupported",
       "functions"},
      {R"({"prompt": "x", "top_logprobs": 3})", "unsupported", "chat"},
      {R"({"id": "", "prompt": "x"})", "invalid_request", "id has 0 bytes"},
      {R"({"id": 1.5, "prompt": "x"})", "invalid_request", "id is the number 1.5"},
      {R"({"custom_id": 7, "prompt": "x"})", "invalid_request", "custom_id is the number 7"},
      {R"({"id": "a", "custom_id": "b", "prompt": "x"})", "invalid_request", "both given"},
  };
  for (const Case& one : cases) {
    const RequestError error = refuse(one.line);
    EXPECT_EQ(error.code, one.code) << one.line << ": " << error.message;
    EXPECT_NE(error.message.find(one.words), std::string::npos)
        << one.line << ": " << error.message;
    EXPECT_EQ(error.line_number, 3);
    EXPECT_EQ(error.key.size(), 32U);
  }
}

TEST(RequestErrors, BatchLines) {
  const Case cases[] = {
      {R"({"method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}})",
       "invalid_request", "custom_id is missing"},
      {R"({"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {"prompt": "x"}})",
       "unsupported", "must be POST"},
      {R"({"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}})",
       "invalid_request", "method is missing"},
      {R"({"custom_id": "a", "method": "POST", "body": {"prompt": "x"}})", "invalid_request",
       "url is missing"},
      {R"({"custom_id": "a", "method": "POST", "url": 5, "body": {}})", "invalid_request",
       "url is the number 5"},
      {R"({"custom_id": "a", "method": "POST", "url": "/v1/completions"})", "invalid_request",
       "body is missing"},
      {R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": []})",
       "invalid_request", "body is missing or not"},
      {R"({"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {}})",
       "unsupported", "/v1/embeddings"},
      {R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}})",
       "invalid_request", "messages is missing"},
      {R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}, "priority": 1})",
       "unsupported", "\"priority\""},
  };
  for (const Case& one : cases) {
    const RequestError error = refuse(one.line);
    EXPECT_EQ(error.code, one.code) << one.line << ": " << error.message;
    EXPECT_NE(error.message.find(one.words), std::string::npos)
        << one.line << ": " << error.message;
  }
}

TEST(RequestErrors, KeepTheCustomIdWhereItCouldBeRead) {
  EXPECT_EQ(refuse(R"({"custom_id": "a", "prompt": 5})").custom_id, "a");
  EXPECT_EQ(refuse(batch_line(R"({"prompt": "x", "n": 3})")).custom_id, "r1");
  EXPECT_EQ(refuse(R"({"custom_id": "a")").custom_id, "");
}

TEST(RequestErrors, NotUtf8NamesTheByte) {
  const RequestError error = refuse("{\"prompt\": \"caf\xE9\"}");
  EXPECT_EQ(error.code, "invalid_utf8");
  EXPECT_NE(error.message.find("byte 15"), std::string::npos) << error.message;
}

TEST(RequestErrors, TooManyValuesAreRefusedNotStored) {
  std::string line = R"({"prompt": [)";
  for (int64_t i = 0; i < 2 * kMaxLineValues + 2; ++i) line += "1,";
  const RequestError error = refuse(line + "1]}");
  EXPECT_EQ(error.code, "invalid_json");
  EXPECT_NE(error.message.find("values"), std::string::npos);
}

TEST(RequestErrors, LongValuesAreNotRepeatedInMessages) {
  const std::string text(100000, 'z');
  EXPECT_LT(refuse(R"({"prompt": "x", "temperature": ")" + text + "\"}").message.size(), 300U);
  EXPECT_LT(refuse(R"({"prompt": "x", ")" + text + "\": 1}").message.size(), 300U);
  EXPECT_LT(refuse(R"({"custom_id": ")" + text + R"(", "prompt": "x"})").message.size(), 300U);
  EXPECT_LT(refuse(text).message.size(), 300U);
}

// Whatever one byte becomes, the outcome is a valid request or an error with a reason.
TEST(RequestErrors, ByteFlipSweep) {
  const std::string lines[] = {
      batch_line(
          R"({"model":"m","prompt":"Hi \u00e9 é","max_tokens":7,"stop":["a","\n"],"seed":9,"logit_bias":{"5":-1.5}})"),
      R"({"id":"a","prompt":[1,22,333],"temperature":0.5,"top_k":-1,"echo":false,"metadata":{"a":[1,{"b":null}]}})",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"logprobs":true,"top_logprobs":2})"};
  int requests = 0, errors = 0;
  for (const std::string& line : lines) {
    for (size_t at = 0; at < line.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string changed = line;
        changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
        const ParsedLine parsed = parse_request(changed, {}, 1, 50000);
        if (const auto* request = std::get_if<Request>(&parsed)) {
          ++requests;
          EXPECT_NO_THROW(sampling::validate(request->params)) << changed;
          EXPECT_FALSE(request->custom_id.empty() || request->key.empty()) << changed;
          EXPECT_NE(request->prompt.empty(), request->prompt_ids.empty()) << changed;
        } else {
          ++errors;
          EXPECT_FALSE(std::get<RequestError>(parsed).message.empty()) << changed;
        }
      }
    }
  }
  EXPECT_GT(requests, 100);
  EXPECT_GT(errors, 1000);
}

}  // namespace
}  // namespace sluice::jobs
