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
  EXPECT_GE(packed.arrival_slot_bytes, std::min(most, kArrivalBytes)) << "or comes in pieces";
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

// Experts that another tool has packed have slots too: of each the file's bytes are read, and its
// slot holds what they become.
TEST(PackedExperts, HaveSlotsAndAreReadAsTheyLie) {
  const ModelShape& model = shape_of("mixtral-8x7b");
  PlanInput plain = input_for(model, int64_t{1} << 40);
  plain.workload = {1, 4, 10, 0};
  PlanInput input = plain;
  input.packed_bytes = [&model](size_t sublayer, size_t weight, int64_t, int64_t rows) {
    const WeightShape& shape = model.sublayers[sublayer].weights[weight];
    return shape.kind == WeightKind::kMatrix ? rows * model.row_bytes(shape) / 2 : 0;
  };
  Policy policy;
  policy.weights = {0.5, 0, 0.5};
  const Plan packed = make_plan(input, policy), other = make_plan(plain, policy);
  EXPECT_EQ(packed.expert_slot_bytes, other.expert_slot_bytes);
  EXPECT_EQ(packed.demand_tokens, other.demand_tokens);
  int64_t of_experts = 0;
  for (size_t i = 0; i < packed.parts.size(); ++i) {
    EXPECT_EQ(packed.experts[i].slots, other.experts[i].slots);
    for (const PlanPart& part : packed.parts[i]) {
      if (part.expert < 0) continue;
      ++of_experts;
      const WeightShape& shape = model.sublayers[i].weights[static_cast<size_t>(part.weight)];
      EXPECT_EQ(part.packed_bytes, shape.expert_rows() * model.row_bytes(shape) / 2);
      EXPECT_GE(packed.arrival_slot_bytes, std::min(part.packed_bytes, kArrivalBytes));
    }
  }
  EXPECT_EQ(of_experts, 32 * 3 * 8);
  // A pass that asks reads the file's bytes: half.
  const Profile profile = plain_machine(false);
  const JobShape job{1, 4, 6, 0, 0};
  const auto read = [&](const Plan& plan) {
    double bytes = 0;
    std::vector<CostTerm> terms;
    predict(model, plan, profile, plain.kv_dtype, job, &terms);
    for (const CostTerm& term : terms)
      if (term.lane == Lane::kDiskRead && !term.is_prefill) bytes += term.amount;
    return bytes;
  };
  EXPECT_NEAR(read(packed), read(other) / 2, 0.01 * read(other));
}

// Of what is read only with all of its rows, these are on disk or none is; over all matrices the
// share is as asked, but for one of them.
TEST_F(PackedWeights, AreOnDiskWholeWhereTheirRowsAreNotReadAlone) {
  const PlanInput by_rows = input_;
  input_.packed_bytes = [this](size_t sublayer, size_t weight, int64_t row, int64_t rows) {
    const WeightShape& shape = model_.sublayers[sublayer].weights[weight];
    if (shape.kind != WeightKind::kMatrix || shape.shares_table) return int64_t{0};
    return row == 0 && rows == shape.rows ? rows * model_.row_bytes(shape) / 2 : int64_t{-1};
  };
  for (const double disk : {1.0, 0.7, 0.31, 0.05, 0.0}) {
    for (const bool has_device : {false, true}) {
      Policy policy;
      policy.weights = {has_device ? (1 - disk) / 3 : 1 - disk, has_device ? (1 - disk) * 2 / 3 : 0,
                        disk};
      if (has_device) {
        policy.inplace_host_fraction = policy.weights.host / 2;
        input_.device_budget_bytes = int64_t{1} << 40;
      }
      const Plan made = make_plan(input_, policy);
      int64_t on_disk = 0, largest = 0, all = 0, parts = 0;
      for (size_t i = 0; i < model_.sublayers.size(); ++i)
        for (size_t w = 0; w < model_.sublayers[i].weights.size(); ++w) {
          const WeightShape& weight = model_.sublayers[i].weights[w];
          if (weight.kind != WeightKind::kMatrix || weight.shares_table) continue;
          const RowSplit& split = made.rows[i][w];
          EXPECT_TRUE(split.disk == 0 || split.disk == weight.rows) << weight.role;
          EXPECT_EQ(split.resident + split.inplace + split.host + split.disk, weight.rows);
          on_disk += model_.rows_bytes(weight, split.disk);
          all += model_.rows_bytes(weight, weight.rows);
          largest = std::max(largest, model_.rows_bytes(weight, weight.rows));
          parts += split.disk > 0;
        }
      for (const auto& of_sublayer : made.parts)
        for (const PlanPart& part : of_sublayer) parts -= part.from_disk && part.packed_bytes > 0;
      EXPECT_EQ(parts, 0) << "each is one part";
      EXPECT_EQ(on_disk > 0, disk > 0);
      if (disk < 1)
        EXPECT_NEAR(static_cast<double>(on_disk), disk * static_cast<double>(all),
                    0.05 * static_cast<double>(all) + static_cast<double>(largest));
    }
    input_.device_budget_bytes = 0;
  }
}

// What can't be read by rows is in memory, whatever share is asked for.
TEST_F(PackedWeights, StayInMemoryWhereTheirRowsAreNoRuns) {
  input_.packed_bytes = [this](size_t sublayer, size_t weight, int64_t, int64_t rows) {
    const WeightShape& shape = model_.sublayers[sublayer].weights[weight];
    return shape.role == "k" ? -1 : rows * model_.row_bytes(shape) / 2;
  };
  const Plan made = plan();
  int64_t staying = 0;
  for (size_t i = 0; i < model_.sublayers.size(); ++i)
    for (size_t w = 0; w < model_.sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = model_.sublayers[i].weights[w];
      if (weight.kind != WeightKind::kMatrix || weight.shares_table) continue;
      EXPECT_EQ(made.rows[i][w].resident, weight.role == "k" ? weight.rows : 0) << weight.role;
      staying += weight.role == "k";
    }
  EXPECT_EQ(staying, 12);
}

}  // namespace
}  // namespace sluice::policy
