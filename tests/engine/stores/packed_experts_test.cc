// Experts that lie in stacks, turned or in MXFP4: run from the folder as it is, they are the
// store's that convert makes of it, wherever they are; turned ones that do not fit are refused with
// a way out.
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::testing {
namespace {

class PackedExperts : public ::testing::TestWithParam<std::string> {
 protected:
  PackedExperts() {
    Random random(11);
    const int64_t vocab = BoundModel::open(fixture_model(GetParam())).shape().vocab_size;
    requests_ = greedy_requests(random_prompts(random, 17, vocab), 9);
    for (GenerationRequest& request : requests_) request.score_prompt = request.id % 4 == 0;
    options_ = options_for(requests_);
    options_.compute = ComputeChoice::kF32;
    options_.kv_dtype = DType::kF32;
  }
  void expect_same(std::map<uint64_t, Answer> actual, std::map<uint64_t, Answer> expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [id, answer] : expected) {
      EXPECT_EQ(actual[id].tokens, answer.tokens) << id;
      EXPECT_EQ(actual[id].logits, answer.logits) << id;
    }
  }
  std::vector<GenerationRequest> requests_;
  EngineOptions options_;
};

TEST_P(PackedExperts, AreThoseOfTheStoreInAnyBlock) {
  for (const int64_t block : {1, 3, 17}) {
    SCOPED_TRACE(block);
    options_.policy = policy::Policy{};
    options_.policy->micro_batch_sequences = block == 17 ? 5 : block;
    options_.policy->micro_batches = block == 17 ? 4 : 1;
    options_.policy->micro_batch_tokens = 23;
    expect_same(run_all(GetParam(), options_, requests_),
                run_all(GetParam() + ":store", options_, requests_));
  }
}

TEST_P(PackedExperts, MayLieInTwoPlaces) {
  const auto expected = run_all(GetParam() + ":store", options_, requests_);
  options_.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
  for (const double on_device : {0.0, 0.37, 0.8})
    for (const double inplace : {0.0, 0.2}) {
      SCOPED_TRACE(::testing::Message()
                   << on_device << " on the device, " << inplace << " in place");
      options_.policy = policy::Policy{};
      options_.policy->weights = {on_device, 1 - on_device, 0};
      options_.policy->inplace_host_fraction = inplace;
      auto actual = run_all(GetParam(), options_, requests_);
      for (const auto& [id, answer] : expected) EXPECT_EQ(actual[id].tokens, answer.tokens) << id;
    }
}

TEST_P(PackedExperts, StreamAsTheyLie) {
  for (const double disk : {0.3, 1.0}) {
    options_.policy = policy::Policy{};
    options_.policy->weights = {1 - disk, 0, disk};
    expect_same(run_all(GetParam(), options_, requests_),
                run_all(GetParam() + ":store", options_, requests_));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PackedExperts,
                         ::testing::Values("gpt-oss-tiny", "gpt-oss-mxfp4", "llama4-tiny"),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace sluice::testing
