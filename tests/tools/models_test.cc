// sluice models, and models by the names that other programs fetched them under.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {
namespace fs = std::filesystem;

class Models : public ::testing::Test {
 protected:
  Models() {
    fs::create_directories(hub() / "models--tiny--Stories" / "snapshots");
    fs::create_directory_symlink(kModel, hub() / "models--tiny--Stories" / "snapshots" / "abc");
    fs::create_directories(hub() / "models--tiny--Broken" / "snapshots" / "abc");
    write_file(hub() / "models--tiny--Broken" / "snapshots" / "abc" / "config.json", "{}");
    options_.environment = {"HOME=" + home_.path(), "HF_HOME=" + home_.path("hf"),
                            "HF_HUB_CACHE=",        "HUGGINGFACE_HUB_CACHE=",
                            "XDG_CACHE_HOME=",      "OLLAMA_MODELS=" + home_.path("none")};
  }
  fs::path hub() const { return fs::path(home_.path("hf")) / "hub"; }
  Outcome refused(std::vector<std::string> arguments) { return sluice(arguments, options_); }

  TemporaryFolder home_;
  Command::Options options_;
};

TEST_F(Models, AreListedWithWhatTheyAre) {
  const auto json = succeed({"models", "--json"}, options_).json();
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["name"], "tiny/Broken");
  EXPECT_EQ(json[0]["runs"], false);
  EXPECT_NE(json[0]["problem"].get<std::string>().find("weights"), std::string::npos);
  EXPECT_EQ(json[1]["name"], "tiny/Stories");
  EXPECT_EQ(json[1]["runs"], true);
  EXPECT_EQ(json[1]["family"], "llama");
  EXPECT_GT(json[1]["weight_bytes"].get<int64_t>(), 100'000);
  const auto plain = succeed({"models"}, options_);
  EXPECT_NE(plain.out.find("tiny/Stories"), std::string::npos);
  EXPECT_NE(plain.out.find("runs"), std::string::npos);
  EXPECT_NE(plain.err.find("sluice profile"), std::string::npos) << "no rates without a profile";
}

TEST_F(Models, RunByNameAsByPath) {
  const std::vector<std::string> rest = {"-p", "Once upon a time", "-n", "8", "--temp", "0"};
  std::vector<std::string> by_path = {"run", "-m", kModel}, by_name = {"run", "-m", "tiny/stories"};
  by_path.insert(by_path.end(), rest.begin(), rest.end());
  by_name.insert(by_name.end(), rest.begin(), rest.end());
  const Outcome expected = succeed(by_path, options_);
  EXPECT_FALSE(expected.out.empty());
  EXPECT_EQ(succeed(by_name, options_).out, expected.out);
  options_.environment.push_back("SLUICE_MODEL=Stories");
  EXPECT_EQ(succeed({"run", "-p", "Once upon a time", "-n", "8", "--temp", "0"}, options_).out,
            expected.out);
  EXPECT_EQ(succeed({"inspect", "stories", "--json"}, options_).json()["model"]["family"], "llama");
}

TEST_F(Models, NamesThatMeanNothingSaySo) {
  const Outcome unknown = sluice({"run", "-m", "tiny/storeis", "-p", "x"}, options_);
  EXPECT_EQ(unknown.exit_code, 3) << unknown.err;
  EXPECT_NE(unknown.err.find("tiny/storeis"), std::string::npos);
  EXPECT_NE(unknown.err.find("tiny/Stories"), std::string::npos) << unknown.err;
  const Outcome broken = sluice({"run", "-m", "tiny/broken", "-p", "x"}, options_);
  EXPECT_EQ(broken.exit_code, 3) << broken.err;
  EXPECT_NE(broken.err.find("weights are not there"), std::string::npos) << broken.err;
}

TEST_F(Models, BuiltInShapesKeepTheirNames) {
  fs::create_directories(hub() / "models--other--opt-175b" / "snapshots");
  fs::create_directory_symlink(kModel, hub() / "models--other--opt-175b" / "snapshots" / "abc");
  const auto json =
      succeed({"plan", "opt-175b", "--hardware", "t4", "--sequences", "4", "--no-lifts", "--json"},
              options_)
          .json();
  EXPECT_GT(json["policy"]["weights"]["disk"].get<double>(), 0.1) << json["policy"];
}

TEST_F(Models, NoneAreSaidToBeNone) {
  options_.environment[1] = "HF_HOME=" + home_.path("empty");
  const Outcome outcome = succeed({"models"}, options_);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("no models in"), std::string::npos);
  EXPECT_EQ(succeed({"models", "--json"}, options_).json().size(), 0u);
}

}  // namespace
}  // namespace sluice::testing
