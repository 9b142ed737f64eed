#include "policy/routing_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace sluice::policy {
namespace {

// Slots with what is used most in the last tokens (LRU) under the router that measured traces were
// fitted with: logits of a bias of all, one of the sequence, and what goes on from token to token.
class SyntheticRouting {
 public:
  SyntheticRouting(int64_t experts, int64_t chosen, int64_t sequences, unsigned seed)
      : experts_(experts),
        chosen_(chosen),
        sequences_(sequences),
        random_(seed),
        bias_(draw(experts)) {
    begin_texts();
  }
  // Every sequence begins with another text.
  void begin_texts() {
    own_.clear();
    going_.clear();
    for (int64_t s = 0; s < sequences_; ++s) {
      own_.push_back(draw(experts_));
      going_.push_back(draw(experts_));
    }
  }
  // Those of its next token, the most wanted first.
  std::vector<int32_t> next(size_t sequence) {
    const double keeps = 0.53;
    std::vector<double> logits(static_cast<size_t>(experts_));
    for (size_t e = 0; e < logits.size(); ++e) {
      double& going = going_[sequence][e];
      going = keeps * going + std::sqrt(1 - keeps * keeps) * normal_(random_);
      logits[e] = 1.09 * bias_[e] + 1.52 * own_[sequence][e] + 1.37 * going + normal_(random_);
    }
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + chosen_, order.end(),
                      [&](int32_t a, int32_t b) {
                        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
                      });
    order.resize(static_cast<size_t>(chosen_));
    return order;
  }

 private:
  std::vector<double> draw(int64_t count) {
    std::vector<double> out(static_cast<size_t>(count));
    for (double& one : out) one = normal_(random_);
    return out;
  }
  int64_t experts_, chosen_, sequences_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  std::vector<double> bias_;
  std::vector<std::vector<double>> own_, going_;
};

enum class Texts { kGoOn, kBegin };

// Experts in no slot that a pass of a run of tokens of each sequence asks for, on average: of texts
// that go on from pass to pass, or begin in each.
double simulated_missing(const ExpertShare& layer, int64_t sequences, int64_t run, Texts texts,
                         int passes) {
  double missed = 0, counted = 0;
  for (unsigned seed = 0; seed < 2; ++seed) {
    SyntheticRouting routing(layer.experts, static_cast<int64_t>(layer.chosen), sequences, seed);
    std::vector<int64_t> last(static_cast<size_t>(layer.experts), -1);
    for (int pass = 0; pass < passes; ++pass) {
      if (texts == Texts::kBegin) routing.begin_texts();
      std::vector<int64_t> used(static_cast<size_t>(layer.experts), -1);
      for (int64_t token = 0; token < run; ++token)
        for (int64_t s = 0; s < sequences; ++s)
          for (const int32_t expert : routing.next(static_cast<size_t>(s)))
            used[static_cast<size_t>(expert)] = pass * run + token;
      std::vector<int32_t> asked;
      for (int32_t e = 0; e < static_cast<int32_t>(layer.experts); ++e)
        if (used[static_cast<size_t>(e)] >= 0) asked.push_back(e);
      std::vector<int32_t> order(static_cast<size_t>(layer.experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return last[static_cast<size_t>(a)] > last[static_cast<size_t>(b)];
      });
      order.resize(static_cast<size_t>(layer.slots));
      if (pass >= passes / 2) {
        counted += 1;
        for (const int32_t expert : asked)
          missed += std::find(order.begin(), order.end(), expert) == order.end();
      }
      for (const int32_t expert : asked)
        last[static_cast<size_t>(expert)] = used[static_cast<size_t>(expert)];
    }
  }
  return missed / counted;
}

TEST(RoutingModel, IsNearWhatASkewedAndStickyRouterAsksFor) {
  const ExpertShare layers[] = {{128, 8, 13}, {128, 8, 32}, {128, 8, 64},
                                {256, 8, 26}, {256, 8, 64}, {128, 4, 13}};
  for (const ExpertShare& layer : layers) {
    const auto away = static_cast<double>(layer.experts - layer.slots);
    for (const int64_t sequences : {1, 16, 64, 256}) {
      const double simulated = simulated_missing(layer, sequences, 1, Texts::kGoOn,
                                                 sequences == 1    ? 600
                                                 : sequences == 16 ? 60
                                                                   : 12);
      const double modelled = away * missing_share(layer, static_cast<double>(sequences));
      const double tolerance = sequences == 1 ? 0.5 * simulated + 0.2 : 0.25 * simulated;
      EXPECT_NEAR(modelled, simulated, tolerance)
          << layer.experts << " experts, " << layer.chosen << " chosen, " << layer.slots
          << " slots, " << sequences << " sequences";
    }
  }
}

double asked_by(double experts, double chosen, double independent) {
  return asked_experts({static_cast<int64_t>(experts), chosen, 0}, independent);
}

// Distinct experts of 128 in runs of so many tokens of one text, mean of all layers and of all runs
// in a prompt or an answer. Counted in the traces of Helldez/BigMoeOnEdge (Apache-2.0, commit
// 2d4f2b11, docs/bench-data/2026-07-15-route-trace).
struct Traced {
  const char* text;
  double chosen;  // by a token, there
  int64_t run;
  double distinct;
};
constexpr Traced kTraced[] = {
    {"Qwen3-30B-A3B, prompt", 6, 4, 16.2},    {"Qwen3-30B-A3B, prompt", 6, 8, 26.2},
    {"Qwen3-30B-A3B, prompt", 6, 16, 41.1},   {"Qwen3-30B-A3B, prompt", 6, 24, 51.5},
    {"Qwen3-30B-A3B, answer", 6, 4, 15.6},    {"Qwen3-30B-A3B, answer", 6, 8, 23.6},
    {"Qwen3-30B-A3B, answer", 6, 24, 38.9},   {"Qwen3-30B-A3B, answer", 6, 64, 50.7},
    {"Gemma-4-26B-A4B, prompt", 6, 4, 15.3},  {"Gemma-4-26B-A4B, prompt", 6, 8, 23.5},
    {"Gemma-4-26B-A4B, prompt", 6, 16, 34.7}, {"Gemma-4-26B-A4B, prompt", 6, 24, 44.2},
    {"Gemma-4-26B-A4B, answer", 6, 4, 15.7},  {"Gemma-4-26B-A4B, answer", 6, 8, 23.9},
    {"Gemma-4-26B-A4B, answer", 6, 24, 42.0}, {"Gemma-4-26B-A4B, answer", 6, 64, 57.6},
    {"gpt-oss-120b, prompt", 2, 8, 10.8},     {"gpt-oss-120b, prompt", 2, 24, 23.0},
    {"gpt-oss-120b, prompt", 2, 64, 43.2},    {"gpt-oss-120b, answer", 2, 8, 10.0},
    {"gpt-oss-120b, answer", 2, 24, 20.1},    {"gpt-oss-120b, answer", 2, 64, 35.9},
};

TEST(RoutingModel, TokensOfOneTextAreNearWhatTracesAskFor) {
  double errors = 0, errors_apart = 0;
  for (const Traced& one : kTraced) {
    const double modelled = asked_by(128, one.chosen, independent_tokens(one.run));
    EXPECT_NEAR(modelled, one.distinct, one.distinct / 3) << one.text << ", " << one.run;
    errors += std::abs(modelled / one.distinct - 1);
    errors_apart +=
        std::abs(asked_by(128, one.chosen, static_cast<double>(one.run)) / one.distinct - 1);
  }
  EXPECT_LT(errors, 0.12 * std::size(kTraced));
  EXPECT_GT(errors_apart, 0.5 * std::size(kTraced)) << "as if each token had a text of its own";
}

// Tokens after which each sequence, of `sequences` that a layer routes, has asked for an expert
// first, [chosen][sequence][expert]: of all numbers of experts a token at once, since a token asks
// for those that it wants most.
constexpr int64_t kChosen[] = {2, 4, 6, 8, 10};
using FirstAsked = std::vector<std::vector<std::vector<int64_t>>>;
FirstAsked first_asked(int64_t experts, int64_t sequences, int64_t run) {
  FirstAsked out(std::size(kChosen), std::vector<std::vector<int64_t>>(
                                         static_cast<size_t>(sequences),
                                         std::vector<int64_t>(static_cast<size_t>(experts), run)));
  SyntheticRouting routing(experts, kChosen[std::size(kChosen) - 1], sequences, 7);
  for (size_t s = 0; s < static_cast<size_t>(sequences); ++s)
    for (int64_t token = 0; token < run; ++token) {
      const std::vector<int32_t> asked = routing.next(s);
      for (size_t i = 0; i < std::size(kChosen); ++i)
        for (int64_t a = 0; a < kChosen[i]; ++a) {
          int64_t& first = out[i][s][static_cast<size_t>(asked[static_cast<size_t>(a)])];
          first = std::min(first, token);
        }
    }
  return out;
}

// Distinct experts that `sequences` of these ask for in the first `run` tokens of each: the mean of
// as many groups as there are.
double distinct_of(const std::vector<std::vector<int64_t>>& first, size_t sequences, int64_t run) {
  int64_t asked = 0;
  const size_t groups = first.size() / sequences;
  for (size_t group = 0; group < groups; ++group)
    for (size_t e = 0; e < first[0].size(); ++e) {
      const auto begin = first.begin() + static_cast<std::ptrdiff_t>(group * sequences);
      asked += std::any_of(begin, begin + static_cast<std::ptrdiff_t>(sequences),
                           [&](const auto& one) { return one[e] < run; });
    }
  return static_cast<double>(asked) / static_cast<double>(groups);
}

TEST(RoutingModel, RunsOfSequencesAreNearWhatASyntheticRouterAsksFor) {
  constexpr int64_t kSequences = 64, kRun = 512;
  for (const int64_t experts : {64, 128, 256, 512}) {
    const FirstAsked first = first_asked(experts, kSequences, kRun);
    for (size_t i = 0; i < std::size(kChosen); ++i)
      for (int64_t sequences = 1; sequences <= kSequences; sequences *= 4)
        for (int64_t run = 1; run <= kRun; run *= 2) {
          const double simulated = distinct_of(first[i], static_cast<size_t>(sequences), run);
          const double modelled =
              asked_by(static_cast<double>(experts), static_cast<double>(kChosen[i]),
                       static_cast<double>(sequences) * independent_tokens(run));
          EXPECT_NEAR(modelled, simulated, simulated / 3)
              << experts << " experts, " << kChosen[i] << " chosen, " << sequences
              << " sequences of " << run;
        }
  }
}

// What the slots have of a text depends on whether it was there in the passes before: the model is
// between the two.
TEST(RoutingModel, MissingExpertsOfRunsAreBetweenThoseOfTextsThatGoOnAndThatBegin) {
  const ExpertShare layers[] = {{128, 8, 12}, {128, 8, 64}, {128, 4, 32}, {256, 8, 64}};
  struct Pass {
    int64_t sequences, run;
  };
  for (const ExpertShare& layer : layers)
    for (const Pass& pass : {Pass{1, 4}, {1, 24}, {1, 128}, {4, 8}, {16, 8}}) {
      const int passes = static_cast<int>(std::max<int64_t>(400 / (pass.sequences * pass.run), 6));
      const auto missing = [&](Texts texts) {
        return simulated_missing(layer, pass.sequences, pass.run, texts, passes);
      };
      const double modelled =
          static_cast<double>(layer.experts - layer.slots) *
          missing_share(layer, static_cast<double>(pass.sequences) * independent_tokens(pass.run));
      EXPECT_GT(modelled, 0.75 * missing(Texts::kGoOn))
          << layer.experts << " experts, " << layer.chosen << " chosen, " << layer.slots
          << " slots, " << pass.sequences << " sequences of " << pass.run;
      EXPECT_LT(modelled, 1.25 * missing(Texts::kBegin))
          << layer.experts << " experts, " << layer.chosen << " chosen, " << layer.slots
          << " slots, " << pass.sequences << " sequences of " << pass.run;
    }
}

TEST(RoutingModel, IndependentTokensKeepTheirRules) {
  EXPECT_EQ(independent_tokens(0), 0);
  EXPECT_EQ(independent_tokens(1), 1) << "one token is one, whoever's";
  for (int64_t run = 2; run <= 1 << 20; run += 1 + run / 7) {
    const double all = independent_tokens(run);
    EXPECT_GT(all, independent_tokens(run - 1)) << "more tokens are more";
    EXPECT_LT(all, static_cast<double>(run)) << "as many of as many texts are more";
    for (const int64_t part : {int64_t{1}, run / 3, run / 2})
      EXPECT_GE(independent_tokens(part) + independent_tokens(run - part), all)
          << "of more sequences they are more";
    EXPECT_EQ(longest_run(all, 2 * run), run);
    EXPECT_EQ(longest_run(all, run - 1), run - 1) << "no longer than it may be";
    EXPECT_EQ(longest_run(std::nextafter(all, 0), 2 * run), run - 1);
  }
  EXPECT_EQ(longest_run(0.5, 100), 0);
}

// Whatever a layer is, and however many sequences bring however many tokens.
TEST(RoutingModel, AskedExpertsKeepTheirRulesForRuns) {
  for (const ExpertShare& layer : {ExpertShare{64, 2, 0},
                                   {64, 8, 20},
                                   {128, 4, 100},
                                   {256, 8, 1},
                                   {256, 8, 255},
                                   {512, 10, 128},
                                   {8, 2, 3}}) {
    const auto asked = [&](int64_t sequences, int64_t run) {
      return asked_experts(layer, static_cast<double>(sequences) * independent_tokens(run));
    };
    for (int64_t sequences = 1; sequences <= 64; sequences *= 2)
      for (int64_t run = 1; run <= 512; run *= 2) {
        EXPECT_LE(asked(sequences, run), static_cast<double>(layer.experts));
        EXPECT_GE(asked(sequences, run), layer.chosen);
        EXPECT_LE(asked(sequences, run), asked(sequences, run + 1));
        EXPECT_LE(asked(sequences, run), asked(sequences + 1, run));
        EXPECT_LE(asked(sequences, run), asked(sequences * run, 1));
        const double share =
            missing_share(layer, static_cast<double>(sequences) * independent_tokens(run));
        EXPECT_GE(share, 0);
        EXPECT_LE(share, 1);
      }
  }
}

TEST(RoutingModel, BordersOfItsRules) {
  EXPECT_EQ(missing_share({8, 2, 8}, 5), 0) << "all are there";
  EXPECT_EQ(missing_share({8, 2, 0}, 0), 0) << "nobody asks";
  EXPECT_EQ(most_demanding_tokens({8, 2, 0}), 0);
  EXPECT_EQ(most_demanding_tokens({8, 2, 8}), 0);
  const ExpertShare layer{128, 8, 32};
  double before = 0;
  for (int64_t tokens = 1; tokens <= 4096; tokens *= 2) {
    const double share = missing_share(layer, static_cast<double>(tokens));
    EXPECT_GT(share, before);
    EXPECT_LT(share, 1);
    before = share;
  }
  const int64_t most = most_demanding_tokens(layer);
  EXPECT_LE(missing_share(layer, static_cast<double>(most)), 0.7);
  EXPECT_GT(missing_share(layer, static_cast<double>(most + 1)), 0.7);
  EXPECT_GT(most, 16);
  EXPECT_LT(most, 128);
}

}  // namespace
}  // namespace sluice::policy
