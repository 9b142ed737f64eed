// How often the host waits for the device's queue in a pass is what the plan counts: the engine on
// the host's stand-in against the simulation of the same passes.
#include "policy/simulator.h"
#include "tests/engine/cuda/cuda_testing.h"

namespace sluice::testing {
namespace {

constexpr int64_t kSequences = 5;
constexpr int64_t kPrompt = 11;

struct Counted {
  double engine = 0;
  double simulated = 0;
  double tables = 0;  // of which some rows are not on the device: of these a token's is by chance
};

Counted count(const std::string& model, const policy::Policy& given, int64_t new_tokens) {
  const auto requests = greedy_requests(
      std::vector<std::vector<int32_t>>(kSequences, std::vector<int32_t>(kPrompt, 7)), new_tokens);
  EngineOptions options = exact_options_for(requests);
  options.policy = given;
  options.backend = make_backend();
  const auto engine = Engine::open(fixture_model(model), options);
  ListSource source(requests);
  CollectingSink sink;
  engine->generate(source, sink);
  const ModelShape& shape = engine->model().shape();
  policy::JobShape job;
  job.sequences = kSequences;
  job.prompt_tokens = kPrompt;
  job.new_tokens = static_cast<double>(new_tokens);
  const auto block = policy::block_passes(shape, engine->plan(), job, 1000, 1000);
  const auto simulated =
      policy::simulate(shape, engine->plan(), *policy::shipped_profile("t4"), *options.kv_dtype,
                       policy::schedule_shape(shape, engine->plan()), block.passes, false);
  double tables = 0;
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    for (size_t w = 0; w < shape.sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = shape.sublayers[i].weights[w];
      const int64_t here = engine->plan().rows[i][w].resident;
      tables += weight.kind == WeightKind::kTable && here > 0 && here < weight.rows;
    }
  return {static_cast<double>(engine->stats().hand_overs), simulated.hand_overs, tables};
}

// Of three decode passes: what is brought to the host once for all of them is left out.
void expect_same_count(const std::string& model, const policy::Policy& given, bool has_any) {
  SCOPED_TRACE(model + " " + policy::policy_to_json(given));
  const Counted few = count(model, given, 4);
  const Counted more = count(model, given, 7);
  constexpr double kPasses = 3, kMicroBatches = 2;
  EXPECT_NEAR(more.engine - few.engine, more.simulated - few.simulated,
              kPasses * kMicroBatches * more.tables + 1e-6);
  EXPECT_EQ(more.engine - few.engine > 3 * 2, has_any);
}

policy::Policy block_policy() {
  policy::Policy policy;
  policy.micro_batch_sequences = 3;
  policy.micro_batches = 2;
  policy.micro_batch_tokens = 64;
  policy.page_tokens = 4;
  return policy;
}

TEST(HandOvers, OfAModelThatIsWholeOnTheDeviceAreItsLogits) {
  for (const char* model : {"stories260k", "opt-tiny"})
    expect_same_count(model, block_policy(), false);
}

TEST(HandOvers, OfRowsInPlaceAreOneForEachMatrix) {
  for (const char* model : {"stories260k", "opt-tiny", "gemma4-tiny"})
    for (const double share : {0.3, 1.0}) {
      policy::Policy policy = block_policy();
      policy.weights = {1 - share, share, 0};
      policy.inplace_host_fraction = share;
      expect_same_count(model, policy, true);
    }
}

TEST(HandOvers, OfWhatPassesThroughSlotsAreOneForEachTask) {
  for (const char* model : {"stories260k", "opt-tiny"}) {
    policy::Policy policy = block_policy();
    policy.weights = {0.4, 0.3, 0.3};
    policy.inplace_host_fraction = 0.1;
    expect_same_count(model, policy, true);
    policy.weights = {1, 0, 0};
    policy.inplace_host_fraction = 0;
    policy.kv = {0, 0.5, 0.5};
    expect_same_count(model, policy, true);
    policy.attention = policy::AttentionPlace::kHost;
    expect_same_count(model, policy, true);
    policy.kv = {1, 0, 0};
    policy.activations = {0, 0.5, 0.5};
    expect_same_count(model, policy, true);
  }
}

TEST(HandOvers, OfAMixtureAreItsRoutes) {
  expect_same_count("deepseek-v3-moe-tiny", block_policy(), true);
}

// However many experts of a layer are in host memory, and whichever their rows go to.
TEST(HandOvers, OfExpertsInPlaceAreOneForEachLayer) {
  for (const char* model : {"deepseek-v3-moe-tiny", "gpt-oss-tiny", "llama4-tiny"}) {
    policy::Policy policy = block_policy();
    policy.weights = {0, 1, 0};
    policy.inplace_host_fraction = 1;
    expect_same_count(model, policy, true);
  }
}

}  // namespace
}  // namespace sluice::testing
