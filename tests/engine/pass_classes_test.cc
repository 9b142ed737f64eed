// Passes of several classes on the emulated device: who computes changes from pass to pass, tokens
// do not; and what moves and is multiplied in place in each class is what the plan says.
#include <gtest/gtest.h>

#include <random>

#include "policy/simulator.h"
#include "src/engine/passes/class_chooser.h"
#include "tests/engine/model_fixtures.h"
#include "tests/rounds.h"

namespace sluice::testing {
namespace {

constexpr EmulatedSpec kEmulated{int64_t{256} << 20, 0, 0, 0, 0};

policy::TierShares device_shares(Random& random) {
  const auto uniform = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  if (pick(random, 0, 3) == 0) return {0, 1, 0};
  const double device = uniform() * 0.5;
  const double host = (1 - device) * (pick(random, 0, 1) == 0 ? 1 : uniform());
  return {device, host, 1 - device - host};
}

policy::Policy policy_of_classes(Random& random) {
  policy::Policy policy;
  policy.weights = device_shares(random);
  policy.kv = device_shares(random);
  policy.activations = pick(random, 0, 1) == 0 ? policy::TierShares{} : device_shares(random);
  policy.micro_batch_sequences = pick(random, 1, 5);
  policy.micro_batches = pick(random, 1, 4);
  policy.micro_batch_tokens = pick(random, 1, 40);
  policy.pass_tokens = pick(random, 0, 1) == 0 ? 0 : pick(random, 20, 90);
  policy.page_tokens = pick(random, 1, 20);
  if (policy.pass_tokens > 0)
    policy.pass_tokens = std::max(policy.pass_tokens, policy.block_sequences());
  policy.attention =
      pick(random, 0, 1) == 0 ? policy::AttentionPlace::kHost : policy::AttentionPlace::kDevice;
  add_random_classes(random, policy);
  return policy;
}

class PassClassesProperty : public ::testing::TestWithParam<std::string> {};

TEST_P(PassClassesProperty, AnyClassesGiveTheResidentRunsTokens) {
  const int64_t vocab = BoundModel::open(fixture_model(GetParam())).shape().vocab_size;
  const bool is_plain = GetParam().find(':') == std::string::npos;
  for (uint32_t seed = 1; seed <= rounds(is_plain ? 24u : 9u); ++seed) {
    Random random(seed + 300);
    auto requests = greedy_requests(random_prompts(random, pick(random, 1, 12), vocab), 8);
    for (GenerationRequest& request : requests)
      request.params.max_tokens = static_cast<int>(pick(random, 1, 12));
    EngineOptions options = options_for(requests);
    options.compute = ComputeChoice::kF32;
    options.kv_dtype = DType::kF32;
    auto expected = run_all(GetParam(), options, requests);
    options.policy = policy_of_classes(random);
    options.device = kEmulated;
    options.cache_prefixes = seed % 3 == 0;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + policy::policy_to_json(*options.policy));
    auto actual = run_all(GetParam(), options, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(actual[i].tokens, expected[i].tokens) << "sequence " << i;
      EXPECT_EQ(actual[i].finish, FinishReason::kLength);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PassClassesProperty,
                         ::testing::Values("stories260k", "opt-tiny", "opt-350m-tiny",
                                           "llama-tiny-gqa", "stories260k:int4",
                                           "stories260k:int4-g32+a8", "stories260k:q4_0+a8",
                                           "stories260k:k-mixed+a8", "opt-tiny:int8+a8",
                                           "qwen3-tiny", "phi3-tiny"),
                         [](const auto& info) { return test_name(info.param); });

// Of each pass: its class, rows and logits, and what the link had moved up after it.
class PassSink final : public GenerationSink {
 public:
  bool on_token(uint64_t, const sampling::Choice&) override { return true; }
  void on_finish(uint64_t, FinishReason) override {}
  void on_refused(uint64_t, const std::string& message) override { ADD_FAILURE() << message; }
  void on_pass(const PassReport& report) override { passes.push_back(report); }
  std::vector<PassReport> passes;
};

policy::Policy three_classes() {
  policy::Policy policy;
  policy.weights = {0.2, 0.8, 0};
  policy.inplace_host_fraction = 0.6;
  policy.larger_passes = {{8, 0.3}, {20, 0}};
  policy.micro_batch_sequences = 8;
  policy.micro_batch_tokens = 64;
  policy.page_tokens = 4;
  return policy;
}

int64_t inplace_columns(const ModelShape& shape, const policy::PassClass& one, bool is_head,
                        bool takes_input) {
  int64_t sum = 0;
  for (size_t s = 0; s < shape.sublayers.size(); ++s)
    for (size_t w = 0; w < shape.sublayers[s].weights.size(); ++w) {
      const int64_t rows = one.inplace_rows(s, w);
      if ((shape.sublayers[s].kind == SublayerKind::kHead) != is_head || rows == 0) continue;
      sum += takes_input ? shape.sublayers[s].weights[w].cols : rows;
    }
  return sum;
}

TEST(PassClasses, TheLinkMovesAndTheHostMultipliesWhatThePlanSaysOfEachClass) {
  for (const char* model : {"stories260k", "llama-tiny-gqa", "opt-tiny"}) {
    SCOPED_TRACE(model);
    // A prompt of 30 tokens, then one of 12 beside a decoding one, then decode passes.
    auto requests = greedy_requests({std::vector<int32_t>(30, 7), std::vector<int32_t>(12, 9)}, 6);
    EngineOptions options = options_for(requests);
    options.compute = ComputeChoice::kF32;
    options.policy = three_classes();
    options.policy->pass_tokens = 30;
    options.device = kEmulated;
    const auto engine = Engine::open(fixture_model(model), options);
    ListSource source(requests);
    PassSink sink;
    engine->generate(source, sink);
    const policy::Plan& plan = engine->plan();
    const ModelShape& shape = engine->model().shape();
    ASSERT_EQ(plan.classes.size(), 3u);
    EXPECT_GT(plan.classes[0].inplace_weight_bytes, plan.classes[1].inplace_weight_bytes);
    EXPECT_EQ(plan.classes[2].inplace_weight_bytes, 0);
    std::vector<int64_t> by_class(3, 0);
    int64_t up = 0, down = 0, exchanged_up = 0, exchanged_down = 0;
    for (const PassReport& pass : sink.passes) {
      const policy::PassClass& one = plan.classes[pass.pass_class];
      ++by_class[pass.pass_class];
      const int64_t rows = pass.prefill_tokens + pass.decode_tokens;
      EXPECT_EQ(pass.pass_class, plan.policy.pass_class_of(rows)) << rows;
      up += one.sent_weight_bytes;
      // Every sequence of these passes gets a token, or is the only one.
      const int64_t logits = pass.pass == 2 ? 2 : std::max<int64_t>(pass.decode_tokens, 1);
      exchanged_up += 4 * (rows * inplace_columns(shape, one, false, false) +
                           logits * inplace_columns(shape, one, true, false));
      exchanged_down += 4 * (rows * inplace_columns(shape, one, false, true) +
                             logits * inplace_columns(shape, one, true, true));
    }
    EXPECT_EQ(by_class, (std::vector<int64_t>{5, 1, 1}));
    EXPECT_EQ(sink.passes.back().lanes[Lane::kHostToDevice].bytes, up);
    EXPECT_EQ(sink.passes.back().lanes[Lane::kDeviceToHost].bytes, down);
    const EngineStats stats = engine->stats();
    for (const auto& [lane, of_lane] : stats.lanes) {
      if (lane == Lane::kHostToDevice) EXPECT_EQ(of_lane.bytes, up + exchanged_up);
      if (lane == Lane::kDeviceToHost) EXPECT_EQ(of_lane.bytes, down + exchanged_down);
      if (lane == Lane::kHostCompute) EXPECT_GT(of_lane.busy_seconds, 0);
    }
    ASSERT_EQ(stats.classes.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(stats.classes[i].passes, by_class[i]);
    EXPECT_EQ(stats.classes[2].prefill_tokens, 30);
    EXPECT_EQ(stats.classes[1].prefill_tokens, 12);
    EXPECT_EQ(stats.classes[1].decode_tokens, 1);
    EXPECT_EQ(stats.classes[0].decode_tokens, 9);
  }
}

// The simulator walks what the engine executes, from class to class too.
TEST(PassClasses, TheSimulatedStreamIsTheExecutedOne) {
  policy::Profile machine = *policy::shipped_profile("t4");
  for (const char* model : {"stories260k", "opt-tiny"})
    for (const int64_t tokens : {0, 3})
      for (const auto& kv : {policy::TierShares{1, 0, 0}, policy::TierShares{0, 1, 0},
                             policy::TierShares{0, 0.5, 0.5}})
        for (const auto place : {policy::AttentionPlace::kDevice, policy::AttentionPlace::kHost}) {
          policy::Policy given = three_classes();
          given.weights = {0.2, 0.6, 0.2};
          given.inplace_host_fraction = 0.5;
          given.kv = kv;
          given.attention = place;
          given.larger_passes[0].attention = place;
          given.host_attention_tokens = tokens;
          SCOPED_TRACE(std::string(model) + " " + policy::policy_to_json(given));
          const auto requests =
              greedy_requests(std::vector<std::vector<int32_t>>(5, std::vector<int32_t>(11, 7)), 6);
          EngineOptions options = options_for(requests);
          options.policy = given;
          options.device = kEmulated;
          const auto engine = Engine::open(fixture_model(model), options);
          ListSource source(requests);
          CollectingSink sink;
          engine->generate(source, sink);
          const ModelShape& shape = engine->model().shape();
          const policy::JobShape job{5, 11, 6};
          const auto block = policy::block_passes(shape, engine->plan(), job, 1000, 1000);
          EXPECT_EQ(block.passes.front().pass_class, 2u);
          EXPECT_EQ(block.passes.back().pass_class, 0u);
          const auto simulated =
              policy::simulate(shape, engine->plan(), machine, shape.weight_dtype,
                               policy::schedule_shape(shape, engine->plan()), block.passes, false);
          EXPECT_EQ(simulated.stream_hash, engine->stats().stream_hash);
        }
}

TEST(ClassChooser, KeepsAClassALittleBelowItsBorder) {
  policy::Policy policy;
  policy.larger_passes = {{9, 0}, {320, 0}};
  ClassChooser chooser(policy);
  EXPECT_EQ(chooser.choose(8), 0u);
  EXPECT_EQ(chooser.choose(9), 1u);
  EXPECT_EQ(chooser.choose(8), 0u) << "a border among few tokens is sharp";
  EXPECT_EQ(chooser.choose(319), 1u);
  EXPECT_EQ(chooser.expect(320), 2u);
  EXPECT_EQ(chooser.choose(320), 2u);
  EXPECT_EQ(chooser.choose(301), 2u);
  EXPECT_EQ(chooser.choose(300), 2u);
  EXPECT_EQ(chooser.expect(299), 1u);
  EXPECT_EQ(chooser.choose(299), 1u);
  EXPECT_EQ(chooser.choose(310), 1u) << "and no class is taken early";
  EXPECT_EQ(chooser.choose(1), 0u);
  EXPECT_EQ(ClassChooser(policy::Policy()).choose(100000), 0u);
}

// Class 0 multiplies in place (1 ms a token), class 1 sends up (50 ms) and computes there (0.1 ms).
policy::PassEstimates made_up_estimates() {
  policy::PassEstimates out;
  out.up_rate = 1e9;
  out.classes.resize(2);
  for (const double tokens : {1.0, 500.0, 1000.0}) {
    out.classes[0].push_back({tokens, 1e-3 * tokens, 1e-3 * tokens, 0, 1e-3 * tokens, 0, 0});
    out.classes[1].push_back(
        {tokens, std::max(0.05, 1e-4 * tokens), 1e-4 * tokens, 1e-4 * tokens, 0, 0.05, 0});
  }
  return out;
}

policy::Policy two_classes() {
  policy::Policy policy;
  policy.larger_passes = {{100, 0}};
  return policy;
}

// The least number of tokens for which a chooser that has not chosen yet takes class 1.
int64_t border_of(const ClassChooser& chooser) {
  for (int64_t tokens = 1; tokens <= 1000; ++tokens)
    if (chooser.expect(tokens) == 1) return tokens;
  return 1001;
}

TEST(ClassChooser, TakesWhatIsExpectedToBeFastest) {
  ClassChooser chooser(two_classes(), made_up_estimates());
  EXPECT_EQ(border_of(chooser), 51) << "not the policy's border";
  EXPECT_EQ(chooser.choose(8), 0u);
  EXPECT_EQ(chooser.choose(52), 0u) << "a sixteenth less is needed to change";
  EXPECT_EQ(chooser.choose(54), 1u);
  EXPECT_EQ(chooser.choose(48), 1u);
  EXPECT_EQ(chooser.choose(46), 0u);
  policy::PassEstimates of_another = made_up_estimates();
  of_another.classes.resize(1);
  EXPECT_EQ(border_of(ClassChooser(two_classes(), of_another)), 100) << "then by the borders";
}

TEST(ClassChooser, LearnsFromWhatPassesTook) {
  ClassChooser slow_host(two_classes(), made_up_estimates());
  for (int i = 0; i < 40; ++i) slow_host.learn(0, 10, {20e-3, 0, 20e-3, 0, 0});
  EXPECT_NEAR(static_cast<double>(border_of(slow_host)), 26, 1);
  EXPECT_NEAR(slow_host.expected_seconds(0, 10), 20e-3, 1e-4);

  ClassChooser fast_link(two_classes(), made_up_estimates());
  for (int i = 0; i < 40; ++i) fast_link.learn(1, 200, {25e-3, 20e-3, 0, 0.01, 20'000'000});
  EXPECT_NEAR(static_cast<double>(border_of(fast_link)), 26, 1);
  // Nothing came up in these: nothing is learned of the link, and no zero is divided by.
  for (int i = 0; i < 40; ++i) fast_link.learn(0, 10, {10e-3, 0, 10e-3, 0, 0});
  EXPECT_NEAR(static_cast<double>(border_of(fast_link)), 26, 1);

  // What only held it up once is forgotten while others run.
  ClassChooser held_up(two_classes(), made_up_estimates());
  held_up.learn(0, 10, {1000, 0, 1000, 0, 0});
  EXPECT_LT(border_of(held_up), 45);
  EXPECT_GE(border_of(held_up), 30) << "and taught little";
  for (int i = 0; i < 2000; ++i) held_up.learn(1, 200, {0.05, 20e-3, 0, 0.05, 50'000'000});
  EXPECT_NEAR(static_cast<double>(border_of(held_up)), 51, 2);

  // Where no lane says why, the whole does: a class whose passes take twice as long as expected.
  ClassChooser slow_whole(two_classes(), made_up_estimates());
  for (int i = 0; i < 60; ++i) slow_whole.learn(1, 200, {0.1, 20e-3, 0, 0.05, 50'000'000});
  EXPECT_NEAR(static_cast<double>(border_of(slow_whole)), 101, 3);

  ClassChooser by_border(two_classes());
  by_border.learn(0, 10, {1000, 0, 1000, 0, 0});
  EXPECT_EQ(border_of(by_border), 100) << "nobody expects anything";
}

// A profile that is wrong about the host: prompts begin in place and go on on the device.
TEST(PassClasses, WhatPassesTookDecidesTheNextOnesClass) {
  auto requests =
      greedy_requests(std::vector<std::vector<int32_t>>(12, std::vector<int32_t>(30, 7)),
                      /*max_tokens=*/1);
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF32;
  auto expected = run_all("stories260k", options, requests);
  options.policy = three_classes();
  options.policy->larger_passes = {{40, 0}};
  options.policy->pass_tokens = 30;
  options.device = kEmulated;
  options.device->host_flops = 2e7;
  const auto model =
      std::make_shared<const BoundModel>(BoundModel::open(fixture_model("stories260k")));
  EngineInput input = plan_input(*model, options);
  policy::Plan plan = choose_plan(input, options);
  ASSERT_EQ(plan.classes.size(), 2u);
  // In place is expected to take 1 ms of a pass (it takes half a second), sending up 25 ms.
  plan.pass_estimates.up_rate = 1e12;
  plan.pass_estimates.classes = {{{30, 21e-3, 21e-3, 20e-3, 1e-3, 0, 0}},
                                 {{30, 25e-3, 20e-3, 20e-3, 0, 25e-3, 0}}};
  Engine engine(model, options, std::move(input), std::move(plan));
  ListSource source(requests);
  CollectingSink tokens;
  engine.generate(source, tokens);
  const EngineStats stats = engine.stats();
  EXPECT_GE(stats.classes[0].passes, 1);
  EXPECT_GT(stats.classes[1].passes, stats.classes[0].passes);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(tokens.answers.at(requests[i].id).tokens, expected.at(i).tokens) << "sequence " << i;
}

// Rows in place lie on the host's lane, within the device's task that waits for them.
TEST(PassClasses, ATraceShowsRowsInPlaceOnTheHostsLane) {
  auto requests = greedy_requests({std::vector<int32_t>(12, 7)}, 3);
  EngineOptions options = options_for(requests);
  options.policy = three_classes();
  options.device = kEmulated;
  options.keep_trace = true;
  const auto engine = Engine::open(fixture_model("llama-tiny-gqa"), options);
  ListSource source(requests);
  CollectingSink sink;
  engine->generate(source, sink);
  double seconds = 0;
  for (const TaskEvent& event : engine->trace()) {
    if (event.task.lane != Lane::kHostCompute) continue;
    seconds += event.end_seconds - event.start_seconds;
    const bool is_within =
        std::any_of(engine->trace().begin(), engine->trace().end(), [&](const TaskEvent& task) {
          return task.task.lane == Lane::kDeviceCompute && task.task.id == event.task.id &&
                 task.start_seconds <= event.start_seconds + 1e-3 &&
                 task.end_seconds >= event.end_seconds - 1e-3;
        });
    EXPECT_TRUE(is_within);
  }
  for (const auto& [lane, of_lane] : engine->stats().lanes)
    if (lane == Lane::kHostCompute) {
      EXPECT_NEAR(seconds, of_lane.busy_seconds, 1e-6);
    }
  EXPECT_GT(seconds, 0);
  const std::string json =
      chrome_trace_json(engine->trace(), engine->machine(), engine->model().shape());
  EXPECT_NE(json.find("compute layer 0 mlp: rows in place"), std::string::npos);
}

}  // namespace
}  // namespace sluice::testing
