#include "src/text/newer_characters.h"

#include <gtest/gtest.h>

#include "src/text/regex.h"
#include "src/text/tokenizer.h"

namespace sluice::text {
namespace {

TEST(NewerCharacters, AreOnesThatHuggingFacesNormalisersDoNotKnow) {
  for (const uint32_t code : {0x7fdu, 0x8d3u, 0x1dfau, 0x11938u, 0x1fbf9u})
    EXPECT_TRUE(is_unknown_to_normalizers(code)) << code;
  for (const uint32_t code : {0u, 'a' + 0u, 0x301u, 0x7feu, 0x8d4u, 0xac00u, 0x1fbfau, 0x10ffffu})
    EXPECT_FALSE(is_unknown_to_normalizers(code)) << code;
}

TEST(NewerCharacters, MarksKeepTheirPlacesAroundThem) {
  // By Hugging Face tokenizers 0.23.3: U+08D3 (a mark of Unicode 9 and later) is passed by none.
  const auto tokenizer = Tokenizer::from_json(R"({
    "model": {"type": "BPE", "vocab": {"e": 0, "\u00e9": 1, "\u0301": 2, "\u0323": 3, "\u08d3": 4,
              "\u1eb9": 5}, "merges": []},
    "normalizer": {"type": "NFC"}})");
  const auto ids = [&](const char* text) { return tokenizer->encode(text, AddSpecial::kNo); };
  EXPECT_EQ(ids("e\u0301"), (std::vector<int32_t>{1}));
  EXPECT_EQ(ids("e\u0301\u0323"), (std::vector<int32_t>{5, 2}));
  EXPECT_EQ(ids("e\u08d3\u0301"), (std::vector<int32_t>{0, 4, 2}));
  EXPECT_EQ(ids("e\u0301\u08d3\u0323"), (std::vector<int32_t>{1, 4, 3}));
}

TEST(NewerCharacters, PatternsKnowUnicode16AndWhatIsNoSpace) {
  const auto matches = [](const char* pattern, const char* text) {
    return Regex(pattern).find_all(text).size();
  };
  EXPECT_EQ(matches(R"(^\p{L}$)", "\U00031350"), 1u);  // a Chinese character of Unicode 15
  EXPECT_EQ(matches(R"(^[^\s\p{L}\p{N}]$)", "\U00031350"), 0u);
  EXPECT_EQ(matches(R"(^[\p{Lo}\p{M}]+$)", "\U00031350\U00011F00"), 1u);
  EXPECT_EQ(matches(R"(^\p{Han}$)", "\U00031350"), 1u);
  EXPECT_EQ(matches(R"(^[a\p{Han}]{3}$)", "a\u3007\u4e16"), 1u);
  EXPECT_EQ(matches(R"(\p{Han})", "\u3001\u3002\u304b\u00b7"), 0u) << "signs beside Han";
  EXPECT_EQ(matches(R"(^\p{N}$)", "\U0001E4F0"), 1u);
  EXPECT_EQ(matches(R"(\s)", "\u180e"), 0u);
  EXPECT_EQ(matches(R"(^\S$)", "\u180e"), 1u);
  EXPECT_EQ(matches(R"(^[\s]+$)", " \t\r\n\v\f\u0085\u00a0\u1680\u2003\u2028\u2029\u202f\u3000"),
            1u);
  EXPECT_EQ(matches(R"(^[[:alpha:]\s\[]+\[\]$)", "a b[[]"), 1u);
  EXPECT_EQ(pcre2_pattern(R"(a\\s\.\p)"), R"(a\\s\.\p)");
}

TEST(NewerCharacters, SetsWithinASetAreUnited) {
  EXPECT_EQ(pcre2_pattern("[^(a|[.,!])]+"), "[^(a|.,!)]+");
  EXPECT_EQ(pcre2_pattern("[[a]b]c]"), "[ab]c]");
  EXPECT_EQ(pcre2_pattern("[a[^b]"), "[a[^b]") << "what is taken away is left to PCRE2";
  EXPECT_EQ(Regex(R"( ?[^(\s|[.,!?])]+)").find_all("a b.c (d)[e]").size(), 5u);
}

TEST(NewerCharacters, EmptyMatchesCutWhereTheyAreKept) {
  using Places = std::vector<std::pair<size_t, size_t>>;
  const Regex threes(R"((?=(\d{3})+(?!\d)))");
  EXPECT_EQ(threes.find_all("1234567"), Places{});
  EXPECT_EQ(threes.find_all("1234567", Regex::Empty::kKept), (Places{{1, 1}, {4, 4}}));
  // Behind another match, and at the end, is nothing to cut.
  EXPECT_EQ(Regex("a|").find_all("ab\u00e9b", Regex::Empty::kKept),
            (Places{{0, 1}, {2, 2}, {4, 4}}));
}

}  // namespace
}  // namespace sluice::text
