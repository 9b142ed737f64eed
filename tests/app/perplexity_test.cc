// Perplexity: how text is cut into windows, and the sum against one made from the logits.
#include "src/app/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::app {
namespace {

using Ids = std::vector<int32_t>;

// The requests behind the windows, and the perplexity over them.
template <typename... Arguments>
std::vector<GenerationRequest> requests_of(const Arguments&... arguments) {
  return score_requests(perplexity_windows(arguments...));
}
Perplexity perplexity_of(Engine& engine, const Ids& ids, std::optional<int32_t> bos, int64_t window,
                         const std::function<void(int64_t, int64_t)>& progress = {},
                         std::stop_token stop = {}) {
  return perplexity(engine, perplexity_windows(ids, bos, window), {}, progress, stop);
}

std::vector<Ids> prompts_of(const std::vector<GenerationRequest>& windows) {
  std::vector<Ids> out;
  for (size_t i = 0; i < windows.size(); ++i) {
    EXPECT_EQ(windows[i].id, i);
    EXPECT_TRUE(windows[i].score_prompt);
    out.push_back(windows[i].prompt);
  }
  return out;
}

TEST(PerplexityWindows, EachBeginsWithBeginOfText) {
  const Ids ids{10, 11, 12, 13, 14, 15, 16};
  EXPECT_EQ(prompts_of(requests_of(ids, 1, 4)),
            (std::vector<Ids>{{1, 10, 11, 12}, {1, 13, 14, 15}, {1, 16}}));
  EXPECT_EQ(prompts_of(requests_of(ids, 1, 8)),
            (std::vector<Ids>{{1, 10, 11, 12, 13, 14, 15, 16}}));
  EXPECT_EQ(perplexity_windows({}, 1, 8).size(), 0u);
}

TEST(PerplexityWindows, WithoutBeginOfTextTheyAreFull) {
  const Ids ids{10, 11, 12, 13, 14};
  EXPECT_EQ(prompts_of(requests_of(ids, std::nullopt, 4)),
            (std::vector<Ids>{{10, 11, 12, 13}, {14}}));
}

TEST(PerplexityWindows, WithAStrideEveryTokenIsScoredOnce) {
  Ids ids(23);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i + 10);
  for (const std::optional<int32_t> bos : {std::optional<int32_t>(1), std::optional<int32_t>()})
    for (const int64_t stride : {1, 3, 7, 50}) {
      const auto windows = perplexity_windows(ids, bos, 8, stride);
      Ids scored;
      for (const ScoredSequence& window : windows) {
        EXPECT_LE(window.tokens.size(), 8u);
        scored.insert(scored.end(), window.tokens.begin() + window.first_target,
                      window.tokens.end());
      }
      Ids expected = ids;
      if (!bos) expected.erase(expected.begin());  // nothing stands before it
      if (bos || stride < 8) {
        EXPECT_EQ(scored, expected) << "stride " << stride;
      }
    }
  const auto windows = perplexity_windows(ids, 1, 8, 3);
  EXPECT_EQ(windows[1].tokens, (Ids{1, 13, 14, 15, 16, 17, 18, 19}));
  EXPECT_EQ(windows[1].first_target, 5);  // 17, the first that the first window does not hold
}

TEST(Divergence, IsZeroForEqualLogitsAndTheDefinitionElse) {
  const std::vector<float> p{1, 2, 3, -4}, shifted{11, 12, 13, 6}, q{0, 0, 0, 0};
  EXPECT_NEAR(kl_divergence(p, shifted), 0, 1e-6);
  double sum = 0, norm = 0;
  for (float x : p) norm += std::exp(double{x});
  for (float x : p) sum += std::exp(double{x}) / norm * (x - std::log(norm) + std::log(4.0));
  EXPECT_NEAR(kl_divergence(p, q), sum, 1e-9);
}

std::unique_ptr<Engine> open_engine(policy::Policy policy = {}) {
  EngineOptions options;
  options.memory_budget_bytes = 64 << 20;
  options.workload = {4, 64, 64, 0};
  options.policy = policy;
  return Engine::open(testing::fixture_model("stories260k"), options);
}

Ids text_ids() {
  std::ifstream file(testing::fixture_model("stories260k") + "/greedy.json");
  Ids ids = nlohmann::json::parse(file).get<Ids>();  // begin-of-text and a story
  ids.erase(ids.begin());
  return ids;
}

// The definition, from the logits of every position.
double sum_of_nll(const std::vector<GenerationRequest>& windows) {
  auto answers = testing::run_all("stories260k", testing::options_for(windows), windows);
  double sum = 0;
  for (const auto& window : windows) {
    const auto& logits = answers[window.id].logits;
    for (size_t i = 0; i + 1 < window.prompt.size(); ++i) {
      const float* row = logits.data() + i * 512;
      double total = 0;
      for (int v = 0; v < 512; ++v) total += std::exp(double{row[v]});
      sum += std::log(total) - row[window.prompt[i + 1]];
    }
  }
  return sum;
}

TEST(Perplexity, IsTheMeanOverEveryToken) {
  const Ids ids = text_ids();
  const auto engine = open_engine();
  int64_t last_done = 0;
  const Perplexity result = perplexity_of(*engine, ids, 1, 20, [&](int64_t done, int64_t total) {
    EXPECT_EQ(done, last_done + 1);
    EXPECT_EQ(total, 6);
    last_done = done;
  });
  EXPECT_EQ(last_done, 6);
  EXPECT_EQ(result.windows, 6);
  EXPECT_EQ(result.scored_tokens, static_cast<int64_t>(ids.size()));
  const double expected = sum_of_nll(requests_of(ids, 1, 20)) / static_cast<double>(ids.size());
  EXPECT_NEAR(result.mean_nll, expected, 1e-6);
  EXPECT_NEAR(result.value(), std::exp(expected), 1e-5);
  EXPECT_LT(result.value(), 10) << "a story the model knows";
}

TEST(Perplexity, WithoutBeginOfTextTheFirstTokenOfARunIsNotScored) {
  const Ids ids = text_ids();
  const auto engine = open_engine();
  const Perplexity result = perplexity_of(*engine, ids, std::nullopt, 32);
  const auto windows = requests_of(ids, std::nullopt, 32);
  EXPECT_EQ(result.scored_tokens, static_cast<int64_t>(ids.size() - windows.size()));
  EXPECT_NEAR(result.mean_nll, sum_of_nll(windows) / static_cast<double>(result.scored_tokens),
              1e-6);
}

TEST(Perplexity, IsTheSameWhereverThingsLive) {
  policy::Policy disk;
  disk.weights = disk.kv = {0, 0, 1};
  disk.micro_batch_sequences = 2;
  disk.micro_batch_tokens = 7;
  const double resident = perplexity_of(*open_engine(), text_ids(), 1, 32).mean_nll;
  EXPECT_NEAR(perplexity_of(*open_engine(disk), text_ids(), 1, 32).mean_nll, resident, 1e-6);
}

TEST(Perplexity, NothingToScoreIsAnError) {
  const auto engine = open_engine();
  for (const auto& [ids, bos] :
       {std::pair<Ids, std::optional<int32_t>>{{}, 1}, {{7}, std::nullopt}})
    try {
      perplexity_of(*engine, ids, bos, 16);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser);
    }
}

TEST(Perplexity, AWindowThatTheEngineRefusesIsAnError) {
  const auto engine = open_engine();
  EXPECT_THROW(perplexity_of(*engine, Ids{5, 6, 99999}, 1, 16), Error);
}

TEST(Perplexity, CanBeCancelled) {
  const auto engine = open_engine();
  std::stop_source stop;
  stop.request_stop();
  try {
    perplexity_of(*engine, text_ids(), 1, 16, {}, stop.get_token());
    ADD_FAILURE() << "not cancelled";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
  }
}

}  // namespace
}  // namespace sluice::app
