// sluice serve with several models, as a user runs it.
#include <gtest/gtest.h>
#include <httplib.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

// Copies of the small trained model, called `names`, in a folder.
void copy_models(const TemporaryFolder& folder, const Words& names) {
  for (const std::string& name : names) {
    fs::create_directories(fs::path(folder.path(name)).parent_path());
    fs::copy(fixture_model("stories260k"), folder.path(name), fs::copy_options::recursive);
  }
}

std::string url_in(const std::string& text) {
  const size_t at = text.find("http://127.0.0.1:");
  return at == std::string::npos ? "" : text.substr(at, text.find('/', at + 7) - at);
}

TEST(ServeSeveral, AnswersByEachNameOfAFolder) {
  TemporaryFolder folder, logs;
  copy_models(folder, {"one", "two", "by/three"});
  fs::create_directory(folder.path("empty"));
  const std::string errors = logs.path("stderr");
  write_file(errors, "");
  Command::Options options;
  options.program = "/bin/sh";
  Command command({"-c", "exec \"$0\" \"$@\" 2>" + errors, SLUICE_PROGRAM, "serve", folder.path(),
                   "--port", "0", "-t", "1", "-c", "256", "--batch-dir", logs.path("batches")},
                  options);
  command.wait_until([&] { return !url_in(read_file(errors)).empty(); });
  httplib::Client client(url_in(read_file(errors)));
  client.set_read_timeout(60);
  const json list = json::parse(client.Get("/v1/models")->body)["data"];
  ASSERT_EQ(list.size(), 3u);
  for (const json& one : list) EXPECT_EQ(one["status"]["value"], "unloaded") << one;
  std::string text;
  for (const char* name : {"one", "two", "three"}) {
    const auto answer = client.Post(
        "/v1/completions",
        json{{"model", name}, {"prompt", "Once"}, {"max_tokens", 5}, {"temperature", 0}}.dump(),
        "application/json");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200) << answer->body;
    const json told = json::parse(answer->body);
    EXPECT_EQ(told["model"], name);
    if (text.empty()) text = told["choices"][0]["text"];
    EXPECT_EQ(told["choices"][0]["text"], text);
  }
  const auto shown = client.Post("/api/show", R"({"model": "two"})", "application/json");
  EXPECT_EQ(json::parse(shown->body)["details"]["family"], "llama") << shown->body;
  command.send(SIGTERM);
  EXPECT_EQ(command.wait().exit_code, 0);
  EXPECT_NE(read_file(errors).find("two is in memory"), std::string::npos);
}

TEST(ServeSeveral, RefusesWhatIsForOneModel) {
  const std::string model = fixture_model("stories260k"), other = fixture_model("llama-tiny-gqa");
  fail({"serve", model, other, "--lora", "x"}, 2, {"--lora and several models"});
  fail({"serve", model, other, "--trace", "x"}, 2, {"--trace"});
  fail({"serve", model, other, "--any-model"}, 2, {"--any-model"});
  fail({"serve", model, other, "--keep", "soon"}, 2, {"--keep soon"});
  fail({"serve", model, other, "--served-model-name", "a"}, 2, {"1 names for 2 models"});
  fail({"serve", model, "--model-turn", "3"}, 2, {"--model-turn has no effect"});
  fail({"serve", model, "--keep", "1m", "--served-model-name", "a,b"}, 2, {"several names"});
  fail({"serve", model, model}, 2, {"two models are called", "--served-model-name"});
}

// A plan of each, and nothing is read.
TEST(ServeSeveral, ShowsThePlans) {
  const Outcome outcome = succeed({"serve", fixture_model("stories260k"),
                                   fixture_model("llama-tiny-gqa"), "--dry-run", "--port", "0"});
  EXPECT_NE(outcome.err.find("llama-tiny-gqa:"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace sluice::testing
