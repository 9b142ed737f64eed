// The search by itself, over made-up models whose every sequence can be counted.
#include "src/sampling/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

namespace sluice::sampling {
namespace {

constexpr int kVocab = 4;
using Tokens = std::vector<int32_t>;

// Log-probabilities of the next token, random but a function of what came before.
std::vector<float> logits_after(const Tokens& tokens, uint32_t seed) {
  for (int32_t token : tokens) seed = seed * 31 + static_cast<uint32_t>(token) + 7;
  std::mt19937 random(seed);
  std::vector<float> logits(kVocab);
  for (float& logit : logits) logit = std::normal_distribution<float>(0, 2)(random);
  return logits;
}

struct Found {
  std::map<Tokens, double> scores;
  std::vector<Tokens> best_first;
  size_t most_running = 0;
  int steps = 0;
};

Found search(const SamplingParams& params, const Tokens& ends, uint32_t seed) {
  const Sampler sampler(params, ends);
  BeamSearch beams(params, ends, params.max_tokens);
  Workspace workspace;
  std::vector<Tokens> running(1);
  Found out;
  while (!running.empty()) {
    std::vector<std::vector<BeamCandidate>> candidates;
    for (const Tokens& tokens : running)
      candidates.push_back(sampler.beam_candidates(logits_after(tokens, seed), {{}, tokens},
                                                   beams.candidates_wanted(), workspace));
    std::vector<Tokens> next;
    for (const auto& [parent, token] : beams.advance(candidates)) {
      next.push_back(running[parent]);
      next.back().push_back(token);
    }
    running = std::move(next);
    out.most_running = std::max(out.most_running, running.size());
    ++out.steps;
  }
  for (const Hypothesis& one : beams.hypotheses()) {
    Tokens tokens;
    for (const Choice& choice : one.choices) tokens.push_back(choice.token);
    out.scores[tokens] = one.score;
    out.best_first.push_back(tokens);
  }
  return out;
}

// Every sequence that ends, with its score.
void enumerate(const SamplingParams& params, const Tokens& ends, uint32_t seed, Tokens& tokens,
               double sum, std::map<Tokens, double>& out) {
  const auto logits = logits_after(tokens, seed);
  double total = 0;
  for (float logit : logits) total += std::exp(static_cast<double>(logit));
  for (int32_t token = 0; token < kVocab; ++token) {
    tokens.push_back(token);
    const double score =
        sum + static_cast<double>(logits[static_cast<size_t>(token)]) - std::log(total);
    const bool is_end = std::find(ends.begin(), ends.end(), token) != ends.end();
    if (is_end || static_cast<int>(tokens.size()) == params.max_tokens)
      out[tokens] = score / std::pow(static_cast<double>(tokens.size()),
                                     static_cast<double>(params.length_penalty));
    else
      enumerate(params, ends, seed, tokens, score, out);
    tokens.pop_back();
  }
}

TEST(BeamSearch, WithABeamForEverySequenceFindsTheBest) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SamplingParams params;
    params.max_tokens = 3;
    params.num_beams = 64;
    params.early_stopping = EarlyStopping::kNever;
    params.length_penalty = static_cast<float>(seed % 3);
    const Tokens ends = seed % 2 == 0 ? Tokens{0} : Tokens{};
    std::map<Tokens, double> all;
    Tokens tokens;
    enumerate(params, ends, seed, tokens, 0, all);
    const Found found = search(params, ends, seed);
    ASSERT_EQ(found.scores.size(), all.size());
    for (const auto& [sequence, score] : found.scores) EXPECT_NEAR(score, all.at(sequence), 1e-4);
    const auto best = std::max_element(
        all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    EXPECT_EQ(found.best_first.front(), best->first);
  }
}

TEST(BeamSearch, NeverRunsMoreBeamsThanAskedForAndEnds) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SamplingParams params;
    params.max_tokens = 12;
    params.num_beams = static_cast<int>(2 + seed % 3);
    params.early_stopping = static_cast<EarlyStopping>(seed % 3);
    params.length_penalty = static_cast<float>(seed % 5) - 1;
    const Found found = search(params, {0, 1}, seed);
    EXPECT_LE(found.most_running, static_cast<size_t>(params.num_beams));
    EXPECT_EQ(found.best_first.size(), static_cast<size_t>(params.num_beams));
    EXPECT_LE(found.steps, params.max_tokens);
    double last = 1e9;
    for (const Tokens& tokens : found.best_first) {
      EXPECT_LE(found.scores.at(tokens), last);
      last = found.scores.at(tokens);
      const bool is_end = tokens.back() <= 1;
      EXPECT_TRUE(is_end || tokens.size() == 12u);
      EXPECT_TRUE(std::none_of(tokens.begin(), tokens.end() - 1, [](int32_t t) { return t <= 1; }));
    }
  }
}

TEST(BeamSearch, EndsAtOnceWhereAsked) {
  SamplingParams params;
  params.max_tokens = 30;
  params.num_beams = 2;
  int64_t steps[3] = {};
  for (uint32_t seed = 1; seed <= 40; ++seed)
    for (int which = 0; which < 3; ++which) {
      params.early_stopping = static_cast<EarlyStopping>(which);
      steps[which] += search(params, {0}, seed).steps;
    }
  EXPECT_LT(steps[static_cast<int>(EarlyStopping::kAtOnce)],
            steps[static_cast<int>(EarlyStopping::kHeuristic)]);
  EXPECT_LE(steps[static_cast<int>(EarlyStopping::kHeuristic)],
            steps[static_cast<int>(EarlyStopping::kNever)]);
}

// A mask that leaves one way: one beam runs, and no more than one sequence comes out.
TEST(BeamSearch, GoesOnWithFewerBeamsWhereMasksLeaveFewer) {
  SamplingParams params;
  params.max_tokens = 3;
  params.num_beams = 3;
  const Sampler sampler(params, {});
  BeamSearch beams(params, {}, 3);
  Workspace workspace;
  const std::vector<float> logits{1, 2, 3, 4};
  const std::vector<uint64_t> only_two{0b0100};
  Tokens tokens;
  for (int step = 0; step < 3; ++step) {
    ASSERT_EQ(beams.running(), 1u);
    const auto candidates = sampler.beam_candidates(logits, {{}, tokens, only_two},
                                                    beams.candidates_wanted(), workspace);
    ASSERT_EQ(candidates.size(), 1u);
    EXPECT_EQ(candidates[0].token, 2);
    const auto steps = beams.advance({{candidates}});
    EXPECT_EQ(steps.size(), step < 2 ? 1u : 0u);
    tokens.push_back(2);
  }
  EXPECT_EQ(beams.hypotheses().size(), 1u);
}

}  // namespace
}  // namespace sluice::sampling
