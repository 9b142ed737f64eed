// Any policy gives the tokens of the all-resident run: random shares on disk, micro-batches,
// blocks, chunk and page sizes, ragged prompts, refilled slots. f32, so that only placement
// differs.
#include <gtest/gtest.h>

#include <random>

#include "tests/engine/model_fixtures.h"
#include "tests/rounds.h"

namespace sluice::testing {
namespace {

policy::TierShares random_shares(Random& random) {
  const int64_t kind = pick(random, 0, 4);
  const double share = kind == 0   ? 0
                       : kind == 1 ? 1
                                   : std::uniform_real_distribution<double>(0, 1)(random);
  const double host = kind == 2 ? share / 2 : 0;
  return {share - host, host, 1 - share};
}

policy::Policy random_policy(Random& random) {
  policy::Policy policy;
  policy.weights = random_shares(random);
  policy.kv = random_shares(random);
  policy.activations = random_shares(random);
  policy.micro_batch_sequences = pick(random, 1, 5);
  policy.micro_batches = pick(random, 1, 4);
  policy.micro_batch_tokens = pick(random, 1, 40);
  policy.pass_tokens = pick(random, 0, 1) == 0 ? 0 : pick(random, 20, 90);
  policy.page_tokens = pick(random, 1, 20);
  constexpr int64_t kDemand[] = {-1, -1, 0, 1, 9, 1000};
  policy.demand_tokens = kDemand[pick(random, 0, 5)];
  policy.guess_slots = policy.page_tokens % 3 == 0 ? -1 : policy.page_tokens % 7;
  return policy;
}

class PolicyProperty : public ::testing::TestWithParam<std::string> {
 protected:
  // Quantised models differ in their products only: a third of the policies for each of them.
  static uint32_t seeds(uint32_t all) {
    return rounds(GetParam().find(':') == std::string::npos ? all : all / 3);
  }
  // Codes turn the last bit of an f32 sum, which kernels for more rows may change, into a step: one
  // of int4 KV moved logits of this small a model by 0.25. Two kinds of codes at once bring steps
  // near enough to a tie, so 8-bit inputs go with f32 KV, and quantised weights with KV of no fewer
  // than 8 bits.
  static KvFormat kv_format(uint32_t seed) {
    const bool is_plain = GetParam().find(':') == std::string::npos;
    const KvFormat formats[] = {DType::kF32, KvFormat(KvEncoding::kInt8),
                                is_plain ? KvFormat(KvEncoding::kInt4) : KvFormat(DType::kF16),
                                DType::kBF16};
    return kv_of(GetParam(), has_8_bit_inputs(GetParam()) ? formats[0] : formats[seed % 4]);
  }
  // Some with sparse attention, on KV that has no steps of its own.
  static float sparsity(uint32_t seed) {
    return GetParam().find(':') == std::string::npos && seed % 8 == 4 ? 0.3f : 1.0f;
  }
  // A latent row is every head's: where it is rounded to 16 bits, a bit of it moves all of them,
  // and by them what experts are chosen for. So it does where nothing scales scores.
  static void expect_tokens(const Answer& actual, const Answer& expected, const KvFormat& kv,
                            size_t sequence) {
    SCOPED_TRACE("sequence " + std::to_string(sequence));
    const bool moves_much = keeps_plain_kv(GetParam()) || GetParam().starts_with("gemma4-moe");
    if (kv != KvFormat(DType::kF32) && moves_much)
      return expect_same_tokens(actual, expected, 1e-2);
    EXPECT_EQ(actual.tokens, expected.tokens);
  }
};

TEST_P(PolicyProperty, AnyPolicyGivesTheResidentRunsTokens) {
  const int64_t vocab = BoundModel::open(fixture_model(GetParam())).shape().vocab_size;
  for (uint32_t seed = 1; seed <= seeds(12); ++seed) {
    Random random(seed);
    const auto prompts = random_prompts(random, pick(random, 1, 12), vocab);
    auto requests = greedy_requests(prompts, 8);
    for (GenerationRequest& request : requests) {
      request.params.max_tokens = static_cast<int>(pick(random, 1, 12));
      request.params.logprobs = 2;
    }
    EngineOptions options = options_for(requests);
    options.compute = ComputeChoice::kF32;
    options.kv_dtype = kv_format(seed);
    options.attention_sparsity = sparsity(seed);
    if (options.kv_dtype->is_quantised() && seed % 3 == 0)
      options.kv_recent_tokens = pick(random, 1, 50);
    auto expected = run_all(GetParam(), options, requests);
    options.policy = random_policy(random);
    if (options.policy->pass_tokens > 0)
      options.policy->pass_tokens =
          std::max(options.policy->pass_tokens, options.policy->block_sequences());
    options.io_mode = seed % 2 == 0 ? io::IoMode::kPread : io::IoMode::kAuto;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + policy::policy_to_json(*options.policy));
    auto actual = run_all(GetParam(), options, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      expect_tokens(actual[i], expected[i], *options.kv_dtype, i);
      EXPECT_EQ(actual[i].finish, FinishReason::kLength);
    }
  }
}

// Pages say where K and V lie, not how they are summed: the same bits.
TEST_P(PolicyProperty, PagesOfAnyLengthGiveTheSameLogits) {
  if (is_left_to_release(GetParam(), "pages")) GTEST_SKIP() << "tried without sanitizers";
  const int64_t vocab = BoundModel::open(fixture_model(GetParam())).shape().vocab_size;
  Random random(5);
  auto requests = greedy_requests(random_prompts(random, 4, vocab), 3);
  for (GenerationRequest& request : requests) request.score_prompt = true;
  for (const KvFormat kv : {KvFormat(DType::kBF16), KvFormat(KvEncoding::kInt8),
                            KvFormat(KvEncoding::kInt4), kInt8KeysInt4Values}) {
    EngineOptions options = options_for(requests);
    options.kv_dtype = kv_of(GetParam(), kv);
    auto expected = run_all(GetParam(), options, requests);
    for (const int64_t page_tokens : {1, 5, 16, 32, 64, 100}) {
      options.start_policy.page_tokens = page_tokens;
      auto actual = run_all(GetParam(), options, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        ASSERT_EQ(actual[i].tokens, expected[i].tokens) << kv_format_name(kv) << page_tokens;
        ASSERT_EQ(actual[i].logits, expected[i].logits) << kv_format_name(kv) << page_tokens;
      }
    }
  }
}

policy::TierShares random_three(Random& random) {
  const auto uniform = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  switch (pick(random, 0, 6)) {
    case 0: return {1, 0, 0};
    case 1: return {0, 1, 0};
    case 2: return {0, 0, 1};
    case 3: {
      const double device = uniform();
      return {device, 1 - device, 0};
    }
    case 4: {
      const double host = uniform();
      return {0, host, 1 - host};
    }
    default: {
      const double device = uniform() * 0.7;
      const double host = (1 - device) * uniform();
      return {device, host, 1 - device - host};
    }
  }
}

TEST_P(PolicyProperty, AnyPolicyGivesTheSameTokensOnAnEmulatedDevice) {
  if (is_left_to_release(GetParam(), "emulated")) GTEST_SKIP() << "tried without sanitizers";
  const int64_t vocab = BoundModel::open(fixture_model(GetParam())).shape().vocab_size;
  for (uint32_t seed = 1; seed <= seeds(24); ++seed) {
    Random random(seed + 100);
    const auto prompts = random_prompts(random, pick(random, 1, 12), vocab);
    auto requests = greedy_requests(prompts, 8);
    for (GenerationRequest& request : requests) {
      request.params.max_tokens = static_cast<int>(pick(random, 1, 12));
      request.params.logprobs = 2;
    }
    EngineOptions options = options_for(requests);
    options.compute = ComputeChoice::kF32;
    options.kv_dtype = kv_format(seed);
    options.attention_sparsity = sparsity(seed);
    auto expected = run_all(GetParam(), options, requests);
    policy::Policy policy = random_policy(random);
    policy.weights = random_three(random);
    policy.kv = random_three(random);
    policy.activations = random_three(random);
    policy.attention =
        seed % 2 == 0 ? policy::AttentionPlace::kHost : policy::AttentionPlace::kDevice;
    if (pick(random, 0, 1) == 0)
      policy.inplace_host_fraction =
          policy.weights.host * std::uniform_real_distribution<double>(0, 1)(random);
    if (policy.pass_tokens > 0)
      policy.pass_tokens = std::max(policy.pass_tokens, policy.block_sequences());
    options.policy = policy;
    options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + policy::policy_to_json(policy));
    auto actual = run_all(GetParam(), options, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      expect_tokens(actual[i], expected[i], *options.kv_dtype, i);
      EXPECT_EQ(actual[i].finish, FinishReason::kLength);
    }
  }
}

TEST_P(PolicyProperty, ASequenceGetsTheSameTokensAloneAndInAnyBlock) {
  if (is_left_to_release(GetParam(), "alone")) GTEST_SKIP() << "tried without sanitizers";
  Random random(7);
  const int64_t vocab = BoundModel::open(fixture_model(GetParam())).shape().vocab_size;
  const auto prompts = random_prompts(random, 9, vocab);
  const auto requests = greedy_requests(prompts, 10);
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  auto together = run_all(GetParam(), options, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EngineOptions one = options_for({requests[i]});
    one.compute = ComputeChoice::kF32;
    auto alone = run_all(GetParam(), one, {requests[i]});
    EXPECT_EQ(alone[i].tokens, together[i].tokens) << "sequence " << i;
  }
}

// What is joined computes what its operators compute by themselves: the same bits.
TEST_P(PolicyProperty, FusedOperatorsGiveTheSameLogits) {
  if (is_left_to_release(GetParam(), "fused")) GTEST_SKIP() << "tried without sanitizers";
  const int64_t vocab = BoundModel::open(fixture_model(GetParam())).shape().vocab_size;
  for (uint32_t seed = 1; seed <= seeds(6); ++seed) {
    Random random(seed + 300);
    auto requests = greedy_requests(random_prompts(random, pick(random, 1, 6), vocab), 5);
    for (GenerationRequest& request : requests) request.score_prompt = seed % 2 == 0;
    EngineOptions options = options_for(requests);
    options.compute = seed % 3 == 0 ? ComputeChoice::kAuto : ComputeChoice::kF32;
    options.policy = random_policy(random);
    options.policy->pass_tokens = std::max<int64_t>(options.policy->pass_tokens, 30);
    if (pick(random, 0, 1) == 0) {
      options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
      options.policy->inplace_host_fraction = options.policy->weights.host / 2;
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + policy::policy_to_json(*options.policy));
    options.fuses_operators = false;
    auto expected = run_all(GetParam(), options, requests);
    options.fuses_operators = true;
    auto actual = run_all(GetParam(), options, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(actual[i].tokens, expected[i].tokens) << "sequence " << i;
      EXPECT_EQ(actual[i].logits, expected[i].logits) << "sequence " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, PolicyProperty,
    ::testing::Values(
        "stories260k", "opt-tiny", "opt-350m-tiny", "llama-tiny-gqa", "llama-tiny-sharded",
        "opt-tiny-f16-bin-decoder", "stories260k:int4", "stories260k:int4-g32+a8",
        "stories260k:q4_0", "llama-tiny-gqa:iq4", "stories260k:mixed", "llama-tiny-bf16:mixed+a8",
        "stories260k:types", "mixtral-tiny:types", "deepseek-v3-moe-tiny:types",
        "qwen3-5-tiny:mixed", "mixtral-tiny:mixed", "opt-tiny:int8+a8", "llama-tiny-gqa:nf4",
        "opt-350m-tiny:int4-g128", "llama-tiny-bias:fp8", "llama-tiny-gqa:fp8+f8", "qwen2-tiny",
        "qwen2-tiny-window", "qwen3-tiny", "qwen3-tiny:int8+a8", "mistral-tiny", "phi3-tiny",
        "qwen3-windows", "qwen3-5-tiny", "qwen3-5-odd", "qwen3-5-tiny:int8", "mamba2-tiny",
        "mamba2-odd", "mamba2-tiny:int8", "granitemoehybrid-tiny", "granitemoehybrid-moe-odd",
        "youtu-tiny", "youtu-odd", "youtu-tiny:int8", "minicpm3-odd", "deepseek-v2-odd",
        "deepseek-v3-tiny", "gemma2-odd", "gemma4-tiny", "gemma4-tiny:int8", "gemma4-odd",
        "gemma4-k-eq-v", "gemma3-tiny", "gemma3-tiny:int8", "cohere2-tiny", "olmo3-tiny",
        "ministral3-odd", "falcon-odd", "falcon-rw-odd", "bloom-odd", "gpt2-tiny", "gpt-neox-tiny",
        "gptj-odd", "granite-tiny", "ernie4-5-tiny", "ernie4-5-odd", "mixtral-tiny",
        "mixtral-tiny:int4", "qwen3-moe-odd", "qwen2-moe-odd", "olmoe-odd:int4-g32",
        "deepseek-v3-moe-tiny", "granitemoe-odd", "glm4-moe-tiny:int8+a8", "gpt-oss-tiny",
        "gpt-oss-mxfp4:store", "gpt-oss-mxfp4", "qwen3-moe-fp8", "deepseek-v3-fp8",
        "gpt-oss-tiny:int8", "qwen2-moe-odd-gguf", "olmoe-tiny-gguf", "qwen3-5-moe-tiny",
        "qwen3-5-moe-odd", "qwen3-5-moe-tiny:int8", "qwen3-next-tiny", "qwen3-next-odd",
        "glm4-moe-lite-tiny", "glm4-moe-lite-odd", "gemma4-moe-tiny", "gemma4-moe-odd",
        "llama4-tiny", "llama4-odd", "qwen3-5-moe-thirds-gguf", "qwen3-next-tiny-gguf",
        "gemma4-tiny-gguf", "gemma4-moe-tiny-gguf", "llama4-released-gguf", "mamba2-tiny-gguf",
        "granitemoehybrid-moe-odd-gguf"),
    [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace sluice::testing
