// Rows that another tool has packed, read from disk as they lie and repacked as they come: what
// plans, the cost model and the simulator make of that.
#include <gtest/gtest.h>

#include "policy/cost_model.h"
#include "policy/simulator.h"
#include "src/base/bytes.h"
#include "tests/policy/machine_fixture.h"
#include "tests/policy/plan_fixture.h"

namespace sluice::policy {
namespace {

// A file of half the bytes that its rows become.
class PackedWeights : public ::testing::Test {
 protected:
  PackedWeights()
      : model_(shape_of("opt-125m")),
        profile_(plain_machine(false)),
        input_(input_for(model_, int64_t{1} << 40)) {
    input_.workload = {1, 4, 10, 0};
    input_.packed_bytes = [this](size_t sublayer, size_t weight, int64_t, int64_t rows) {
      const WeightShape& shape = model_.sublayers[sublayer].weights[weight];
      return shape.kind == WeightKind::kMatrix ? rows * model_.row_bytes(shape) / 2 : 0;
    };
  }

  Plan plan() const {
    Policy policy;
    policy.weights = {0, 0, 1};
    return make_plan(input_, policy);
  }
  double predicted_seconds(const Plan& made) const {
    return predict(model_, made, profile_, input_.kv_dtype, job_).seconds();
  }
  double simulated_seconds(const Plan& made) const {
    return simulate_block(model_, made, profile_, input_.kv_dtype, job_).seconds();
  }
  static double made_bytes(const Plan& made) {
    double bytes = 0;
    for (const auto& parts : made.parts)
      for (const PlanPart& part : parts) bytes += static_cast<double>(part.bytes);
    return bytes;
  }

  const ModelShape& model_;
  Profile profile_;
  PlanInput input_;
  JobShape job_{1, 4, 6, 0, 0};
};

TEST_F(PackedWeights, TakeTheFilesBytesOnDiskAndSlotsInMemory) {
  const Plan packed = plan();
  PlanInput plain = input_;
  plain.packed_bytes = nullptr;
  Policy policy;
  policy.weights = {0, 0, 1};
  const Plan other = make_plan(plain, policy);
  int64_t matrices = 0, most = 0;
  for (const auto& parts : packed.parts)
    for (const PlanPart& part : parts) most = std::max(most, part.packed_bytes);
  for (const SublayerShape& sublayer : model_.sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.kind == WeightKind::kMatrix) matrices += model_.rows_bytes(weight, weight.rows);
  EXPECT_EQ(other.streamed_weight_bytes - packed.streamed_weight_bytes, matrices / 2);
  EXPECT_GE(packed.arrival_slot_bytes, most) << "a part lies in a slot";
  EXPECT_LE(packed.arrival_slot_bytes, most + 2 * kDiskBlock);
  EXPECT_EQ(packed.memory_bytes() - other.memory_bytes(),
            packed.arrival_slot_bytes * kArrivalSlots);
  EXPECT_EQ(packed.ring_bytes, other.ring_bytes) << "the ring holds what they become";
}

TEST_F(PackedWeights, ReadAtTheRateOfTheSlowerOfDiskAndRepacking) {
  job_ = {1, 4, 6, 0, 0};
  const double passes = 6;  // one of the prompt
  Disk& disk = profile_.disks.front();
  disk.read.value = disk.mixed_read.value = disk.busy_read.value = 1e7;  // what computes is nothing
  for (const double rate : {1e6, 1e9}) {
    input_.repacked_bytes_per_second = rate;
    const Plan made = plan();
    const double expected = passes * std::max(made_bytes(made) / rate, made_bytes(made) / 2 / 1e7);
    EXPECT_NEAR(predicted_seconds(made), expected, 0.02 * expected) << rate;
    EXPECT_NEAR(simulated_seconds(made), expected, 0.02 * expected) << rate;
  }
}

TEST_F(PackedWeights, TakeTheirShareOfTheCoresFromWhatComputes) {
  profile_.host.memory_read.value = 1e7;  // products wait for their weights
  input_.repacked_bytes_per_second = 2e7;
  const Plan alone = plan();
  input_.repack_core_share = 0.5;
  const Plan beside = plan();
  const double added = 6 * made_bytes(beside) / 2e7 / 2;
  const double before = predicted_seconds(alone);
  EXPECT_NEAR(predicted_seconds(beside) - before, added, 0.05 * added);
  const double simulated = simulated_seconds(beside);
  EXPECT_NEAR(simulated, before + added, 0.05 * added);
  EXPECT_NEAR(simulated_seconds(alone), before, 0.1 * before);
}

}  // namespace
}  // namespace sluice::policy
