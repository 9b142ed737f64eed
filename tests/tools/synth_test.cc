// sluice synth: random weights of a shape, that run.
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Words = std::vector<std::string>;

class Synth : public ::testing::TestWithParam<std::string> {};

TEST_P(Synth, WritesAModelOfThatShapeThatRuns) {
  const TemporaryFolder folder;
  const std::string model = folder.path("model");
  succeed({"synth", fixture_model(GetParam()), model, "--dtype", "f16"});
  const auto json = succeed({"inspect", model, "--json"}).json();
  auto original = succeed({"inspect", fixture_model(GetParam()), "--json"}).json()["model"];
  for (const char* key : {"layers", "hidden_size", "heads", "kv_heads", "parameters", "vocab_size"})
    EXPECT_EQ(json["model"][key], original[key]) << key;
  EXPECT_EQ(json["model"]["weight_dtype"], "f16");
  EXPECT_EQ(json["tensor_bytes"], 2 * original["parameters"].get<int64_t>());
  EXPECT_FALSE(json.contains("notes")) << json["notes"];
  const auto run =
      succeed({"run", model, "--prompt-ids", "2,3,4", "-n", "20", "--ignore-eos", "--json"}).json();
  EXPECT_EQ(run["token_ids"].size(), 20u);
  const auto streamed = succeed({"run", model, "--prompt-ids", "2,3,4", "-n", "20", "--ignore-eos",
                                 "--json", "--percent", "10", "0", "0", "0", "0", "0"})
                            .json();
  EXPECT_EQ(streamed["token_ids"], run["token_ids"]);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Synth,
                         ::testing::Values("stories260k", "opt-tiny", "opt-350m-tiny",
                                           "llama-tiny-gqa", "llama-tiny-bias"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '-'; });
                           return name;
                         });

TEST(SynthCommand, TheSeedDecidesEveryByte) {
  const TemporaryFolder folder;
  const auto make = [&](const std::string& name, const Words& flags) {
    Words words{"synth", fixture_model("opt-tiny"), folder.path(name)};
    words.insert(words.end(), flags.begin(), flags.end());
    succeed(words);
    return read_folder(folder.path(name));
  };
  const auto first = make("a", {"--seed", "3"});
  EXPECT_TRUE(make("b", {"--seed", "3", "-t", "1"}) == first) << "whatever the threads";
  EXPECT_FALSE(make("c", {"--seed", "4"}) == first);
}

TEST(SynthCommand, LayersAndBuiltInShapes) {
  const TemporaryFolder folder;
  succeed({"synth", fixture_model("opt-tiny"), folder.path("deep"), "--layers", "7"});
  EXPECT_EQ(succeed({"inspect", folder.path("deep"), "--json"}).json()["model"]["layers"], 7);
  const auto outcome = succeed({"synth", "opt-175b", folder.path("no"), "--dry-run"});
  EXPECT_NE(outcome.err.find("174.6 billion"), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path("no")));
}

// A packed store, and one whose layers are links to the first: it runs, and converts on.
TEST(SynthCommand, PackedStoresAndRepeatedLayers) {
  const TemporaryFolder folder;
  const auto tokens = [&](const std::string& model) {
    return succeed({"run", folder.path(model), "--prompt-ids", "2,3,4", "-n", "12", "--ignore-eos",
                    "--json", "--percent", "30", "0", "0", "0", "0", "0"})
        .json()["token_ids"];
  };
  succeed({"synth", fixture_model("llama-tiny-gqa"), folder.path("packed"), "--weights", "int4-g32",
           "--layers", "3"});
  EXPECT_EQ(tokens("packed").size(), 12u);
  succeed({"synth", fixture_model("llama-tiny-gqa"), folder.path("repeated/"), "--weights",
           "int4-g32", "--layers", "3", "--repeat-layers"});
  const auto packed = succeed({"inspect", folder.path("packed"), "--json"}).json();
  auto repeated = succeed({"inspect", folder.path("repeated"), "--json", "--verify"}).json();
  EXPECT_EQ(repeated["model"]["layers"], 3);
  EXPECT_EQ(repeated["tensor_bytes"], packed["tensor_bytes"]);
  const std::filesystem::path first = folder.path("repeated/layer-00000.safetensors");
  EXPECT_EQ(std::filesystem::hard_link_count(first), 3u);
  EXPECT_TRUE(std::filesystem::equivalent(first, folder.path("repeated/layer-00002.safetensors")));
  const auto chosen = tokens("repeated");
  EXPECT_EQ(chosen.size(), 12u);
  succeed({"convert", folder.path("repeated"), folder.path("own")});
  EXPECT_EQ(std::filesystem::hard_link_count(folder.path("own/layer-00000.safetensors")), 1u);
  EXPECT_EQ(tokens("own"), chosen);
  size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
    ++entries;
  }
  EXPECT_EQ(entries, 3u);
}

// Of a mixture every expert is repeated.
TEST(SynthCommand, RepeatedLayersOfAMixtureRun) {
  const TemporaryFolder folder;
  succeed({"synth", fixture_model("mixtral-tiny"), folder.path("store"), "--weights", "int4-g32",
           "--layers", "3", "--repeat-layers"});
  EXPECT_EQ(
      succeed({"inspect", folder.path("store"), "--json", "--verify"}).json()["model"]["layers"],
      3);
  succeed({"run", folder.path("store"), "--prompt-ids", "5,6,7", "-n", "4"});
  // Its first layer is dense.
  fail({"synth", fixture_model("deepseek-v3-moe-tiny"), folder.path("no"), "--weights", "int4",
        "--repeat-layers"},
       2, {"differs from layer 0", "repeat"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("no")));
}

// The store is the one that converting the same weights gives, though they are never on disk.
TEST(SynthCommand, AStoreIsThatOfTheSameWeightsConverted) {
  const TemporaryFolder folder;
  for (const std::string format : {"int4-g32", "bf16"}) {
    const std::string model = fixture_model("llama-tiny-bias");
    const std::string direct = folder.path("direct-" + format);
    succeed({"synth", model, direct, "--weights", format, "--dtype", "f16", "--seed", "7"});
    const std::string plain = folder.path("plain-" + format);
    succeed({"synth", model, plain, "--dtype", "f16", "--seed", "7"});
    const std::string converted = folder.path("converted-" + format);
    succeed({"convert", plain, converted, "--weights", format, "--int4-range", "minmax"});
    auto a = read_folder(direct), b = read_folder(converted);
    for (auto* store : {&a, &b}) store->erase("sluice-store.json");  // says where it came from
    EXPECT_TRUE(a == b) << format;
    succeed({"inspect", direct, "--verify"});
  }
}

// Needs the room of the store, not that of the weights too.
TEST(SynthCommand, AStoreNeedsItsOwnRoomOnly) {
  const auto disk = SmallFileSystem::mount("size=12m");
  if (!disk) GTEST_SKIP() << "mounting is not allowed here";
  // 6.3 million parameters: 3.6 MB as int4, 25 MB as f32.
  write_file(disk->path("config.json"),
             R"({"model_type": "opt", "hidden_size": 256, "ffn_dim": 1024, "num_hidden_layers": 8,
                 "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 64})");
  succeed({"synth", disk->path("config.json"), disk->path("store"), "--weights", "int4", "--dtype",
           "f32"});
  succeed({"inspect", disk->path("store"), "--verify"});
  const Outcome outcome = fail(
      {"synth", disk->path("config.json"), disk->path("plain"), "--dtype", "f32"}, 4, {"needed"});
}

TEST(SynthErrors, RepeatedLayersAreForStores) {
  const TemporaryFolder folder;
  fail({"synth", fixture_model("opt-tiny"), folder.path("no"), "--repeat-layers"}, 2,
       {"--repeat-layers", "--weights"});
  fail({"synth", fixture_model("opt-tiny"), folder.path("no"), "--weights", "int5"}, 2,
       {"--weights", "int5"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("no")));
  write_file(folder.path("own"), "mine");
  fail({"synth", fixture_model("opt-tiny"), folder.path(), "--weights", "int8"}, 2,
       {"not empty", "--overwrite"});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SynthErrors, AModelThatIsThereStays) {
  const TemporaryFolder folder;
  succeed({"synth", fixture_model("opt-tiny"), folder.path("model")});
  const auto before = read_folder(folder.path("model"));
  fail({"synth", fixture_model("stories260k"), folder.path("model")}, 2,
       {"already holds a model", "--overwrite"});
  EXPECT_TRUE(read_folder(folder.path("model")) == before);
  succeed({"synth", fixture_model("stories260k"), folder.path("model"), "--overwrite"});
  EXPECT_EQ(succeed({"inspect", folder.path("model"), "--json"}).json()["parameters"], 260032);
}

TEST(SynthErrors, NameWhatIsWrong) {
  const TemporaryFolder folder;
  fail({"synth", "opt-1t", folder.path("no")}, 2, {"opt-1t", "built-in", "opt-30b"});
  fail({"synth", "opt-125m", folder.path("no"), "--dtype", "int4"}, 2, {"--dtype", "int4"});
  fail({"synth", folder.path(), folder.path("no")}, 3, {"config.json"});
  write_file(folder.path("config.json"), "[]");
  fail({"synth", folder.path("config.json"), folder.path("no")}, 3, {"config.json"});
  fail({"synth", folder.path("config.json"), folder.path("no"), "--layers", "3"}, 3,
       {"config.json", "JSON object"});
  write_file(folder.path("file"), "");
  fail({"synth", fixture_model("opt-tiny"), folder.path("file")}, 3, {folder.path("file")});
  EXPECT_FALSE(std::filesystem::exists(folder.path("no")));
}

}  // namespace
}  // namespace sluice::testing
