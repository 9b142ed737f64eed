// Embeddings over a real connection, and what a folder says of how they are made.
#include <gtest/gtest.h>
#include <httplib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "src/base/error.h"
#include "src/base/files.h"
#include "src/serve/embedding_request.h"
#include "src/serve/pooling.h"
#include "tests/serve/running_server.h"
#include "tests/temporary_folder.h"

namespace sluice::serve {
namespace {

using nlohmann::json;

ApiError embedding_refusal(const std::string& body, EmbeddingRoute route) {
  try {
    parse_embedding(body, route, 100);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400) << body;
    return error;
  }
  ADD_FAILURE() << "taken: " << body;
  return {};
}

double length_of(const json& embedding) {
  double squares = 0;
  for (const double value : embedding) squares += value * value;
  return std::sqrt(squares);
}

double cosine(const json& a, const json& b) {
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i) dot += a[i].get<double>() * b[i].get<double>();
  return dot / length_of(a) / length_of(b);
}

TEST(EmbeddingRequest, RefusesByName) {
  std::string many = R"({"input": ["a")";
  for (int i = 0; i < 2048; ++i) many += ", \"a\"";
  using Route = EmbeddingRoute;
  const std::tuple<std::string, const char*, Route> cases[] = {
      {"{}", "input", Route::kOpenAi},
      {R"({"input": ""})", "input", Route::kOpenAi},
      {R"({"input": []})", "input", Route::kOpenAi},
      {R"({"input": [[]]})", "input", Route::kOpenAi},
      {R"({"input": ["a", ""]})", "input", Route::kOpenAi},
      {R"({"input": ["a", 7]})", "input", Route::kOpenAi},
      {R"({"input": 7})", "input", Route::kOpenAi},
      {R"({"input": [7, "a"]})", "input", Route::kOpenAi},
      {R"({"input": [100]})", "input", Route::kOpenAi},
      {R"({"input": [[1, -1]]})", "input", Route::kOpenAi},
      {R"({"input": [1.5]})", "input", Route::kOpenAi},
      {many + "]}", "input", Route::kOpenAi},
      {R"({"input": "a", "encoding_format": "int8"})", "encoding_format", Route::kOpenAi},
      {R"({"input": "a", "dimensions": 0})", "dimensions", Route::kOpenAi},
      {R"({"input": "a", "truncate_prompt_tokens": 0})", "truncate_prompt_tokens", Route::kOpenAi},
      {R"({"input": "a", "pooling": "max"})", "pooling", Route::kOpenAi},
      {R"({"input": "a", "stream": true})", "stream", Route::kOpenAi},
      {R"({"input": [[1]]})", "input", Route::kOllama},
      {R"({"input": "a", "options": 3})", "options", Route::kOllama},
      {R"({"prompt": "a", "truncate": true})", "truncate", Route::kOllamaOne},
      {R"({})", "content", Route::kLlama},
      {R"({"content": "a", "embd_normalize": 0})", "embd_normalize", Route::kLlama}};
  for (const auto& [body, field, route] : cases)
    EXPECT_EQ(embedding_refusal(body, route).param, field) << body.substr(0, 100);
  EXPECT_EQ(parse_embedding(R"({"input": [3, 4]})", Route::kOpenAi, 100).inputs.size(), 1u);
  EXPECT_EQ(parse_embedding(R"({"input": [[3], [4, 5]]})", Route::kOpenAi, 100).inputs.size(), 2u);
  EXPECT_TRUE(parse_embedding(R"({"input": []})", Route::kOllama, 100).inputs.empty());
}

TEST(EmbeddingRequest, WritesBase64) {
  EXPECT_EQ(base64_of(""), "");
  EXPECT_EQ(base64_of("f"), "Zg==");
  EXPECT_EQ(base64_of("fo"), "Zm8=");
  EXPECT_EQ(base64_of("foo"), "Zm9v");
  EXPECT_EQ(base64_of("\xff\xfe\xfd"), "//79");
}

TEST(HttpEmbeddings, AreRowsOfEachInputAtItsPlace) {
  const RunningServer server({}, 1000, 3);
  const std::vector<std::string> texts{"Lily likes a dog.", "x", "Once upon a time there was",
                                       "Lily likes a dog.", "Tom is sad. He has a red ball."};
  for (const char* pooling : {"last", "mean", "cls"}) {
    SCOPED_TRACE(pooling);
    const json all = server.post("/v1/embeddings", {{"input", texts}, {"pooling", pooling}});
    EXPECT_EQ(all["object"], "list");
    EXPECT_EQ(all["model"], "stories");
    ASSERT_EQ(all["data"].size(), texts.size());
    size_t tokens = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      const json& one = all["data"][i];
      EXPECT_EQ(one["index"], i);
      ASSERT_EQ(one["embedding"].size(), 64u);
      EXPECT_NEAR(length_of(one["embedding"]), 1, 1e-5);
      const json ids = server.post("/tokenize", {{"prompt", texts[i]}})["tokens"];
      tokens += ids.size();
      const json by_ids = server.post("/v1/embeddings", {{"input", ids}, {"pooling", pooling}});
      EXPECT_NEAR(cosine(by_ids["data"][0]["embedding"], one["embedding"]), 1, 1e-6);
    }
    EXPECT_EQ(all["usage"]["prompt_tokens"], tokens);
    EXPECT_NEAR(cosine(all["data"][0]["embedding"], all["data"][3]["embedding"]), 1, 1e-6);
    const double others = cosine(all["data"][0]["embedding"], all["data"][2]["embedding"]);
    if (std::string_view(pooling) == "cls")
      EXPECT_NEAR(others, 1, 1e-6) << "all texts begin with the same token";
    else
      EXPECT_LT(others, 0.999);
  }
}

// The mean of rows is what the rows of all beginnings come to.
TEST(HttpEmbeddings, MeansAreOfAllRowsAlsoBehindAKnownBeginning) {
  const RunningServer server;
  const json ids = server.post(
      "/tokenize", {{"prompt", "Once upon a time there was a little girl named Lily."}})["tokens"];
  json beginnings = json::array();
  for (size_t count = 1; count <= ids.size(); ++count)
    beginnings.push_back(
        json(std::vector<json>(ids.begin(), ids.begin() + static_cast<int>(count))));
  const json rows =
      server.post("/v1/embeddings", {{"input", beginnings}, {"normalize", false}})["data"];
  std::vector<double> mean(64);
  for (const json& row : rows)
    for (size_t i = 0; i < mean.size(); ++i)
      mean[i] += row["embedding"][i].get<double>() / static_cast<double>(rows.size());
  for (int again = 0; again < 2; ++again) {
    const json asked =
        server.post("/v1/embeddings", {{"input", ids}, {"pooling", "mean"}, {"normalize", false}});
    const json& got = asked["data"][0]["embedding"];
    for (size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(got[i].get<double>(), mean[i], 1e-4);
  }
}

TEST(HttpEmbeddings, Base64AndDimensionsSayTheSame) {
  const RunningServer server;
  const json body = {{"input", "Lily likes a dog."}, {"encoding_format", "float"}};
  server.post("/v1/embeddings", body);  // so that all find as much of it in the prefix cache
  const json plain = server.post("/v1/embeddings", body)["data"][0]["embedding"];
  json coded = body;
  coded["encoding_format"] = "base64";
  std::string bytes(64 * 4, '\0');
  for (size_t i = 0; i < 64; ++i) {
    const float value = plain[i].get<float>();
    std::memcpy(&bytes[i * 4], &value, 4);
  }
  EXPECT_EQ(server.post("/v1/embeddings", coded)["data"][0]["embedding"], base64_of(bytes));
  json shorter = body;
  shorter["dimensions"] = 7;
  const json few = server.post("/v1/embeddings", shorter)["data"][0]["embedding"];
  ASSERT_EQ(few.size(), 7u);
  EXPECT_NEAR(length_of(few), 1, 1e-5);
  EXPECT_NEAR(few[2].get<double>() / few[5].get<double>(),
              plain[2].get<double>() / plain[5].get<double>(), 1e-3);
  shorter["dimensions"] = 65;
  EXPECT_EQ(server.post("/v1/embeddings", shorter, 400)["error"]["param"], "dimensions");
}

TEST(HttpEmbeddings, OfLongInputsAreRefusedOrCut) {
  const RunningServer server({}, 8, 2);  // a context of 256 tokens, 64 of them a pass
  const std::vector<int> longest(256, 42), longer(257, 42);
  server.post("/v1/embeddings", {{"input", longest}, {"pooling", "mean"}});
  const json refused = server.post("/v1/embeddings", {{"input", {longest, longer}}}, 400);
  EXPECT_EQ(refused["error"]["code"], "context_length_exceeded");
  EXPECT_NE(refused["error"]["message"].get<std::string>().find("input[1]"), std::string::npos);
  for (const int kept : {-1, 256, 3}) {
    const json cut =
        server.post("/v1/embeddings", {{"input", longer}, {"truncate_prompt_tokens", kept}});
    EXPECT_EQ(cut["usage"]["prompt_tokens"], kept < 0 ? 256 : kept);
  }
  server.post("/v1/embeddings", {{"input", longer}, {"truncate_prompt_tokens", 300}}, 400);
  std::string text;
  for (int i = 0; i < 500; ++i) text += "a dog ";
  const json ollama = server.post("/api/embed", {{"model", "stories"}, {"input", text}});
  EXPECT_EQ(ollama["prompt_eval_count"], 256);
  const json error =
      server.post("/api/embed", {{"model", "stories"}, {"input", text}, {"truncate", false}}, 400);
  EXPECT_TRUE(error["error"].is_string());
  // As many as OpenAI takes, whatever may wait.
  const json many = server.post("/v1/embeddings", {{"input", std::vector<std::string>(2048, "a")}});
  EXPECT_EQ(many["data"].size(), 2048u);
  EXPECT_EQ(many["data"][2047]["embedding"], many["data"][0]["embedding"]);
  server.post("/v1/embeddings", {{"input", std::vector<std::string>(2049, "a")}}, 400);
  server.post("/v1/embeddings", {{"input", "a"}, {"model", "other"}}, 404);
}

TEST(HttpEmbeddings, InOtherWords) {
  const RunningServer server;
  const std::string text = "Tom is sad.";
  const json plain = server.post("/v1/embeddings", {{"input", text}})["data"][0]["embedding"];
  const json embed =
      server.post("/api/embed", {{"model", "stories:latest"}, {"input", {text, "x"}}});
  ASSERT_EQ(embed["embeddings"].size(), 2u);
  EXPECT_NEAR(cosine(embed["embeddings"][0], plain), 1, 1e-6);
  EXPECT_GT(embed["total_duration"], 0);
  const json one = server.post("/api/embeddings", {{"model", "stories"}, {"prompt", text}});
  EXPECT_NEAR(cosine(one["embedding"], plain), 1, 1e-6);
  EXPECT_GT(std::abs(length_of(one["embedding"]) - 1), 1e-3) << "as the rows are";
  EXPECT_EQ(server.post("/api/embed", {{"model", "stories"}})["embeddings"], json::array());
  const json llama = server.post("/embedding", {{"content", text}});
  EXPECT_EQ(llama[0]["index"], 0);
  EXPECT_NEAR(cosine(llama[0]["embedding"][0], plain), 1, 1e-6);
}

// What others generate is what they would generate alone; who leaves is given up.
TEST(HttpEmbeddings, BesideOthers) {
  RunningServer server({}, 1000, 4);
  const json story = {{"prompt", "Once upon a time"}, {"max_tokens", 60}, {"temperature", 0}};
  const json alone = server.post("/v1/completions", story)["choices"][0]["text"];
  const json body = {{"input", {"Lily likes a dog.", "Tom is sad.", "x"}}, {"pooling", "mean"}};
  const json expected = server.post("/v1/embeddings", body)["data"];
  std::vector<std::jthread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back(
        [&] { EXPECT_EQ(server.post("/v1/completions", story)["choices"][0]["text"], alone); });
    callers.emplace_back([&] {
      const json got = server.post("/v1/embeddings", body)["data"];
      for (size_t row = 0; row < got.size(); ++row)
        EXPECT_NEAR(cosine(got[row]["embedding"], expected[row]["embedding"]), 1, 1e-5);
    });
    callers.emplace_back([&] {
      auto client = server.client();
      client.set_read_timeout(0, 2000);  // 2 ms, then it hangs up
      client.Post(
          "/v1/embeddings",
          json{{"input", std::vector<std::string>(50, "Once upon a time there was a dog.")}}.dump(),
          "application/json");
    });
  }
  callers.clear();
  server.post("/v1/embeddings", body);
}

class FormFolder {
 public:
  FormFolder() { std::filesystem::create_directories(folder_.file("1_Pooling")); }
  void write(const char* name, const std::string& text) const {
    write_file(folder_.file(name), text);
  }
  EmbeddingForm read() const { return read_embedding_form(folder_.path(), 64); }
  std::string why() const {
    try {
      read();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile);
      return error.text();
    }
    return "it is taken";
  }

 private:
  TemporaryFolder folder_;
};

std::string modules_text(const std::vector<std::string>& names) {
  json out = json::array();
  for (const std::string& name : names)
    out.push_back({{"idx", out.size()},
                   {"path", name == "Pooling" ? "1_Pooling" : ""},
                   {"type", "sentence_transformers.models." + name}});
  return out.dump();
}

TEST(EmbeddingForm, IsWhatTheFolderSays) {
  const FormFolder folder;
  EXPECT_EQ(folder.read().pooling, Pooling::kLast);
  EXPECT_TRUE(folder.read().is_normalised);
  folder.write("modules.json", modules_text({"Transformer", "Pooling", "Normalize"}));
  const std::pair<const char*, Pooling> modes[] = {{"lasttoken", Pooling::kLast},
                                                   {"mean_tokens", Pooling::kMean},
                                                   {"cls_token", Pooling::kFirst}};
  for (const auto& [mode, pooling] : modes) {
    json config = {{"word_embedding_dimension", 64}, {"include_prompt", true}};
    for (const char* name : {"lasttoken", "mean_tokens", "cls_token", "max_tokens"})
      config[std::string("pooling_mode_") + name] = std::string_view(name) == mode;
    folder.write("1_Pooling/config.json", config.dump());
    EXPECT_EQ(folder.read().pooling, pooling);
  }
  folder.write("modules.json", modules_text({"Transformer", "Pooling"}));
  EXPECT_FALSE(folder.read().is_normalised);
}

TEST(EmbeddingForm, RefusesByNameWhatItDoesNotKnow) {
  const FormFolder folder;
  const auto expect_named = [&](const char* word) {
    EXPECT_NE(folder.why().find(word), std::string::npos) << folder.why();
  };
  folder.write("modules.json", "[");
  expect_named("no JSON");
  folder.write("modules.json", R"([{"type": "sentence_transformers.models.Transformer"}])");
  expect_named("no pooling");
  folder.write("modules.json", R"([{"type": "a.Pooling", "path": "../x"}])");
  expect_named("no path");
  folder.write("modules.json", modules_text({"Transformer", "Pooling", "Dense"}));
  folder.write("1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true})");
  expect_named("Dense");
  folder.write("modules.json", modules_text({"Transformer", "Pooling"}));
  const std::pair<const char*, const char*> configs[] = {
      {R"({"pooling_mode_max_tokens": true})", "max"},
      {R"({"pooling_mode_weightedmean_tokens": true})", "weightedmean"},
      {R"({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true})", "several"},
      {R"({"pooling_mode_mean_tokens": false})", "names no way"},
      {R"({"pooling_mode_mean_tokens": true, "heads": 3})", "heads"},
      {R"({"pooling_mode_mean_tokens": true, "word_embedding_dimension": 65})", "65"},
      {"[]", "no object"}};
  for (const auto& [config, word] : configs) {
    folder.write("1_Pooling/config.json", config);
    expect_named(word);
  }
  folder.write("1_Pooling/config.json", R"({"pooling_mode": "mean"})");
  EXPECT_EQ(folder.read().pooling, Pooling::kMean);
  folder.write("config_sentence_transformers.json", R"({"default_prompt_name": "query"})");
  expect_named("default_prompt_name");
}

}  // namespace
}  // namespace sluice::serve
