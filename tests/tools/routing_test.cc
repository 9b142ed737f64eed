// --record-routing and sluice routing: what is recorded is what the model chose, and what is told
// of it is what the library tells.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "src/cache/routing_trace.h"
#include "tests/cache/routing_files.h"
#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

const char kMixture[] = "qwen2-moe-tiny";  // two layers, two of six experts

class Routing : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }
  RoutingTrace trace(const std::string& name) const {
    return parse_routing_trace(read_file(path(name)), name);
  }
  // The recorded run of that name, unpacked.
  std::string known(const std::string& name) const {
    write_file(path(name + ".csv"), routing_file_text(name));
    return path(name + ".csv");
  }
  nlohmann::json cases() const {
    return nlohmann::json::parse(read_file(fixture_model(kMixture) + "/goldens.json"))["cases"];
  }
  std::string model() const { return fixture_model(kMixture); }
  static std::string ids(const nlohmann::json& list) {
    std::string out;
    for (const auto& id : list) out += (out.empty() ? "" : ",") + std::to_string(id.get<int>());
    return out;
  }
  // run's arguments, exact.
  std::vector<std::string> run(const std::string& file, int tokens) const {
    std::vector<std::string> out = {
        "run",       model(), "--temp",     "0",   "-n",          std::to_string(tokens),
        "--compute", "f32",   "--kv-dtype", "f32", "--ignore-eos"};
    if (!file.empty()) out.insert(out.end(), {"--record-routing", path(file)});
    for (const auto& golden : cases())
      out.insert(out.end(), {"--prompt-ids", ids(golden["prompt_ids"])});
    return out;
  }

  TemporaryFolder folder_;
};

TEST_F(Routing, RecordsWhatTransformersChose) {
  const Outcome plain = succeed(run("", 5));
  const Outcome outcome = succeed(run("t.csv", 5));
  EXPECT_EQ(outcome.out, plain.out) << "recording changes nothing";
  EXPECT_NE(outcome.err.find("t.csv (sluice routing reads it)"), std::string::npos) << outcome.err;
  const RoutingTrace recorded = trace("t.csv");
  EXPECT_EQ(recorded.family, "qwen2_moe");
  EXPECT_EQ(recorded.model, kMixture);
  EXPECT_EQ(recorded.experts, 6);
  EXPECT_EQ(recorded.chosen, 2);
  ASSERT_EQ(recorded.layers.size(), 2u);
  const auto all = cases();
  for (size_t l = 0; l < 2; ++l) {
    const RoutingTrace::Layer& layer = recorded.layers[l];
    EXPECT_EQ(layer.expert_bytes, 3 * 12 * 16 * 4);  // gate, up and down in f32
    std::map<int64_t, int64_t> tokens;               // by sequence
    for (const RoutingTrace::Token& token : layer.tokens) {
      const auto& golden = all.at(static_cast<size_t>(token.sequence));
      const auto prompt = static_cast<int64_t>(golden["prompt_ids"].size());
      EXPECT_EQ(token.position, tokens[token.sequence]++) << "each once, in order";
      EXPECT_EQ(token.is_prompt, token.position < prompt);
      ASSERT_EQ(token.chosen, 2);
      std::vector<int> chosen = {layer.experts[token.first], layer.experts[token.first + 1]};
      std::sort(chosen.begin(), chosen.end());
      if (token.is_prompt) {
        EXPECT_EQ(
            chosen,
            golden["experts"][l][static_cast<size_t>(token.position)].get<std::vector<int>>());
      }
    }
    ASSERT_EQ(tokens.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i)  // the last token goes nowhere
      EXPECT_EQ(tokens[static_cast<int64_t>(i)],
                static_cast<int64_t>(all[i]["prompt_ids"].size()) + 5 - 1);
  }
}

TEST_F(Routing, OfSmallBlocksAndDevicesIsTheSame) {
  succeed(run("whole.csv", 4));
  const auto by_token = [](const RoutingTrace& recorded) {
    std::map<std::array<int64_t, 3>, std::vector<int32_t>> out;
    for (size_t l = 0; l < recorded.layers.size(); ++l)
      for (const RoutingTrace::Token& token : recorded.layers[l].tokens) {
        const auto first =
            recorded.layers[l].experts.begin() + static_cast<std::ptrdiff_t>(token.first);
        out[{static_cast<int64_t>(l), token.sequence, token.position}] = {first,
                                                                          first + token.chosen};
      }
    return out;
  };
  const auto whole = by_token(trace("whole.csv"));
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--micro-batch", "1", "--micro-batches", "2"},
        {"--micro-batch-tokens", "3"},
        {"--device", "emulated:mem=64MiB,h2d=4GB/s,d2h=4GB/s", "--percent", "0", "50", "50", "50",
         "0", "100"}}) {
    std::vector<std::string> arguments = run("other.csv", 4);
    arguments.insert(arguments.end(), more.begin(), more.end());
    succeed(arguments);
    EXPECT_EQ(by_token(trace("other.csv")), whole) << more.front();
  }
}

TEST_F(Routing, BenchAndBatchRecordToo) {
  succeed({"bench", model(), "--batch", "3", "--pp", "5", "--tg", "4", "--reps", "2",
           "--no-disk-probe", "--record-routing", path("bench.csv")});
  const RoutingTrace bench = trace("bench.csv");
  EXPECT_EQ(bench.layers[0].tokens.size(), 2u * 3 * (5 + 4 - 1));
  EXPECT_EQ(bench.layers[0].tokens.back().pass, 2 * 4 - 1) << "passes of both repetitions";
  fail({"bench", model(), "--batch", "1,2", "--record-routing", path("two.csv")}, 2,
       {"--record-routing", "one size"});
  EXPECT_FALSE(std::filesystem::exists(path("two.csv")));

  write_file(
      path("in.jsonl"),
      "{\"custom_id\": \"a\", \"prompt\": [1, 2, 3]}\n{\"custom_id\": \"b\", \"prompt\": [4]}\n");
  succeed({"batch", model(), path("in.jsonl"), "-o", path("out.jsonl"), "-n", "3", "--ignore-eos",
           "--record-routing", path("batch.csv")});
  EXPECT_EQ(trace("batch.csv").layers[1].tokens.size(), 5u + 3);
  succeed({"batch", model(), path("in.jsonl"), "-o", path("part.jsonl"), "-n", "3", "--ignore-eos",
           "--shard", "0/1", "--record-routing", path("batch.csv")});
  EXPECT_EQ(trace("batch.csv.shard-0-of-1").layers[1].tokens.size(), 5u + 3);
}

TEST_F(Routing, RefusesModelsWithoutExperts) {
  fail({"run", kModel, "-p", "Once", "--record-routing", path("t.csv")}, 2,
       {"--record-routing", "stories260k (llama) has no experts"});
  EXPECT_FALSE(std::filesystem::exists(path("t.csv")));
  std::vector<std::string> dry = run("dry.csv", 2);
  dry.emplace_back("--dry-run");
  succeed(dry);
  EXPECT_FALSE(std::filesystem::exists(path("dry.csv")));
  std::vector<std::string> nowhere = run("no/such/folder.csv", 2);
  fail(nowhere, 3, {"no/such/folder.csv", "No such file"});
}

TEST_F(Routing, TellsOfRecordedRuns) {
  const auto json = succeed({"routing", known("qwen"), "--one-by-one", "--slots", "24", "--decay",
                             "0.9", "--json"})
                        .json();
  EXPECT_EQ(json["model"], "Qwen3-30B-A3B-Q4_K_M.gguf");
  EXPECT_EQ(json["routed_layers"], 48);
  EXPECT_EQ(json["figures"]["prompt_tokens"], 28);
  EXPECT_EQ(json["figures"]["decoded_tokens"], 128);
  EXPECT_NEAR(json["figures"]["overlap_at_lag"]["1"].get<double>(), 0.380, 0.001);
  EXPECT_NEAR(json["figures"]["seen_in_last"]["8"].get<double>(), 0.74, 0.005);
  ASSERT_EQ(json["caches"].size(), 1u);
  const auto& cache = json["caches"][0];
  EXPECT_NEAR(cache["lru_hit_rate"].get<double>(), 0.71, 0.01);
  EXPECT_NEAR(cache["hit_rate"].get<double>(), 0.74, 0.01);
  EXPECT_NEAR(cache["most_hit_rate"].get<double>(), 0.84, 0.01);
  EXPECT_GE(cache["best_decay_hit_rate"], cache["hit_rate"]);
  EXPECT_GE(cache["best_decay_hit_rate"], cache["lru_hit_rate"]);
  ASSERT_EQ(cache["layer_hit_rates"].size(), 48u);
  EXPECT_NEAR(cache["cache_bytes"].get<double>(), 24.0 * 48 * 2.8e6, 24.0 * 48 * 0.3e6);
  // 1.6 of 6 are read, of 48 layers.
  EXPECT_NEAR(cache["read_bytes_per_token"].get<double>(), 0.26 * 6 * 48 * 2.8e6,
              0.02 * 6 * 48 * 2.8e6 + 2e7);

  const auto together =
      succeed({"routing", known("qwen"), "--share", "25", "--json"}).json()["caches"][0];
  EXPECT_EQ(together["slots"], 32);
  const std::string text = succeed({"routing", known("gptoss")}).out;
  for (const char* words : {"gpt-oss-120b", "36 of 36 layers with routers, 2 of 128 experts",
                            "85 tokens of prompts, 64 behind", "| 2 | 2% |", "| 24 | 19% |",
                            "best decay", "entropy of their use"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
}

TEST_F(Routing, RefusesWhatItCantRead) {
  write_file(
      path("bad.csv"),
      "# route_trace v1\n# n_layer=1 n_expert=4\nturn,phase,step,layer,slot,expert\n0,0,0,0,0,4\n");
  fail({"routing", path("bad.csv")}, 3, {"bad.csv: line 4 speaks of expert 4 of 4"});
  fail({"routing", path("none.csv")}, 3, {"none.csv", "No such file"});
  write_file(
      path("prompt.csv"),
      "# route_trace v1\n# n_layer=1 n_expert=4\nturn,phase,step,layer,slot,expert\n0,0,0,0,0,3\n");
  fail({"routing", path("prompt.csv")}, 3,
       {"prompt.csv: no tokens of phase decode", "--phase all"});
  EXPECT_EQ(
      succeed({"routing", path("prompt.csv"), "--phase", "all", "--json"}).json()["caches"].size(),
      3u)
      << "slots for one token's experts, for two, for three";
  fail({"routing", path("prompt.csv"), "--phase", "all", "--slots", "5"}, 2,
       {"--slots 5", "4 experts"});
  fail({"routing", path("prompt.csv"), "--phase", "all", "--slots", "1", "--share", "1"}, 2,
       {"--slots", "--share"});
  fail({"routing", path("prompt.csv"), "--phase", "all", "--decay", "nan"}, 2, {"--decay"});
  EXPECT_EQ(sluice({"routing", path("prompt.csv"), "--decay", "2"}).exit_code, 2);
}

class RoutingOnAFullDisk : public Routing {
 protected:
  void SetUp() override {
    disk_ = SmallFileSystem::mount("size=1m,mode=0777");
    if (!disk_) GTEST_SKIP() << "needs the right to mount a small file system (root)";
  }
  std::unique_ptr<SmallFileSystem> disk_;
};

TEST_F(RoutingOnAFullDisk, TheRunGoesOnAndWholePassesStay) {
  // Some 2 MB of lines, 0.2 of them of the first pass.
  const std::vector<std::string> bench = {"bench", model(), "--batch",         "256",   "--pp", "8",
                                          "--tg",  "80",    "--no-disk-probe", "--json"};
  std::vector<std::string> recorded = bench;
  recorded.insert(recorded.end(), {"--record-routing", disk_->path("t.csv")});
  const Outcome outcome = succeed(recorded);
  EXPECT_NE(outcome.err.find("no more routing is recorded"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("No space left"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.json()["results"].size(), 1u);
  const RoutingTrace kept = parse_routing_trace(read_file(disk_->path("t.csv")), "t.csv");
  EXPECT_EQ(kept.layers[0].tokens.size(), kept.layers[1].tokens.size());
  EXPECT_GT(kept.layers[0].tokens.size(), 0u);
}

TEST_F(RoutingOnAFullDisk, WithoutRoomForAnyItDoesNotBegin) {
  disk_->fill();
  std::vector<std::string> arguments = run("", 2);
  arguments.insert(arguments.end(), {"--record-routing", disk_->path("t.csv")});
  const Outcome outcome = sluice(arguments);
  EXPECT_EQ(outcome.exit_code, 4) << outcome.err;
  EXPECT_NE(outcome.err.find("No space left"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace sluice::testing
