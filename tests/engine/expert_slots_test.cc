// Mixtures whose experts are not all in memory: whoever is in the slots, and whether passes ask for
// experts or load them all, the tokens are the resident run's; what is read is what was asked for
// and not there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <stop_token>
#include <thread>

#include "src/cache/expert_cache.h"
#include "src/schedule/schedule.h"
#include "tests/engine/model_fixtures.h"
#include "tests/rounds.h"
#include "tests/whole_file.h"

namespace sluice::testing {
namespace {

// A policy that keeps what every token multiplies and `slots` experts of each layer; beside a
// device that has, with the former, `resident` of them. Tables that no head multiplies come after
// them.
policy::Policy policy_of(const ModelShape& shape, int64_t slots, int64_t demand_tokens,
                         std::optional<int64_t> resident = {}) {
  double dense = 0, experts = 0, tables = 0, held = 0, fixed = 0;
  const bool is_tied = shape.sublayers.back().weights.back().shares_table;
  for (const SublayerShape& sublayer : shape.sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      if (weight.kind == WeightKind::kVector || weight.shares_table) continue;
      const auto bytes = static_cast<double>(shape.rows_bytes(weight, weight.rows));
      if (weight.experts == 0) {
        const bool is_multiplied = is_tied && &weight == &shape.sublayers[0].weights[0];
        (weight.kind == WeightKind::kTable && !is_multiplied ? tables : dense) += bytes;
        continue;
      }
      experts += bytes;
      held += bytes * static_cast<double>(slots) / static_cast<double>(weight.experts);
      fixed +=
          bytes * static_cast<double>(resident.value_or(0)) / static_cast<double>(weight.experts);
    }
  policy::Policy policy;
  const double all = dense + experts + tables;
  policy.weights.device = (dense + (resident ? fixed : held)) / all;
  policy.weights.host = resident ? held / all : 0;
  policy.weights.disk = 1 - policy.weights.device - policy.weights.host;
  policy.demand_tokens = demand_tokens;
  policy.page_tokens = 4;
  return policy;
}

class ExpertSlots : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    model_ = std::make_shared<const BoundModel>(BoundModel::open(fixture_model(GetParam())));
    Random random(3);
    requests_ = greedy_requests(random_prompts(random, 17, shape().vocab_size), 10);
    for (GenerationRequest& request : requests_) request.params.logprobs = 2;
    options_ = options_for(requests_);
    options_.compute = ComputeChoice::kF32;
    options_.kv_dtype = DType::kF32;
  }
  const ModelShape& shape() const { return model_->shape(); }
  int64_t all() const { return shape().num_experts; }

  std::map<uint64_t, Answer> run(Engine& engine) const {
    ListSource source(requests_);
    CollectingSink sink;
    engine.generate(source, sink);
    return sink.answers;
  }

  // Runs in blocks of so many sequences; wants the tokens of `expected`.
  ExpertCounts expect_in_blocks(int64_t block, const std::map<uint64_t, Answer>& expected,
                                EngineOptions& options) const {
    options.policy->micro_batch_sequences = block == 17 ? 5 : block;
    options.policy->micro_batches = block == 17 ? 4 : 1;
    options.policy->micro_batch_tokens = 23;
    const auto engine = Engine::open(model_, options);
    const auto actual = run(*engine);
    for (const auto& [id, answer] : expected) EXPECT_EQ(actual.at(id).tokens, answer.tokens);
    return engine->stats().experts;
  }

  std::shared_ptr<const BoundModel> model_;
  std::vector<GenerationRequest> requests_;
  EngineOptions options_;
};

TEST_P(ExpertSlots, AnySlotsAndBlocksGiveTheResidentRunsTokens) {
  if (is_left_to_release(GetParam(), "stop")) GTEST_SKIP() << "tried without sanitizers";
  const auto expected = run(*Engine::open(model_, options_));
  int64_t asked = 0;
  for (const int64_t slots : std::set<int64_t>{1, 2, all() / 2, all() - 1}) {
    if (slots < 1 || slots >= all()) continue;
    for (const int64_t demand : is_sanitized()
                                    ? std::vector<int64_t>{-1, 3}
                                    : std::vector<int64_t>{-1, 0, 3, policy::kAlwaysDemands})
      for (const int64_t block : {1, 3, 17}) {
        SCOPED_TRACE(::testing::Message() << slots << " slots, passes of " << demand
                                          << " tokens ask, blocks of " << block);
        EngineOptions options = options_;
        options.policy = policy_of(shape(), slots, demand);
        const ExpertCounts counts = expect_in_blocks(block, expected, options);
        EXPECT_EQ(counts.slots > 0, demand != 0);
        if (demand == 0) {
          EXPECT_EQ(counts.asked, 0);
        }
        asked += counts.asked;
      }
  }
  EXPECT_GT(asked, 0);
}

// Beside a device slots are in host memory: whoever asks multiplies there, others send up what they
// find there, and some experts never move.
TEST_P(ExpertSlots, BelowADeviceGiveTheResidentRunsTokens) {
  if (is_left_to_release(GetParam(), "below")) GTEST_SKIP() << "tried without sanitizers";
  const auto expected = run(*Engine::open(model_, options_));
  ExpertCounts sum;
  for (const auto& [resident, slots] : std::set<std::pair<int64_t, int64_t>>{
           {0, 1}, {0, all() / 2}, {1, 1}, {1, all() / 2}, {all() / 2, 1}, {0, all() - 1}}) {
    if (slots < 1 || resident + slots >= all()) continue;
    for (const int64_t demand : {int64_t{-1}, int64_t{3}, policy::kAlwaysDemands})
      for (const int64_t block : {1, 17}) {
        SCOPED_TRACE(::testing::Message()
                     << resident << " resident, " << slots << " slots, passes of " << demand
                     << " tokens ask, blocks of " << block);
        EngineOptions options = options_;
        options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
        options.policy = policy_of(shape(), slots, demand, resident);
        const ExpertCounts counts = expect_in_blocks(block, expected, options);
        EXPECT_GT(counts.slots, 0);
        EXPECT_EQ(counts.resident > 0, resident > 0);
        sum.asked += counts.asked;
        sum.found += counts.found;
      }
  }
  EXPECT_GT(sum.found, 0);
  EXPECT_GT(sum.asked, sum.found);
}

// Ten tokens of one text ask for as many experts as 5.7 of as many texts; beside a device their
// rows count.
TEST_P(ExpertSlots, APromptAsksWhereAsManySequencesWouldNot) {
  if (is_left_to_release(GetParam(), "stop")) GTEST_SKIP() << "tried without sanitizers";
  Random random(5);
  requests_ = greedy_requests({std::vector<int32_t>(10)}, 1);
  for (int32_t& id : requests_[0].prompt)
    id = static_cast<int32_t>(pick(random, 3, shape().vocab_size - 1));
  const auto expected = run(*Engine::open(model_, options_));
  const int64_t slots = std::max<int64_t>(all() / 2 - 1, 1);
  for (const bool has_device : {false, true})
    for (const int64_t demand : {5, 6, 9, 10}) {
      EngineOptions options = options_;
      if (has_device) options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
      const auto resident = has_device ? std::optional<int64_t>(0) : std::nullopt;
      options.policy = policy_of(shape(), slots, demand, resident);
      const auto engine = Engine::open(model_, options);
      EXPECT_EQ(run(*engine).at(0).tokens, expected.at(0).tokens);
      EXPECT_EQ(engine->stats().experts.asked > 0, demand >= (has_device ? 10 : 6))
          << demand << (has_device ? " beside a device" : "");
    }
}

// Of a pass that asks the disk brings what is in no slot and the link no expert.
TEST_P(ExpertSlots, BelowADeviceOnlyTheDiskBringsWhatIsAskedFor) {
  if (is_left_to_release(GetParam(), "below")) GTEST_SKIP() << "tried without sanitizers";
  const int64_t slots = std::max<int64_t>(all() / 2 - 1, 1);
  EngineOptions options = options_;
  options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
  options.policy = policy_of(shape(), slots, 1000, 1);
  const auto engine = Engine::open(model_, options);
  run(*engine);
  const EngineStats stats = engine->stats();
  std::map<Lane, int64_t> tasks;
  for (const auto& [lane, of_lane] : stats.lanes) tasks[lane] = of_lane.tasks;
  EXPECT_EQ(tasks[Lane::kDiskRead], 3 * (stats.experts.asked - stats.experts.found));
  EXPECT_GT(stats.experts.found, 0);
  EXPECT_EQ(tasks[Lane::kHostToDevice], 0) << "rows of x go with the products";
}

// The engine's counts are those of a cache that is told what the routers chose; its bytes are those
// of what was not there.
TEST_P(ExpertSlots, CountsAndBytesAreThoseOfTheChoicesReplayed) {
  if (is_left_to_release(GetParam(), "counts")) GTEST_SKIP() << "tried without sanitizers";
  const int64_t slots = std::max<int64_t>(all() / 2, 1);
  EngineOptions options = options_;
  options.policy = policy_of(shape(), slots, 1000);
  options.policy->micro_batch_tokens = 8;
  std::map<size_t, ExpertCache> caches;
  int64_t loads = 0;
  options.observe_choices = [&](const RoutedRows& rows) {
    std::map<int32_t, int32_t> uses;
    for (const RoutedTo& one : rows.choices) ++uses[one.expert];
    auto& cache = caches.try_emplace(rows.sublayer, all(), slots, kExpertDecay).first->second;
    std::vector<ExpertCache::Use> here, away;
    for (const auto& [expert, tokens] : uses)
      (cache.slot_of(expert) >= 0 ? here : away).push_back({expert, tokens});
    cache.take(here, std::ssize(rows.choices) / rows.chosen);
    const auto together = static_cast<size_t>(std::max<int64_t>(slots / 2, 1));
    for (size_t begin = 0; begin < away.size(); begin += together)
      cache.take(std::span(away).subspan(begin, std::min(together, away.size() - begin)), 0);
    loads += std::ssize(away);
  };
  const auto engine = Engine::open(model_, options);
  run(*engine);
  int64_t asked = 0, found = 0;
  for (const auto& [sublayer, cache] : caches) {
    asked += cache.counts().asked;
    found += cache.counts().found;
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.experts.asked, asked);
  EXPECT_EQ(stats.experts.found, found);
  EXPECT_EQ(asked - found, loads);
  EXPECT_GT(found, 0);
  int64_t tasks = 0;
  for (const auto& [lane, of_lane] : stats.lanes)
    if (lane == Lane::kDiskRead) tasks = of_lane.tasks;
  EXPECT_EQ(tasks, 3 * loads) << "gate, up and down of each, and nothing else";
}

// What is guessed is loaded sooner, or for nothing: who is in slots, and all tokens, are the same.
TEST_P(ExpertSlots, GuessesChangeNeitherTokensNorCounts) {
  if (is_left_to_release(GetParam(), "outlive")) GTEST_SKIP() << "tried without sanitizers";
  GuessCounts sum;
  int64_t all_loads = 0;
  for (const int64_t slots : std::set<int64_t>{1, std::max<int64_t>(all() / 2, 1)})
    for (const bool has_device : {false, true})
      for (const int64_t block :
           has_device ? std::vector<int64_t>{3} : std::vector<int64_t>{1, 3}) {
        EngineOptions options = options_;
        if (has_device) options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
        const auto resident = has_device ? std::optional<int64_t>(0) : std::nullopt;
        options.policy = policy_of(shape(), slots, policy::kAlwaysDemands, resident);
        options.policy->micro_batch_sequences = block;
        options.policy->guess_slots = 0;
        const auto without = Engine::open(model_, options);
        const auto expected = run(*without);
        const ExpertCounts plain = without->stats().experts;
        EXPECT_EQ(plain.guesses.guessed, 0);
        for (const int64_t guesses : {2, 9}) {
          SCOPED_TRACE(::testing::Message()
                       << slots << " slots, blocks of " << block << ", room for " << guesses
                       << (has_device ? ", a device" : ""));
          options.policy->guess_slots = guesses;
          const auto engine = Engine::open(model_, options);
          EXPECT_GT(engine->plan().guess_slot_bytes, 0);
          for (const auto& [id, answer] : run(*engine))
            EXPECT_EQ(answer.tokens, expected.at(id).tokens);
          // The memory of slots outlives a run.
          for (const auto& [id, answer] : run(*engine))
            EXPECT_EQ(answer.tokens, expected.at(id).tokens);
          const ExpertCounts counts = engine->stats().experts;
          EXPECT_EQ(counts.asked, 2 * plain.asked);
          EXPECT_LE(counts.guesses.right, counts.asked - counts.found);
          sum.guessed += counts.guesses.guessed;
          sum.right += counts.guesses.right;
          all_loads += counts.asked - counts.found;
        }
      }
  const auto layers = std::count_if(
      shape().sublayers.begin(), shape().sublayers.end(), [](const SublayerShape& sublayer) {
        return std::any_of(sublayer.weights.begin(), sublayer.weights.end(),
                           [](const WeightShape& weight) { return weight.experts > 0; });
      });
  EXPECT_EQ(sum.right > 0, layers > 1);
  const bool may_err = shape().experts_per_token < shape().num_experts;
  EXPECT_EQ(sum.guessed > sum.right, layers > 1 && may_err);
  EXPECT_LT(sum.right, all_loads) << "the first layer's are never guessed";
}

TEST_P(ExpertSlots, SlotsOutliveARunThatEndsAndOneThatFails) {
  if (is_left_to_release(GetParam(), "outlive")) GTEST_SKIP() << "tried without sanitizers";
  const auto expected = run(*Engine::open(model_, options_));
  EngineOptions options = options_;
  options.policy = policy_of(shape(), 1, 1000);
  const auto engine = Engine::open(model_, options);
  run(*engine);
  const ExpertCounts once = engine->stats().experts;
  for (const auto& [id, answer] : run(*engine)) EXPECT_EQ(answer.tokens, expected.at(id).tokens);
  const ExpertCounts twice = engine->stats().experts;
  EXPECT_EQ(twice.asked, 2 * once.asked);

  class StoppingSink final : public GenerationSink {
   public:
    std::stop_source stop;
    bool on_token(uint64_t, const sampling::Choice&) override { return stop.request_stop(), true; }
    void on_finish(uint64_t, FinishReason) override {}
    void on_refused(uint64_t, const std::string&) override {}
  } stopping;
  ListSource source(requests_);
  EXPECT_THROW(engine->generate(source, stopping, stopping.stop.get_token()), Error);
  for (const auto& [id, answer] : run(*engine)) EXPECT_EQ(answer.tokens, expected.at(id).tokens);
}

TEST_P(ExpertSlots, TheNextEngineBeginsWithThoseWorthMost) {
  if (is_left_to_release(GetParam(), "ends")) GTEST_SKIP() << "tried without sanitizers";
  const auto expected = run(*Engine::open(model_, options_));
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) /
                                       ("held-" + test_name(GetParam()) + std::to_string(getpid()));
  std::vector<std::string> told;
  EngineOptions options = options_;
  options.policy = policy_of(shape(), std::max<int64_t>(all() / 2, 1), 1000);
  options.experts_file = (folder / "experts.json").string();
  options.log = [&](std::string_view line) { told.emplace_back(line); };
  const auto found = [&] {
    const auto engine = Engine::open(model_, options);
    for (const auto& [id, answer] : run(*engine)) EXPECT_EQ(answer.tokens, expected.at(id).tokens);
    return engine->stats().experts.found;
  };
  const int64_t cold = found();
  const std::string first = whole_file(options.experts_file);
  EXPECT_NE(first.find("\"held\":["), std::string::npos) << first;
  // The run that comes to the same end may begin otherwise, and finds no less by and large.
  EXPECT_GE(found(), cold - cold / 10);
  for (const char* broken :
       {"", "{", "{\"layers\": 3}", "[]", "{\"layers\": {\"2\": {\"experts\": 8, \"held\": [-1]}}}",
        "{\"layers\": {\"2\": {\"experts\": \"x\", \"held\": [1, 1]}}}"}) {
    std::ofstream(options.experts_file, std::ios::trunc) << broken;
    told.clear();
    found();
    const auto says = [](const std::string& line) {
      return line.find("experts.json is not read") != std::string::npos;
    };
    if (std::string_view(broken).find("\"2\"") == std::string_view::npos) {
      EXPECT_TRUE(std::any_of(told.begin(), told.end(), says)) << broken;
    }
  }
  options.experts_file = "/proc/no/experts.json";
  found();
  options.experts_file = (folder / std::string(300, 'x')).string();  // no file has such a name
  found();
  std::filesystem::remove_all(folder);
}

// Engines that end at the same time write the same file: it is always one that an engine has
// written whole, and nothing else is left in the folder.
TEST(HeldExperts, TwoMayWriteAtOnce) {
  const auto model =
      std::make_shared<const BoundModel>(BoundModel::open(fixture_model("mixtral-tiny")));
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("held-twice" + std::to_string(getpid()));
  std::atomic<int> complaints{0};
  const auto work = [&] {
    auto requests = greedy_requests({{5, 6, 7}}, 1);
    EngineOptions options = options_for(requests);
    options.policy = policy_of(model->shape(), 1, 1000);
    options.experts_file = (folder / "experts.json").string();
    options.threads = 1;
    options.log = [&](std::string_view line) {
      if (line.find("experts.json") != std::string_view::npos) ++complaints;
    };
    for (int round = 0; round < 20; ++round) {
      const auto engine = Engine::open(model, options);
      ListSource source(requests);
      CollectingSink sink;
      engine->generate(source, sink);
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(complaints, 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_EQ(entry.path().filename(), "experts.json");
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(
    Models, ExpertSlots,
    ::testing::Values("mixtral-tiny", "qwen3-moe-tiny", "olmoe-odd", "qwen2-moe-odd:int4-g32",
                      "olmoe-odd:q4_0", "qwen3-moe-tiny:mixed", "granitemoe-odd",
                      "deepseek-v3-moe-tiny", "gpt-oss-tiny", "gpt-oss-mxfp4:store",
                      "gpt-oss-mxfp4", "qwen3-moe-fp8", "deepseek-v3-fp8", "qwen3-moe-tiny-gguf",
                      "mixtral-odd-gguf", "glm4-moe-odd-gguf", "qwen3-5-moe-thirds-gguf",
                      "qwen3-next-odd-gguf", "gemma4-moe-odd-gguf", "llama4-released-gguf",
                      "granitemoehybrid-moe-odd-gguf", "qwen3-5-moe-tiny", "qwen3-5-moe-odd",
                      "granitemoehybrid-moe-tiny", "qwen3-next-tiny", "glm4-moe-lite-odd",
                      "gemma4-moe-tiny", "gemma4-moe-odd", "llama4-tiny", "llama4-odd"),
    [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace sluice::testing
