// A GGUF file alone: its text comes from the tokenizer and the template that it holds, wherever its
// weights lie.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/gguf_values.h"
#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class RunGguf : public ::testing::Test {
 protected:
  void SetUp() override { fs::copy_file(fixture("gguf/stories260k.gguf"), file_); }
  std::string text_of(const std::string& model, Words more = {}) const {
    Words words{"run", model, "-p", "Once upon a time", "-n", "40"};
    words.insert(words.end(), more.begin(), more.end());
    return succeed(words).out;
  }
  // With other bytes in place of the first `from` behind `key`.
  void patch(const std::string& key, const std::string& from, const std::string& to) const {
    std::string bytes = read_file(file_);
    const size_t at = bytes.find(from, bytes.find(key) + key.size());
    ASSERT_LT(at, bytes.size());
    bytes.replace(at, from.size(), to);
    write_file(file_, bytes);
  }
  TemporaryFolder folder_;
  std::string file_ = folder_.path("model.gguf");
};

TEST_F(RunGguf, TextNeedsNothingBesideTheFile) {
  const std::string text = text_of(file_);
  EXPECT_GT(text.size(), 40u);
  const std::string store = folder_.path("store");
  succeed({"convert", file_, store});
  EXPECT_EQ(text, text_of(store));
  EXPECT_EQ(text, text_of(file_, {"--percent", "0", "0", "100", "0", "100", "0"}));
  // Of the folder's only one, too.
  fs::remove_all(store);
  EXPECT_EQ(text, text_of(folder_.path()));
  const auto ids = [](const std::string& model) {
    return succeed({"run", model, "-p", "Lily's  d\xc3\xb6g\n", "-n", "1", "--json"})
        .json()["prompt_token_ids"];
  };
  EXPECT_EQ(ids(file_), ids(kModel));
}

TEST_F(RunGguf, AChatTakesTheTemplateWithinTheFile) {
  const std::string line = folder_.path("in.jsonl");
  write_file(line, R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": )"
                   R"({"messages": [{"role": "user", "content": "One day"}], "max_tokens": 5}})"
                   "\n");
  const std::string out = folder_.path("out.jsonl");
  succeed({"batch", file_, line, "-o", out});
  const auto answer = nlohmann::json::parse(read_file(out));
  // begin-of-text is the template's to write; this one writes the message and a line break.
  const auto text = succeed({"run", file_, "-p", "One day\n", "--no-special", "-n", "5"}).out;
  EXPECT_EQ(
      answer["response"]["body"]["choices"][0]["message"]["content"].get<std::string>() + "\n",
      text);
}

// A file whose eos ends a text and whose turns end with another token.
TEST_F(RunGguf, EveryEndOfTheFileEndsAText) {
  const std::string whole = text_of(file_);
  const size_t stop = whole.find('.');
  ASSERT_LT(stop + 2, whole.size()) << "goes on behind the first sentence";
  write_file(file_, made::with_gguf_keys(read_file(file_), {{"tokenizer.ggml.eot_token_id", 426}}));
  EXPECT_EQ(text_of(file_), whole.substr(0, stop + 1) + "\n");
  const std::string store = folder_.path("store");
  succeed({"convert", file_, store});
  EXPECT_EQ(text_of(store), whole.substr(0, stop + 1) + "\n");
  const std::string shown = succeed({"inspect", file_}).out;
  EXPECT_NE(shown.find("ends       2 </s> (tokenizer.ggml.eos_token_id), 426 . "
                       "(tokenizer.ggml.eot_token_id)"),
            std::string::npos)
      << shown;
  EXPECT_EQ(succeed({"inspect", store, "--json"}).json()["ends"][1]["from"], "config.json");
}

// As ggml-org's own stories260K has it.
TEST_F(RunGguf, APaddingOfNoTokenIsANote) {
  write_file(file_, made::with_gguf_keys(read_file(file_),
                                         {{"tokenizer.ggml.padding_token_id", 4294967295}}));
  const Outcome outcome = succeed({"run", file_, "-p", "Once", "-n", "3"});
  EXPECT_NE(outcome.err.find("padding_token_id is 4294967295"), std::string::npos) << outcome.err;
}

TEST_F(RunGguf, WhatIsWrongWithTheFileIsSaidOnce) {
  write_file(file_, read_file(file_) + read_file(file_));  // as cat joins parts
  const Outcome outcome = Command({"run", file_, "-p", "a", "-n", "1"}).wait();
  EXPECT_EQ(outcome.exit_code, 3);
  const size_t at = outcome.err.find("another GGUF file begins");
  ASSERT_NE(at, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("another GGUF file begins", at + 1), std::string::npos) << outcome.err;
}

TEST_F(RunGguf, ATokenizerBesideTheFileIsTakenFirst) {
  write_file(folder_.path("tokenizer.json"), "{}");
  const Outcome outcome = Command({"run", file_, "-p", "a", "-n", "1"}).wait();
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("tokenizer.json"), std::string::npos) << outcome.err;
}

TEST_F(RunGguf, AnUnknownKindOfTokenizerLeavesTokenIds) {
  patch("tokenizer.ggml.model", "llama", "other");
  const Outcome refused = Command({"run", file_, "-p", "a", "-n", "1"}).wait();
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_NE(refused.err.find("\"other\""), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("--prompt-ids"), std::string::npos) << refused.err;
  EXPECT_EQ(succeed({"run", file_, "--prompt-ids", "1,5,9", "-n", "3"}).out.empty(), false);
}

}  // namespace
}  // namespace sluice::testing
