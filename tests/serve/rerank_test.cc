// Documents reranked by what a model says of them.
#include <gtest/gtest.h>
#include <httplib.h>

#include <cmath>
#include <set>

#include "src/serve/rerank_request.h"
#include "tests/serve/running_server.h"

namespace sluice::serve {
namespace {

using nlohmann::json;

ApiError rerank_refusal(const std::string& body) {
  try {
    parse_rerank(body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400) << body;
    return error;
  }
  ADD_FAILURE() << "taken: " << body;
  return {};
}

TEST(RerankRequest, ReadsTextsAndObjects) {
  const RerankRequest read = parse_rerank(
      R"({"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": true,
          "instruction": "find", "user": null})");
  EXPECT_EQ(read.documents, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(read.top_n, 1u);
  EXPECT_TRUE(read.returns_documents);
  const auto apart = rerank_chat(read, 1, SystemMessage::kApart).messages;
  ASSERT_EQ(apart.size(), 2u);
  EXPECT_EQ(apart[1]["content"], "<Instruct>: find\n<Query>: q\n<Document>: b");
  const auto together = rerank_chat(read, 0, SystemMessage::kInQuestion).messages;
  ASSERT_EQ(together.size(), 1u);
  EXPECT_TRUE(together[0]["content"].get<std::string>().ends_with("<Document>: a"));
}

TEST(RerankRequest, RefusesByName) {
  std::string many = R"({"query": "q", "documents": ["a")";
  for (int i = 0; i < 1024; ++i) many += ", \"a\"";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"documents": ["a"]})", "query"},
      {R"({"query": "", "documents": ["a"]})", "query"},
      {R"({"query": 7, "documents": ["a"]})", "query"},
      {R"({"query": "q"})", "documents"},
      {R"({"query": "q", "documents": []})", "documents"},
      {R"({"query": "q", "documents": "a"})", "documents"},
      {R"({"query": "q", "documents": [3]})", "documents"},
      {R"({"query": "q", "documents": [{"image": "a"}]})", "documents"},
      {R"({"query": "q", "documents": [{}]})", "documents"},
      {R"({"query": "q", "documents": ["a"], "top_n": 0})", "top_n"},
      {R"({"query": "q", "documents": ["a"], "top_n": 1.5})", "top_n"},
      {R"({"query": "q", "documents": ["a"], "max_chunks_per_doc": 3})", "max_chunks_per_doc"},
      {many + "]}", "documents"}};
  for (const auto& [body, field] : cases)
    EXPECT_EQ(rerank_refusal(body).param, field) << body.substr(0, 100);
}

// The score, from the likelihoods of the two words behind the prompt as completions tell them.
TEST(HttpRerank, ScoresAreTheLikelihoodOfYesAgainstNo) {
  const RunningServer server({}, 1000, 3);
  const std::vector<std::string> documents{"Lily likes a dog.", "Once upon a time", "x",
                                           "Tom is sad."};
  const json answer =
      server.post("/v1/rerank",
                  {{"query", "Who is sad?"}, {"documents", documents}, {"return_documents", true}});
  ASSERT_EQ(answer["results"].size(), 4u);
  EXPECT_EQ(answer["model"], "stories");
  RerankRequest asked;
  asked = parse_rerank(json{{"query", "Who is sad?"}, {"documents", documents}}.dump());
  const auto first_token = [&](const char* word) {
    return server.post("/tokenize", {{"prompt", word}, {"add_special_tokens", false}})["tokens"][0]
        .get<int>();
  };
  const int yes = first_token("yes"), no = first_token("no");
  double last = 1;
  int64_t tokens = 0;
  std::set<size_t> seen;
  for (const json& result : answer["results"]) {
    const auto index = result["index"].get<size_t>();
    EXPECT_TRUE(seen.insert(index).second);
    EXPECT_EQ(result["document"]["text"], documents[index]);
    const double score = result["relevance_score"];
    EXPECT_LE(score, last);
    last = score;
    // The test's template takes no system message and joins the texts.
    const std::string text =
        rerank_chat(asked, index, SystemMessage::kInQuestion).messages[0]["content"];
    json ids =
        server.post("/tokenize", {{"prompt", text}, {"add_special_tokens", false}})["tokens"];
    tokens += static_cast<int64_t>(ids.size());
    const auto likelihood = [&](int token) {
      json with = ids;
      with.push_back(token);
      const json scored =
          server.post("/v1/completions",
                      {{"prompt", with}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}});
      return scored["choices"][0]["logprobs"]["token_logprobs"].back().get<double>();
    };
    EXPECT_NEAR(score, 1 / (1 + std::exp(likelihood(no) - likelihood(yes))), 1e-4) << index;
  }
  EXPECT_EQ(answer["usage"]["total_tokens"], tokens);
  const json best =
      server.post("/rerank", {{"query", "Who is sad?"}, {"documents", documents}, {"top_n", 2}});
  ASSERT_EQ(best["results"].size(), 2u);
  EXPECT_EQ(best["results"][0]["index"], answer["results"][0]["index"]);
  EXPECT_FALSE(best["results"][0].contains("document"));
}

TEST(HttpRerank, RefusesWhatDoesNotFit) {
  const RunningServer server({}, 8, 2);
  // More than may wait, and as many as Cohere advises.
  const json many = server.post(
      "/v1/rerank", {{"query", "q"}, {"documents", std::vector<std::string>(1000, "a")}});
  EXPECT_EQ(many["results"].size(), 1000u);
  const json more = server.post(
      "/v1/rerank", {{"query", "q"}, {"documents", std::vector<std::string>(1025, "a")}}, 400);
  EXPECT_EQ(more["error"]["param"], "documents");
  std::string longest;
  for (int i = 0; i < 3000; ++i) longest += "a dog ";
  const json one = server.post("/v2/rerank", {{"query", "q"}, {"documents", {"a", longest}}}, 400);
  EXPECT_NE(one["error"]["message"].get<std::string>().find("context"), std::string::npos);
  server.post("/v1/rerank", {{"query", "q"}, {"documents", {"a"}}, {"model", "other"}}, 404);
}

}  // namespace
}  // namespace sluice::serve
