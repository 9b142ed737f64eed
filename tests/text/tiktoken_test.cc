// tiktoken files: which model's rules go with one, its special tokens, broken lines.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "src/base/error.h"
#include "src/text/tokenizer.h"
#include "tests/temporary_folder.h"

namespace sluice::text {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

std::string base64(const std::string& bytes) {
  static const char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    for (size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (size_t i = 0; i < 4; ++i) out += i <= count ? kLetters[bits >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

// All bytes, all pairs, and then triples from "aaa" on.
std::string ranks(int count) {
  std::string out;
  for (int rank = 0; rank < count; ++rank) {
    const int pair = rank - 256;
    const int triple = 0x616161 + rank - 256 - 65536;
    std::string bytes;
    if (rank >= 256 + 65536) bytes += static_cast<char>(triple >> 16);
    if (rank >= 256 + 65536)
      bytes += {static_cast<char>(triple >> 8), static_cast<char>(triple)};
    else if (rank >= 256)
      bytes += {static_cast<char>(pair >> 8), static_cast<char>(pair)};
    else
      bytes += static_cast<char>(rank);
    out += base64(bytes) + " " + std::to_string(rank) + "\n";
  }
  return out;
}

std::unique_ptr<Tokenizer> load(const std::string& lines, const std::string& config = "",
                                const char* name = "tokenizer.model") {
  const TemporaryFolder folder;
  std::ofstream(folder.file(name), std::ios::binary) << lines;
  EXPECT_TRUE(Tokenizer::exists(folder.path()));
  if (!config.empty()) std::ofstream(folder.file("tokenizer_config.json")) << config;
  return Tokenizer::load(folder.path());
}

// Ids by the tiktoken library with the same ranks and each model's published pattern.
constexpr char kText[] = "we're x!\n/y camelCase 12345";

TEST(Tiktoken, OneHundredTwentyEightThousandRanksAreLlama3s) {
  const auto tokenizer = load(ranks(128000));
  EXPECT_EQ(tokenizer->encode(kText, AddSpecial::kNo),
            (Ids{30821, 10354, 101, 8568, 8714, 12409, 8547, 25197, 26220, 17505, 29797, 32, 12850,
                 51, 13621}));
  EXPECT_EQ(tokenizer->encode("<|eot_id|><|end_of_text|>", AddSpecial::kYes),
            (Ids{128000, 128009, 128001}));
  EXPECT_EQ(tokenizer->vocab_size(), 128256);
  EXPECT_EQ(tokenizer->find("<|reserved_special_token_245|>"), 128255);
  EXPECT_EQ(tokenizer->eos(), 128001);
}

TEST(Tiktoken, TwoHundredThousandRanksAreLlama4s) {
  const auto tokenizer = load(ranks(200000));
  EXPECT_EQ(tokenizer->encode(kText, AddSpecial::kNo),
            (Ids{30821, 10354, 101, 8568, 33, 2863, 121, 8547, 25197, 26220, 17505, 29797, 32,
                 12850, 51, 13621}));
  EXPECT_EQ(tokenizer->encode("<|header_start|>a<|eot|>", AddSpecial::kYes),
            (Ids{200000, 200005, 'a', 200008}));
  EXPECT_EQ(tokenizer->find("<|patch|>"), 200092);
  EXPECT_EQ(tokenizer->find("<|reasoning_thinking_end|>"), 201143);
  EXPECT_EQ(tokenizer->vocab_size(), 202048);
}

constexpr char kHan[] =
    "\u4e16\u754c\u3001hello\u4e16\u754cI'M \u300712\u3007 \u6f22\u5b57abc\u304b\u306a"
    "ABC}\n///x";
constexpr char kApart[] = "\u0430\u4e16'll \u4e16's\u3000\u4e16 1\u4e16\u0301x";

TEST(Tiktoken, OneHundredSixtyThreeThousandRanksAreKimis) {
  // What is in the file that Kimi-K2 is published with, as far as it counts.
  const std::string config = R"({
      "added_tokens_decoder": {"163584": {"content": "[BOS]", "special": true},
                               "163585": {"content": "[EOS]", "special": true},
                               "163586": {"content": "<|im_end|>", "special": true},
                               "163595": {"content": "<|tool_calls_section_begin|>"}},
      "bos_token": "[BOS]", "eos_token": "[EOS]"})";
  const auto tokenizer = load(ranks(163584), config, "tiktoken.model");
  const auto ids = [&](const char* text) { return tokenizer->encode(text, AddSpecial::kYes); };
  EXPECT_EQ(ids(kText), (Ids{30821, 10354, 101, 8568, 8714, 12409, 8547, 25197, 26220, 17505, 29797,
                             32, 12850, 51, 13621}));
  EXPECT_EQ(ids(kHan),
            (Ids{58808, 38887, 38540, 227,   33153, 104, 26220, 28015, 58808, 38887, 38540, 73,
                 10317, 32,    227,   33159, 12850, 227, 33159, 32,    59324, 41957, 44695, 25186,
                 25827, 33419, 227,   33450, 16962, 67,  32266, 12335, 47,    120}));
  EXPECT_EQ(ids(kApart), (Ids{53680, 228, 47510, 10348, 108, 32, 228, 47510, 10355, 227, 33152, 228,
                              47510, 32, 49, 228, 47510, 204, 33400}));
  EXPECT_EQ(ids("<|im_end|>a<|tool_calls_section_begin|>"), (Ids{163586, 'a', 163595}));
  EXPECT_EQ(tokenizer->find("<|reserved_token_163839|>"), 163839);
  EXPECT_EQ(tokenizer->vocab_size(), 163840);
  EXPECT_EQ(tokenizer->bos(), 163584);
  EXPECT_EQ(tokenizer->eos(), 163585);
  for (const char* text : {kText, kHan, kApart})
    EXPECT_EQ(tokenizer->decode(ids(text), SkipSpecial::kNo), text);
  // Without the configuration beside it, by the ids.
  const auto alone = load(ranks(163584), "", "tiktoken.model");
  EXPECT_EQ(alone->encode(kHan, AddSpecial::kYes), ids(kHan)) << "no token before the text";
  EXPECT_EQ(alone->find("<|reserved_token_163586|>"), 163586);
  EXPECT_EQ(alone->eos(), 163585);
}

TEST(Tiktoken, TheConfigurationNamesSpecialTokens) {
  const auto tokenizer = load(ranks(128000), R"({
      "added_tokens_decoder": {"128008": {"content": "<|mine|>", "special": true}},
      "eos_token": "<|eot_id|>", "add_bos_token": false})");
  EXPECT_EQ(tokenizer->encode("<|mine|>", AddSpecial::kYes), (Ids{128008}));
  EXPECT_EQ(tokenizer->eos(), 128009);
}

TEST(Tiktoken, SpecialTokensAreNoMergesOfText) {
  // A token that the configuration adds is none of the ranks that text merges to.
  const auto tokenizer = load(ranks(128000), R"({
      "added_tokens_decoder": {"128008": {"content": "zzz", "single_word": true}}})");
  EXPECT_EQ(tokenizer->encode("zzz", AddSpecial::kNo), (Ids{128008}));
  EXPECT_NE(tokenizer->encode("zzzz", AddSpecial::kNo).front(), 128008);
}

TEST(TiktokenErrors, SayWhatIsWrong) {
  const auto refused = [](const std::string& lines, const std::string& word) {
    try {
      load(lines);
      ADD_FAILURE() << "read: " << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile);
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  const std::string small = ranks(2000);
  refused(small, "2000 ranks");
  refused(small + "YQ== 2000\n", "line 2001 repeats");
  refused(small + "!!!! 2000\n", "line 2001 is not");
  refused(small + "Ynl0ZXM= 2000x\n", "line 2001 is not");
  refused(small + "Ynl0ZXM= \n", "line 2001 is not");
  refused(small + "Ynl0ZXM=\n", "line 2001 is not");
  std::string twice = ranks(128000);
  const size_t last = twice.rfind("127999");
  refused(twice.replace(last, 6, "127998"), "rank 127998");
  refused(twice.replace(last, 6, "128001"), "rank 128001");
}

}  // namespace
}  // namespace sluice::text
