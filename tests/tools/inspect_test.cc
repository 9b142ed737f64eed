// sluice inspect: what it says of every kind of folder and file, against config.json and the
// readers' own fixtures.
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

nlohmann::json inspect(const std::string& path, std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), {"inspect", path, "--json"});
  return succeed(flags).json();
}

class Inspect : public ::testing::TestWithParam<std::string> {};

TEST_P(Inspect, FoldersAreDescribedAsTheirConfigSays) {
  const std::string folder = fixture_model(GetParam());
  const auto config = nlohmann::json::parse(read_file(folder + "/config.json"));
  const auto json = inspect(folder, {"--tensors"});
  const bool is_bin = GetParam().find("bin") != std::string::npos;
  EXPECT_EQ(json["format"], is_bin ? "PyTorch" : "safetensors");
  const auto& model = json["model"];
  EXPECT_EQ(model["family"], config["model_type"]);
  EXPECT_EQ(model["layers"], config["num_hidden_layers"]);
  EXPECT_EQ(model["hidden_size"], config["hidden_size"]);
  EXPECT_EQ(model["heads"], config["num_attention_heads"]);
  EXPECT_EQ(model["kv_heads"],
            config.value("num_key_value_heads", config["num_attention_heads"].get<int>()));
  EXPECT_EQ(model["vocab_size"], config["vocab_size"]);
  EXPECT_EQ(model["max_positions"], config["max_position_embeddings"]);
  EXPECT_FALSE(json.contains("notes")) << json["notes"];
  ASSERT_EQ(json["tensor_list"].size(), json["tensors"].get<size_t>());
  int64_t bytes = 0, files = 0;
  for (const auto& tensor : json["tensor_list"]) bytes += tensor["bytes"].get<int64_t>();
  EXPECT_EQ(bytes, json["tensor_bytes"].get<int64_t>());
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto extension = entry.path().extension();
    files += extension == ".safetensors" || extension == ".bin";
  }
  EXPECT_EQ(json["files"], files);
  const auto plain = succeed({"inspect", folder}).out;
  EXPECT_NE(plain.find(folder + ": " + json["format"].get<std::string>()), std::string::npos);
  EXPECT_NE(plain.find(std::to_string(config["num_hidden_layers"].get<int>()) + " layers"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Inspect,
                         ::testing::Values("stories260k", "opt-tiny", "opt-350m-tiny",
                                           "opt-tiny-f16", "opt-tiny-f16-bin-decoder",
                                           "opt-tiny-f16-bin-sharded", "llama-tiny-sharded",
                                           "llama-tiny-bf16", "llama3-rope-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '-'; });
                           return name;
                         });

TEST(InspectCommand, TheTrainedModelsNumbersAreRight) {
  const auto json = inspect(fixture_model("stories260k"));
  EXPECT_EQ(json["parameters"], 260032);
  EXPECT_EQ(json["bytes_by_dtype"]["f32"], 260032 * 4);
  EXPECT_EQ(json["model"]["weight_bytes"], 260032 * 4);
  EXPECT_EQ(json["model"]["kv_bytes_per_token"], 2 * 4 * 8 * 5 * 4);  // K and V, heads, dim, layers
  EXPECT_EQ(json["tokenizer"], "BPE with byte fallback, 512 tokens");
}

TEST(InspectCommand, WhatASequenceKeepsOfAnyLengthIsSaid) {
  const auto model = inspect(fixture_model("qwen3-5-tiny"))["model"];
  EXPECT_EQ(model["kv_bytes_per_token"], 2 * 2 * 8 * 4) << "of one layer of four";
  EXPECT_EQ(model["state_bytes_per_sequence"], 3 * 4 * (4 * 8 * 8 + 3 * (2 * 2 * 8 + 4 * 8)));
}

TEST(InspectCommand, SingleFilesOfEveryKind) {
  EXPECT_EQ(inspect(fixture_model("opt-tiny") + "/model.safetensors")["format"], "safetensors");
  const auto bin = inspect(fixture_model("opt-tiny-bin") + "/pytorch_model.bin", {"--tensors"});
  EXPECT_EQ(bin["format"], "PyTorch");
  EXPECT_EQ(bin["tensors"], 53);
  EXPECT_FALSE(bin.contains("model")) << "a file has no config.json of its own";
  for (const char* name : {"torch_protocol4.pt", "torch_protocol5.pt"})
    EXPECT_GT(inspect(fixture(std::string("checkpoints/made/") + name))["tensors"].get<int>(), 0);
}

TEST(InspectCommand, PackedStores) {
  const TemporaryFolder folder;
  succeed({"convert", fixture_model("opt-tiny-bin"), folder.path("store")});
  const auto json = inspect(folder.path("store"), {"--verify"});
  EXPECT_EQ(json["format"], "packed store");
  EXPECT_EQ(json["files"], 5);
  EXPECT_GT(json["verified_bytes"], json["file_bytes"]) << "and the small files";
  EXPECT_GE(json["verified_small_files"], 1) << "config.json";
  EXPECT_EQ(json["parameters"], inspect(fixture_model("opt-tiny-bin"))["parameters"]);
  const auto plain = succeed({"inspect", folder.path("store"), "--verify"}).out;
  EXPECT_NE(plain.find("packed store"), std::string::npos);
  EXPECT_NE(plain.find("verified"), std::string::npos);
}

TEST(InspectCommand, AModelThatDoesNotRunIsDescribedAllTheSame) {
  const TemporaryFolder folder;
  copy_model("stories260k", folder.path("model"));
  std::string config = read_file(folder.path("model/config.json"));
  config.replace(config.find("\"llama\""), 7, "\"mamba\"");
  write_file(folder.path("model/config.json"), config);
  const auto json = inspect(folder.path("model"));
  EXPECT_EQ(json["parameters"], 260032);
  const std::string note = json["notes"].at(0);
  EXPECT_NE(note.find("does not run"), std::string::npos) << note;
  EXPECT_NE(note.find("mamba"), std::string::npos) << note;
}

TEST(InspectCommand, Kernels) {
  EXPECT_NE(succeed({"inspect", "--kernels"}).out.find("attention"), std::string::npos);
  const auto json = succeed({"inspect", "--kernels", "--json"}).json();
  EXPECT_NE(json["kernels"].get<std::string>().find("linear"), std::string::npos);
}

TEST(InspectErrors, NameTheFileAndTheMend) {
  const TemporaryFolder folder;
  fail({"inspect"}, 2, {"no path", "model folder"});
  fail({"inspect", folder.path("none")}, 3, {folder.path("none"), "no such file"});
  fail({"inspect", folder.path()}, 3, {"no model weights"});
  fail({"inspect", fixture_model("opt-tiny") + "/config.json"}, 3,
       {"config.json", "not a kind of weight file"});
  fail({"inspect", fixture_model("opt-tiny"), "--verify"}, 2, {"not a packed store", "checksums"});
  copy_model("stories260k", folder.path("cut"));
  std::filesystem::resize_file(folder.path("cut/model.safetensors"), 100);
  fail({"inspect", folder.path("cut")}, 3, {"model.safetensors", "cut short"});
}

TEST(InspectCommand, PathsNeedNotBeUtf8) {
  const TemporaryFolder folder;
  copy_model("opt-tiny", folder.path("caf\xe9"));
  EXPECT_EQ(inspect(folder.path("caf\xe9"))["parameters"].get<int>(),
            inspect(fixture_model("opt-tiny"))["parameters"].get<int>());
  EXPECT_EQ(succeed({"convert", fixture_model("opt-tiny"), folder.path("st\xf6re"), "--json"})
                .json()["groups"],
            5);
}

TEST(InspectNames, AreShownWithoutTheControlCharactersThatTheyHold) {
  const TemporaryFolder folder;
  const std::string header = R"({"\u001b[2Jname":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  std::string file(1, static_cast<char>(header.size()));
  file.resize(8);
  write_file(folder.path("model.safetensors"), file + header + "x");
  write_file(folder.path("config.json"), R"({"model_type": "\u001b[31mred"})");
  const auto out = succeed({"inspect", folder.path(), "--tensors"}).out;
  EXPECT_EQ(out.find('\x1b'), std::string::npos) << out;
  EXPECT_NE(out.find("\\x1b[2Jname"), std::string::npos) << out;
  EXPECT_NE(out.find("\\x1b[31mred"), std::string::npos) << out;
}

}  // namespace
}  // namespace sluice::testing
