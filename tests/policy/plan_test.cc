#include "policy/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/schedule/weight_ring.h"
#include "tests/policy/plan_fixture.h"

namespace sluice::policy {
namespace {

double uniform(std::mt19937& random) { return static_cast<double>(random() % 100001) / 100000.0; }

// Room in the ring that each sublayer's parts take.
std::vector<int64_t> streamed_bytes(const Plan& plan) {
  std::vector<int64_t> bytes;
  for (const auto& parts : plan.parts) {
    bytes.push_back(0);
    for (const PlanPart& part : parts) bytes.back() += part.bytes;
  }
  return bytes;
}

// Bytes of matrices and tables that stay in memory, counted from the rows that the plan names.
int64_t resident_bytes(const ModelShape& model, const Plan& plan) {
  int64_t bytes = 0;
  for (size_t s = 0; s < model.sublayers.size(); ++s)
    for (size_t w = 0; w < model.sublayers[s].weights.size(); ++w) {
      const WeightShape& weight = model.sublayers[s].weights[w];
      if (!weight.shares_table)
        bytes += plan.rows[s][w].resident * weight.cols * dtype_bytes(model.weight_dtype);
    }
  return bytes;
}

int64_t line(const std::vector<PlanLine>& lines, const std::string& what) {
  for (const PlanLine& line : lines)
    if (line.what == what) return line.bytes;
  ADD_FAILURE() << "no line " << what;
  return -1;
}

TEST(Plan, PlacesTheAskedShareOfTheWeightsOnEveryShape) {
  std::mt19937 random(1);
  for (const std::string& name : tested_models()) {
    const ModelShape& model = shape_of(name);
    for (int round = 0; round < 150; ++round) {
      PlanInput input = input_for(model, 0);
      input.row_granule = int64_t{1} << random() % 8;
      Policy policy;
      const double share = round == 0       ? 0.37
                           : round % 3 == 0 ? uniform(random) * 0.01
                                            : uniform(random);
      policy.weights = memory_share(share);
      const Plan plan = make_plan(input, policy);
      ASSERT_EQ(plan.weight_bytes, model.weight_bytes());
      ASSERT_EQ(plan.resident_weight_bytes, resident_bytes(model, plan));
      const double placed =
          static_cast<double>(plan.resident_weight_bytes) / static_cast<double>(plan.weight_bytes);
      ASSERT_LT(std::abs(placed - share), 0.01)
          << name << " share " << share << " granule " << input.row_granule;
    }
  }
}

TEST(Plan, RowsAreWholeGranulesAndTiedHeadsFollowTheTable) {
  std::mt19937 random(2);
  for (const std::string& name : tested_models()) {
    const ModelShape& model = shape_of(name);
    for (int round = 0; round < 400; ++round) {
      PlanInput input = input_for(model, 0);
      Policy policy;
      policy.weights = memory_share(std::pow(uniform(random), 1 + round % 5 * 3));
      const Plan plan = make_plan(input, policy);
      ASSERT_EQ(plan.rows.size(), model.sublayers.size());
      for (size_t s = 0; s < model.sublayers.size(); ++s) {
        ASSERT_EQ(plan.rows[s].size(), model.sublayers[s].weights.size());
        for (size_t w = 0; w < model.sublayers[s].weights.size(); ++w) {
          const WeightShape& weight = model.sublayers[s].weights[w];
          const int64_t rows = plan.rows[s][w].resident;
          ASSERT_GE(rows, 0);
          ASSERT_LE(rows, weight.rows);
          if (weight.shares_table) {
            ASSERT_EQ(rows, plan.rows[0][0].resident)
                << name << ": the head has the rows that its table has";
          } else if (weight.kind == WeightKind::kMatrix && rows < weight.rows) {
            ASSERT_EQ(rows % std::min(input.row_granule, weight.rows), 0);
          } else if (weight.kind == WeightKind::kVector) {
            ASSERT_EQ(rows, weight.rows);
          }
        }
      }
    }
  }
}

TEST(Plan, ATinyShareLeavesNoTiedHeadRowsThatTheTableLacks) {
  // A share of about half a row of the token table: what it lacks is carried to the position table.
  const ModelShape& model = shape_of("opt-125m");
  for (double rows = 0.05; rows < 3; rows += 0.01) {
    PlanInput input = input_for(model, 0);
    Policy policy;
    policy.weights = memory_share(rows / static_cast<double>(model.vocab_size));
    const Plan plan = make_plan(input, policy);
    ASSERT_EQ(plan.rows.back().back().resident, plan.rows[0][0].resident) << rows;
  }
}

TEST(Plan, StreamsExactlyWhatDoesNotStay) {
  std::mt19937 random(3);
  for (const std::string& name : tested_models()) {
    const ModelShape& model = shape_of(name);
    for (double share : {0.0, uniform(random), 1.0}) {
      PlanInput input = input_for(model, 0);
      Policy policy;
      policy.weights = memory_share(share);
      const Plan plan = make_plan(input, policy);
      int64_t streamed = 0;
      for (size_t s = 0; s < model.sublayers.size(); ++s) {
        int64_t wanted = 0;
        int64_t parts = 0;
        for (size_t w = 0; w < model.sublayers[s].weights.size(); ++w) {
          const WeightShape& weight = model.sublayers[s].weights[w];
          if (weight.kind != WeightKind::kMatrix) continue;
          const int64_t row_bytes = weight.cols * dtype_bytes(model.weight_dtype);
          const int64_t rows = weight.rows - plan.rows[s][w].resident;
          const int64_t part_rows = weight_part_rows(row_bytes, input.row_granule);
          wanted += rows * row_bytes;
          parts += (rows + part_rows - 1) / part_rows;
        }
        streamed += wanted;
        ASSERT_GE(streamed_bytes(plan)[s], wanted) << "room for what is read";
        ASSERT_LE(streamed_bytes(plan)[s], wanted + 2 * kDiskBlock * parts);
        ASSERT_EQ(streamed_bytes(plan)[s] % kDiskBlock, 0);
        ASSERT_EQ(streamed_bytes(plan)[s] == 0, wanted == 0);
      }
      ASSERT_EQ(plan.streamed_weight_bytes, streamed);
      ASSERT_GE(plan.ring_bytes, weight_ring_bytes(streamed_bytes(plan), 0, 1));
      ASSERT_LE(plan.ring_bytes,
                weight_ring_bytes(streamed_bytes(plan), kWeightPartBytes + 2 * kDiskBlock, 2));
      if (share == 1.0) {
        EXPECT_EQ(plan.streamed_weight_bytes, 0) << name;
        EXPECT_EQ(plan.resident_weight_bytes, plan.weight_bytes) << name;
        EXPECT_EQ(plan.ring_bytes, 0) << name;
      }
    }
  }
}

TEST(Plan, LinesAddUpAndNameEveryUse) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    const ModelShape& model = shape_of(tested_models()[random() % tested_models().size()]);
    PlanInput input = input_for(model, 0);
    input.workload = random_workload(random);
    Policy policy;
    policy.weights = memory_share(uniform(random));
    policy.kv = memory_share(random() % 3 == 0 ? 1 : uniform(random));
    policy.activations = memory_share(random() % 3 == 0 ? 1 : uniform(random));
    policy.micro_batch_sequences = 1 + random() % 40;
    policy.micro_batches = 1 + random() % 8;
    policy.micro_batch_tokens = 1 + random() % 700;
    policy.pass_tokens = random() % 2 ? 0 : 1 + random() % 4000;
    const Plan plan = make_plan(input, policy);
    int64_t sum = 0;
    for (const PlanLine& entry : plan.memory) {
      ASSERT_GE(entry.bytes, 0) << entry.what;
      sum += entry.bytes;
    }
    ASSERT_EQ(plan.memory_bytes(), sum);
    ASSERT_EQ(line(plan.memory, "program"), input.program_bytes);
    ASSERT_EQ(line(plan.memory, "weight ring (streamed)"), plan.ring_bytes);
    ASSERT_EQ(line(plan.memory, "KV pages"),
              plan.kv.front().memory_pages * plan.kv.front().page_bytes * model.num_layers);
    ASSERT_EQ(line(plan.memory, "hidden states"),
              plan.hidden_memory_rows() * model.hidden_size * 4);
    ASSERT_GE(line(plan.memory, "resident weights"), plan.resident_weight_bytes);
    ASSERT_GE(plan.hidden_memory_rows(), 0);
    ASSERT_LE(plan.hidden_memory_rows(), plan.pass_tokens);
    ASSERT_EQ(plan.kv.front().slot_pages > 0, plan.kv.front().disk_pages > 0);
    ASSERT_EQ(plan.activation_slot_bytes > 0, policy.activations.disk > 0);
    const int64_t disk =
        std::accumulate(plan.disk.begin(), plan.disk.end(), int64_t{0},
                        [](int64_t total, const PlanLine& entry) { return total + entry.bytes; });
    ASSERT_EQ(plan.disk_bytes(), disk);
    const std::string table = plan_table(plan, 64 * kGiB);
    ASSERT_NE(table.find(format_bytes(sum)), std::string::npos) << table;
    ASSERT_NE(table.find("64.0GiB"), std::string::npos) << table;
  }
}

TEST(Plan, KvPagesSplitAsAskedAndHoldOneLongestSequence) {
  std::mt19937 random(5);
  const ModelShape& model = shape_of("llama-2-7b");
  for (int round = 0; round < 300; ++round) {
    PlanInput input = input_for(model, 0);
    input.workload = random_workload(random);
    Policy policy;
    policy.micro_batch_sequences = 1 + random() % 30;
    policy.page_tokens = 1 + random() % 40;
    policy.kv = memory_share(round % 4 == 0 ? 0 : round % 4 == 1 ? 1 : uniform(random));
    const Plan plan = make_plan(input, policy);
    const int64_t pages = plan.kv.front().memory_pages + plan.kv.front().disk_pages;
    const auto share = static_cast<double>(plan.kv.front().disk_pages) / static_cast<double>(pages);
    ASSERT_LE(std::abs(share - policy.kv.disk), 0.5 / static_cast<double>(pages) + 1e-9);
    ASSERT_GE(pages * policy.page_tokens, input.workload.max_total_tokens);
    const int64_t sequences = std::min(policy.block_sequences(), input.workload.sequences);
    ASSERT_LE(pages, sequences * ((input.workload.max_total_tokens + policy.page_tokens - 1) /
                                  policy.page_tokens));
  }
}

TEST(Plan, PagesOfQuantisedKvAreLongerUnlessThePolicyNamesTheirLength) {
  const ModelShape& model = shape_of("llama-2-7b");
  PlanInput input = input_for(model, 0);
  input.workload = {.sequences = 3, .max_prompt_tokens = 900, .max_total_tokens = 1000};
  const auto page_tokens = [&](KvFormat kv, int64_t longest, int64_t asked) {
    input.kv_dtype = kv;
    input.workload.max_total_tokens = longest;
    Policy policy;
    policy.micro_batch_sequences = 3;
    policy.page_tokens = asked;
    const Plan plan = make_plan(input, policy);
    EXPECT_EQ(plan.kv.front().page_bytes,
              model.state_groups.front().state.token_bytes(kv) * plan.policy.page_tokens);
    EXPECT_EQ(plan.kv.front().memory_pages,
              3 * ((longest + plan.policy.page_tokens - 1) / plan.policy.page_tokens));
    return plan.policy.page_tokens;
  };
  EXPECT_EQ(page_tokens(DType::kBF16, 1000, 0), 16);
  EXPECT_EQ(page_tokens(KvFormat(KvEncoding::kInt4), 1000, 0), 64);
  EXPECT_EQ(page_tokens(KvFormat(KvEncoding::kInt8), 1000, 0), 64);
  EXPECT_EQ(page_tokens(KvFormat(KvEncoding::kInt8), 901, 0), 64);
  EXPECT_EQ(page_tokens(KvFormat(KvEncoding::kInt4), 1000, 16), 16);
}

// Of layers that see a window the plan has the pages of the window and of a chunk, whatever the
// context; of the others those of the whole context.
TEST(Plan, WindowsBoundTheKvOfALongContext) {
  ModelShape model = shape_of("mistral-7b");
  const LayerState full{.heads = 8, .width = 128};
  LayerState windowed = full;
  windowed.window = 4096;
  Policy policy;
  policy.micro_batch_sequences = 2;
  const auto plan_of = [&](const std::vector<LayerState>& states, int64_t context) {
    model.set_states(states);
    PlanInput input = input_for(model, 0);
    input.workload = {.sequences = 2, .max_prompt_tokens = context, .max_total_tokens = context};
    return make_plan(input, policy);
  };
  const int64_t token_bytes = 2 * 8 * 128 * 2;  // of one layer
  const int64_t context = 131072;
  const std::vector<LayerState> all(32, windowed), none(32, full);
  EXPECT_EQ(plan_of(none, context).kv_memory_bytes(), 2 * 32 * context * token_bytes);
  // 512 tokens of a chunk see 4095 before them: 1 + ceil(4606 / 16) pages of 16.
  EXPECT_EQ(plan_of(all, context).kv_memory_bytes(), 2 * 32 * 289 * 16 * token_bytes);
  EXPECT_EQ(plan_of(all, 4000).kv_memory_bytes(), 2 * 32 * 4000 * token_bytes);
  // Gemma 3's kind: five of six layers see 1024.
  windowed.window = 1024;
  std::vector<LayerState> mixed;
  for (int layer = 0; layer < 32; ++layer) mixed.push_back(layer % 6 == 5 ? full : windowed);
  const Plan plan = plan_of(mixed, context);
  ASSERT_EQ(plan.kv.size(), 2u);
  EXPECT_EQ(plan.kv[0].num_layers, 27);
  EXPECT_EQ(plan.kv_memory_bytes(),
            2 * (27 * 97 * 16 + 5 * context) * token_bytes);  // 1 + ceil(1534 / 16) pages
  // On disk likewise, and a pass of one micro-batch stages no more than that.
  policy.kv = {0, 0, 1};
  const Plan below = plan_of(all, context);
  EXPECT_EQ(below.kv_disk_bytes(), 2 * 32 * 289 * 16 * token_bytes);
  EXPECT_EQ(below.kv.front().slot_pages, 2 * 289);
}

// A latent row a token and layer, whatever the heads; its exchange with the host has queries and
// outputs of that width and the row once. A matrix that is multiplied head by head is never the
// host's beside a device: what of it lies in host memory is sent up.
TEST(Plan, LatentRowsAreCountedOnceATokenAndLayer) {
  const ModelShape& model = shape_of("youtu-llm-2b");
  constexpr int64_t kContext = 4000, kRow = 2 * (512 + 64);
  PlanInput input = input_for(model, 0);
  input.workload = {.sequences = 2, .max_prompt_tokens = kContext, .max_total_tokens = kContext};
  Policy policy;
  policy.micro_batch_sequences = 2;
  EXPECT_EQ(make_plan(input, policy).kv_memory_bytes(), 2 * 32 * kContext * kRow);
  policy.kv = {0, 0, 1};
  EXPECT_EQ(make_plan(input, policy).kv_disk_bytes(), 2 * 32 * (kContext / 16) * 5 * 4096)
      << "pages of 16 rows are 18 KiB, whole blocks of the disk";
  Plan plan;
  plan.attention_slot_rows = 3;
  plan.kv.push_back({.state = model.state_groups.front().state});
  EXPECT_EQ(plan.attention_slot_bytes(model),
            round_up(3 * 4 * (2 * 16 * 576 + 576 + model.kept_columns), 64));

  input.device_budget_bytes = 80 * kGiB;
  policy.kv = {1, 0, 0};
  policy.weights = {0.2, 0.8, 0};
  policy.inplace_host_fraction = 0.5;
  const Plan shared = make_plan(input, policy);
  const SublayerShape& attention = model.sublayers[1];
  for (size_t w = 0; w < attention.weights.size(); ++w) {
    const WeightShape& weight = attention.weights[w];
    if (weight.kind != WeightKind::kMatrix) continue;
    EXPECT_EQ(shared.rows[1][w].inplace > 0, !weight.is_by_head) << weight.role;
    EXPECT_GT(shared.rows[1][w].host, 0) << weight.role;
  }
}

// Of experts the last panel of each is stored whole: what a plan says of its weights is what the
// shape says, wherever they lie.
TEST(Plan, CountsExpertsAsTheyAreStored) {
  ModelShape model = shape_of("qwen3-30b-a3b");
  model.set_weights(*parse_weight_format("int4"));
  for (SublayerShape& sublayer : model.sublayers)
    for (WeightShape& weight : sublayer.weights)
      if (weight.experts > 0) weight.rows = weight.experts * 17;
  PlanInput input = input_for(model, int64_t{1} << 42);
  input.device_budget_bytes = int64_t{1} << 42;
  for (const TierShares& shares :
       {TierShares{1, 0, 0}, TierShares{0, 1, 0}, TierShares{0, 0, 1}, TierShares{0.3, 0.7, 0}}) {
    Policy policy;
    policy.weights = shares;
    const Plan plan = make_plan(input, policy);
    EXPECT_EQ(plan.weight_bytes, model.weight_bytes());
    if (shares.disk == 0) {
      EXPECT_EQ(plan.resident_weight_bytes + plan.host_home_bytes, plan.weight_bytes);
    }
  }
}

TEST(RequireFit, SaysWhatIsShortWhatTakesItAndHowToMendIt) {
  const ModelShape& model = shape_of("opt-125m");
  PlanInput input = input_for(model, 100 * kMiB);
  Policy policy;
  policy.weights = memory_share(0.5);
  policy.kv = memory_share(0.5);
  const Plan plan = make_plan(input, policy);
  ASSERT_GT(plan.memory_bytes(), input.memory_budget_bytes);
  try {
    require_fit(input, plan);
    FAIL() << "does not fit and says nothing";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_NE(error.text().find("memory budget 100MiB"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find(format_bytes(plan.memory_bytes() - 100 * kMiB) + " short"),
              std::string::npos)
        << error.text();
    for (const PlanLine& entry : plan.memory)
      EXPECT_EQ(error.text().find(std::string(entry.what) + " " + format_bytes(entry.bytes)) !=
                    std::string::npos,
                entry.bytes > 0)
          << entry.what;
    EXPECT_NE(error.mend().find("`memory_budget_bytes`"), std::string::npos);
  }
  input.memory_budget_bytes = plan.memory_bytes();
  EXPECT_NO_THROW(require_fit(input, plan));
  input.memory_budget_bytes = plan.memory_bytes() - 1;
  EXPECT_THROW(require_fit(input, plan), Error);
}

// A token takes a row of a table, from wherever it lies, and all of what is multiplied.
TEST(Plan, TablesHaveWhatMatricesLeaveOfTheNearestMemory) {
  std::mt19937 random(5);
  for (const std::string& name : {"llama-3-8b", "gemma-3-1b", "gemma-4-e2b", "opt-1.3b", "gpt2"}) {
    const ModelShape& model = shape_of(name);
    const bool is_tied = model.sublayers.back().weights.back().shares_table;
    double total = 0, gathered = 0;
    for (const SublayerShape& sublayer : model.sublayers)
      for (const WeightShape& weight : sublayer.weights) {
        if (weight.kind == WeightKind::kVector || weight.shares_table) continue;
        const auto bytes = static_cast<double>(model.rows_bytes(weight, weight.rows));
        total += bytes;
        const bool is_first = &weight == &model.sublayers[0].weights[0];
        if (weight.kind == WeightKind::kTable && !(is_tied && is_first)) gathered += bytes;
      }
    const double border = (total - gathered) / total;
    for (const double share : {0.0, border / 2, border * 0.999, (1 + border) / 2, 1.0})
      for (const bool has_device : {false, true}) {
        PlanInput input = input_for(model, int64_t{1} << 42);
        Policy policy;
        policy.weights = has_device ? TierShares{0, share, 1 - share} : memory_share(share);
        if (has_device) {
          const double device = share * static_cast<double>(random() % 101) / 100;
          policy.weights = {device, share - device, 1 - share};
          input.device_budget_bytes = int64_t{1} << 42;
        }
        const Plan plan = make_plan(input, policy);
        double table_bytes = 0, matrix_bytes = 0;
        for (size_t s = 0; s < model.sublayers.size(); ++s)
          for (size_t w = 0; w < model.sublayers[s].weights.size(); ++w) {
            const WeightShape& weight = model.sublayers[s].weights[w];
            if (weight.kind == WeightKind::kVector || weight.shares_table) continue;
            const auto bytes =
                static_cast<double>(model.rows_bytes(weight, weight.rows - plan.rows[s][w].disk));
            const bool is_last = weight.kind == WeightKind::kTable && !(is_tied && s + w == 0);
            (is_last ? table_bytes : matrix_bytes) += bytes;
          }
        const std::string at = name + " at " + std::to_string(share);
        EXPECT_NEAR(matrix_bytes + table_bytes, share * total, 0.004 * total) << at;
        EXPECT_NEAR(table_bytes, std::max(share * total - (total - gathered), 0.0), 0.004 * total)
            << at;
      }
  }
}

TEST(RequireFit, TheBudgetThatItNamesIsEnough) {
  const ModelShape& model = shape_of("opt-1.3b");
  PlanInput input = input_for(model, kGiB);
  const Plan plan = make_plan(input, {});
  try {
    require_fit(input, plan);
    FAIL();
  } catch (const Error& error) {
    const std::string& mend = error.mend();
    const size_t begin = mend.find("`memory_budget_bytes` to ") + 25;
    input.memory_budget_bytes =
        parse_bytes(mend.substr(begin, mend.find(',') - begin), "named in the error");
    EXPECT_NO_THROW(require_fit(input, plan)) << mend;
  }
}

}  // namespace
}  // namespace sluice::policy
