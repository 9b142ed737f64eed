// Several models in one budget: who is loaded, who goes, who waits, and what callers hear.
#include "src/serve/model_pool.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/serve/model_wish.h"
#include "src/serve/pooled_models.h"
#include "tests/serve/served_model.h"
#include "tests/temporary_folder.h"

namespace sluice::serve {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Serves the small trained model under several names; each takes `bytes` of a budget of 100.
class SeveralServed {
 public:
  struct Wishes {
    std::vector<int64_t> bytes = {60, 60};
    KeepTime keep = std::chrono::minutes(5);
    milliseconds turn{0};
    int64_t most_waiting = 100;
    std::string batch_folder;  // empty: no files are kept
  };
  explicit SeveralServed(Wishes wishes) : wishes_(std::move(wishes)) {
    std::vector<PooledModel> models;
    for (size_t i = 0; i < wishes_.bytes.size(); ++i)
      models.push_back({std::string(1, static_cast<char>('a' + i)), files_, "", 256});
    PoolOptions options;
    options.budget.host = 100;
    options.open = [this](const ModelOpening& opening) { return open(opening); };
    options.front = [this](size_t index) { return front(index); };
    options.keep = wishes_.keep;
    options.turn = wishes_.turn;
    options.most_waiting = wishes_.most_waiting;
    pool_ = std::make_unique<ModelPool>(std::move(models), options);
    served_ = std::make_unique<PooledModels>(*pool_);
    HttpOptions http;
    http.port = 0;
    if (!wishes_.batch_folder.empty()) {
      BatchOptions batching;
      batching.folder = wishes_.batch_folder;
      batching.together = 4;
      batching.model_of = [this](const std::string& name) {
        return pool_->models()[pool_->find(name)].name;
      };
      batches_ = std::make_unique<Batches>(std::move(batching));
    }
    server_ = std::make_unique<HttpServer>(*served_, http, batches_.get());
    port_ = server_->bind();
    listener_ = std::jthread([this] { server_->serve(); });
  }
  ~SeveralServed() {
    may_load = true;
    if (batches_) batches_->stop();
    pool_->drain(seconds(10));
    server_->stop();
    listener_.join();
  }

  httplib::Client client() const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(60);
    return client;
  }
  json post(const std::string& path, const json& body, int status = 200) const {
    auto response = client().Post(path, body.dump(), "application/json");
    if (!response) {
      ADD_FAILURE() << path << ": " << httplib::to_string(response.error());
      return {};
    }
    EXPECT_EQ(response->status, status) << response->body;
    return json::parse(response->body);
  }
  json get(const std::string& path) const {
    auto response = client().Get(path);
    return response ? json::parse(response->body) : json();
  }
  std::string complete(const std::string& model, int tokens = 4) const {
    const json answer = post("/v1/completions", {{"model", model},
                                                 {"prompt", "Once upon a time"},
                                                 {"temperature", 0},
                                                 {"max_tokens", tokens}});
    EXPECT_EQ(answer.value("model", ""), model);
    return answer["choices"][0]["text"];
  }
  // "a", "ab": those in memory.
  std::string loaded() const {
    std::string out;
    const json list = get("/v1/models");
    for (const json& one : list["data"])
      if (one["status"]["value"] == "loaded") out += one["id"];
    return out;
  }
  void wait_until(const std::function<bool()>& holds) const {
    for (int i = 0; i < 3000 && !holds(); ++i) std::this_thread::sleep_for(milliseconds(10));
    EXPECT_TRUE(holds());
  }
  ModelPool& pool() { return *pool_; }
  Batches& batches() { return *batches_; }

  std::atomic<bool> may_load = true;
  std::atomic<bool> fails = false;
  std::atomic<int> loads = 0;

 private:
  ModelFront front(size_t index) const {
    ModelFront out;
    out.tokenizer = text::Tokenizer::load(testing::fixture_model("stories260k"));
    out.options.model_name = std::string(1, static_cast<char>('a' + index));
    out.options.takes_any_name = true;
    out.options.leaves = true;
    return out;
  }
  ModelParts open(const ModelOpening& opening) {
    ModelParts out{front(opening.index), nullptr};
    opening.make_room({wishes_.bytes[opening.index], 0});
    opening.progress({1, 4, 0.0});
    while (!may_load) {
      if (opening.stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped");
      std::this_thread::sleep_for(milliseconds(2));
    }
    if (fails) throw Error(ErrorKind::kResource, "no memory for it");
    ++loads;
    EngineOptions options;
    options.threads = 1;
    options.compute = ComputeChoice::kF32;
    options.context_tokens = 256;
    options.workload.sequences = 4;
    options.workload.max_prompt_tokens = options.workload.max_total_tokens = 256;
    options.workload.total_tokens = 1024;
    options.policy = policy::Policy{};
    options.policy->micro_batch_sequences = 4;
    out.engine = Engine::open(testing::fixture_model("stories260k"), options);
    return out;
  }

  const Wishes wishes_;
  const std::shared_ptr<const BoundModel> files_ =
      std::make_shared<const BoundModel>(BoundModel::open(testing::fixture_model("stories260k")));
  std::unique_ptr<ModelPool> pool_;
  std::unique_ptr<PooledModels> served_;
  std::unique_ptr<Batches> batches_;
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
  std::jthread listener_;
};

TEST(ModelPool, LoadsWhatIsAskedForAndMakesRoomByAge) {
  SeveralServed served({.bytes = {40, 40, 40, 100}});
  EXPECT_EQ(served.loaded(), "");
  const std::string text = served.complete("a");
  EXPECT_EQ(served.loaded(), "a");
  EXPECT_EQ(served.complete("b"), text);
  EXPECT_EQ(served.loaded(), "ab");
  served.complete("a");
  served.complete("c");  // b was asked longest ago
  EXPECT_EQ(served.loaded(), "ac");
  served.complete("d");  // takes all there is
  EXPECT_EQ(served.loaded(), "d");
  served.complete("d");
  EXPECT_EQ(served.loads, 4);
}

TEST(ModelPool, OfOneThatIsLargeEnoughOnlyThatGoes) {
  SeveralServed served({.bytes = {20, 70, 60}});
  served.complete("a");
  served.complete("b");
  served.complete("c");  // a was asked longest ago, and makes no room
  EXPECT_EQ(served.loaded(), "ac");
}

TEST(ModelPool, NamesAreThoseOfTheList) {
  const SeveralServed served({});
  const json refused = served.post("/v1/completions", {{"model", "nobody"}, {"prompt", "x"}}, 404);
  EXPECT_EQ(refused["error"]["code"], "model_not_found");
  EXPECT_NE(refused["error"]["message"].get<std::string>().find("\"a\", \"b\""), std::string::npos);
  EXPECT_EQ(served.post("/api/chat", {{"model", "nobody"}, {"messages", json::array()}}, 404)
                .at("error")
                .is_string(),
            true);
  EXPECT_EQ(served.post("/v1/completions", {{"prompt", 7}, {"model", 7}}, 400)["error"]["param"],
            "model");
  served.post("/v1/completions", json::array(), 400);
  EXPECT_EQ(served.loads, 0);
  EXPECT_EQ(served.get("/v1/models/b")["id"], "b");
  EXPECT_EQ(served.client().Get("/v1/models/c")->status, 404);
  EXPECT_EQ(served.get("/api/tags")["models"].size(), 2u);
  EXPECT_TRUE(served.get("/api/ps")["models"].empty());
  EXPECT_EQ(served.client().Post("/nowhere", R"({"model":"a"})", "application/json")->status, 404);
}

TEST(ModelPool, AnswersOllamaByItsNamesAndForgetsWhenAsked) {
  const SeveralServed served({});
  const json told = served.post("/api/generate", {{"model", "b:latest"},
                                                  {"prompt", "Once"},
                                                  {"raw", true},
                                                  {"stream", false},
                                                  {"options", {{"num_predict", 3}}},
                                                  {"keep_alive", "10m"}});
  EXPECT_EQ(told["eval_count"], 3);
  const json running = served.get("/api/ps")["models"];
  ASSERT_EQ(running.size(), 1u);
  EXPECT_EQ(running[0]["name"], "b:latest");
  EXPECT_EQ(running[0]["size"], 60);
  EXPECT_EQ(running[0]["size_vram"], 0);
  const json gone = served.post("/api/generate", {{"model", "b"}, {"keep_alive", 0}});
  EXPECT_EQ(gone["done_reason"], "unload");
  served.wait_until([&] { return served.loaded().empty(); });
  // Nothing is asked: the model is only loaded.
  EXPECT_EQ(served.post("/api/generate", {{"model", "a"}})["done_reason"], "load");
  EXPECT_EQ(served.loaded(), "a");
}

TEST(ModelPool, UnloadsWhatNobodyAsksFor) {
  const SeveralServed served({.bytes = {40, 40}, .keep = milliseconds(50)});
  served.complete("a");
  served.wait_until([&] { return served.loaded().empty(); });
  served.post("/v1/completions",
              {{"model", "b"}, {"prompt", "Once"}, {"max_tokens", 2}, {"keep_alive", -1}});
  served.complete("a");
  served.wait_until([&] { return served.loaded() == "b"; });
}

TEST(ModelPool, FinishesWhatRunsBeforeASwap) {
  const SeveralServed served({});
  served.complete("a");
  std::string long_text;
  std::jthread first([&] { long_text = served.complete("a", 200); });
  served.wait_until([&] { return served.get("/health")["running"] == 1; });
  served.complete("b");
  first.join();
  EXPECT_EQ(served.loaded(), "b");
  EXPECT_EQ(served.complete("a", 200), long_text);
}

// One model's callers ask all the time; the other's are answered all the same.
TEST(ModelPool, NobodyIsStarved) {
  const SeveralServed served({.turn = milliseconds(100)});
  std::atomic<bool> ends = false;
  std::atomic<int> answers = 0;
  std::vector<std::jthread> busy;
  for (int i = 0; i < 3; ++i)
    busy.emplace_back([&] {
      while (!ends) {
        served.complete("a", 8);
        ++answers;
      }
    });
  for (int i = 0; i < 5; ++i) served.complete("b", 8);
  const int before = answers;
  served.wait_until([&] { return answers > before; });
  ends = true;
}

TEST(ModelPool, TellsTheCallersOfALoadThatFails) {
  SeveralServed served({});
  served.fails = true;
  const json refused = served.post("/v1/completions", {{"model", "a"}, {"prompt", "x"}}, 503);
  EXPECT_EQ(refused["error"]["code"], "model_load_failed");
  EXPECT_NE(refused["error"]["message"].get<std::string>().find("no memory for it"),
            std::string::npos);
  served.fails = false;
  // It is not tried again at once; the other model is none of its business.
  served.post("/v1/completions", {{"model", "a"}, {"prompt", "x"}}, 503);
  served.complete("b");
  EXPECT_EQ(served.get("/health")["status"], "ok");
}

TEST(ModelPool, TellsOfLoadingAndTakesNoMoreThanMayWait) {
  SeveralServed served({.most_waiting = 2});
  served.may_load = false;
  std::vector<std::jthread> waiting;
  for (int i = 0; i < 2; ++i) waiting.emplace_back([&] { served.complete("a"); });
  served.wait_until([&] { return served.get("/health")["waiting"] == 2; });
  served.wait_until([&] { return served.get("/health")["status"] == "loading"; });
  served.wait_until([&] { return served.get("/health")["models"][0]["progress"] == 0.25; });
  served.post("/v1/completions", {{"model", "b"}, {"prompt", "x"}}, 429);
  served.may_load = true;
  waiting.clear();
  EXPECT_EQ(served.get("/health")["status"], "ok");
}

TEST(ModelPool, CallersThatLeaveLoadNothing) {
  SeveralServed served({.turn = seconds(600)});
  served.complete("a");
  std::atomic<bool> ends = false;
  std::vector<std::jthread> busy;
  // Four run and the others wait, so that "a" is busy between any two requests of a caller.
  for (int i = 0; i < 16; ++i)
    busy.emplace_back([&] {
      while (!ends) served.complete("a", 200);
    });
  served.wait_until([&] { return served.get("/health")["running"] > 2; });
  served.wait_until([&] { return served.get("/health")["waiting"] > 2; });
  httplib::Client hurried = served.client();
  hurried.set_read_timeout(0, 100000);
  hurried.Post("/v1/completions", R"({"model":"b","prompt":"x"})", "application/json");
  hurried.stop();
  served.wait_until([&] { return served.get("/health")["models"][1]["waiting"] == 0; });
  ends = true;
  busy.clear();
  served.complete("a");
  EXPECT_EQ(served.loads, 1);
}

TEST(ModelPool, EndsWhileItLoads) {
  SeveralServed served({});
  served.may_load = false;
  std::jthread waiting([&] {
    served.post("/v1/completions", {{"model", "a"}, {"prompt", "x"}}, 503);
  });
  served.wait_until([&] { return served.get("/health")["status"] == "loading"; });
  served.pool().drain(seconds(0));
  waiting.join();
  served.post("/v1/completions", {{"model", "b"}, {"prompt", "x"}}, 503);
}

std::string batch_of(Batches& batches, const std::string& lines) {
  const StoredFile file = batches.files().add("in.jsonl", "batch", lines);
  return batches.create({{"input_file_id", file.id}, {"endpoint", "/v1/completions"}})["id"];
}

std::string line_for(const std::string& id, const std::string& model, int tokens) {
  return json{{"custom_id", id},
              {"method", "POST"},
              {"url", "/v1/completions"},
              {"body",
               {{"model", model},
                {"prompt", "Once upon a time"},
                {"temperature", 0},
                {"max_tokens", tokens}}}}
             .dump() +
         "\n";
}

// Lines of two models in turn: each model is loaded once.
TEST(ModelPool, RunsABatchModelByModel) {
  const TemporaryFolder folder;
  SeveralServed served({.batch_folder = folder.path()});
  std::string lines;
  for (int i = 0; i < 12; ++i)
    lines += line_for("l" + std::to_string(i), i % 2 == 0 ? "a" : "b", 4);
  lines +=
      line_for("nobody", "nobody", 4) + line_for("", "", 4) + "no json\n" + line_for("none", "", 4);
  const std::string id = batch_of(served.batches(), lines);
  served.wait_until([&] { return served.batches().find(id)["status"] == "completed"; });
  EXPECT_EQ(served.batches().find(id)["request_counts"],
            (nlohmann::ordered_json{{"total", 16}, {"completed", 12}, {"failed", 4}}));
  EXPECT_EQ(served.loads, 2);
}

TEST(ModelPool, CallersComeBeforeBatches) {
  const TemporaryFolder folder;
  SeveralServed served({.turn = seconds(600), .batch_folder = folder.path()});
  served.complete("b");
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += line_for("l" + std::to_string(i), "a", 200);
  // The batch's model has no turn while another was asked of late.
  const std::string id = batch_of(served.batches(), lines);
  served.wait_until([&] { return served.get("/health")["waiting"] == 4; });
  EXPECT_EQ(served.loaded(), "b");
  // Asked by a caller it is there, and makes way for another at once, whoever's turn it is.
  served.complete("a");
  served.wait_until([&] { return served.batches().find(id)["request_counts"]["completed"] > 0; });
  served.complete("b");
  EXPECT_EQ(served.loaded(), "b");
  served.batches().cancel(id);
  served.wait_until([&] { return served.batches().find(id)["status"] == "cancelled"; });
}

TEST(ModelPool, CountsForPrometheus) {
  const SeveralServed served({.bytes = {40, 40}});
  served.complete("a");
  served.complete("b");
  const std::string text = served.client().Get("/metrics")->body;
  const auto count = [&](const std::string& of) {
    size_t found = 0;
    for (size_t at = text.find(of); at != std::string::npos; at = text.find(of, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("# TYPE vllm:generation_tokens_total"), 1u);
  EXPECT_EQ(count("\nvllm:generation_tokens_total{model_name=\"a\"} 4"), 1u);
  EXPECT_EQ(count("\nvllm:generation_tokens_total{model_name=\"b\"} 4"), 1u);
  EXPECT_EQ(count("\nsluice:model_loads_total{model_name=\"b\"} 1"), 1u);
  EXPECT_EQ(count("\nhttp_requests_total{method=\"POST\",handler=\"/v1/completions\","), 1u)
      << text;
}

TEST(KeepTime, IsReadAsOllamaWritesIt) {
  const auto of = [](const char* text) -> KeepTime { return read_keep_time(text).value(); };
  EXPECT_EQ(of("5m"), milliseconds(300000));
  EXPECT_EQ(of("1h30m"), milliseconds(5400000));
  EXPECT_EQ(of("1.5s"), milliseconds(1500));
  EXPECT_EQ(of("300ms"), milliseconds(300));
  EXPECT_EQ(of("90"), milliseconds(90000));
  EXPECT_EQ(of("0"), milliseconds(0));
  EXPECT_EQ(of("-1"), std::nullopt);
  EXPECT_EQ(of("-1m"), std::nullopt);
  EXPECT_NE(of("999999999999h"), std::nullopt);
  for (const char* text : {"", "-", "m", "5x", "5m6", "1e3", "nan", "5 m"})
    EXPECT_FALSE(read_keep_time(text)) << text;
}

TEST(ModelWish, LooksAtTheOutermostFieldsAlone) {
  const auto wish = read_wish(
      R"({"messages":[{"model":"inner","keep_alive":9}],"model":"m","ttl":60,"x":{"model":[1]}})");
  ASSERT_TRUE(wish);
  EXPECT_EQ(wish->model, "m");
  EXPECT_EQ(*wish->keep, KeepTime(milliseconds(60000)));
  EXPECT_TRUE(wish->asks);
  EXPECT_FALSE(read_wish(R"({"model":"m","messages":[],"prompt":""})")->asks);
  EXPECT_TRUE(read_wish(R"({"input":"x"})")->asks);
  for (const char* body : {"", "[]", "7", "{\"model\":\"m\"", "{} {}"})
    EXPECT_FALSE(read_wish(body));
  for (const char* body : {R"({"model":7})", R"({"model":{}})", R"({"keep_alive":"soon"})",
                           R"({"keep_alive":[]})", R"({"ttl":"5m"})", R"({"keep_alive":true})"})
    EXPECT_THROW(read_wish(body), ApiError) << body;
}

}  // namespace
}  // namespace sluice::serve
