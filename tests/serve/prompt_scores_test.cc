// prompt_logprobs over a real connection.
#include <gtest/gtest.h>
#include <httplib.h>

#include "tests/serve/running_server.h"

namespace sluice::serve {
namespace {

using nlohmann::json;

TEST(HttpServer, ScoresPromptsAsTheirEchoIsScored) {
  const RunningServer server;
  const json asked = {
      {"prompt", "Once upon a time there was"}, {"max_tokens", 3}, {"temperature", 0}};
  const auto complete = [&](const json& more) {
    json body = asked;
    body.update(more);
    return server.post("/v1/completions", body);
  };
  const json plain = complete(json::object());
  const json echoed = complete({{"echo", true}, {"logprobs", 3}})["choices"][0]["logprobs"];
  const json ids = server.post("/tokenize", {{"prompt", asked["prompt"]}})["tokens"];
  for (const json& more :
       {json{{"prompt_logprobs", 3}}, json{{"prompt_logprobs", 3}, {"n", 2}, {"logprobs", 1}},
        json{{"prompt_logprobs", 0}, {"logprobs", 2}}}) {
    SCOPED_TRACE(more.dump());
    const json answer = complete(more);
    const json& choice = answer["choices"][0];
    EXPECT_EQ(choice["text"], plain["choices"][0]["text"]);
    EXPECT_EQ(choice["logprobs"].is_null(), !more.contains("logprobs"));
    if (more.contains("logprobs")) {
      EXPECT_EQ(choice["logprobs"]["tokens"].size(), 3u) << "the prompt is not told with them";
      EXPECT_EQ(choice["logprobs"]["top_logprobs"][0].size(), more["logprobs"]);
    }
    const json& scores = answer["choices"].back()["prompt_logprobs"];
    ASSERT_EQ(scores.size(), ids.size());
    EXPECT_TRUE(scores[0].is_null());
    for (size_t i = 1; i < ids.size(); ++i) {
      const json& entry = scores[i].at(std::to_string(ids[i].get<int>()));
      EXPECT_NEAR(entry["logprob"].get<double>(), echoed["token_logprobs"][i].get<double>(), 1e-6);
      EXPECT_EQ(entry["decoded_token"], echoed["tokens"][i]);
      const size_t most = more["prompt_logprobs"];
      EXPECT_GE(scores[i].size(), std::max<size_t>(most, 1));
      EXPECT_LE(scores[i].size(), most + 1);
      for (const auto& [id, other] : scores[i].items())
        if (other["rank"] == 1) EXPECT_GE(other["logprob"], entry["logprob"]);
    }
  }
}

TEST(HttpServer, ScoresChats) {
  const RunningServer server;
  const json body = {{"messages", {{{"role", "user"}, {"content", "Once upon a time"}}}},
                     {"prompt_logprobs", 1},
                     {"max_tokens", 3},
                     {"temperature", 0}};
  const json answer = server.post("/v1/chat/completions", body);
  EXPECT_EQ(answer["prompt_logprobs"].size(), answer["usage"]["prompt_tokens"]);
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(server.post("/v1/chat/completions", {{"messages", body["messages"]}, {"max_tokens", 3}})
                .count("prompt_logprobs"),
            0u);
}

}  // namespace
}  // namespace sluice::serve
