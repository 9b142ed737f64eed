#include "src/sampling/dry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "src/sampling/sampler.h"

namespace sluice::sampling {
namespace {

using Tokens = std::vector<int32_t>;

bool ends_with(const Tokens& text, size_t end, const Tokens& sequence) {
  return sequence.size() <= end &&
         std::equal(sequence.begin(), sequence.end(),
                    text.begin() + static_cast<int64_t>(end - sequence.size()));
}

// The definition: for each earlier token, how far the tokens before it and the text's end agree,
// going back until one of them begins, or a breaker ends at the text's own.
std::map<int32_t, int32_t> plain(Tokens text, int64_t last_n, const std::vector<Tokens>& breakers) {
  if (last_n >= 0 && std::ssize(text) > last_n) text.erase(text.begin(), text.end() - last_n);
  const auto breaks_at = [&](size_t end) {
    return std::any_of(breakers.begin(), breakers.end(),
                       [&](const Tokens& one) { return ends_with(text, end, one); });
  };
  std::map<int32_t, int32_t> found;
  for (size_t next = 1; next < text.size(); ++next) {
    size_t length = 0;
    while (length < next && !breaks_at(text.size() - length) &&
           text[next - 1 - length] == text[text.size() - 1 - length])
      ++length;
    const bool is_breaker =
        std::find(breakers.begin(), breakers.end(), Tokens{text[next]}) != breakers.end();
    if (length == 0 || is_breaker) continue;
    int32_t& longest = found[text[next]];
    longest = std::max(longest, static_cast<int32_t>(length));
  }
  return found;
}

std::map<int32_t, int32_t> found_in(const Tokens& text, size_t prompt, int64_t last_n,
                                    const std::vector<Tokens>& breakers, Repeats& repeats,
                                    int64_t vocab_size = 1000) {
  std::map<int32_t, int32_t> out;
  for (const Repeat& one :
       repeats.find(std::span(text).first(prompt), std::span(text).subspan(prompt), last_n,
                    DryBreakers(breakers), vocab_size)) {
    EXPECT_TRUE(out.emplace(one.token, one.length).second) << "given twice";
  }
  return out;
}

TEST(Dry, FindsWhatTheDefinitionFinds) {
  std::mt19937 random(1);
  Repeats repeats;  // one for all: nothing stays from call to call
  int long_ones = 0;
  for (int round = 0; round < 3000; ++round) {
    const int alphabet = 1 + round % 5;
    Tokens text(random() % 40);
    for (int32_t& token : text)
      token =
          static_cast<int32_t>(static_cast<uint32_t>(random()) % static_cast<uint32_t>(alphabet));
    std::vector<Tokens> breakers(random() % 3);
    for (Tokens& one : breakers) {
      one.resize(1 + random() % 3);
      for (int32_t& token : one) token = static_cast<int32_t>(random() % 6);
    }
    const int64_t last_n = static_cast<int64_t>(random() % 60) - 10;
    const size_t prompt = text.empty() ? 0 : random() % (text.size() + 1);
    const auto expected = plain(text, std::max<int64_t>(last_n, -1), breakers);
    EXPECT_EQ(found_in(text, prompt, std::max<int64_t>(last_n, -1), breakers, repeats), expected)
        << round;
    for (const auto& [token, length] : expected) long_ones += length > 3 ? 1 : 0;
  }
  EXPECT_GT(long_ones, 300);
}

TEST(Dry, TokensOutsideTheVocabularyMatchAndAreNotPenalised) {
  Repeats repeats;
  EXPECT_EQ(found_in({99, -4, 7, 99, -4}, 2, -1, {}, repeats, 10),
            (std::map<int32_t, int32_t>{{7, 2}}));
  EXPECT_TRUE(found_in({3, 99, 3}, 2, -1, {}, repeats, 10).empty());
}

TEST(Dry, NoTextAndOneTokenRepeatNothing) {
  Repeats repeats;
  EXPECT_TRUE(found_in({}, 0, -1, {}, repeats).empty());
  EXPECT_TRUE(found_in({5}, 0, -1, {}, repeats).empty());
  EXPECT_TRUE(found_in({5, 5, 5}, 1, 1, {}, repeats).empty());
}

TEST(Dry, BreakersThatAreAllTokensLeaveNothing) {
  Repeats repeats;
  std::vector<Tokens> all;
  for (int32_t token = 0; token < 1000; ++token) all.push_back({token});
  EXPECT_TRUE(found_in({1, 2, 3, 1, 2, 3, 1, 2}, 3, -1, all, repeats).empty());
}

// A hundred thousand equal tokens: each place matches as far as it can. Quadratic work would take
// minutes here, and breakers that almost match must not make it so either.
TEST(Dry, LongRepetitionsAreLinear) {
  Repeats repeats;
  const Tokens text(100'000, 7);
  Tokens almost(kMaxDryBreakerTokens, 7);
  almost.front() = 8;
  for (int step = 0; step < 20; ++step) {
    const auto found = found_in(text, 50'000, -1, {almost}, repeats);
    EXPECT_EQ(found, (std::map<int32_t, int32_t>{{7, 99'999}}));
  }
}

TEST(Dry, PenaltyGrowsWithLengthAndStaysFinite) {
  EXPECT_EQ(dry_penalty(0.8F, 1.75F, 2, 1), 0);
  EXPECT_FLOAT_EQ(dry_penalty(0.8F, 1.75F, 2, 2), 0.8F);
  EXPECT_FLOAT_EQ(dry_penalty(0.8F, 1.75F, 2, 4), 0.8F * 1.75F * 1.75F);
  EXPECT_FLOAT_EQ(dry_penalty(2, 1, 0, 1'000'000), 2);
  EXPECT_FLOAT_EQ(dry_penalty(100, 100, 0, 1'000'000), 1e30F);
}

TEST(Dry, TakesThePenaltyFromTheLogit) {
  SamplingParams params;
  params.dry_multiplier = 0.8F;
  params.dry_breaker_tokens = {{4}};
  params.presence_penalty = 0.5F;
  const std::vector<float> logits{1, 1, 1, 1, 1, 1};
  // The end "0 1 2" came before 3, "1 2" before 5; "4" breaks.
  const Tokens prompt{0, 1, 2, 3, 4, 1, 2, 5}, output{0, 1, 2};
  const auto found = distribution(logits, params, {prompt, output});
  std::vector<float> changed = logits;
  for (const size_t token : {0U, 1U, 2U}) changed[token] -= 0.5F;
  changed[3] -= 0.8F * 1.75F;
  changed[5] -= 0.8F;
  const auto expected = distribution(changed, SamplingParams{}, {});
  for (size_t token = 0; token < 6; ++token) EXPECT_FLOAT_EQ(found[token], expected[token]);
  params.dry_penalty_last_n = 0;
  changed[3] = changed[5] = 1;
  const auto off = distribution(changed, SamplingParams{}, {});
  EXPECT_FLOAT_EQ(distribution(logits, params, {prompt, output})[3], off[3]);
}

TEST(Dry, ComesBeforeGreedyAndLeavesTheOnlyToken) {
  SamplingParams params;
  params.temperature = 0;
  params.dry_multiplier = 100;
  params.dry_base = 100;
  params.dry_allowed_length = 0;
  Workspace workspace;
  const Tokens text(500, 0);
  EXPECT_EQ(Sampler(params, {}).pick(std::vector<float>{9, 1}, {text, text}, workspace).token, 1);
  EXPECT_EQ(Sampler(params, {}).pick(std::vector<float>{9}, {text, text}, workspace).token, 0);
  params.temperature = 0.01F;
  EXPECT_EQ(Sampler(params, {}).pick(std::vector<float>{9}, {text, text}, workspace).token, 0);
}

}  // namespace
}  // namespace sluice::sampling
