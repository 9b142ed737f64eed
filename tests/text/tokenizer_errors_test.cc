// Broken tokenizer files give an Error or work; nothing crashes or hangs.
#include <gtest/gtest.h>

#include <fstream>

#include "src/base/error.h"
#include "src/text/tokenizer.h"

namespace sluice::text {
namespace {

std::string small_json() {
  std::ifstream file(std::string(SLUICE_FIXTURES) + "/models/stories260k/tokenizer.json",
                     std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void try_it(const std::string& json) {
  try {
    const auto tokenizer = Tokenizer::from_json(json);
    const auto ids =
        tokenizer->encode("Once upon a time \xf0\x9f\xa6\x99 \xff x", AddSpecial::kYes);
    tokenizer->decode(ids, SkipSpecial::kNo);
  } catch (const Error& error) {
    EXPECT_NE(error.kind(), ErrorKind::kInternal) << error.what();
  }
}

TEST(TokenizerErrors, EveryTruncationIsSurvived) {
  const std::string json = small_json();
  for (size_t length = 0; length < json.size(); length += 97) try_it(json.substr(0, length));
}

TEST(TokenizerErrors, FlippedBytesAreSurvived) {
  std::string json = small_json();
  for (size_t at = 0; at < json.size(); at += 61) {
    const char kept = json[at];
    for (char flip : {'\x01', '\x20', '\x7f'}) {
      json[at] = static_cast<char>(kept ^ flip);
      try_it(json);
    }
    json[at] = kept;
  }
}

// What is put round a text must be tokens: the run would end with a prompt that is out of range.
TEST(TokenizerErrors, TheTemplatesTokensAreOfTheVocabulary) {
  const auto with = [](const std::string& id) {
    return R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        "post_processor": {"type": "TemplateProcessing", "pair": [],
          "single": [{"SpecialToken": {"id": "b", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
          "special_tokens": {"b": {"id": "b", "ids": [)" +
           id + R"(], "tokens": ["b"]}}}})";
  };
  EXPECT_EQ(Tokenizer::from_json(with("1"))->encode("a", AddSpecial::kYes),
            (std::vector<int32_t>{1, 0}));
  for (const std::string id : {"2", "5000", "2147483647", "-1"}) {
    try {
      Tokenizer::from_json(with(id));
      FAIL() << id;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile) << error.text();
    }
  }
}

TEST(TokenizerErrors, NameTheFieldThatIsWrong) {
  const auto message = [](const std::string& json) {
    try {
      Tokenizer::from_json(json);
    } catch (const Error& error) {
      return error.text();
    }
    return std::string("no error");
  };
  EXPECT_NE(message("{}").find("model"), std::string::npos);
  EXPECT_NE(message(R"({"model":{"type":"Unigram","vocab":[]}})").find("Unigram"),
            std::string::npos);
  EXPECT_NE(message(R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})").find("vocab.a"),
            std::string::npos);
  EXPECT_NE(message(R"({"model":{"type":"BPE","vocab":{},"merges":[]}})").find("empty"),
            std::string::npos);
  EXPECT_NE(message(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}})")
                .find("the vocabulary lacks"),
            std::string::npos);
  EXPECT_NE(
      message(
          R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"normalizer":{"type":"Precompiled"}})")
          .find("Precompiled"),
      std::string::npos);
  EXPECT_NE(
      message(
          R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"}})")
          .find("pattern"),
      std::string::npos);
}

TEST(TokenizerErrors, StepsThatMultiplyTextAreRefused) {
  const auto chain = [](const std::string& field, const std::string& list, int steps,
                        const std::string& content) {
    std::string all;
    for (int i = 0; i < steps; ++i)
      all += std::string(all.empty() ? "" : ",") +
             R"({"type":"Replace","pattern":{"String":"a"},"content":")" + content + "\"}";
    return R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},")" + field +
           R"(":{"type":"Sequence",")" + list + "\":[" + all + "]}}";
  };
  const auto message = [](const std::string& json) {
    try {
      Tokenizer::from_json(json);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile);
      return error.text();
    }
    return std::string();
  };
  const std::string hundred(100, 'a');
  for (const auto& [field, list] :
       {std::pair{"normalizer", "normalizers"}, {"decoder", "decoders"}}) {
    const std::string said = message(chain(field, list, 5, hundred));
    EXPECT_NE(said.find(field), std::string::npos) << said;
    EXPECT_NE(said.find("1e+10"), std::string::npos) << said;
    EXPECT_NE(message(chain(field, list, 1, hundred)), "");
    EXPECT_NE(message(chain(field, list, 7, "aa")), "");
    EXPECT_EQ(message(chain(field, list, 6, "aa")), "");
    EXPECT_EQ(message(chain(field, list, 100, "b")), "");
  }
  EXPECT_NE(message(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},
                        "pre_tokenizer":{"type":"Metaspace","replacement":"  "}})"),
            "");
}

TEST(TokenizerErrors, AMissingFolderSaysHowToGoOn) {
  try {
    Tokenizer::load("/nonexistent/model");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_FALSE(error.mend().empty());
  }
}

TEST(TokenizerErrors, BytesThatAreNotUtf8BecomeReplacementCharacters) {
  const auto tokenizer = Tokenizer::load(std::string(SLUICE_FIXTURES) + "/tokenizers/opt");
  const auto ids = tokenizer->encode("a\xff\xfe z", AddSpecial::kNo);
  EXPECT_EQ(tokenizer->decode(ids, SkipSpecial::kNo), "a\xef\xbf\xbd\xef\xbf\xbd z");
}

}  // namespace
}  // namespace sluice::text
