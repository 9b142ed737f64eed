// Files and batches: every line answered once, as it would be alone; stops, other models, cancels,
// and what a crash left.
#include "src/serve/batches.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "src/base/error.h"
#include "src/serve/api_error.h"
#include "tests/serve/served_model.h"
#include "tests/temporary_folder.h"

namespace sluice::serve {
namespace {

using nlohmann::ordered_json;

std::unique_ptr<Batches> open(ServedModel& model, const TemporaryFolder& folder,
                              const std::string& config = "stories",
                              const chat::ChatTemplate* chat = nullptr,
                              std::chrono::milliseconds look = BatchOptions().look) {
  BatchOptions options;
  options.look = look;
  options.folder = folder.path();
  options.names.model_name = "stories";
  options.config = config;
  options.tool_format = chat::find_tool_format("hermes");
  return std::make_unique<Batches>(model.service(), model.tokenizer(), chat, options);
}

std::string line(const std::string& id, const std::string& prompt, int max_tokens) {
  return ordered_json{
             {"custom_id", id},
             {"method", "POST"},
             {"url", "/v1/completions"},
             {"body", {{"prompt", prompt}, {"max_tokens", max_tokens}, {"temperature", 0}}}}
             .dump() +
         "\n";
}

ordered_json wait_for(const Batches& batches, const std::string& id, const std::string& status) {
  for (int i = 0; i < 3000; ++i) {
    ordered_json batch = batches.find(id);
    if (batch["status"] == status) return batch;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ADD_FAILURE() << "never " << status << ": " << batches.find(id);
  return batches.find(id);
}

std::map<std::string, ordered_json> records(Batches& batches, const ordered_json& file_id) {
  std::map<std::string, ordered_json> out;
  if (file_id.is_null()) return out;
  std::ifstream file(batches.files().path_of(file_id.get<std::string>()));
  for (std::string text; std::getline(file, text);) {
    const auto record = ordered_json::parse(text);
    const std::string id =
        record["custom_id"].is_null() ? "" : record["custom_id"].get<std::string>();
    EXPECT_TRUE(out.emplace(id, record).second) << "answered twice: " << id;
  }
  return out;
}

std::string create(Batches& batches, const std::string& lines) {
  const StoredFile file = batches.files().add("in.jsonl", "batch", lines);
  return batches.create({{"input_file_id", file.id}, {"endpoint", "/v1/completions"}})["id"];
}

// A line that a caller's share of tokens never has room for does not keep the rest waiting.
TEST(Batches, LinesBeyondACallersTokensAreErrors) {
  ServedModel model(100, 4, 256, {}, 60);
  const TemporaryFolder folder;
  const auto batches = open(model, folder);
  std::string lines;
  for (int i = 0; i < 6; ++i) lines += line("r" + std::to_string(i), "Lily", i == 2 ? 100 : 20);
  const ordered_json batch = wait_for(*batches, create(*batches, lines), "completed");
  EXPECT_EQ(records(*batches, batch["output_file_id"]).size(), 5u);
  const auto errors = records(*batches, batch["error_file_id"]);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors.at("r2")["error"]["message"].get<std::string>().find("lower max_tokens"),
            std::string::npos);
}

TEST(Batches, AnswerEveryLineAsItWouldBeAlone) {
  ServedModel model;
  const TemporaryFolder folder;
  const auto batches = open(model, folder);
  std::string lines;
  std::map<std::string, std::string> alone;
  for (int i = 0; i < 12; ++i) {
    const std::string prompt = i % 2 == 0 ? "Once upon a time" : "The dog " + std::to_string(i);
    lines += line("r" + std::to_string(i), prompt, 5 + i);
    std::vector<Submission> all{model.greedy(prompt, 5 + i)};
    alone["r" + std::to_string(i)] =
        hear(model.service().submit(std::move(all)).ticket->mailbox(), 1).texts[0];
  }
  lines +=
      "not json\n" + line("r3", "again", 3) +
      R"({"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "hi"}]}})" +
      "\n" + line("long", std::string(4000, 'x'), 3) +
      R"({"custom_id": "other", "method": "POST", "url": "/v1/completions", "body": {"model": "gpt-4", "prompt": "a"}})" +
      "\n" +
      R"({"custom_id": "guide", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "guided_regex": "("}})" +
      "\n";
  const std::string id = create(*batches, lines);
  const ordered_json batch = wait_for(*batches, id, "completed");
  const auto answers = records(*batches, batch["output_file_id"]);
  ASSERT_EQ(answers.size(), 12u);
  for (const auto& [custom_id, text] : alone)
    EXPECT_EQ(answers.at(custom_id)["response"]["body"]["choices"][0]["text"], text) << custom_id;
  const auto errors = records(*batches, batch["error_file_id"]);
  EXPECT_EQ(errors.size(), 6u);
  EXPECT_NE(errors.at("other")["error"]["message"].get<std::string>().find("gpt-4"),
            std::string::npos);
  EXPECT_NE(errors.at("chat")["error"]["message"].get<std::string>().find("the batch is for"),
            std::string::npos);
  EXPECT_NE(errors.at("guide")["error"]["message"].get<std::string>().find("')'"),
            std::string::npos);
  EXPECT_EQ(errors.at("long")["error"]["code"], "refused");
  EXPECT_EQ(batch["request_counts"]["total"], 18);
  EXPECT_EQ(batch["request_counts"]["completed"], 12);
  EXPECT_EQ(batch["request_counts"]["failed"], 6);
  EXPECT_THROW(batches->cancel(id), ApiError);
  EXPECT_EQ(batches->list("", 10)["data"].size(), 1u);
}

TEST(Batches, ChatsCallTools) {
  ServedModel model;
  const TemporaryFolder folder;
  const chat::ChatTemplate chat({.text = "{{ messages[0].content }}"});
  const auto batches = open(model, folder, "stories", &chat);
  const StoredFile file = batches->files().add(
      "in.jsonl", "batch",
      R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"max_tokens": 100,)"
      R"( "messages": [{"role": "user", "content": "Lily"}], "tool_choice": "required", "parallel_tool_calls": false, "tools": [{"type":)"
      R"( "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]}})"
      "\n");
  const std::string id =
      batches->create({{"input_file_id", file.id}, {"endpoint", "/v1/chat/completions"}})["id"];
  const ordered_json batch = wait_for(*batches, id, "completed");
  const auto answers = records(*batches, batch["output_file_id"]);
  ASSERT_EQ(answers.size(), 1u) << records(*batches, batch["error_file_id"]).begin()->second;
  const auto& choice = answers.at("a")["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["tool_calls"].at(0)["function"]["name"], "clock");
}

TEST(Batches, GoOnWhereAStopBrokeThemOff) {
  ServedModel model;
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 60; ++i)
    lines += line("r" + std::to_string(i), "Once upon a time", 100 + i % 7);
  std::string id;
  int64_t before = 0;
  for (int starts = 0; starts < 3; ++starts) {
    // It looks often: a stop comes after some lines, however fast the machine is.
    const auto batches = open(model, folder, "stories", nullptr, std::chrono::milliseconds(1));
    if (id.empty()) id = create(*batches, lines);
    for (int i = 0; i < 60000; ++i) {
      const int64_t done = batches->find(id)["request_counts"]["completed"];
      if (done > before) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    batches->stop();
    before = batches->find(id)["request_counts"]["completed"];
  }
  EXPECT_GT(before, 0);
  {
    const auto other = open(model, folder, "another model");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(other->find(id)["status"], "in_progress") << "it is left to its model";
    EXPECT_THROW(open(model, folder), Error) << "one server a folder";
  }
  const auto batches = open(model, folder);
  const auto batch = wait_for(*batches, id, "completed");
  EXPECT_EQ(records(*batches, batch["output_file_id"]).size(), 60u);
  EXPECT_EQ(batch["error_file_id"], nullptr);
}

TEST(Batches, AreCancelledWithWhatTheyHave) {
  ServedModel model;
  const TemporaryFolder folder;
  const auto batches = open(model, folder);
  std::string lines;
  for (int i = 0; i < 500; ++i) lines += line("r" + std::to_string(i), "Once upon a time", 200);
  const std::string id = create(*batches, lines);
  wait_for(*batches, id, "in_progress");
  const std::string input = batches->find(id)["input_file_id"];
  EXPECT_TRUE(batches->is_in_use(input));
  while (batches->find(id)["request_counts"]["completed"] == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(batches->cancel(id)["status"], "cancelling");
  const auto batch = wait_for(*batches, id, "cancelled");
  const size_t answered = records(*batches, batch["output_file_id"]).size();
  EXPECT_GT(answered, 0u);
  EXPECT_LT(answered, 500u);
  EXPECT_EQ(batch["request_counts"]["completed"], answered);
  EXPECT_FALSE(batches->is_in_use(input));
}

// Lines of another model: error records, in groups; counts move, and the batch can be cancelled.
TEST(Batches, OfLinesThatAllFailAreQuickAndCancelled) {
  ServedModel model;
  const TemporaryFolder folder;
  const auto batches = open(model, folder);
  const auto wrong = [](int count) {
    std::string lines;
    for (int i = 0; i < count; ++i)
      lines +=
          R"({"custom_id": "r)" + std::to_string(i) +
          R"(", "method": "POST", "url": "/v1/completions", "body": {"model": "gpt", "prompt": "a"}})"
          "\n";
    return lines;
  };
  const std::string whole = create(*batches, wrong(3000) + std::string(300, '\n') + "{}\n");
  const std::string behind = create(*batches, line("a", "Once", 3));
  const auto ended = wait_for(*batches, whole, "completed");
  EXPECT_EQ(ended["request_counts"]["failed"], 3001);
  EXPECT_EQ(records(*batches, ended["error_file_id"]).size(), 3001u);
  EXPECT_EQ(wait_for(*batches, behind, "completed")["request_counts"]["completed"], 1);

  const std::string cancelled = create(*batches, wrong(200000));
  const std::string next = create(*batches, line("a", "Once", 3));
  while (batches->find(cancelled)["request_counts"]["failed"] == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  batches->cancel(cancelled);
  const auto left = wait_for(*batches, cancelled, "cancelled");
  EXPECT_GT(left["request_counts"]["failed"], 0);
  EXPECT_LT(left["request_counts"]["failed"], 200000);
  EXPECT_EQ(records(*batches, left["error_file_id"]).size(), left["request_counts"]["failed"]);
  wait_for(*batches, next, "completed");

  // A stop breaks it off, and the next start goes on.
  const std::string stopped = create(*batches, wrong(100000));
  while (batches->find(stopped)["request_counts"]["failed"] == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  batches->stop();
  EXPECT_EQ(batches->find(stopped)["status"], "in_progress");
}

TEST(Batches, KeepWhatTheLimitsLetIn) {
  const TemporaryFolder folder;
  FileStore files(folder.path(), {.bytes = 100, .files = 3});
  files.add("a", "batch", std::string(60, 'a'));
  EXPECT_THROW(files.add("b", "batch", std::string(60, 'b')), ApiError);
  const std::string second = files.add("b", "batch", std::string(40, 'b')).id;
  EXPECT_THROW(files.add("c", "batch", "c"), ApiError) << "bytes";
  EXPECT_TRUE(files.remove(second));
  files.add("c", "batch", "c");
  files.add("d", "batch", "d");
  EXPECT_THROW(files.add("e", "batch", ""), ApiError) << "files";
  EXPECT_EQ(files.list().size(), 3u);
}

TEST(Batches, FilesExpireUnlessABatchReadsThem) {
  const TemporaryFolder folder;
  bool is_in_use = true;
  std::string id;
  {
    FileStore files(folder.path(), {}, [&](const std::string&) { return is_in_use; });
    id = files.add("a", "batch", "x", 3600).id;
    EXPECT_GT(files.find(id)->expires, std::time(nullptr) + 3500);
    // As if it were of long ago.
    const std::string path = files.path_of(id).string() + ".json";
    auto json = ordered_json::parse(std::ifstream(path));
    json["expires_at"] = 1000;
    std::ofstream(path) << json.dump();
  }
  FileStore files(folder.path(), {}, [&](const std::string&) { return is_in_use; });
  EXPECT_TRUE(files.find(id));
  is_in_use = false;
  EXPECT_FALSE(files.find(id));
  EXPECT_FALSE(std::filesystem::exists(files.path_of(id)));
  EXPECT_EQ(life_of("f", ordered_json::parse(R"({"anchor": "created_at", "seconds": 3600})")),
            3600);
  EXPECT_EQ(life_of("f", nullptr), 0);
  for (const char* wrong : {"3", "{}", R"({"anchor": "created_at", "seconds": 3599})",
                            R"({"anchor": "created_at", "seconds": 2592001})",
                            R"({"anchor": "last_active_at", "seconds": 3600})",
                            R"({"anchor": "created_at", "seconds": "3600"})"})
    EXPECT_THROW(life_of("f", ordered_json::parse(wrong)), ApiError) << wrong;
}

TEST(Batches, RefuseWhatTheyCanNotRun) {
  ServedModel model;
  const TemporaryFolder folder;
  const auto batches = open(model, folder);
  const std::string file = batches->files().add("a", "batch", "").id;
  const std::vector<std::pair<ordered_json, int>> cases = {
      {{{"endpoint", "/v1/completions"}}, 400},
      {{{"input_file_id", "file-x"}, {"endpoint", "/v1/completions"}}, 404},
      {{{"input_file_id", file}, {"endpoint", "/v1/rerank"}}, 400},
      {{{"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "1h"}},
       400},
      {{{"input_file_id", file}, {"endpoint", "/v1/completions"}, {"metadata", 3}}, 400},
      {{{"input_file_id", file}, {"endpoint", "/v1/completions"}, {"speed", 3}}, 400}};
  for (const auto& [body, status] : cases) {
    try {
      batches->create(body);
      ADD_FAILURE() << body;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, status) << body;
    }
  }
  EXPECT_THROW(batches->find("batch_0"), ApiError);
  const auto empty = batches->create({{"input_file_id", file}, {"endpoint", "/v1/completions"}});
  EXPECT_EQ(wait_for(*batches, empty["id"], "completed")["output_file_id"], nullptr);
}

TEST(FileStore, KeepsWholeFilesAndForgetsHalfOnes) {
  const TemporaryFolder folder;
  std::string id;
  {
    FileStore files(folder.path());
    id = files.add("näme.jsonl", "batch", std::string("a\0b", 3)).id;
    EXPECT_TRUE(is_random_name(id, "file-"));
  }
  const std::string half = random_name("file-");
  std::ofstream(folder.file(half)) << "never described";
  std::ofstream(folder.file(random_name("file-") + ".json")) << "{\"id\":";
  FileStore files(folder.path());
  ASSERT_EQ(files.list().size(), 1u);
  EXPECT_EQ(files.find(id)->bytes, 3);
  EXPECT_EQ(files.find(id)->filename, "näme.jsonl");
  EXPECT_FALSE(std::filesystem::exists(folder.file(half)));
  EXPECT_TRUE(files.remove(id));
  EXPECT_FALSE(files.remove(id));
  EXPECT_FALSE(std::filesystem::exists(folder.file(id)));
  for (const char* wrong :
       {"file-", "../etc/passwd", "file-../../../../../etc/passwd0000000", "batch_0"})
    EXPECT_FALSE(is_random_name(wrong, "file-")) << wrong;
}

}  // namespace
}  // namespace sluice::serve
