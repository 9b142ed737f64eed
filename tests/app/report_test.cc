// What a run says of itself, against what the engine counted.
#include "src/app/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::app {
namespace {

std::unique_ptr<Engine> run(std::optional<policy::Policy> policy, int64_t budget) {
  const auto requests = testing::greedy_requests({{1, 403, 407}, {1, 261}}, 6);
  EngineOptions options = testing::options_for(requests);
  options.memory_budget_bytes = budget;
  options.policy = policy;
  auto engine = Engine::open(testing::fixture_model("stories260k"), options);
  testing::ListSource source(requests);
  testing::CollectingSink sink;
  engine->generate(source, sink);
  return engine;
}

// What a run needs at least, as the error for less names it.
int64_t smallest_budget() {
  try {
    run(std::nullopt, 1 * kKiB);
  } catch (const Error& error) {
    const std::string mark = "raise `memory_budget_bytes` to ";
    const size_t at = error.mend().find(mark) + mark.size();
    return parse_bytes(error.mend().substr(at, error.mend().find(',') - at), "the error");
  }
  return 0;
}

policy::Policy on_disk() {
  policy::Policy policy;
  policy.weights = policy.kv = {0, 0, 1};
  policy.micro_batch_sequences = 2;
  return policy;
}

TEST(StatsJson, CountsWhatRan) {
  const auto engine = run(on_disk(), 64 * kMiB);
  const EngineStats stats = engine->stats();
  const auto json = stats_json(*engine);
  EXPECT_EQ(json["prefill_tokens"], 5);
  EXPECT_EQ(json["decode_tokens"], 12);
  EXPECT_EQ(json["passes"], stats.passes);
  EXPECT_EQ(json["wall_s"], stats.wall_seconds);
  EXPECT_DOUBLE_EQ(
      json["tokens_per_s"].get<double>(),
      static_cast<double>(stats.decode_tokens - stats.first_tokens) / stats.decode_seconds);
  EXPECT_DOUBLE_EQ(json["total_tokens_per_s"].get<double>(), 12 / stats.wall_seconds);
  EXPECT_EQ(json["peak_bytes"]["device"], stats.peak_memory_bytes);
  EXPECT_EQ(json["peak_bytes"]["disk"], stats.peak_disk_bytes);
  EXPECT_GT(json["peak_bytes"]["disk"].get<int64_t>(), 0);
  EXPECT_EQ(json["budget_bytes"]["device"], 64 * kMiB);
  EXPECT_EQ(json["streamed_bytes_per_pass"], engine->plan().streamed_weight_bytes);
  EXPECT_EQ(json["lanes"].size(), stats.lanes.size());
  for (const char* lane : {"disk read", "disk write", "device compute"}) {
    ASSERT_TRUE(json["lanes"].contains(lane)) << lane;
    EXPECT_GT(json["lanes"][lane]["busy_s"].get<double>(), 0) << lane;
    EXPECT_GT(json["lanes"][lane]["tasks"].get<int64_t>(), 0) << lane;
  }
  EXPECT_GE(json["lanes"]["disk read"]["bytes"].get<int64_t>(),
            stats.passes * engine->plan().streamed_weight_bytes);
}

TEST(StatsJson, AnEngineThatHasNotRunHasNoRates) {
  EngineOptions options;
  options.memory_budget_bytes = 64 * kMiB;
  const auto engine = Engine::open(testing::fixture_model("stories260k"), options);
  const auto json = stats_json(*engine);
  EXPECT_EQ(json["tokens_per_s"], 0.0);
  EXPECT_EQ(json["total_tokens_per_s"], 0.0);
  EXPECT_EQ(json["decode_tokens"], 0);
  EXPECT_TRUE(json["lanes"].empty());
  const std::string table = run_table(*engine);
  EXPECT_NE(table.find("0 tokens in 0 passes"), std::string::npos) << table;
  EXPECT_EQ(table.find("generated tokens/s"), std::string::npos) << "none were: " << table;
}

TEST(RunTable, NamesTiersLanesAndTheBusiest) {
  const auto engine = run(on_disk(), 64 * kMiB);
  const std::string table = run_table(*engine);
  for (const char* word : {"load", "prefill", "decode", "tier    memory", "tier    disk",
                           "lane    disk read", "lane    disk write", "lane    device compute"})
    EXPECT_NE(table.find(word), std::string::npos) << word << " is not in\n" << table;
  EXPECT_NE(table.find("budget    64.0MiB"), std::string::npos) << table;
  // The busiest lane is the one with the most seconds.
  std::string busiest;
  double most = -1;
  for (const auto& [lane, lane_stats] : engine->stats().lanes)
    if (lane_stats.busy_seconds > most) {
      most = lane_stats.busy_seconds;
      busiest = lane_name(engine->machine(), lane);
    }
  EXPECT_TRUE(table.ends_with("busiest lane: " + busiest + "\n")) << table;
}

TEST(PlanSentence, SaysPolicyMemoryAndStreamedBytes) {
  const auto engine = run(on_disk(), 64 * kMiB);
  const std::string sentence = plan_sentence(*engine);
  EXPECT_NE(sentence.find("weights 0% memory 100% disk"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find(format_bytes(engine->plan().memory_bytes()) + " of 64.0MiB"),
            std::string::npos)
      << sentence;
  EXPECT_NE(sentence.find(format_bytes(engine->plan().streamed_weight_bytes) + " streamed"),
            std::string::npos)
      << sentence;
}

TEST(FitWarning, OnlyWhenAModelThatFitsIsStreamed) {
  EXPECT_NE(fit_warning(*run(on_disk(), 64 * kMiB)).find("64.0MiB"), std::string::npos);
  EXPECT_EQ(fit_warning(*run(std::nullopt, 64 * kMiB)), "") << "nothing is streamed";
  const auto tight = run(std::nullopt, smallest_budget());
  ASSERT_GT(tight->plan().streamed_weight_bytes, 0);
  EXPECT_EQ(fit_warning(*tight), "") << "there is no room";
}

}  // namespace
}  // namespace sluice::app
