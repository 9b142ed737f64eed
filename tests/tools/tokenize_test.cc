// sluice tokenize: ids of the reference, and back to the text.
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Ids = std::vector<int32_t>;

TEST(Tokenize, IdsAreTheReferences) {
  for (const Golden& golden : goldens("stories260k")) {
    EXPECT_EQ(succeed({"tokenize", kModel, "-p", golden.prompt}).out,
              id_list(golden.prompt_ids) + "\n")
        << golden.prompt;
    const Ids plain(golden.prompt_ids.begin() + 1, golden.prompt_ids.end());
    EXPECT_EQ(succeed({"tokenize", kModel, "-p", golden.prompt, "--no-special"}).out,
              id_list(plain) + "\n");
  }
}

TEST(Tokenize, TextGoesThereAndBack) {
  for (const std::string model : {"stories260k", "opt-tiny"})
    for (const std::string text :
         {"Once upon a time", " two  spaces ", "Zoë & 🐶\nnext\tline", "日本"}) {
      const auto ids = succeed({"tokenize", fixture_model(model), "-p", text, "--no-special"}).out;
      const auto back =
          succeed({"tokenize", fixture_model(model), "--decode", ids.substr(0, ids.size() - 1)});
      EXPECT_EQ(back.out, text + "\n") << model;
    }
}

TEST(Tokenize, JsonListsIdsAndPieces) {
  const auto json = succeed({"tokenize", kModel, "-p", "Once upon a time", "--json"}).json();
  EXPECT_EQ(json["token_ids"].get<Ids>(), goldens("stories260k").front().prompt_ids);
  EXPECT_EQ(json["count"], 5);
  std::string text;
  for (size_t i = 1; i < json["tokens"].size(); ++i) text += json["tokens"][i].get<std::string>();
  EXPECT_EQ(text, " Once upon a time");
  const auto back = succeed({"tokenize", kModel, "--decode", "403,407,261,378", "--json"}).json();
  EXPECT_EQ(back["text"], "Once upon a time");
  EXPECT_EQ(back["token_ids"].get<Ids>(), (Ids{403, 407, 261, 378}));
}

TEST(Tokenize, TextComesFromAFileOrStandardInput) {
  const auto expected = succeed({"tokenize", kModel, "-p", "Lily and Tom\n"}).out;
  const TemporaryFolder folder;
  write_file(folder.path("text"), "Lily and Tom\n");
  EXPECT_EQ(succeed({"tokenize", kModel, "-f", folder.path("text")}).out, expected);
  EXPECT_EQ(succeed({"tokenize", kModel, "-f", "-"}, {.input = "Lily and Tom\n"}).out, expected);
  EXPECT_EQ(succeed({"tokenize", kModel + "/tokenizer.json", "-p", "Lily and Tom\n"}).out, expected)
      << "a tokenizer file instead of a folder";
}

TEST(Tokenize, ManyTextsAndListsOfIdsAreAnsweredLineByLine) {
  const std::string lines = "\"Once upon a time\"\n[403,407,261,378]\n\"\"\n[]\n\"a\\nb\"";
  const std::string out = succeed({"tokenize", kModel, "--jsonl", "-"}, {.input = lines}).out;
  EXPECT_TRUE(out.starts_with("[1,403,407,261,378]\n\"Once upon a time\"\n[1]\n\"\"\n[1,")) << out;
  EXPECT_TRUE(succeed({"tokenize", kModel, "--jsonl", "-", "--no-special"}, {.input = lines})
                  .out.starts_with("[403,407,261,378]\n"));
  for (const auto& [line, word] : {std::pair{"[1,512]", "512"},
                                   {"[-1]", "-1"},
                                   {"[1.5]", "1.5"},
                                   {"{}", "neither"},
                                   {"\"", "neither"},
                                   {"[18446744073709551615]", "18446744073709551615"},
                                   {"", "line 2"}}) {
    const auto outcome = sluice({"tokenize", kModel, "--jsonl", "-"},
                                {.input = "\"a\"\n" + std::string(line) + "\n"});
    EXPECT_EQ(outcome.exit_code, 2) << line;
    EXPECT_NE(outcome.err.find("line 2"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
  }
}

TEST(Tokenize, PartsOfCharactersPrintAsReplacements) {
  const auto json = succeed({"tokenize", kModel, "--decode", "198", "--json"}).json();
  EXPECT_EQ(json["text"], "\uFFFD");
}

TEST(TokenizeErrors, NameWhatIsWrong) {
  const TemporaryFolder folder;
  fail({"tokenize", kModel}, 2, {"no text", "-p TEXT"});
  fail({"tokenize", kModel, "-p", "caf\xc3"}, 2, {"not UTF-8", "byte 3"});
  fail({"tokenize", kModel, "--decode", "1,512"}, 2, {"--decode", "512", "vocabulary"});
  fail({"tokenize", kModel, "--decode", "1;2"}, 2, {"--decode", "1;2", "1,2,3"});
  fail({"tokenize", kModel, "-f", folder.path("none")}, 3, {"none", "No such file"});
  fail({"tokenize", folder.path("none"), "-p", "a"}, 3, {folder.path("none"), "no such file"});
  fail({"tokenize", fixture_model("opt-tiny-bin"), "-p", "a"}, 3, {"opt-tiny-bin", "tokenizer"});
}

}  // namespace
}  // namespace sluice::testing
