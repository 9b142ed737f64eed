// A conversion that is killed, stopped or runs into a limit in the middle: nothing half is ever
// accepted, and the same command again ends with the bytes of an undisturbed one.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// About 120 MB in 26 groups: long enough to have a middle.
constexpr const char* kConfig = R"({"architectures": ["OPTForCausalLM"], "model_type": "opt",
  "hidden_size": 448, "word_embed_proj_dim": 448, "ffn_dim": 1792, "num_hidden_layers": 24,
  "num_attention_heads": 7, "vocab_size": 2000, "max_position_embeddings": 128,
  "do_layer_norm_before": true, "activation_function": "relu", "torch_dtype": "bfloat16"})";

class ConvertCrash : public ::testing::Test {
 protected:
  ConvertCrash() {
    write_file(folder_.path("config.json"), kConfig);
    succeed({"synth", folder_.path("config.json"), folder_.path("model")});
  }

  Words convert(const std::string& store) const {
    return {"convert", folder_.path("model"), folder_.path(store), "--json"};
  }
  bool has(const std::string& file) const { return fs::exists(folder_.path(file)); }
  void refuse_unfinished(const std::string& store) const {
    fail({"run", folder_.path(store), "--prompt-ids", "2,5", "-n", "1"}, 3, {folder_.path(store)});
    fail({"inspect", folder_.path(store)}, 3, {folder_.path(store)});
  }
  void expect_complete(const std::string& store, const std::string& like) const {
    const auto expected = read_folder(folder_.path(like));
    const auto got = read_folder(folder_.path(store));
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [name, bytes] : expected)
      EXPECT_TRUE(got.at(name) == bytes) << name << " differs";
  }

  TemporaryFolder folder_;
};

TEST_F(ConvertCrash, Kill9OrCtrlCAndAgainGiveTheSameBytes) {
  EXPECT_EQ(succeed(convert("whole")).json()["groups"], 26);
  for (int signal : {SIGKILL, SIGINT}) {
    const std::string store = "store" + std::to_string(signal);
    // Stops after the third group, or earlier should it have ended before the signal came.
    for (int attempt = 0; attempt < 5 && !has(store + "/sluice-store.journal"); ++attempt) {
      fs::remove_all(folder_.path(store));
      const std::string awaited =
          attempt < 2 ? store + "/layer-00001.safetensors" : store + "/embed.safetensors";
      Command command(convert(store));
      command.wait_until([&] { return has(awaited); });
      command.send(signal);
      const Outcome outcome = command.wait();
      if (outcome.exit_code == 0) continue;
      EXPECT_EQ(outcome.exit_code, signal == SIGINT ? 130 : -1) << outcome.err;
      EXPECT_EQ(outcome.signal, signal == SIGINT ? 0 : SIGKILL);
    }
    ASSERT_TRUE(has(store + "/sluice-store.journal")) << "never stopped in the middle";
    ASSERT_FALSE(has(store + "/sluice-store.json"));
    refuse_unfinished(store);
    const auto json = succeed(convert(store)).json();
    EXPECT_GT(json["resumed_groups"].get<int>(), 0);
    EXPECT_LT(json["written_bytes"].get<int64_t>(), json["total_bytes"].get<int64_t>());
    expect_complete(store, "whole");
    fs::remove_all(folder_.path(store));
  }
}

// The parent's limit is the child's too; only its soft part, so that it can be taken back.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    if (setrlimit(RLIMIT_FSIZE, &now) != 0) throw std::runtime_error("setrlimit");
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

TEST_F(ConvertCrash, ARefusedWriteIsToldAndCanBeMended) {
  {
    const FileSizeLimit limit(1 << 20);  // a group has 4 MB; no space check can foresee this
    const Outcome outcome = sluice(convert("store"));
    EXPECT_TRUE(outcome.exit_code == 3 || outcome.exit_code == 4) << outcome.exit_code;
    EXPECT_NE(outcome.err.find(folder_.path("store")), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("File too large"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  refuse_unfinished("store");
  succeed(convert("store"));
  EXPECT_GT(succeed({"inspect", folder_.path("store"), "--verify", "--json"})
                .json()["verified_bytes"]
                .get<int64_t>(),
            100 << 20);
}

}  // namespace
}  // namespace sluice::testing
