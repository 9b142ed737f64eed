// Lines of batches that routes answer: what callers would be told, line by line.
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "tests/serve/running_server.h"
#include "tests/temporary_folder.h"

namespace sluice::serve {
namespace {

using nlohmann::json;

std::string line(const std::string& id, const std::string& url, const json& body) {
  return json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}.dump() + "\n";
}

std::map<std::string, json> records_of(const RunningServer& server, const json& file_id) {
  std::map<std::string, json> out;
  if (file_id.is_null()) return out;
  std::istringstream lines(
      server.client().Get("/v1/files/" + file_id.get<std::string>() + "/content")->body);
  for (std::string text; std::getline(lines, text);) {
    json record = json::parse(text);
    const std::string id = record["custom_id"];
    EXPECT_TRUE(out.emplace(id, std::move(record)).second) << "answered twice: " << id;
  }
  return out;
}

// The batch when it has ended.
json run(const RunningServer& server, const std::string& endpoint, const std::string& lines) {
  const httplib::MultipartFormDataItems form = {{"purpose", "batch", "", ""},
                                                {"file", lines, "in.jsonl", "application/jsonl"}};
  const json file = json::parse(server.client().Post("/v1/files", form)->body);
  const json made = server.post(
      "/v1/batches",
      {{"input_file_id", file["id"]}, {"endpoint", endpoint}, {"completion_window", "24h"}});
  json batch = made;
  for (int i = 0; i < 3000 && batch["status"] != "completed"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    batch = json::parse(server.client().Get("/v1/batches/" + made["id"].get<std::string>())->body);
  }
  EXPECT_EQ(batch["status"], "completed") << batch;
  return batch;
}

TEST(RoutedAnswers, HaveTheEmbeddingsThatCallersGet) {
  const TemporaryFolder folder;
  const RunningServer server({}, 1000, 4, folder.path());
  std::string lines;
  for (int i = 0; i < 6; ++i)
    lines += line("e" + std::to_string(i), "/v1/embeddings",
                  {{"input", {"Lily", "the dog " + std::to_string(i)}}, {"pooling", "mean"}});
  lines += line("bad", "/v1/embeddings", {{"input", 7}});
  lines += line("other", "/v1/embeddings", {{"input", "a"}, {"model", "nobody"}});
  lines += line("url", "/v1/responses", {{"input", "a"}});
  const json batch = run(server, "/v1/embeddings", lines);
  EXPECT_EQ(batch["request_counts"], (json{{"total", 9}, {"completed", 6}, {"failed", 3}}));
  const auto answers = records_of(server, batch["output_file_id"]);
  ASSERT_EQ(answers.size(), 6u);
  const json alone =
      server.post("/v1/embeddings", {{"input", {"Lily", "the dog 3"}}, {"pooling", "mean"}});
  const json& third = answers.at("e3")["response"];
  EXPECT_EQ(third["status_code"], 200);
  // Sums differ in their last bits by what runs beside them.
  for (size_t i = 0; i < 2; ++i)
    for (size_t k = 0; k < alone["data"][i]["embedding"].size(); ++k)
      EXPECT_NEAR(third["body"]["data"][i]["embedding"][k].get<float>(),
                  alone["data"][i]["embedding"][k].get<float>(), 1e-5);
  EXPECT_EQ(third["body"]["usage"], alone["usage"]);
  const auto errors = records_of(server, batch["error_file_id"]);
  EXPECT_EQ(errors.at("other")["error"]["code"], "invalid_request");
  EXPECT_NE(errors.at("bad")["error"]["message"].get<std::string>().find("input"),
            std::string::npos);
  EXPECT_NE(errors.at("url")["error"]["message"].get<std::string>().find("the batch is for"),
            std::string::npos);
}

TEST(RoutedAnswers, HaveResponsesAndSeveralChoices) {
  const TemporaryFolder folder;
  const RunningServer server({}, 1000, 4, folder.path());
  const json responses =
      run(server, "/v1/responses",
          line("r", "/v1/responses",
               {{"input", "Once upon a time"}, {"max_output_tokens", 16}, {"temperature", 0}}) +
              line("s", "/v1/responses", {{"input", "x"}, {"stream", true}}));
  const json answer = records_of(server, responses["output_file_id"]).at("r")["response"]["body"];
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["usage"]["output_tokens"], 16);
  EXPECT_NE(records_of(server, responses["error_file_id"])
                .at("s")["error"]["message"]
                .get<std::string>()
                .find("stream"),
            std::string::npos);
  // Beside a line of one answer, which is as it was.
  const json body = {{"prompt", "Once upon a time"}, {"max_tokens", 5}, {"temperature", 0}};
  json several = body;
  several["n"] = 3;
  several["seed"] = 7;
  several["temperature"] = 1;
  const json many =
      run(server, "/v1/completions",
          line("one", "/v1/completions", body) + line("many", "/v1/completions", several));
  const auto answers = records_of(server, many["output_file_id"]);
  EXPECT_EQ(answers.at("one")["response"]["body"]["choices"].size(), 1u);
  const json& choices = answers.at("many")["response"]["body"]["choices"];
  ASSERT_EQ(choices.size(), 3u);
  const json alone = server.post("/v1/completions", several);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(choices[i]["text"], alone["choices"][i]["text"]);
}

}  // namespace
}  // namespace sluice::serve
