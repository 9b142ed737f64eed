// With batch_invariant a sequence's logits are the same bits alone and in any company: whatever
// the micro-batches, the chunks of prompts, the threads, the order, the pages that are shared,
// given up or streamed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/isa.h"
#include "src/base/error.h"
#include "tests/engine/model_fixtures.h"
#include "tests/rounds.h"

namespace sluice::testing {
namespace {

// The bits of all that a request got.
std::vector<uint32_t> bits_of(const Answer& answer) {
  std::vector<uint32_t> bits;
  const auto add = [&](float value) { std::memcpy(&bits.emplace_back(), &value, sizeof value); };
  for (const sampling::Choice& choice : answer.choices) {
    bits.push_back(static_cast<uint32_t>(choice.token));
    add(choice.logprob);
    for (const auto& other : choice.top) {
      bits.push_back(static_cast<uint32_t>(other.token));
      add(other.logprob);
    }
  }
  for (const float logit : answer.logits) add(logit);
  return bits;
}

// Up to ten requests, some of which begin alike.
std::vector<GenerationRequest> company(Random& random, int64_t vocab) {
  auto prompts = random_prompts(random, pick(random, 2, 10), vocab);
  for (size_t i = 1; i < prompts.size(); ++i) {
    if (pick(random, 0, 1) == 0) continue;
    prompts[i].insert(prompts[i].begin(), prompts[0].begin(), prompts[0].end());
    prompts[i].resize(std::min<size_t>(prompts[i].size(), 60));
  }
  auto requests = greedy_requests(prompts, 1);
  for (GenerationRequest& request : requests) {
    request.params.max_tokens = static_cast<int>(pick(random, 1, 10));
    request.params.temperature = pick(random, 0, 1) == 0 ? 0.0f : 0.9f;
    request.params.seed = 77 + request.id;
    request.params.logprobs = 3;
  }
  return requests;
}

policy::Policy cutting_policy(Random& random) {
  policy::Policy policy;
  const auto share = [&] { return pick(random, 0, 2) == 0 ? 0.6 : 1.0; };
  const double weights = share(), kv = share();
  policy.weights = {weights, 0, 1 - weights};
  policy.kv = {kv, 0, 1 - kv};
  policy.micro_batch_sequences = pick(random, 1, 10);
  policy.micro_batches = pick(random, 1, 2);
  policy.micro_batch_tokens = pick(random, 1, 200);
  return policy;
}

KvFormat some_kv(const std::string& model, uint32_t seed) {
  const KvFormat formats[] = {DType::kF32, kQuantisedKv[0], kQuantisedKv[2], DType::kBF16,
                              kQuantisedKv[1]};
  return kv_of(model, formats[seed % std::size(formats)]);
}

struct Case {
  std::vector<GenerationRequest> requests;
  EngineOptions alone;
  EngineOptions together;
};

Case make_case(const std::string& model, uint32_t seed) {
  Random random(seed);
  const int64_t vocab = BoundModel::open(fixture_model(model)).shape().vocab_size;
  Case out;
  out.requests = company(random, vocab);
  out.alone = options_for(out.requests);
  for (GenerationRequest& request : out.requests) {  // and generate behind it
    request.score_prompt = pick(random, 0, 2) == 0;
    request.score_only = false;
  }
  out.alone.kv_dtype = some_kv(model, seed);
  out.alone.compute = seed % 3 == 1 ? ComputeChoice::kF32 : ComputeChoice::kAuto;
  out.alone.attention_sparsity = seed % 7 == 6 ? 0.3f : 1.0f;
  if (model.ends_with("+a8") && seed % 2 == 1) out.alone.outlier_threshold = 1.5f;
  out.alone.batch_invariant = true;
  out.alone.threads = 1;
  out.together = out.alone;
  out.together.threads = static_cast<int>(pick(random, 1, 3));
  if (seed % 4 != 0) out.together.policy = cutting_policy(random);
  out.together.cache_prefixes = seed % 2 == 0;
  if (seed % 4 == 3) {  // room for little more than the longest: sequences give way
    out.together.predict_lengths = true;
    out.together.workload.sequences = 1;
    out.together.workload.total_tokens = 0;
  }
  std::shuffle(out.requests.begin(), out.requests.end(), random);
  return out;
}

// What runs have met.
struct Met {
  int64_t preemptions = 0, prefix_hit_tokens = 0, streamed_passes = 0;
};

std::map<uint64_t, Answer> run_together(const std::string& model, const Case& of, Met& met) {
  EngineOptions options = of.together;
  if (model.ends_with("+a8")) options.activations = kernels::ActivationFormat::kInt8;
  const auto engine = Engine::open(fixture_model(model), std::move(options));
  ListSource source(of.requests);
  CollectingSink sink;
  engine->generate(source, sink);
  met.preemptions += engine->stats().preemptions;
  met.prefix_hit_tokens += engine->stats().prefix_hit_tokens;
  met.streamed_passes += engine->plan().policy.weights.disk > 0;
  return std::move(sink.answers);
}

// The number of a case's requests whose bits in company differ from their bits alone.
int differing(const std::string& model, const Case& of, Met& met) {
  auto together = run_together(model, of, met);
  int found = 0;
  for (const GenerationRequest& request : of.requests) {
    auto alone = run_all(model, of.alone, {request});
    const Answer &mine = alone.at(request.id), &theirs = together.at(request.id);
    EXPECT_EQ(theirs.refused, "");
    EXPECT_FALSE(mine.choices.empty());
    found += bits_of(mine) != bits_of(theirs);
  }
  return found;
}

class BatchInvariance : public ::testing::TestWithParam<std::string> {};

TEST_P(BatchInvariance, ASequenceHasTheSameBitsAloneAndInAnyCompany) {
  if (is_left_to_release(GetParam(), "invariance")) GTEST_SKIP() << "tried without sanitizers";
  Met met;
  for (uint32_t seed = 0; seed < rounds(14u); ++seed) {
    const Case one = make_case(GetParam(), seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", KV " + kv_format_name(*one.alone.kv_dtype));
    EXPECT_EQ(differing(GetParam(), one, met), 0) << "of " << one.requests.size();
  }
  EXPECT_GT(met.streamed_passes, 0);
  if (GetParam() == "llama-tiny-gqa") {
    EXPECT_GT(met.preemptions, 0) << "the pools were meant to be too small";
    EXPECT_GT(met.prefix_hit_tokens, 0);
  }
}

TEST(BatchInvarianceOfCpus, HoldsWithEveryInstructionSet) {
  Met met;
  for (int isa = static_cast<int>(kernels::detected_isa()); isa >= 0; --isa) {
    if (!kernels::supports_isa(static_cast<kernels::Isa>(isa))) continue;
    kernels::force_isa(static_cast<kernels::Isa>(isa));
    SCOPED_TRACE("instruction set " +
                 std::string(kernels::isa_name(static_cast<kernels::Isa>(isa))));
    for (const char* model : {"llama-tiny-bf16", "stories260k:int4-g32", "mixtral-tiny"})
      for (uint32_t seed = 0; seed < 5; ++seed)
        EXPECT_EQ(differing(model, make_case(model, seed), met), 0) << model << " seed " << seed;
  }
  kernels::force_isa(kernels::detected_isa());
}

INSTANTIATE_TEST_SUITE_P(Models, BatchInvariance,
                         ::testing::Values(
                             // Dense, in each type of weights.
                             "llama-tiny-gqa", "llama-tiny-bf16", "llama-tiny-f16", "opt-tiny-bf16",
                             "qwen3-tiny-bf16", "stories260k:int4-g32", "stories260k:int8+a8",
                             "qwen3-tiny:mixed", "qwen3-tiny:k-mixed", "falcon-rw-tiny",
                             // Mixtures.
                             "mixtral-tiny", "qwen3-moe-tiny:int4-g32", "gpt-oss-mxfp4",
                             "granitemoe-odd",
                             // Windows and chunks.
                             "mistral-tiny-bf16", "gemma2-tiny", "qwen3-windows", "llama4-odd",
                             // Recurrent states.
                             "qwen3-5-tiny", "qwen3-5-moe-odd", "mamba2-odd",
                             "granitemoehybrid-tiny",
                             // Latent rows.
                             "deepseek-v2-moe-tiny", "deepseek-v3-odd", "youtu-tiny"),
                         [](const auto& info) { return test_name(info.param); });

// What the tests above would see.
TEST(BatchInvarianceOff, SumsDependOnTheNumberOfRows) {
  int found = 0;
  Met met;
  for (uint32_t seed = 0; seed < 6; ++seed)
    for (const char* model : {"llama-tiny-gqa", "llama-tiny-bf16"}) {
      Case one = make_case(model, seed);
      one.alone.batch_invariant = one.together.batch_invariant = false;
      found += differing(model, one, met);
    }
  EXPECT_GT(found, 0);
}

std::string refusal(const EngineOptions& options) {
  try {
    Engine::open(fixture_model("stories260k"), options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    return error.text();
  }
  return "";
}

TEST(BatchInvarianceRefused, NewestTokensIn16Bits) {
  EngineOptions options = options_for(greedy_requests({{1, 2, 3}}, 4));
  options.batch_invariant = true;
  EXPECT_EQ(refusal(options), "");
  options.kv_dtype = kQuantisedKv[0];
  options.kv_recent_tokens = 8;
  EXPECT_NE(refusal(options).find("`kv_recent_tokens`"), std::string::npos);
  options.batch_invariant = false;
  EXPECT_EQ(refusal(options), "");
}

TEST(BatchInvarianceName, IsSaidByTheEngine) {
  EngineOptions options = options_for(greedy_requests({{1, 2, 3}}, 4));
  for (const bool is_on : {false, true}) {
    options.batch_invariant = is_on;
    const auto engine = Engine::open(fixture_model("stories260k"), options);
    EXPECT_EQ(engine->compute_name().ends_with(", batch-invariant"), is_on);
  }
}

}  // namespace
}  // namespace sluice::testing
