#include "src/jobs/record.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace sluice::jobs {
namespace {

using nlohmann::json;

const std::string kKey(32, 'a');
const std::string kConfig(32, 'b');

Request request() {
  Request request;
  request.custom_id = "story \"1\"";
  request.key = kKey;
  return request;
}

TEST(Record, AnswerHasOpenAisShape) {
  const Completion completion{"Hé\n", "stop", 5, 2, std::nullopt};
  const std::string line = answer_line(request(), completion, "opt-1.3b", kConfig, 1700000000);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_TRUE(line.starts_with(kRecordStart));
  EXPECT_EQ(json::parse(line), json::parse(R"({"id": "batch_req_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "custom_id": "story \"1\"", "error": null,
    "response": {"status_code": 200, "request_id": "req_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
      "body": {"id": "cmpl-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "object": "text_completion", "created": 1700000000,
        "model": "opt-1.3b",
        "choices": [{"index": 0, "text": "Hé\n", "logprobs": null, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}},
    "sluice": {"key": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "config": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"}})"));
}

TEST(Record, LogprobsHaveOpenAisShape) {
  Completion completion{"é!", "length", 1, 2, std::vector<TokenText>{}};
  completion.logprobs->push_back(
      {{"é", "é", -0.1F}, {{"é", "é", -0.1F}, {"e", "e", -2.5F}, {"e", "e", -3.0F}}});
  completion.logprobs->push_back({{"!", "", -std::numeric_limits<float>::infinity()}, {}});
  const json record = json::parse(answer_line(request(), completion, "m", kConfig, 0));
  EXPECT_EQ(record["response"]["body"]["choices"][0]["logprobs"],
            json::parse(R"({"tokens": ["é", "!"],
    "token_logprobs": [-0.1, -9999.0], "top_logprobs": [{"é": -0.1, "e": -2.5}, null], "text_offset": [0, 1]})"));
}

// Two tokens of one character have the same text: their bytes tell them apart.
TEST(Record, TokensOfAChatHaveTheirBytes) {
  Request chat = request();
  chat.is_chat = true;
  Completion completion{"é", "length", 1, 2, std::vector<TokenText>{}};
  completion.logprobs->push_back(
      {{"\xEF\xBF\xBD", "\xC3", -0.5F}, {{"\xEF\xBF\xBD", "\xC3", -0.5F}}});
  completion.logprobs->push_back({{"17", "", -0.25F}, {}});
  const json record = json::parse(answer_line(chat, completion, "m", kConfig, 0));
  EXPECT_EQ(record["response"]["body"]["choices"][0]["logprobs"]["content"],
            json::parse(R"([{"token": "\ufffd", "logprob": -0.5, "bytes": [195], "top_logprobs":
    [{"token": "\ufffd", "logprob": -0.5, "bytes": [195]}]},
    {"token": "17", "logprob": -0.25, "bytes": null, "top_logprobs": []}])"));
}

TEST(Record, AMessageIsWrittenWhole) {
  Request chat = request();
  chat.is_chat = true;
  Completion completion{"<call>", "tool_calls", 1, 2, std::nullopt};
  const auto choice = [&] {
    return json::parse(
        answer_line(chat, completion, "m", kConfig, 0))["response"]["body"]["choices"][0];
  };
  EXPECT_EQ(choice()["message"], json::parse(R"({"role": "assistant", "content": "<call>"})"));
  completion.message = R"({"role": "assistant", "content": null, "tool_calls": [1]})";
  EXPECT_EQ(choice()["message"], json::parse(completion.message));
  EXPECT_EQ(choice()["finish_reason"], "tool_calls");
}

TEST(Record, TextThatIsNotUtf8IsStillWritten) {
  const Completion completion{"a\xC3", "length", 1, 1, std::nullopt};
  const json record = json::parse(answer_line(request(), completion, "m", kConfig, 0));
  EXPECT_EQ(record["response"]["body"]["choices"][0]["text"], "a\xEF\xBF\xBD");
}

TEST(Record, ErrorsHaveCodeMessageAndLine) {
  const RequestError error{"", 7, "invalid_json", "it breaks", kKey};
  EXPECT_EQ(json::parse(error_line(error, kConfig)),
            json::parse(R"({"id": "batch_req_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "custom_id": null, "response": null, "error": {"code": "invalid_json", "message": "it breaks", "line": 7},
    "sluice": {"key": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "config": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"}})"));
}

TEST(Record, ReadsBackWhatResumingNeeds) {
  const auto answer =
      read_record(answer_line(request(), {"t", "stop", 1, 1, std::nullopt}, "m", kConfig, 0));
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->is_answer);
  EXPECT_EQ(answer->custom_id, "story \"1\"");
  EXPECT_EQ(answer->key.hex(), kKey);
  EXPECT_EQ(answer->config, kConfig);
  const auto error = read_record(error_line({"", 7, "c", "m", kKey}, kConfig));
  ASSERT_TRUE(error);
  EXPECT_FALSE(error->is_answer);
  EXPECT_EQ(error->custom_id, "");
}

TEST(Record, OtherJsonIsNoRecord) {
  const std::string sluice = R"("sluice":{"key":")" + kKey + R"(","config":"c"})";
  const std::vector<std::string> lines = {
      "",
      "{}",
      "null",
      R"({"prompt": "x"})",
      R"({"id":"batch_req_1","custom_id":"a","response":{},"error":null})",
      R"({"id":"batch_req_1","custom_id":"a","response":null,"error":null,)" + sluice + "}",
      R"({"id":"batch_req_1","custom_id":"a","response":{},"error":{},)" + sluice + "}",
      R"({"id":"batch_req_1","custom_id":7,"response":{},"error":null,)" + sluice + "}",
      R"({"id":"batch_req_1","custom_id":null,"response":{},"error":null,)" + sluice + "}",
      R"({"id":"batch_req_1","custom_id":"a","response":{},"error":null,"sluice":{"key":"zz","config":"c"}})",
      R"({"id":"batch_req_1","custom_id":"a","response":{},"error":null,"sluice":[1]})",
      R"({"custom_id":"a","id":"batch_req_1","response":{},"error":null,)" + sluice + "}"};
  for (const std::string& line : lines) EXPECT_FALSE(read_record(line)) << line;
  EXPECT_TRUE(read_record(R"({"id":"batch_req_1","custom_id":"a","response":{},"error":null,)" +
                          sluice + "}"));
}

}  // namespace
}  // namespace sluice::jobs
