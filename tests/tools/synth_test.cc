// sluice synth: random weights of a shape, that run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "src/base/bytes.h"
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
  EXPECT_NE(outcome.err.find("325GiB of bf16"), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path("no")));
}

// What a dry run says is what is written then, also of a store in another format.
TEST(SynthCommand, SaysWhatItWillWrite) {
  const TemporaryFolder folder;
  for (const char* format : {"int4-g64", "int8", "bf16"}) {
    Words words{"synth", fixture_model("llama-tiny-gqa"), folder.path(format), "--weights", format};
    succeed(words);
    const auto written = succeed({"inspect", folder.path(format), "--json"}).json();
    words.emplace_back("--dry-run");
    const std::string said = succeed(words).err;
    const auto bytes = written["model"]["weight_bytes"].get<int64_t>();
    EXPECT_NE(said.find(format_bytes(bytes) + " of " + format + " to "), std::string::npos)
        << said << bytes;
  }
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
}

// One layer for each kind: the first ones here are dense, those behind them have experts.
TEST(SynthCommand, RepeatedLayersAreOfTheirKind) {
  const TemporaryFolder folder;
  succeed({"synth", fixture_model("deepseek-v3-moe-tiny"), folder.path("store"), "--weights",
           "int4-g32", "--layers", "6", "--repeat-layers"});
  const auto inspected = succeed({"inspect", folder.path("store"), "--json", "--verify"}).json();
  EXPECT_EQ(inspected["model"]["layers"], 6);
  const auto file = [&](int layer) {
    return std::filesystem::path(folder.path(fmt::format("store/layer-{:05}.safetensors", layer)));
  };
  const auto config = nlohmann::json::parse(read_file(folder.path("store/config.json")));
  const int dense = config["first_k_dense_replace"];
  ASSERT_GE(dense, 1);
  ASSERT_LT(dense, 4);
  for (int layer = 0; layer < dense; ++layer)
    EXPECT_EQ(std::filesystem::hard_link_count(file(layer)), 1u) << layer;
  EXPECT_EQ(std::filesystem::hard_link_count(file(dense)), static_cast<uintmax_t>(6 - dense));
  EXPECT_TRUE(std::filesystem::equivalent(file(dense), file(5)));
  succeed({"run", folder.path("store"), "--prompt-ids", "5,6,7", "-n", "4", "--ignore-eos"});
}

// Types of layers are as many as there are layers.
TEST(SynthCommand, FewerLayersHaveFewerTypes) {
  const TemporaryFolder folder;
  succeed({"synth", fixture_model("qwen3-5-tiny"), folder.path("store"), "--layers", "2"});
  EXPECT_EQ(succeed({"inspect", folder.path("store"), "--json"}).json()["model"]["layers"], 2);
}

// Which experts tokens go to is made up as trained models choose them, and the store says so. Where
// weights lie and who else is there makes no difference.
TEST(SynthCommand, MixturesAreRoutedAsTrainedOnesAre) {
  const TemporaryFolder folder;
  const auto made = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> args{"synth", fixture_model("qwen3-moe-tiny"), folder.path(name)};
    args.insert(args.end(), more.begin(), more.end());
    succeed(args);
    const auto config = nlohmann::json::parse(read_file(folder.path(name + "/config.json")));
    return config.contains("sluice_router") ? config["sluice_router"].dump() : std::string();
  };
  EXPECT_EQ(made("default", {"--seed", "5"}), R"({"kind":"sticky","seed":5})");
  EXPECT_EQ(made("sticky", {"--router", "sticky:7"}), R"({"kind":"sticky","seed":7})");
  EXPECT_EQ(made("flat", {"--router", "flat", "--weights", "int4-g32"}),
            R"({"kind":"flat","seed":1})");
  EXPECT_EQ(made("own", {"--router", "weights"}), "");
  const auto run = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> args{
        "run", folder.path(name), "--prompt-ids", "5,6,7,8,9,10,11,12,13", "-n",
        "12",  "--ignore-eos",    "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return succeed(args);
  };
  const std::string csv = folder.path("run.csv");
  const Outcome resident = run("sticky", {"--record-routing", csv});
  EXPECT_NE(resident.err.find("made-up rule"), std::string::npos) << resident.err;
  const auto tokens = resident.json()["token_ids"];
  const std::string routing = read_file(csv);
  EXPECT_EQ(run("own", {}).err.find("made-up rule"), std::string::npos);
  const Outcome on_disk =
      run("sticky", {"--percent", "0", "0", "0", "0", "0", "0", "--record-routing", csv});
  EXPECT_EQ(on_disk.json()["token_ids"], tokens);
  EXPECT_EQ(read_file(csv), routing);
  EXPECT_EQ(
      run("sticky", {"--device", "emulated:mem=1GiB", "--record-routing", csv}).json()["token_ids"],
      tokens);
  EXPECT_EQ(read_file(csv), routing);
}

TEST(SynthErrors, RoutersThatAreNone) {
  const TemporaryFolder folder;
  for (const std::string router : {"even", "sticky:", "sticky:x", "sticky:1x", "flat:-1",
                                   "weights:1", "sticky:99999999999999999999"})
    fail({"synth", fixture_model("qwen3-moe-tiny"), folder.path("no"), "--router", router}, 2,
         {"--router", router, "sticky"});
  fail({"synth", fixture_model("opt-tiny"), folder.path("no"), "--router", "sticky"}, 2,
       {"--router", "no experts"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("no")));
  // A model that says what nobody understands.
  succeed({"synth", fixture_model("qwen3-moe-tiny"), folder.path("model")});
  const std::string path = folder.path("model/config.json");
  auto config = nlohmann::json::parse(read_file(path));
  const std::vector<std::pair<nlohmann::json, std::string>> bad{
      {{{"kind", "even"}}, "even"},
      {{{"kind", "sticky"}, {"heat", 2}}, "heat"},
      {{{"kind", "sticky"}, {"seed", -1}}, "seed"},
      {{{"kind", 7}}, "kind"},
      {"sticky", "sluice_router"}};
  for (const auto& [router, named] : bad) {
    config["sluice_router"] = router;
    write_file(path, config.dump());
    fail({"run", folder.path("model"), "--prompt-ids", "5"}, 3, {named});
  }
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
