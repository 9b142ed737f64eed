// sluice convert: a packed store gives the tokens of its source.
#include <gtest/gtest.h>

#include <set>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Ids = std::vector<int32_t>;

// The store of a model in `folder`/store, converted with `flags`.
std::string convert(const std::string& model, const TemporaryFolder& folder,
                    const std::vector<std::string>& flags = {}) {
  const std::string store = folder.path("store");
  std::vector<std::string> words{"convert", fixture_model(model), store};
  words.insert(words.end(), flags.begin(), flags.end());
  succeed(words);
  return store;
}

Ids greedy(const std::string& model, const Golden& golden, std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), {"run", model, "--prompt-ids", id_list(golden.prompt_ids), "-n",
                               std::to_string(golden.greedy_ids.size()), "--ignore-eos", "--json"});
  return succeed(flags).json()["token_ids"].get<Ids>();
}

class Convert : public ::testing::TestWithParam<std::string> {};

TEST_P(Convert, TheStoreGivesTheSourcesTokens) {
  const TemporaryFolder folder;
  const std::string store = convert(GetParam(), folder, {"--verify"});
  for (const Golden& golden : goldens(GetParam())) {
    const Ids expected = greedy(fixture_model(GetParam()), golden);
    EXPECT_EQ(greedy(store, golden), expected);
    EXPECT_EQ(greedy(store, golden, {"--percent", "0", "0", "100", "0", "100", "0"}), expected)
        << "streamed";
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Convert,
                         ::testing::Values("stories260k", "opt-tiny", "opt-tiny-bin",
                                           "opt-tiny-f16-bin-sharded", "opt-350m-tiny",
                                           "llama-tiny-sharded", "llama-tiny-bf16",
                                           "phi3-tiny-bf16-bin"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '-'; });
                           return name;
                         });

TEST(ConvertCommand, TheStoreHoldsTokenizerConfigAndNoJournal) {
  const TemporaryFolder folder;
  const std::string store = convert("stories260k", folder);
  const auto files = read_folder(store);
  for (const char* name :
       {"sluice-store.json", "config.json", "tokenizer.json", "embed.safetensors",
        "layer-00000.safetensors", "layer-00004.safetensors", "head.safetensors"})
    EXPECT_TRUE(files.contains(name)) << name;
  EXPECT_FALSE(files.contains("sluice-store.journal"));
  EXPECT_FALSE(files.contains("layer-00005.safetensors"));
  const Golden golden = goldens("stories260k").front();
  EXPECT_EQ(succeed({"run", store, "-p", golden.prompt, "-n", "64"}).out,
            golden.text.substr(golden.prompt.size()) + "\n");
}

TEST(ConvertCommand, JsonCountsWhatWasWritten) {
  const TemporaryFolder folder;
  const auto json =
      succeed({"convert", fixture_model("opt-tiny"), folder.path("store"), "--json"}).json();
  EXPECT_EQ(json["groups"], 5);
  EXPECT_EQ(json["resumed_groups"], 0);
  EXPECT_EQ(json["written_bytes"], json["total_bytes"]);
  int64_t bytes = 0;
  for (const auto& [name, text] : read_folder(folder.path("store")))
    if (name.ends_with(".safetensors")) bytes += static_cast<int64_t>(text.size());
  EXPECT_EQ(json["total_bytes"], bytes);
}

TEST(ConvertCommand, OtherElementTypesAreRoundedOnce) {
  const TemporaryFolder folder;
  const std::string f32 = convert("opt-tiny-f16", folder, {"--weights", "f32"});
  // f16 to f32 is exact, so f32 arithmetic gives the same tokens.
  for (const Golden& golden : goldens("opt-tiny-f16"))
    EXPECT_EQ(greedy(f32, golden, {"--kv-dtype", "f32"}),
              greedy(fixture_model("opt-tiny-f16"), golden, {"--kv-dtype", "f32"}));
  const auto f32_json = succeed({"inspect", f32, "--json"}).json();
  EXPECT_EQ(f32_json["model"]["weight_dtype"], "f32");

  const TemporaryFolder other;
  const std::string bf16 = convert("stories260k", other, {"--weights", "bf16"});
  const auto bf16_json = succeed({"inspect", bf16, "--json"}).json();
  EXPECT_EQ(bf16_json["model"]["weight_dtype"], "bf16");
  EXPECT_EQ(bf16_json["bytes_by_dtype"]["bf16"], 260032 * 2);
  // Rounded weights of a trained model still begin the story as the exact ones do.
  EXPECT_EQ(succeed({"run", bf16, "-p", "Once upon a time", "-n", "8"}).out,
            ", there was a little girl\n");
}

TEST(ConvertCommand, AStoreConvertsToAStore) {
  const TemporaryFolder folder;
  const std::string first = convert("stories260k", folder);
  succeed({"convert", first, folder.path("second")});
  const Golden golden = goldens("stories260k").front();
  EXPECT_EQ(greedy(folder.path("second"), golden), golden.greedy_ids);
}

TEST(ConvertCommand, ADryRunWritesNothing) {
  const TemporaryFolder folder;
  const auto outcome =
      succeed({"convert", fixture_model("opt-tiny"), folder.path("store"), "--dry-run"});
  EXPECT_NE(outcome.err.find("5 groups"), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path("store")));
}

TEST(ConvertCommand, RefusesToReplaceWhatItWasNotAskedTo) {
  const TemporaryFolder folder;
  const std::string store = convert("opt-tiny", folder);
  const auto before = read_folder(store);
  fail({"convert", fixture_model("stories260k"), store}, 2, {"already holds", "--overwrite"});
  fail({"convert", store, store}, 2, {"same folder"});
  EXPECT_EQ(read_folder(store), before);
  succeed({"convert", fixture_model("stories260k"), store, "--overwrite"});
  const Golden golden = goldens("stories260k").front();
  EXPECT_EQ(greedy(store, golden), golden.greedy_ids);
  fail({"convert", folder.path("none"), folder.path("other")}, 3, {folder.path("none")});
  fail({"convert", fixture_model("opt-tiny"), folder.path("other"), "--weights", "int5"}, 2,
       {"--weights", "int5"});
  for (const char* kept_alone : {"q4_1", "iq2", "q3_k-g32", "q7_k"})
    fail({"convert", fixture_model("opt-tiny"), folder.path("other"), "--weights", kept_alone}, 2,
         {"--weights", kept_alone, "q2_k to q6_k"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("other")));
}

// What GGUF files bring is made too: of rows of 64 and 172 columns, filled up.
TEST(ConvertCommand, KTypesAreMadeAndRunAsAnyOther) {
  const TemporaryFolder folder;
  const std::string text = folder.path("text"), store = folder.path("store");
  std::string story;
  for (const Golden& golden : goldens("stories260k")) story += golden.text + "\n";
  write_file(text, story);
  const Golden golden = goldens("stories260k").front();
  for (const std::string type : {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k"}) {
    succeed({"convert", fixture_model("stories260k"), store, "--overwrite", "--weights", type});
    const auto model = succeed({"inspect", store, "--json"}).json()["model"];
    EXPECT_EQ(model["weight_dtype"], type) << model;
    const Ids expected = greedy(store, golden);
    EXPECT_EQ(greedy(store, golden, {"--percent", "0", "0", "100", "0", "100", "0"}), expected);
    const auto plain = read_folder(store);
    succeed({"convert", fixture_model("stories260k"), store, "--overwrite", "--weights", type,
             "--threads", "1"});
    EXPECT_EQ(read_folder(store), plain) << type;
    succeed({"convert", fixture_model("stories260k"), store, "--overwrite", "--weights", type,
             "--calibrate", text});
    EXPECT_NE(read_folder(store), plain) << type;
    if (type >= "q4_k") {
      EXPECT_EQ(succeed({"run", store, "-p", "Once upon a time", "-n", "8"}).out,
                ", there was a little girl\n")
          << type;
    }
    succeed({"plan", fixture_model("stories260k"), "--weights", type, "--hardware", "laptop-8gb"});
  }
}

// A format for each matrix: inspect says which, and every way of running it gives its tokens.
TEST(ConvertCommand, BitsAreSharedOutAmongMatrices) {
  const TemporaryFolder folder;
  const std::string text = folder.path("text");
  std::string story;
  for (const Golden& golden : goldens("stories260k")) story += golden.text + "\n";
  write_file(text, story);
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, std::vector<std::string>{"--calibrate", text}}) {
    std::vector<std::string> words{
        "convert", fixture_model("stories260k"), folder.path("store"), "--overwrite", "--bits",
        "9"};
    words.insert(words.end(), flags.begin(), flags.end());
    const auto outcome = succeed(words);
    EXPECT_NE(outcome.err.find(" bits a weight ("), std::string::npos) << outcome.err;
    const auto model = succeed({"inspect", folder.path("store"), "--json"}).json()["model"];
    EXPECT_LE(model["bits_a_weight"].get<double>(), 9);
    EXPECT_GT(model["bits_a_weight"].get<double>(), 8.5);
    EXPECT_NE(model["mix"].get<std::string>().find(", "), std::string::npos) << model["mix"];
    const Golden golden = goldens("stories260k").front();
    const Ids expected = greedy(folder.path("store"), golden);
    EXPECT_EQ(greedy(folder.path("store"), golden, {"--percent", "0", "0", "100", "0", "100", "0"}),
              expected);
    EXPECT_EQ(
        greedy(folder.path("store"), golden,
               {"--percent", "50", "30", "50", "50", "100", "0", "--device", "emulated:mem=64MiB"}),
        expected);
    succeed({"plan", folder.path("store"), "--hardware", "laptop-8gb"});
  }
}

TEST(ConvertCommand, BitsOutOfTheModelsRangeAreRefusedWithIt) {
  const TemporaryFolder folder;
  for (const char* bits : {"4", "0", "-1", "33", "nan", "inf"})
    fail({"convert", fixture_model("stories260k"), folder.path("store"), "--bits", bits}, 2,
         {"bits a weight: this model's matrices take", "to 32", "--bits"});
  fail({"convert", fixture_model("stories260k"), folder.path("store"), "--bits", "many"}, 2,
       {"--bits"});
  fail({"convert", fixture_model("stories260k"), folder.path("store"), "--bits", "5", "--weights",
        "int4"},
       2, {"--bits with --weights"});
  const std::string store = convert("stories260k", folder, {"--weights", "int8"});
  fail({"convert", store, folder.path("other"), "--bits", "5"}, 2, {"already", "int8"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("other")));
}

TEST(ConvertCommand, ImportanceMatricesStandInForTexts) {
  const TemporaryFolder folder;
  const std::string imatrix = std::string(SLUICE_FIXTURES) + "/imatrix/stories260k";
  const Golden golden = goldens("stories260k").front();
  std::vector<Ids> tokens;
  for (const char* end : {".dat", ".gguf"}) {
    succeed({"convert", fixture_model("stories260k"), folder.path("store"), "--overwrite",
             "--weights", "int4-g32", "--imatrix", imatrix + end});
    tokens.push_back(greedy(folder.path("store"), golden));
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  succeed({"convert", fixture_model("stories260k"), folder.path("store"), "--overwrite", "--bits",
           "6", "--imatrix", imatrix + ".dat"});
  const std::string other = folder.path("other");
  const auto refused = [&](const std::string& model, std::vector<std::string> flags,
                           std::vector<std::string> words) {
    flags.insert(flags.begin(), {"convert", fixture_model(model), other});
    fail(flags, words.front() == "file" ? 3 : 2, {words.back()});
  };
  refused("stories260k", {"--imatrix", imatrix + ".dat"}, {"user", "--imatrix without"});
  refused("stories260k", {"--weights", "int4", "--imatrix", imatrix + ".dat", "--calibrate", "t"},
          {"user", "--imatrix with --calibrate"});
  refused("stories260k", {"--weights", "int4", "--imatrix", folder.path("none")},
          {"file", folder.path("none")});
  refused("stories260k",
          {"--weights", "int4", "--imatrix", fixture_model("stories260k") + "/config.json"},
          {"file", "config.json"});
  refused("llama-tiny-gqa", {"--weights", "int4", "--imatrix", imatrix + ".dat"},
          {"user", "stories260k.dat"});
  EXPECT_FALSE(std::filesystem::exists(other));
}

TEST(ConvertCommand, ADamagedStoreIsFoundByVerify) {
  const TemporaryFolder folder;
  const std::string store = convert("stories260k", folder);
  const std::string path = store + "/layer-00002.safetensors";
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file(path, bytes);
  fail({"inspect", store, "--verify"}, 3, {"layer-00002", "checksum"});
  std::filesystem::resize_file(path, 8192);
  fail({"run", store, "--prompt-ids", "1,5"}, 3, {"layer-00002"});
}

}  // namespace
}  // namespace sluice::testing
