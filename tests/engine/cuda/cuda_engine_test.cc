// The engine on the CUDA backend gives what it gives on the CPU: logits, and tokens under any
// policy. On the host's stand-in the driver runs streams late and in any order that events allow,
// and threads of a block in an order drawn from a seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/cuda/cuda_backend.h"
#include "src/engine/cuda/measure_gpu.h"
#include "tests/engine/model_fixtures.h"
#ifdef SLUICE_CUDA_ON_HOST
#include "kernels/cuda/shim/host_driver.h"
#endif

namespace sluice::testing {
namespace {

void draw_order(uint32_t seed) {
#ifdef SLUICE_CUDA_ON_HOST
  cuda::host::set_seed(seed);
#else
  (void)seed;
#endif
}

policy::TierShares random_shares(Random& random) {
  const auto uniform = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  switch (pick(random, 0, 5)) {
    case 0: return {1, 0, 0};
    case 1: return {0, 1, 0};
    case 2: return {0, 0, 1};
    default: {
      const double device = uniform() * 0.7;
      const double host = (1 - device) * uniform();
      return {device, host, 1 - device - host};
    }
  }
}

policy::Policy random_policy(Random& random, bool attends_on_host) {
  policy::Policy policy;
  policy.weights = random_shares(random);
  policy.kv = random_shares(random);
  policy.activations = random_shares(random);
  policy.micro_batch_sequences = pick(random, 1, 5);
  policy.micro_batches = pick(random, 1, 4);
  policy.micro_batch_tokens = pick(random, 1, 40);
  policy.pass_tokens = std::max(pick(random, 20, 90), policy.block_sequences());
  policy.page_tokens = pick(random, 1, 20);
  policy.attention =
      attends_on_host ? policy::AttentionPlace::kHost : policy::AttentionPlace::kDevice;
  if (pick(random, 0, 1) == 0)
    policy.inplace_host_fraction =
        policy.weights.host * std::uniform_real_distribution<double>(0, 1)(random);
  return policy;
}

std::shared_ptr<CudaBackend> make_backend() {
  return std::make_shared<CudaBackend>(0, int64_t{256} << 20);
}

// The same tokens, up to the first that both runs nearly tied over: 16-bit products and attention
// differ in their last bits with the shapes they are computed in.
void expect_same_tokens(const Answer& actual, const Answer& expected, double tie) {
  ASSERT_EQ(actual.choices.size(), expected.choices.size());
  for (size_t i = 0; i < actual.choices.size(); ++i) {
    const auto& top = expected.choices[i].top;
    ASSERT_EQ(top.size(), 2u);
    if (actual.tokens[i] == expected.tokens[i]) {
      EXPECT_NEAR(actual.choices[i].logprob, expected.choices[i].logprob, tie) << "step " << i;
      continue;
    }
    EXPECT_LT(top[0].logprob - top[1].logprob, tie) << "step " << i;
    return;
  }
}

class CudaEngine : public ::testing::TestWithParam<std::string> {
 protected:
  // Difference of log-probabilities that rounding may make.
  static double tie() { return is_of("bf16") ? 0.1 : 0.02; }
  static bool is_of(const char* kind) { return GetParam().find(kind) != std::string::npos; }
  int64_t vocab() const { return BoundModel::open(fixture_model(GetParam())).shape().vocab_size; }
};

// Products of 16-bit inputs, attention with 16-bit weights: relative error of the logits.
TEST_P(CudaEngine, LogitsAreTheCpusWithinRounding) {
  Random random(3);
  auto requests = greedy_requests(random_prompts(random, 4, vocab()), 1);
  for (GenerationRequest& request : requests) request.score_prompt = true;
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF16;
  auto expected = run_all(GetParam(), options, requests);
  options.backend = make_backend();
  draw_order(5);
  auto actual = run_all(GetParam(), options, requests);
  draw_order(0);
  // Inputs of products keep 8 bits in bf16, 11 in f16; of f32 weights all.
  const double allowed = is_of("bf16") ? 2e-2 : is_of(":") ? 8e-3 : 3e-3;
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(actual[i].logits.size(), expected[i].logits.size());
    double largest = 0, worst = 0;
    for (size_t j = 0; j < actual[i].logits.size(); ++j) {
      largest = std::max(largest, std::fabs(double{expected[i].logits[j]}));
      worst = std::max(worst, std::fabs(double{actual[i].logits[j]} - expected[i].logits[j]));
    }
    EXPECT_LE(worst / largest, allowed) << "prompt " << i;
  }
}

TEST_P(CudaEngine, AnyPolicyGivesTheResidentRunsTokens) {
  for (uint32_t seed = 1; seed <= (is_of(":") ? 3u : 6u); ++seed) {
    Random random(seed + 40);
    auto requests = greedy_requests(random_prompts(random, pick(random, 1, 8), vocab()), 8);
    for (GenerationRequest& request : requests) {
      request.params.max_tokens = static_cast<int>(pick(random, 1, 8));
      request.params.logprobs = 2;
    }
    EngineOptions options = options_for(requests);
    options.compute = ComputeChoice::kF32;
    const KvFormat formats[] = {DType::kF16, KvFormat(KvEncoding::kInt8),
                                KvFormat(KvEncoding::kInt4)};
    // A code of KV that falls the other way is a step; of int4 a large one.
    constexpr double kSteps[] = {1, 8, 50};
    options.kv_dtype = formats[seed % 3];
    options.backend = make_backend();
    draw_order(0);
    auto expected = run_all(GetParam(), options, requests);
    options.policy = random_policy(random, seed % 2 == 0);
    options.backend = make_backend();
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + policy::policy_to_json(*options.policy));
    draw_order(seed);
    auto actual = run_all(GetParam(), options, requests);
    draw_order(0);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE("sequence " + std::to_string(i));
      expect_same_tokens(actual[i], expected[i], tie() * kSteps[seed % 3]);
      EXPECT_EQ(actual[i].finish, FinishReason::kLength);
    }
  }
#ifdef SLUICE_CUDA_ON_HOST
  EXPECT_EQ(cuda::host::device_bytes_in_use(), 0);
#endif
}

class CudaPages : public CudaEngine {};

// Few pages: beams copy shared ones, sequences give theirs up, which go to host memory and come
// back.
TEST_P(CudaPages, AreCopiedBetweenPasses) {
  Random random(23);
  auto prompts = random_prompts(random, 8, vocab());
  for (size_t i = 4; i < prompts.size(); ++i) prompts[i] = prompts[i - 4];
  auto requests = greedy_requests(prompts, 12);
  for (GenerationRequest& request : requests) request.params.logprobs = 2;
  requests[2].params.num_beams = requests[6].params.num_beams = 3;
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF16;
  options.backend = make_backend();
  draw_order(0);
  auto expected = run_all(GetParam(), options, requests);
  for (const bool attends_on_host : {false, true}) {
    SCOPED_TRACE(attends_on_host ? "attention on the host" : "attention on the device");
    options.policy = policy::Policy{};
    options.policy->kv = {0.5, 0.25, 0.25};
    options.policy->micro_batch_sequences = 4;
    options.policy->page_tokens = 5;
    options.policy->attention =
        attends_on_host ? policy::AttentionPlace::kHost : policy::AttentionPlace::kDevice;
    options.predict_lengths = options.cache_prefixes = options.swaps_always = true;
    options.swap_bytes = 1 << 20;
    options.workload.sequences = options.workload.beams;
    options.workload.total_tokens = 0;
    options.backend = make_backend();
    draw_order(9);
    const auto engine = Engine::open(fixture_model(GetParam()), options);
    ListSource source(requests);
    CollectingSink sink;
    engine->generate(source, sink);
    draw_order(0);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE("sequence " + std::to_string(i));
      ASSERT_EQ(sink.answers[i].refused, "");
      if (requests[i].params.num_beams == 1) {
        expect_same_tokens(sink.answers[i], expected[i], tie());
        continue;
      }
      ASSERT_EQ(sink.answers[i].hypotheses.size(), expected[i].hypotheses.size());
      EXPECT_NEAR(sink.answers[i].hypotheses[0].score, expected[i].hypotheses[0].score, tie());
    }
    EXPECT_GT(engine->stats().copied_pages, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaPages, ::testing::Values("stories260k", "llama-tiny-gqa"),
                         [](const auto& info) { return test_name(info.param); });

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaEngine,
                         ::testing::Values("stories260k", "opt-tiny", "opt-350m-tiny",
                                           "llama-tiny-gqa", "opt-tiny-f16-bin-decoder",
                                           "llama-tiny-bf16", "stories260k:int4",
                                           "llama-tiny-gqa:nf4", "opt-tiny:int8",
                                           "llama-tiny-bias:fp8"),
                         [](const auto& info) { return test_name(info.param); });

bool devices_have_bf16() { return make_backend()->cuda_device().properties().has_bf16; }

std::string refusal(EngineOptions options) {
  options.backend = make_backend();
  try {
    Engine::open(fixture_model("stories260k"), std::move(options));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    return error.what();
  }
  return "";
}

TEST(CudaEngineErrors, WhatItDoesNotKnowIsRefusedByName) {
  EngineOptions options;
  options.memory_budget_bytes = 64 * kMiB;
  options.kv_dtype = DType::kF32;
  EXPECT_NE(refusal(options).find("f32 KV"), std::string::npos);
  options.kv_dtype = DType::kF16;
  options.attention_sparsity = 0.5f;
  EXPECT_NE(refusal(options).find("sparse attention"), std::string::npos);
}

TEST(CudaMeasure, GivesAProfileThatAPlanCanUse) {
  policy::Profile machine = *policy::shipped_profile("t4");
  machine.device.reset();
  CudaDevice device(0, int64_t{64} << 20);
  const policy::Profile measured = measure_gpu(machine, device, {64 * kKiB, 64, 64, 32, 1});
  EXPECT_NO_THROW(policy::validate(measured));
  ASSERT_TRUE(measured.device.has_value());
  EXPECT_EQ(measured.device_bytes, int64_t{64} << 20);
  EXPECT_GE(measured.device->matmul.size(), 18u);
  EXPECT_EQ(measured.device->attention.size(), devices_have_bf16() ? 4u : 3u);
  for (const policy::MatmulRate& rate : measured.device->matmul) EXPECT_GT(rate.flops.value, 0);
  const policy::Profile read = policy::parse_profile(policy::profile_to_json(measured), "measured");
  EXPECT_EQ(read.device->matmul.size(), measured.device->matmul.size());
  EXPECT_EQ(device.memory().used(), 0);
}

TEST(CudaEngineErrors, AGpuThatIsNotThereIsNamed) {
  try {
    CudaBackend(99, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    EXPECT_NE(std::string(error.what()).find("no GPU 99"), std::string::npos);
  }
}

TEST(CudaEngineErrors, MoreMemoryThanTheGpuHasIsRefused) {
  try {
    CudaBackend(0, int64_t{1} << 50);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
  }
}

}  // namespace
}  // namespace sluice::testing
