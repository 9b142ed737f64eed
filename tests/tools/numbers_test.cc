// sluice logits, eval and bench: the numbers, against the reference's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Words = std::vector<std::string>;

struct Npy {
  std::string header;
  std::vector<float> values;
};

Npy read_npy(const std::string& path) {
  const std::string bytes = read_file(path);
  EXPECT_EQ(bytes.substr(0, 6), "\x93NUMPY");
  const size_t length =
      static_cast<uint8_t>(bytes.at(8)) + 256u * static_cast<uint8_t>(bytes.at(9));
  Npy npy{bytes.substr(10, length), {}};
  npy.values.resize((bytes.size() - 10 - length) / sizeof(float));
  std::memcpy(npy.values.data(), bytes.data() + 10 + length, npy.values.size() * sizeof(float));
  return npy;
}

TEST(Logits, TheLargestOfEachRowIsTheNextGreedyToken) {
  const TemporaryFolder folder;
  const Golden golden = goldens("stories260k").front();
  std::vector<int32_t> ids = golden.prompt_ids;
  ids.insert(ids.end(), golden.greedy_ids.begin(), golden.greedy_ids.end() - 1);
  succeed({"logits", kModel, "--prompt-ids", id_list(ids), "-o", folder.path("x.npy")});
  const Npy npy = read_npy(folder.path("x.npy"));
  EXPECT_NE(npy.header.find("'<f4'"), std::string::npos) << npy.header;
  EXPECT_NE(npy.header.find("(" + std::to_string(ids.size()) + ", 512)"), std::string::npos)
      << npy.header;
  ASSERT_EQ(npy.values.size(), ids.size() * 512);
  for (size_t i = 0; i < golden.greedy_ids.size(); ++i) {
    const auto row =
        npy.values.begin() + static_cast<ptrdiff_t>((golden.prompt_ids.size() - 1 + i) * 512);
    EXPECT_EQ(std::max_element(row, row + 512) - row, golden.greedy_ids[i]) << "step " << i;
  }
}

TEST(Logits, OfATextAreTheReferencesAndStreamedOnesTheSame) {
  const TemporaryFolder folder;
  const Golden golden = goldens("stories260k").at(3);
  succeed({"logits", kModel, "-p", golden.prompt, "-o", folder.path("a.npy")});
  const Npy ours = read_npy(folder.path("a.npy"));
  const Npy reference = read_npy(kModel + "/logits_prompt.npy");
  ASSERT_EQ(ours.values.size(), reference.values.size());
  float largest = 0, worst = 0;
  for (size_t i = 0; i < ours.values.size(); ++i) {
    largest = std::max(largest, std::abs(reference.values[i]));
    worst = std::max(worst, std::abs(ours.values[i] - reference.values[i]));
  }
  EXPECT_LE(worst, 1e-4F * largest);
  succeed({"logits", kModel, "-p", golden.prompt, "-o", folder.path("b.npy"), "--percent", "0", "0",
           "0", "0", "0", "0"});
  EXPECT_EQ(read_npy(folder.path("b.npy")).values.size(), ours.values.size());
}

TEST(Logits, ErrorsLeaveNoFile) {
  const TemporaryFolder folder;
  const std::string out = folder.path("x.npy");
  fail({"logits", kModel, "-o", out}, 2, {"no prompt", "--prompt-ids"});
  fail({"logits", kModel, "-p", "caf\xc3", "-o", out}, 2, {"not UTF-8"});
  fail({"logits", kModel, "--prompt-ids", "1,999999", "-o", out}, 2, {"999999", "512"});
  fail({"logits", kModel, "--prompt-ids", "1,5"}, 2, {"--output is required"});
  fail({"logits", kModel, "--prompt-ids", "1,5", "-o", folder.path("no/x.npy")}, 3, {"no/x.npy"});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Eval, PerplexityIsTheReferencesResidentAndStreamed) {
  const auto golden = nlohmann::json::parse(read_file(kModel + "/goldens.json"))["perplexity"];
  const std::string window = std::to_string(golden["window_tokens"].get<int>());
  const Words eval{"eval",     kModel, "--text", fixture("prompts/tiny.txt"),
                   "--window", window, "--json"};
  for (const Words& flags : {Words{}, Words{"--cpu-mem", smallest_budget(eval)},
                             Words{"--percent", "0", "0", "0", "0", "0", "0"}}) {
    Words words = eval;
    words.insert(words.end(), flags.begin(), flags.end());
    const auto json = succeed(words).json();
    EXPECT_NEAR(json["perplexity"].get<double>(), golden["perplexity"].get<double>(), 1e-4);
    EXPECT_NEAR(json["mean_nll"].get<double>(), golden["mean_nll"].get<double>(), 2e-5);
    EXPECT_EQ(json["scored_tokens"], golden["scored_tokens"]);
    EXPECT_EQ(json["windows"], golden["window_nll_sums"].size());
    EXPECT_EQ(json["window_tokens"], golden["window_tokens"]);
    EXPECT_EQ(json["stats"]["decode_tokens"], 0);
  }
  const auto plain =
      succeed({"eval", kModel, "--text", fixture("prompts/tiny.txt"), "--window", window}).out;
  EXPECT_EQ(plain.rfind("perplexity 5.39737", 0), 0u) << plain;
}

TEST(Eval, Errors) {
  const TemporaryFolder folder;
  fail({"eval", kModel, "--text", folder.path("none")}, 3, {"none", "No such file"});
  write_file(folder.path("latin1"), "d\xe9j\xe0 vu");
  fail({"eval", kModel, "--text", folder.path("latin1")}, 2, {"latin1", "not UTF-8"});
  write_file(folder.path("empty"), "");
  fail({"eval", kModel, "--text", folder.path("empty")}, 2, {"no token", "longer text"});
  fail({"eval", fixture_model("opt-tiny-bin"), "--text", folder.path("empty")}, 3, {"tokenizer"});
  fail({"eval", kModel}, 2, {"one thing at a time", "--text"});
  write_file(folder.path("lines"), "{\"text\": \"one\"}\n");
  fail({"eval", kModel, "--accuracy", folder.path("lines")}, 2, {"line 1", "no word"});
  write_file(folder.path("lines"), "{\"text\": \"once upon\"}\n[1]\n");
  fail({"eval", kModel, "--accuracy", folder.path("lines")}, 2, {"line 2", "text nor prompt"});
  write_file(folder.path("lines"), "once\n");
  fail({"eval", kModel, "--accuracy", folder.path("lines")}, 2, {"line 1", "not JSON"});
  const std::string text = fixture("prompts/tiny.txt");
  fail({"eval", kModel, "--text", text, "--against", text}, 3, {"not a NumPy"});
  write_file(folder.path("short"), "once upon a time there was");
  succeed({"eval", kModel, "--text", folder.path("short"), "--save-logits", folder.path("x.npy")});
  fail({"eval", kModel, "--text", text, "--against", folder.path("x.npy")}, 2,
       {"x.npy", "same text"});
}

TEST(Eval, AgainstItsOwnLogitsNothingDiffers) {
  const TemporaryFolder folder;
  const Words eval{"eval",     kModel, "--text", fixture("prompts/tiny.txt"), "--window", "64",
                   "--stride", "32",   "--json"};
  Words save = eval;
  save.insert(save.end(), {"--save-logits", folder.path("base.npy")});
  const auto base = succeed(save).json();
  Words against = eval;
  against.insert(against.end(), {"--against", folder.path("base.npy")});
  const auto same = succeed(against).json();
  EXPECT_EQ(same["perplexity"], base["perplexity"]);
  EXPECT_NEAR(same["saved_perplexity"].get<double>(), base["perplexity"].get<double>(), 1e-6);
  EXPECT_LT(same["kl_max"].get<double>(), 1e-9);
  EXPECT_EQ(same["top1_agreement"], 1.0);
  // More context for every token: a lower perplexity than that of windows that share nothing.
  const auto apart =
      succeed({"eval", kModel, "--text", fixture("prompts/tiny.txt"), "--window", "64", "--json"})
          .json();
  EXPECT_LT(base["perplexity"].get<double>(), apart["perplexity"].get<double>());
  EXPECT_EQ(base["scored_tokens"], apart["scored_tokens"]);

  const std::string store = folder.path("int4");
  succeed({"convert", kModel, store, "--weights", "int4-g32"});
  against[1] = store;
  const auto int4 = succeed(against).json();
  EXPECT_GT(int4["kl_mean"].get<double>(), 1e-5);
  EXPECT_LT(int4["kl_mean"].get<double>(), 0.2);
  EXPECT_GT(int4["top1_agreement"].get<double>(), 0.7);
}

TEST(Eval, AccuracyIsTheShareOfLastWordsThatTheModelWouldWrite) {
  const TemporaryFolder folder;
  // What the model says itself when it is asked for the next word is right, another word is not.
  const std::string prompt = "Once upon a time, there was a little girl named";
  const auto said = succeed({"run", kModel, "-p", prompt, "-n", "3", "--json"}).json();
  const std::string word = said["text"].get<std::string>();
  write_file(folder.path("lines"), nlohmann::json{{"prompt", prompt}, {"target", word}}.dump() +
                                       "\n\n" + nlohmann::json{{"text", prompt + " zebra"}}.dump() +
                                       "\n");
  const auto json = succeed({"eval", kModel, "--accuracy", folder.path("lines"), "--json"}).json();
  EXPECT_EQ(json["lines"], 2);
  EXPECT_EQ(json["accuracy"], 0.5);
}

TEST(Bench, JsonHasEveryBatchAndWhatItTook) {
  const auto json = succeed({"bench", kModel, "--batch", "1,3", "--pp", "8", "--tg", "4", "--reps",
                             "2", "--json", "--percent", "0", "0", "100", "0", "100", "0"})
                        .json();
  EXPECT_EQ(json["model"], kModel);
  ASSERT_EQ(json["results"].size(), 2u);
  for (size_t i : {0, 1}) {
    const auto& row = json["results"][i];
    const int batch = i == 0 ? 1 : 3;
    EXPECT_EQ(row["batch"], batch);
    EXPECT_EQ(row["pp"], 8);
    EXPECT_EQ(row["tg"], 4);
    for (const char* key : {"prefill_tokens_per_s", "decode_tokens_per_s", "decode_pass_s"}) {
      EXPECT_GT(row[key]["min"].get<double>(), 0) << key;
      EXPECT_LE(row[key]["min"].get<double>(), row[key]["median"].get<double>()) << key;
      EXPECT_LE(row[key]["median"].get<double>(), row[key]["max"].get<double>()) << key;
    }
    EXPECT_GT(row["streamed_bytes_per_pass"].get<int64_t>(), 0);
    EXPECT_EQ(row["stats"]["decode_tokens"], 2 * batch * 4);
    EXPECT_EQ(row["stats"]["prefill_tokens"], 2 * batch * 8);
    EXPECT_TRUE(row["policy"]["weights"].is_object());
    EXPECT_EQ(row["disk_probe_bytes_per_s"].size(), 3u) << "around each repetition";
  }
}

TEST(Bench, PlainOutputIsATable) {
  const auto out =
      succeed({"bench", kModel, "--batch", "2", "--pp", "4", "--tg", "2", "--no-disk-probe"}).out;
  EXPECT_EQ(out.rfind("| batch |", 0), 0u) << out;
  EXPECT_NE(out.find("\n| 2 | "), std::string::npos) << out;
}

TEST(Bench, Errors) {
  EXPECT_EQ(sluice({"bench", kModel, "--batch", "0"}).exit_code, 2);
  EXPECT_EQ(sluice({"bench", kModel, "--batch", "a"}).exit_code, 2);
  const Outcome too_long =
      sluice({"bench", kModel, "--pp", "600", "--tg", "4", "--no-disk-probe", "--json"});
  EXPECT_EQ(too_long.exit_code, 2) << too_long.out;
  EXPECT_NE(too_long.err.find("512"), std::string::npos) << too_long.err;
  EXPECT_EQ(too_long.out, "");
}

}  // namespace
}  // namespace sluice::testing
