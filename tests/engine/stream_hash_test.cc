// What the simulator walks is what the engine executes: the hashes of both task streams, over
// policies that stream weights, KV and activations on two and three tiers.
#include <gtest/gtest.h>

#include "policy/simulator.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::testing {
namespace {

constexpr int64_t kSequences = 5;
constexpr int64_t kPrompt = 11;
constexpr int64_t kNew = 6;

policy::Profile any_machine(bool has_device) {
  policy::Profile profile = *policy::shipped_profile("t4");
  if (!has_device) profile.device.reset();
  return profile;
}

void expect_same_stream(const std::string& model, const policy::Policy& given, bool has_device) {
  SCOPED_TRACE(model + " " + policy::policy_to_json(given));
  const auto requests = greedy_requests(
      std::vector<std::vector<int32_t>>(kSequences, std::vector<int32_t>(kPrompt, 7)), kNew);
  EngineOptions options = options_for(requests);
  options.policy = given;
  if (has_device) options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
  const auto engine = Engine::open(fixture_model(model), options);
  ListSource source(requests);
  CollectingSink sink;
  engine->generate(source, sink);
  const ModelShape& shape = engine->model().shape();
  policy::JobShape job;
  job.sequences = kSequences;
  job.prompt_tokens = kPrompt;
  job.new_tokens = kNew;
  const auto block = policy::block_passes(shape, engine->plan(), job, 1000, 1000);
  EXPECT_EQ(static_cast<int64_t>(block.passes.size()), engine->stats().passes);
  const auto simulated =
      policy::simulate(shape, engine->plan(), any_machine(has_device), shape.weight_dtype,
                       policy::schedule_shape(shape, engine->plan()), block.passes, false);
  EXPECT_EQ(simulated.stream_hash, engine->stats().stream_hash);
  EXPECT_NE(simulated.stream_hash, 0u);
}

policy::Policy block_policy() {
  policy::Policy policy;
  // Room for more sequences than there are: the engine then knows that nobody follows.
  policy.micro_batch_sequences = 2;
  policy.micro_batches = 4;
  policy.micro_batch_tokens = 64;
  policy.page_tokens = 4;
  return policy;
}

TEST(StreamHash, TwoTiers) {
  for (const char* model : {"stories260k", "opt-tiny", "gemma4-tiny"}) {
    policy::Policy policy = block_policy();
    expect_same_stream(model, policy, false);
    policy.weights = {0.4, 0, 0.6};
    expect_same_stream(model, policy, false);
    policy.weights = {0, 0, 1};
    policy.kv = {0, 0, 1};
    expect_same_stream(model, policy, false);
    policy.activations = {0, 0, 1};
    expect_same_stream(model, policy, false);
  }
}

TEST(StreamHash, ThreeTiers) {
  for (const char* model : {"stories260k", "opt-tiny", "gemma4-tiny"}) {
    policy::Policy policy = block_policy();
    policy.weights = {0.3, 0.3, 0.4};
    expect_same_stream(model, policy, true);
    policy.inplace_host_fraction = 0.2;
    policy.kv = {0, 1, 0};
    expect_same_stream(model, policy, true);
    policy.attention = policy::AttentionPlace::kHost;
    expect_same_stream(model, policy, true);
    policy.kv = {0, 0, 1};
    policy.activations = {0, 1, 0};
    expect_same_stream(model, policy, true);
    policy.attention = policy::AttentionPlace::kDevice;
    policy.activations = {0, 0, 1};
    expect_same_stream(model, policy, true);
  }
}

}  // namespace
}  // namespace sluice::testing
