// Wherever weights, KV and activations live and however the block is cut: the same tokens.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;

struct Placement {
  std::string name;
  Words flags;
  bool streams;  // weights come from disk in each pass
};

void PrintTo(const Placement& placement, std::ostream* out) { *out << placement.name; }

class SameTokens : public ::testing::TestWithParam<Placement> {};

TEST_P(SameTokens, AsTheReference) {
  Words arguments{"run", fixture_model("stories260k"), "-n", "64", "--json"};
  std::vector<Ids> expected;
  for (const Golden& golden : goldens("stories260k")) {
    arguments.insert(arguments.end(), {"--prompt-ids", id_list(golden.prompt_ids)});
    expected.push_back(golden.greedy_ids);
  }
  Words flags = GetParam().flags;
  if (!flags.empty() && flags.back() == "smallest") flags.back() = smallest_budget(arguments);
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  const auto json = succeed(arguments).json();
  ASSERT_EQ(json["results"].size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(json["results"][i]["token_ids"].get<Ids>(), expected[i]) << "prompt " << i;
  const auto& stats = json["stats"];
  EXPECT_EQ(stats["streamed_bytes_per_pass"].get<int64_t>() > 0, GetParam().streams);
  EXPECT_LE(stats["peak_bytes"]["device"].get<int64_t>(),
            stats["budget_bytes"]["device"].get<int64_t>());
}

INSTANTIATE_TEST_SUITE_P(
    Placements, SameTokens,
    ::testing::Values(
        Placement{"Resident", {}, false},
        Placement{"SmallestBudget", {"--cpu-mem", "smallest"}, true},
        Placement{"AllOnDisk", {"--percent", "0", "0", "0", "0", "0", "0"}, true},
        Placement{"WeightsOnDisk",
                  {"--percent", "0", "0", "100", "0", "100", "0", "--gpu-batch-size", "6"},
                  true},
        Placement{"KvOnDisk", {"--percent", "100", "0", "0", "0", "100", "0"}, false},
        Placement{"ActivationsOnDisk",
                  {"--percent", "100", "0", "100", "0", "0", "0", "--gpu-batch-size", "2",
                   "--num-gpu-batches", "3"},
                  false},
        Placement{"HalfOfEverything",
                  {"--percent", "50", "0", "50", "0", "50", "0", "--gpu-batch-size", "3",
                   "--num-gpu-batches", "2"},
                  true},
        Placement{"HostCountsAsMemory",
                  {"--percent", "20", "30", "0", "70", "10", "10", "--gpu-batch-size", "4"},
                  true},
        Placement{"OneSequenceAtATime", {"--gpu-batch-size", "1", "--num-gpu-batches", "1"}, false},
        Placement{"SmallPagesAndChunks",
                  {"--percent", "30", "0", "40", "0", "100", "0", "--gpu-batch-size", "2",
                   "--num-gpu-batches", "2", "--micro-batch-tokens", "5", "--page-tokens", "3"},
                  true},
        Placement{"BufferedReads",
                  {"--percent", "0", "0", "100", "0", "100", "0", "--io", "buffered"},
                  true},
        Placement{
            "ReadsByThreads", {"--percent", "0", "0", "0", "0", "100", "0", "--io", "pread"}, true},
        Placement{"EveryThread", {"-t", "0"}, false},
        Placement{"ThreeThreads", {"-t", "3", "--percent", "50", "0", "0", "0", "100", "0"}, true},
        Placement{"PlainKernels", {"--cpu-isa", "generic"}, false}),
    [](const auto& info) { return info.param.name; });

TEST(PolicyFile, IsFollowedAndGivesTheSameTokens) {
  const TemporaryFolder folder;
  write_file(folder.path("policy.json"),
             R"({"weights": {"device": 0.25, "host": 0, "disk": 0.75},
                 "kv": {"device": 0.5, "host": 0, "disk": 0.5},
                 "micro_batch_sequences": 2, "micro_batches": 3, "page_tokens": 8})");
  const Golden golden = goldens("stories260k").front();
  const auto json =
      succeed({"run", fixture_model("stories260k"), "--prompt-ids", id_list(golden.prompt_ids),
               "-n", "64", "--json", "--policy", folder.path("policy.json")})
          .json();
  EXPECT_EQ(json["token_ids"].get<Ids>(), golden.greedy_ids);
  EXPECT_EQ(json["policy"]["weights"]["disk"], 0.75);
  EXPECT_EQ(json["policy"]["kv"]["device"], 0.5);
  EXPECT_EQ(json["policy"]["micro_batches"], 3);
  EXPECT_EQ(json["policy"]["page_tokens"], 8);
  EXPECT_GT(json["stats"]["peak_bytes"]["disk"].get<int64_t>(), 0);
}

TEST(PolicyFile, APrintedPolicyCanBeGivenBack) {
  const TemporaryFolder folder;
  Words run{"run", fixture_model("stories260k"), "-p", "Once upon a time", "-n", "32", "--json"};
  run.insert(run.end(), {"--cpu-mem", smallest_budget(run)});
  const auto first = succeed(run).json();
  EXPECT_GT(first["policy"]["weights"]["disk"].get<double>(), 0);
  write_file(folder.path("policy.json"), first["policy"].dump());
  run.insert(run.end(), {"--policy", folder.path("policy.json")});
  const auto second = succeed(run).json();
  EXPECT_EQ(second["policy"], first["policy"]);
  EXPECT_EQ(second["token_ids"], first["token_ids"]);
}

TEST(BudgetBelowTheWeights, GivesTheTokensOfTheResidentRun) {
  const TemporaryFolder folder;
  write_file(folder.path("config.json"), R"({"architectures": ["LlamaForCausalLM"],
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 600,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "float32"})");
  succeed({"synth", folder.path("config.json"), folder.path("model"), "--dtype", "f32"});
  const Words run{
      "run",    folder.path("model"), "--prompt-ids", "1,2,3", "--prompt-ids", "9,8", "-n", "24",
      "--json", "--ignore-eos"};
  const auto resident = succeed(run).json();
  EXPECT_EQ(resident["stats"]["streamed_bytes_per_pass"], 0);
  Words tight = run;
  tight.insert(tight.end(), {"--cpu-mem", smallest_budget(run)});
  const auto streamed = succeed(tight).json();
  const auto weights =
      succeed({"inspect", folder.path("model"), "--json"}).json()["model"]["weight_bytes"];
  const auto& stats = streamed["stats"];
  EXPECT_LT(stats["budget_bytes"]["device"].get<int64_t>(), weights.get<int64_t>() / 2);
  EXPECT_LE(stats["peak_bytes"]["device"].get<int64_t>(),
            stats["budget_bytes"]["device"].get<int64_t>());
  EXPECT_GT(stats["streamed_bytes_per_pass"].get<int64_t>(), weights.get<int64_t>() / 2);
  EXPECT_EQ(streamed["results"][0]["token_ids"], resident["results"][0]["token_ids"]);
  EXPECT_EQ(streamed["results"][1]["token_ids"], resident["results"][1]["token_ids"]);
}

// A safetensors header may have any length, so data may begin at any address.
void begin_data_at(const std::string& model, size_t odd) {
  const std::string path = model + "/model.safetensors";
  const std::string file = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  std::string header = file.substr(sizeof length, length);
  const std::string data = file.substr(sizeof length + length);
  header.erase(header.find_last_not_of(' ') + 1);
  while ((sizeof length + header.size()) % 16 != odd) header += ' ';
  length = header.size();
  write_file(path,
             std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data);
}

TEST(Weights, MayLieAtAnyAddress) {
  TemporaryFolder folder;
  for (const std::string name : {"llama-tiny-bf16", "llama-tiny-f16", "opt-tiny-bf16", "opt-tiny"})
    for (const bool streams : {false, true}) {
      Words words{"run",   folder.path("model"), "--prompt-ids", "1,2,3,4,5,6,7", "-n", "4",
                  "--json"};
      if (streams) words.insert(words.end(), {"--percent", "0", "0", "100", "0", "100", "0"});
      std::vector<Ids> tokens;
      for (const size_t odd : {0, 1, 2, 7}) {
        std::filesystem::remove_all(folder.path("model"));
        copy_model(name, folder.path("model"));
        begin_data_at(folder.path("model"), odd);
        tokens.push_back(succeed(words).json()["token_ids"].get<Ids>());
        EXPECT_EQ(tokens.back().size(), 4u);
        EXPECT_EQ(tokens.back(), tokens.front()) << name << " at " << odd;
      }
    }
}

}  // namespace
}  // namespace sluice::testing
