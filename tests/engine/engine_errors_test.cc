// What users do wrong and what disks do: one clear error each, and the other requests go on.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::testing {
namespace {

template <typename Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::kInternal, "no error was thrown");
}

TEST(EngineErrors, BadRequestsAreRefusedAndTheOthersRun) {
  auto requests = greedy_requests(
      {{1, 403, 407}, {}, {1, 99999}, {1, -4}, std::vector<int32_t>(600, 5), {1, 261}}, 4);
  EngineOptions options = options_for({requests[0], requests[5]});
  auto answers = run_all("stories260k", options, requests);
  EXPECT_EQ(answers[0].tokens.size(), 4u);
  EXPECT_EQ(answers[5].tokens.size(), 4u);
  EXPECT_NE(answers[1].refused.find("empty"), std::string::npos);
  EXPECT_NE(answers[2].refused.find("99999"), std::string::npos);
  EXPECT_NE(answers[3].refused.find("-4"), std::string::npos);
  EXPECT_NE(answers[4].refused.find("600 tokens"), std::string::npos);
}

TEST(EngineErrors, ABudgetTooSmallForOneLayerNamesEveryUseAndTheMend) {
  EngineOptions options = options_for(greedy_requests({{1, 2, 3}}, 4));
  options.memory_budget_bytes = 100 * kKiB;
  const Error error = error_of([&] { Engine::open(fixture_model("stories260k"), options); });
  EXPECT_EQ(error.kind(), ErrorKind::kResource);
  EXPECT_NE(error.text().find("weight ring"), std::string::npos) << error.what();
  EXPECT_NE(error.mend().find("`memory_budget_bytes`"), std::string::npos);
}

TEST(EngineErrors, PeakMemoryNeverPassesTheBudget) {
  const auto requests = greedy_requests({{1, 403, 407}, {1, 5, 6, 7, 8}}, 12);
  for (int64_t budget : {720 * kKiB, 800 * kKiB, 1000 * kKiB, 2 * kMiB}) {
    EngineOptions options = options_for(requests);
    options.memory_budget_bytes = budget;
    const auto engine = Engine::open(fixture_model("stories260k"), options);
    ListSource source(requests);
    CollectingSink sink;
    engine->generate(source, sink);
    EXPECT_LE(engine->stats().peak_memory_bytes, budget);
    EXPECT_EQ(sink.answers[0].tokens.size(), 12u);
    EXPECT_EQ(engine->plan().streamed_weight_bytes > 0, budget <= 1000 * kKiB)
        << format_bytes(budget);
  }
}

TEST(EngineErrors, AMissingOffloadFolderIsSaidBeforeAnythingIsRead) {
  EngineOptions options = options_for(greedy_requests({{1, 2, 3}}, 4));
  options.policy = policy::Policy{};
  options.policy->kv = {0, 0, 1};
  options.offload_dir = "/nonexistent-folder";
  const Error error = error_of([&] { Engine::open(fixture_model("stories260k"), options); });
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_NE(error.text().find("/nonexistent-folder"), std::string::npos);
}

TEST(EngineErrors, ADiskBudgetIsHard) {
  EngineOptions options = options_for(greedy_requests({{1, 2, 3}}, 4));
  options.policy = policy::Policy{};
  options.policy->kv = {0, 0, 1};
  options.disk_budget_bytes = 4096;
  EXPECT_EQ(error_of([&] { Engine::open(fixture_model("stories260k"), options); }).kind(),
            ErrorKind::kResource);
}

// Stops the run from inside after a few tokens, as Ctrl-C does from outside.
class StoppingSink final : public GenerationSink {
 public:
  explicit StoppingSink(std::stop_source& source, int after) : source_(source), left_(after) {}
  bool on_token(uint64_t, const sampling::Choice&) override {
    if (--left_ == 0) source_.request_stop();
    return true;
  }
  void on_finish(uint64_t, FinishReason reason) override { reasons.push_back(reason); }
  void on_refused(uint64_t, const std::string&) override {}
  std::vector<FinishReason> reasons;

 private:
  std::stop_source& source_;
  int left_;
};

TEST(EngineErrors, ACancelledRunEndsEverySequenceAndCanBeFollowedByAnother) {
  const auto requests = greedy_requests({{1, 403}, {1, 407}, {1, 261}}, 50);
  EngineOptions options = options_for(requests);
  options.policy = policy::Policy{};
  options.policy->weights = {0.3, 0, 0.7};
  options.policy->kv = {0.5, 0, 0.5};
  options.policy->micro_batches = 3;
  const auto engine = Engine::open(fixture_model("stories260k"), options);
  std::stop_source stop;
  StoppingSink sink(stop, 10);
  ListSource source(requests);
  const Error error = error_of([&] { engine->generate(source, sink, stop.get_token()); });
  EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
  EXPECT_EQ(sink.reasons, std::vector<FinishReason>(3, FinishReason::kCancelled));
  ListSource again(requests);
  CollectingSink collected;
  engine->generate(again, collected);
  auto expected = run_all("stories260k", options_for(requests), requests);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(collected.answers[i].tokens, expected[i].tokens);
}

TEST(EngineErrors, SampledTokensDependOnTheSeedOnly) {
  auto requests = greedy_requests({{1, 403}, {1, 403}, {1, 403}}, 20);
  for (auto& request : requests) {
    request.params.temperature = 1;
    request.params.has_seed = true;
    request.params.seed = request.id == 2 ? 8 : 7;
  }
  auto answers = run_all("stories260k", options_for(requests), requests);
  EXPECT_EQ(answers[0].tokens, answers[1].tokens);
  EXPECT_NE(answers[0].tokens, answers[2].tokens);
  auto alone = run_all("stories260k", options_for({requests[1]}), {requests[1]});
  EXPECT_EQ(alone[1].tokens, answers[0].tokens);
}

}  // namespace
}  // namespace sluice::testing
