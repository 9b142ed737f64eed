// Masks over tokens: exactly those whose bytes the grammar reads, for made-up and real
// vocabularies.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "src/base/error.h"
#include "src/guide/guide_maker.h"
#include "src/sampling/dry.h"
#include "tests/guide/byte_tokenizer.h"
#include "tests/guide/reading.h"

namespace sluice::guide {
namespace {

using sampling::GuideKind;
using sampling::GuideSpec;

const GuideSpec kPerson{
    GuideKind::kJsonSchema,
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":130},"tags":{"type":"array","items":{"enum":["a","ab","abc"]},"maxItems":3}},"required":["name","age"]})",
    {}};

// Walks at random from mask to mask; what ends has to be what the specification says.
std::optional<std::string> walk(Guide& guide, const text::Tokenizer& tokenizer,
                                std::mt19937& random, int32_t end, Automaton* oracle) {
  std::string text;
  auto state = guide.start();
  for (int step = 0; step < 200; ++step) {
    if (guide.is_complete(state)) return text;
    const auto mask = guide.allowed(state);
    std::vector<int32_t> ways;
    for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
      if (oracle && token != end) {
        const bool reads = !tokenizer.is_special(token) && !tokenizer.token_bytes(token).empty() &&
                           read(*oracle, text + tokenizer.token_bytes(token)) != Automaton::kDead;
        EXPECT_EQ(is_allowed(mask, token), reads) << "token " << token << " behind " << text;
      }
      if (is_allowed(mask, token)) ways.push_back(token);
    }
    if (ways.empty()) {
      ADD_FAILURE() << "a dead end behind " << text;
      return std::nullopt;
    }
    const bool may_end = is_allowed(mask, end);
    const int32_t token =
        may_end ? end : ways[std::uniform_int_distribution<size_t>(0, ways.size() - 1)(random)];
    if (oracle) {
      EXPECT_EQ(may_end, matches(*oracle, text)) << text;
    }
    if (token != end) text += tokenizer.token_bytes(token);
    state = guide.after(state, token);
    if (state == Guide::kEnded) return text;
  }
  return std::nullopt;
}

TEST(GuideMasks, HoldExactlyTheTokensThatTheGrammarReads) {
  const auto tokenizer = testing::json_tokenizer(140);
  const GuideSpec specs[] = {kPerson,
                             {GuideKind::kRegex, R"([a-c]{2,5}(é|😀)\d*)", {}},
                             {GuideKind::kChoice, {}, {"true", "truth", "a", "abc\":"}},
                             {GuideKind::kJson, {}, {}}};
  std::mt19937 random(4);
  for (const GuideSpec& spec : specs) {
    GuideMaker maker(tokenizer, {2});
    const auto guide = maker.make(spec);
    Automaton oracle(network_of(spec));
    int ended = 0;
    for (int i = 0; i < 12; ++i) ended += walk(*guide, tokenizer, random, 2, &oracle).has_value();
    EXPECT_GT(ended, 0);
  }
}

TEST(GuideMasks, LeadEveryRealVocabularyToWhatTheSchemaSays) {
  std::mt19937 random(8);
  int tried = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(SLUICE_FIXTURES) + "/tokenizers")) {
    if (!entry.is_directory() || !text::Tokenizer::exists(entry.path())) continue;
    const auto tokenizer = text::Tokenizer::load(entry.path());
    SCOPED_TRACE(entry.path().filename().string() + ", " + tokenizer->description());
    ++tried;
    const int32_t end = tokenizer->eos().value_or(0);
    GuideMaker maker(*tokenizer, {end});
    const auto guide = maker.make(kPerson);
    int ended = 0;
    for (int i = 0; i < 30; ++i) {
      const auto text = walk(*guide, *tokenizer, random, end, nullptr);
      if (!text) continue;
      ++ended;
      const auto json = nlohmann::json::parse(*text, nullptr, false);
      ASSERT_TRUE(json.is_object()) << *text;
      EXPECT_TRUE(json.at("name").is_string()) << *text;
      EXPECT_LE(json.at("age").get<int>(), 130) << *text;
    }
    EXPECT_GT(ended, 10);
  }
  EXPECT_GE(tried, 2);
}

TEST(GuideMasks, OfTheSameTextAreSharedAndOthersRefused) {
  const auto tokenizer = testing::json_tokenizer(140);
  GuideMaker maker(tokenizer, {2});
  EXPECT_EQ(maker.make({}), nullptr);
  const auto first = maker.make(kPerson);
  EXPECT_EQ(maker.make(kPerson), first);
  EXPECT_NE(maker.make({GuideKind::kRegex, "a", {}}), first);
  EXPECT_THROW(maker.make({GuideKind::kRegex, "(", {}}), Error);
  for (int i = 0; i < 40; ++i) maker.make({GuideKind::kRegex, "a{" + std::to_string(i) + "}b", {}});
  EXPECT_NE(maker.make(kPerson), first) << "old ones are forgotten";
}

TEST(GuideMaker, BreakersAreTheTokensThatHoldTheText) {
  const auto tokenizer = testing::json_tokenizer(140);
  GuideMaker maker(tokenizer, {2});
  sampling::SamplingParams params;
  maker.find_breakers(params);
  EXPECT_FALSE(params.dry_breakers) << "DRY is off";
  params.dry_multiplier = 1;
  params.dry_sequence_breakers = {"\"", "ab"};
  sampling::SamplingParams again = params, other = params;
  maker.find_breakers(params);
  for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    const std::string text = tokenizer.token_bytes(token);
    const bool holds = text.find('"') != std::string::npos || text.find("ab") != std::string::npos;
    EXPECT_EQ(params.dry_breakers->has(token), holds) << text;
  }
  maker.find_breakers(again);
  EXPECT_EQ(again.dry_breakers, params.dry_breakers) << "found once";
  other.dry_breaker_tokens = {{5}, {60}};
  maker.find_breakers(other);
  EXPECT_TRUE(other.dry_breakers->has(60));
  EXPECT_EQ(other.dry_breakers->has(7), params.dry_breakers->has(7));
}

}  // namespace
}  // namespace sluice::guide
