// Adapters over a real connection: chosen by the model's name, listed, loaded and unloaded beside
// running requests, within a folder.
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/serve/adapter_routes.h"
#include "src/serve/api_error.h"
#include "src/serve/http_server.h"
#include "tests/serve/served_model.h"

namespace sluice::serve {
namespace {

using nlohmann::json;
using std::filesystem::path;

const path kLora = path(SLUICE_FIXTURES) / "lora";

LoraAdapter story_adapter(const std::string& name) { return LoraAdapter::open(kLora / name); }

AdapterRoom story_room() {
  const LoraAdapter both[] = {story_adapter("stories-a"), story_adapter("stories-b")};
  return adapter_room(BoundModel::open(testing::fixture_model("stories260k")), both);
}

// A server with room for both adapters; `folder`: of those that callers may load.
class AdaptedServer {
 public:
  explicit AdaptedServer(const path& folder = {}, const path& batch_folder = {})
      : model_(1000, 4, 256, story_room()) {
    HttpOptions options;
    options.port = 0;
    options.model_name = "stories";
    options.lora_folder = folder;
    if (!batch_folder.empty()) {
      BatchOptions batching;
      batching.folder = batch_folder;
      batching.names.model_name = "stories";
      batches_ = std::make_unique<Batches>(model_.service(), model_.tokenizer(), nullptr, batching);
    }
    server_ = std::make_unique<HttpServer>(model_.service(), model_.tokenizer(), nullptr, options,
                                           batches_.get());
    port_ = server_->bind();
    listener_ = std::jthread([this] { server_->serve(); });
  }
  ~AdaptedServer() { server_->stop(); }

  AdapterBank& adapters() { return model_.service().adapters(); }
  GenerationService& service() { return model_.service(); }
  Batches& batches() { return *batches_; }
  std::pair<int, std::string> post(const std::string& route, const json& body) const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(60);
    const auto response = client.Post(route, body.dump(), "application/json");
    return response ? std::pair(response->status, response->body) : std::pair(0, std::string());
  }
  json get(const std::string& route, int status = 200) const {
    httplib::Client client("127.0.0.1", port_);
    const auto response = client.Get(route);
    EXPECT_TRUE(response && response->status == status);
    return response ? json::parse(response->body) : json();
  }
  // The answer's text; empty where it is refused with `status`.
  std::string story(const std::string& model, int status = 200, int tokens = 12) const {
    const auto [code, body] = post("/v1/completions", {{"model", model},
                                                       {"prompt", "Once upon a time"},
                                                       {"max_tokens", tokens},
                                                       {"temperature", 0}});
    EXPECT_EQ(code, status) << body;
    if (code != 200) return {};
    const json answer = json::parse(body);
    EXPECT_EQ(answer["model"], model);
    return answer["choices"][0]["text"];
  }
  int load(const std::string& name, const std::string& folder) const {
    return post("/v1/load_lora_adapter", {{"lora_name", name}, {"lora_path", folder}}).first;
  }
  int unload(const std::string& name) const {
    return post("/v1/unload_lora_adapter", {{"lora_name", name}}).first;
  }

 private:
  ServedModel model_;
  std::unique_ptr<Batches> batches_;
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
  std::jthread listener_;
};

// What each model says, by an engine of its own.
std::string said_alone(const std::string& adapter) {
  ServedModel model(1000, 1, 256, story_room());
  Submission one = model.greedy("Once upon a time", 12);
  if (!adapter.empty()) one.adapter = model.service().adapters().load("x", story_adapter(adapter));
  std::vector<Submission> all;
  all.push_back(std::move(one));
  const auto admission = model.service().submit(std::move(all));
  return hear(admission.ticket->mailbox(), 1).texts.front();
}

TEST(ServedAdapters, AreModelsByTheirNames) {
  AdaptedServer server;
  server.adapters().load("a", story_adapter("stories-a"));
  server.adapters().load("b", story_adapter("stories-b"));
  const std::map<std::string, std::string> alone{
      {"stories", said_alone("")}, {"a", said_alone("stories-a")}, {"b", said_alone("stories-b")}};
  EXPECT_NE(alone.at("stories"), alone.at("a"));
  EXPECT_NE(alone.at("a"), alone.at("b"));
  // At once, so that they run together, twice for the prefix cache.
  for (int round = 0; round < 2; ++round) {
    std::vector<std::jthread> callers;
    std::map<std::string, std::string> said;
    for (const auto& [name, text] : alone) said[name];
    for (auto& [name, text] : said)
      callers.emplace_back([&server, &name = name, &text = text] { text = server.story(name); });
    callers.clear();
    EXPECT_EQ(said, alone);
  }
  const json models = server.get("/v1/models")["data"];
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0]["id"], "stories");
  EXPECT_FALSE(models[0].contains("parent"));
  EXPECT_EQ(models[1]["id"], "a");
  EXPECT_EQ(models[1]["parent"], "stories");
  EXPECT_EQ(server.get("/v1/models/b")["parent"], "stories");
  server.get("/v1/models/c", 404);
  server.story("c", 404);
}

TEST(ServedAdapters, AreLoadedOnlyWhereAFolderIsForThem) {
  AdaptedServer server;
  EXPECT_EQ(server.load("a", "stories-a"), 404);
  EXPECT_EQ(server.unload("a"), 404);
}

TEST(ServedAdapters, ComeAndGo) {
  AdaptedServer server(kLora);
  EXPECT_EQ(server.load("a", "stories-a"), 200);
  EXPECT_EQ(server.story("a"), said_alone("stories-a"));
  EXPECT_EQ(server.load("a", "stories-a"), 400) << "it is there";
  EXPECT_EQ(server.load("stories", "stories-a"), 400) << "the model's own name";
  EXPECT_EQ(server.load("b", (kLora / "stories-b").string()), 200) << "by its whole path";
  EXPECT_EQ(server.load("c", "stories-a"), 400) << "there is no room for a third";
  EXPECT_EQ(server.unload("a"), 200);
  server.story("a", 404);
  EXPECT_EQ(server.unload("a"), 404);
  // Another one by its name.
  EXPECT_EQ(server.load("a", "stories-a"), 200);
  EXPECT_EQ(server.story("a"), said_alone("stories-a"));
  // What is no adapter for this model, or no request.
  EXPECT_EQ(server.unload("a"), 200);
  for (const char* other : {"plain", "ends", "nowhere", "stories-a/adapter_config.json", ""})
    EXPECT_EQ(server.load("a", other), 400) << other;
  EXPECT_EQ(server.load("", "stories-a"), 400);
  EXPECT_EQ(server.load("a\nb", "stories-a"), 400);
  EXPECT_EQ(server.post("/v1/load_lora_adapter", json::array()).first, 400);
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", {{"lora_name", 7}}).first, 400);
}

TEST(ServedAdapters, StayWithinTheirFolder) {
  std::string pattern = (std::filesystem::temp_directory_path() / "sluice-lora-XXXXXX").string();
  const path folder = ::mkdtemp(pattern.data());
  std::filesystem::create_directories(folder / "in" / "one");
  std::filesystem::create_directories(folder / "inside");
  std::filesystem::create_directory_symlink(folder / "inside", folder / "in" / "link");
  EXPECT_EQ(folder_within(folder / "in", "one"), std::filesystem::canonical(folder / "in" / "one"));
  EXPECT_EQ(folder_within(folder / "in", (folder / "in" / "one").string()),
            std::filesystem::canonical(folder / "in" / "one"));
  for (const std::string& named :
       {std::string("."), std::string(".."), std::string("one/../.."), std::string("../inside"),
        std::string("link"), (folder / "inside").string(), std::string("/"), std::string("two"),
        std::string("one\0", 4), std::string(5000, 'a')})
    EXPECT_THROW(folder_within(folder / "in", named), ApiError) << named;
  std::filesystem::remove_all(folder);
}

// Requests under way end with the adapter that they began with, whatever comes and goes.
TEST(ServedAdapters, OnesThatRunEndAsTheyBegan) {
  AdaptedServer server(kLora);
  const std::string expected_a = said_alone("stories-a"), plain = said_alone("");
  const auto longest = [&](const std::string& text, const std::string& expected) {
    return text.substr(0, expected.size());
  };
  std::atomic<bool> stop = false;
  std::atomic<int> answered = 0, refused = 0;
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 3; ++caller)
    callers.emplace_back([&, caller] {
      while (!stop) {
        const std::string model = caller == 0 ? "stories" : "a";
        const auto [code, body] = server.post("/v1/completions", {{"model", model},
                                                                  {"prompt", "Once upon a time"},
                                                                  {"max_tokens", 40},
                                                                  {"temperature", 0}});
        if (code == 404) {
          ++refused;
          continue;
        }
        ASSERT_EQ(code, 200) << body;
        const std::string text = json::parse(body)["choices"][0]["text"];
        const std::string& expected = caller == 0 ? plain : expected_a;
        ASSERT_EQ(longest(text, expected), expected);
        ++answered;
      }
    });
  for (int round = 0; round < 12 || (answered < 8 && round < 400); ++round) {
    const int code = server.load("a", "stories-a");
    EXPECT_TRUE(code == 200 || code == 400) << code;  // who runs may still hold the memory
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (code == 200) {
      EXPECT_EQ(server.unload("a"), 200);
    }
    server.get("/v1/models");
  }
  stop = true;
  callers.clear();
  EXPECT_GE(answered, 8);
  EXPECT_EQ(server.adapters().list().size(), 0u);
}

// Lines of a batch name adapters.
TEST(ServedAdapters, AnswerLinesOfBatches) {
  std::string pattern = (std::filesystem::temp_directory_path() / "sluice-lora-XXXXXX").string();
  const path folder = ::mkdtemp(pattern.data());
  {
    AdaptedServer server({}, folder / "batches");
    server.adapters().load("a", story_adapter("stories-a"));
    std::string lines;
    for (const char* model : {"stories", "a", "gone"})
      lines += json{{"custom_id", model},
                    {"method", "POST"},
                    {"url", "/v1/completions"},
                    {"body",
                     {{"model", model},
                      {"prompt", "Once upon a time"},
                      {"max_tokens", 12},
                      {"temperature", 0}}}}
                   .dump() +
               "\n";
    std::ofstream(folder / "in.jsonl") << lines;
    FileStore& files = server.batches().files();
    const std::string input = files.take("in.jsonl", "batch", folder / "in.jsonl").id;
    const std::string id = server.batches().create({{"input_file_id", input},
                                                    {"endpoint", "/v1/completions"},
                                                    {"completion_window", "24h"}})["id"];
    nlohmann::ordered_json batch = server.batches().find(id);
    for (int i = 0; i < 3000 && batch.value("status", "") != "completed"; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      batch = server.batches().find(id);
    }
    ASSERT_EQ(batch["status"], "completed");
    EXPECT_EQ(batch["request_counts"]["completed"], 2);
    EXPECT_EQ(batch["request_counts"]["failed"], 1);
    std::map<std::string, std::string> texts;
    std::ifstream answers(files.path_of(batch["output_file_id"].get<std::string>()));
    for (std::string line; std::getline(answers, line);) {
      const json one = json::parse(line);
      texts[one["custom_id"]] = one["response"]["body"]["choices"][0]["text"];
    }
    EXPECT_EQ(texts["a"], said_alone("stories-a"));
    EXPECT_EQ(texts["stories"], said_alone(""));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace sluice::serve
