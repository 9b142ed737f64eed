// Who computes, by class of pass: parts of a plan by class, the plans of large models on small
// machines held against arithmetic, borders against brute force.
#include "policy/pass_classes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "policy/search.h"
#include "src/base/bytes.h"
#include "src/schedule/weight_ring.h"
#include "tests/policy/machine_fixture.h"
#include "tests/policy/plan_fixture.h"

namespace sluice::policy {
namespace {

double share_drawn(std::mt19937& random) {
  return static_cast<double>(random() % 100001) / 100000.0;
}

Policy random_classes(std::mt19937& random) {
  Policy policy;
  const double device = share_drawn(random);
  const double host = (1 - device) * share_drawn(random);
  policy.weights = {device, host, 1 - device - host};
  policy.inplace_host_fraction = host * share_drawn(random);
  int64_t from = 1;
  for (size_t more = random() % kMostPassClasses; more > 0; --more) {
    from += 1 + static_cast<int64_t>(random() % 100);
    policy.larger_passes.push_back({from, random() % 4 ? host * share_drawn(random) : 0});
  }
  return policy;
}

// In every class each row is computed once: where it lies on the device, in place, or loaded.
TEST(PassClasses, EveryRowIsComputedOnceInEveryClass) {
  std::mt19937 random(61);
  for (const std::string& name : tested_models()) {
    const ModelShape& model = shape_of(name);
    for (int round = 0; round < 20; ++round) {
      PlanInput input = input_for(model, int64_t{1} << 42);
      input.device_budget_bytes = int64_t{1} << 42;
      input.row_granule = int64_t{1} << random() % 8;
      const Policy policy = random_classes(random);
      const Plan plan = make_plan(input, policy);
      ASSERT_EQ(plan.classes.size(), policy.pass_classes());
      int64_t most_inplace = 0;
      for (size_t c = 0; c < plan.classes.size(); ++c) {
        const PassClass& one = plan.classes[c];
        int64_t inplace_bytes = 0;
        int64_t sent_bytes = 0;
        int64_t ring = 0;
        for (size_t s = 0; s < model.sublayers.size(); ++s) {
          std::vector<int64_t> end;  // of the rows that are computed so far
          int64_t streamed = 0;
          for (size_t w = 0; w < model.sublayers[s].weights.size(); ++w) {
            const WeightShape& weight = model.sublayers[s].weights[w];
            end.push_back(plan.rows[s][w].resident + one.inplace_rows(s, w));
            if (weight.kind != WeightKind::kMatrix) continue;
            ASSERT_LE(one.inplace_rows(s, w), plan.rows[s][w].inplace);
            inplace_bytes += model.rows_bytes(weight, one.inplace_rows(s, w));
          }
          for (const PlanPart& part : plan.parts[s]) {
            if (!part.is_loaded_in(c)) continue;
            const auto w = static_cast<size_t>(part.weight);
            ASSERT_EQ(part.row, end[w]) << "parts follow each other";
            end[w] += part.rows;
            streamed += part.bytes;
            if (!part.from_disk)
              sent_bytes += model.rows_bytes(model.sublayers[s].weights[w], part.rows);
          }
          for (size_t w = 0; w < end.size(); ++w)
            if (model.sublayers[s].weights[w].kind == WeightKind::kMatrix)
              ASSERT_EQ(end[w], model.sublayers[s].weights[w].rows) << name << " class " << c;
          ring = std::max(ring, streamed);
        }
        ASSERT_EQ(one.inplace_weight_bytes, inplace_bytes);
        ASSERT_EQ(one.sent_weight_bytes, sent_bytes);
        ASSERT_GE(plan.ring_bytes, ring) << "a sublayer of any class fits";
        most_inplace = std::max(most_inplace, inplace_bytes);
        // The share of all that was asked for, to within a granule of each matrix. Tables that no
        // head multiplies come last; tied ones lie as matrices do, and are not multiplied here.
        const double asked = policy.execution(c).inplace_host_fraction;
        double matrices = 0, tied = 0, last = 0, granules = 0;
        for (const SublayerShape& sublayer : model.sublayers)
          for (const WeightShape& weight : sublayer.weights) {
            if (weight.kind == WeightKind::kVector || weight.shares_table) continue;
            const auto bytes = static_cast<double>(model.rows_bytes(weight, weight.rows));
            const bool is_tied = model.sublayers.back().weights.back().shares_table;
            if (weight.kind == WeightKind::kTable)
              (is_tied && tied == 0 ? tied : last) += bytes;
            else
              matrices += bytes;
            granules += static_cast<double>(input.row_granule * model.row_bytes(weight));
          }
        const double before = policy.weights.device;
        const auto of_matrices = [&](double share) {
          return std::min(share * (matrices + tied + last) / (matrices + tied), 1.0) * matrices;
        };
        EXPECT_NEAR(static_cast<double>(inplace_bytes),
                    of_matrices(before + asked) - of_matrices(before), granules);
        if (asked == 0) EXPECT_EQ(inplace_bytes, 0);
      }
      ASSERT_GE(plan.inplace_weight_bytes, most_inplace);
    }
  }
}

TEST(PassClasses, EqualOnesAreOne) {
  Policy policy;
  policy.weights = {0, 1, 0};
  policy.inplace_host_fraction = 0.5;
  policy.larger_passes = {{4, 0.5},
                          {9, 0.5, AttentionPlace::kHost},
                          {20, 0.5, AttentionPlace::kHost},
                          {40, 0.5, AttentionPlace::kHost, 64},
                          {80, 0}};
  drop_equal_classes(policy);
  ASSERT_EQ(policy.larger_passes.size(), 3u);
  EXPECT_EQ(policy.larger_passes[0].from_tokens, 9);
  EXPECT_EQ(policy.larger_passes[1].from_tokens, 40);
  EXPECT_EQ(policy.larger_passes[2].from_tokens, 80);
}

struct LargeCase {
  const char* machine;
  const char* model;
  const char* weights;
  int64_t host;
  int64_t prompt;
  int64_t sequences = 1;
};

std::ostream& operator<<(std::ostream& out, const LargeCase& one) {
  return out << one.model << " " << one.weights << " on " << one.machine << ", prompt "
             << one.prompt;
}

// 128 new tokens; sizes that kernels need as on a machine that is not here.
struct Found {
  ModelShape model;
  Profile profile;
  SearchRequest request;
  SearchResult result;
};

std::unique_ptr<Found> find(const LargeCase& one, bool one_class) {
  auto out = std::make_unique<Found>();
  out->model = shape_of(one.model);
  if (*one.weights) out->model.set_weights(*parse_weight_format(one.weights));
  out->profile = *shipped_profile(one.machine);
  SearchRequest& request = out->request;
  request.input = input_for(out->model, one.host > 0 ? one.host : out->profile.host_bytes);
  request.input.device_budget_bytes = out->profile.device_bytes;
  request.input.kv_dtype = out->model.weight_dtype;
  request.input.row_granule = 64;
  request.input.workload = {one.sequences, one.prompt, one.prompt + 128,
                            one.sequences * (one.prompt + 128)};
  request.profile = &out->profile;
  request.job = {one.sequences, static_cast<double>(one.prompt), 128, one.prompt, 128};
  if (one_class) request.constraints.inplace_host_fraction = 0.0;
  out->result = search_policy(request);
  return out;
}

// What a prompt can not be faster than, from the plan's bytes and the model's operations alone: all
// that lies below the device up the link once a pass, and every product on the device.
double arithmetic_seconds(const Found& found, int64_t prompt) {
  const Plan& plan = found.result.best.plan;
  const auto passes = static_cast<double>((prompt + plan.pass_tokens - 1) / plan.pass_tokens);
  const auto below = static_cast<double>(plan.weight_bytes - plan.resident_weight_bytes);
  const double link = passes * below / found.profile.link.to_device.value;
  double device = 0;
  const auto rows = std::min(prompt, plan.policy.micro_batch_tokens);
  for (const SublayerShape& sublayer : found.model.sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.kind == WeightKind::kMatrix && sublayer.kind != SublayerKind::kHead)
        device += static_cast<double>(prompt) / static_cast<double>(rows) *
                  matmul_seconds(*found.profile.device, found.model.format_of(weight), false, rows,
                                 weight.rows, weight.cols);
  const double pairs = static_cast<double>(prompt) * static_cast<double>(prompt) / 2;
  device += prefill_attention_seconds(
      *found.profile.device, found.model.weight_dtype,
      4 * pairs *
          static_cast<double>(found.model.num_heads * found.model.head_dim *
                              found.model.num_layers));
  return std::max(link, device);
}

TEST(PassClasses, APromptTakesWhatTheLinkOrTheDeviceTakesAndDecodeIsTheHosts) {
  for (const LargeCase& one : {LargeCase{"rtx-4090", "llama-3.1-70b", "int4", 64 * kGiB, 128},
                               LargeCase{"rtx-4090", "llama-3.1-70b", "int4", 64 * kGiB, 512},
                               LargeCase{"rtx-4090", "llama-3.1-70b", "int4", 64 * kGiB, 2048},
                               LargeCase{"rtx-4090", "llama-3.1-70b", "int4", 64 * kGiB, 8192},
                               LargeCase{"rtx-4090", "llama-3.1-405b", "int4", 256 * kGiB, 512},
                               LargeCase{"laptop-8gb", "llama-3-8b", "", 0, 512},
                               LargeCase{"laptop-8gb", "qwen2.5-32b", "int4", 0, 512}}) {
    SCOPED_TRACE(one);
    const auto found = find(one, false);
    const Prediction& p = prediction_of(found->result.best);
    const Plan& plan = found->result.best.plan;
    EXPECT_LE(p.prefill_seconds, 1.3 * arithmetic_seconds(*found, one.prompt));
    // Without rows in place both phases wait for the link alone.
    const auto sent_up = find(one, true);
    EXPECT_LT(p.decode_seconds, 0.75 * prediction_of(sent_up->result.best).decode_seconds);
    EXPECT_LE(p.prefill_seconds, 1.3 * prediction_of(sent_up->result.best).prefill_seconds);
    // Rows in place are multiplied by the host: its lane says so, in decode.
    EXPECT_GT(plan.classes.front().inplace_weight_bytes, plan.weight_bytes / 10);
    EXPECT_GT(p.decode_lanes[Lane::kHostCompute], 0.5 * p.decode_seconds);
    EXPECT_LT(p.decode_lanes[Lane::kDeviceCompute], 0.5 * p.decode_seconds);
    EXPECT_GE(p.decode_held_seconds, p.decode_lanes[Lane::kDeviceCompute]);
    EXPECT_NO_THROW(validate(found->result.best.policy));
  }
}

// A pass of any size is in the class whose modelled time is least, or all but.
TEST(PassClasses, BordersLieWhereTheModelCrosses) {
  for (const LargeCase& one : {LargeCase{"rtx-4090", "llama-3.1-70b", "int4", 64 * kGiB, 512},
                               LargeCase{"laptop-8gb", "llama-3-8b", "", 0, 512},
                               LargeCase{"rtx-3060", "llama-2-13b", "", 0, 1000}}) {
    SCOPED_TRACE(one);
    const auto found = find(one, false);
    const Candidate& best = found->result.best;
    if (best.policy.larger_passes.empty()) continue;
    for (const int64_t tokens : {1, 2, 3, 5, 8, 12, 16, 24, 32, 48, 64, 100, 200, 400, 512}) {
      if (tokens > best.plan.pass_tokens) continue;
      double least = 1e300;
      for (size_t c = 0; c < best.plan.classes.size(); ++c)
        least = std::min(
            least, pass_seconds(found->model, best.plan, found->profile,
                                found->request.input.kv_dtype, found->request.job, c, tokens));
      const double taken =
          pass_seconds(found->model, best.plan, found->profile, found->request.input.kv_dtype,
                       found->request.job, best.policy.pass_class_of(tokens), tokens);
      EXPECT_LE(taken, least * 1.1) << tokens << " tokens";
    }
  }
}

// No share in place, of decode or of prompts, makes the whole job much faster than the one found.
// Where products in place and the device's run beside each other, straight lines over shares ask
// for too few.
TEST(PassClasses, SharesAreTheFastestOfAllShares) {
  for (const LargeCase& one : {LargeCase{"laptop-8gb", "llama-3-8b", "", 0, 256, 4},
                               LargeCase{"laptop-8gb", "llama-3-8b", "", 0, 512},
                               LargeCase{"rtx-4090", "llama-3.1-70b", "int4", 64 * kGiB, 2048},
                               LargeCase{"rtx-4090", "llama-3.1-70b", "int4", 64 * kGiB, 512, 32},
                               LargeCase{"t4", "opt-30b", "", 0, 512, 8}}) {
    SCOPED_TRACE(one);
    const auto found = find(one, false);
    const PlanInput& input = found->request.input;
    const auto seconds = [&](const Policy& policy) {
      return predict(found->model, make_plan(input, policy), found->profile, input.kv_dtype,
                     found->request.job)
          .seconds();
    };
    const Policy& best = found->result.best.policy;
    const double taken = seconds(best);
    for (int i = 0; i <= 20; ++i) {
      Policy other = best;
      other.inplace_host_fraction = best.weights.host * i / 20;
      if (fits(input, make_plan(input, other)))
        EXPECT_LE(taken, 1.03 * seconds(other)) << "decode " << i;
      if (best.larger_passes.empty()) continue;
      other = best;
      other.larger_passes.back().inplace_host_fraction = best.weights.host * i / 20;
      if (fits(input, make_plan(input, other)))
        EXPECT_LE(taken, 1.03 * seconds(other)) << "prompts " << i;
    }
  }
}

// A server that is planned for many callers and has one: no share in place is much faster than that
// of its class. Held against a grid of shares.
TEST(PassClasses, FewOfManySequencesAreComputedAsTheyAreFastest) {
  int with_own_class = 0;
  for (const LargeCase& one : {LargeCase{"rtx-4090", "llama-3.1-70b", "int4", 64 * kGiB, 512, 8},
                               LargeCase{"rtx-4090", "llama-3.1-70b", "int4", 64 * kGiB, 512, 32},
                               LargeCase{"laptop-8gb", "llama-3-8b", "", 0, 256, 4}}) {
    SCOPED_TRACE(one);
    const auto found = find(one, false);
    const Policy& policy = found->result.best.policy;
    const auto seconds = [&](const Plan& plan, int64_t tokens) {
      return pass_seconds(found->model, plan, found->profile, found->request.input.kv_dtype,
                          found->request.job, plan.policy.pass_class_of(tokens), tokens);
    };
    const double alone = seconds(found->result.best.plan, 1);
    for (int i = 0; i <= 20; ++i) {
      Policy other = policy;
      other.larger_passes.clear();
      other.inplace_host_fraction = policy.weights.host * i / 20;
      EXPECT_LE(alone, 1.08 * seconds(make_plan(found->request.input, other), 1)) << i;
    }
    const int64_t block = std::min(policy.block_sequences(), one.sequences);
    for (int64_t tokens = 1; tokens <= block; ++tokens) {
      double least = 1e300;
      for (size_t c = 0; c < policy.pass_classes(); ++c)
        least = std::min(
            least, pass_seconds(found->model, found->result.best.plan, found->profile,
                                found->request.input.kv_dtype, found->request.job, c, tokens));
      EXPECT_LE(seconds(found->result.best.plan, tokens), 1.1 * least) << tokens;
    }
    with_own_class += block > 1 && policy.pass_class_of(1) != policy.pass_class_of(block);
  }
  EXPECT_GT(with_own_class, 0) << "no case was met";
}

// Of K types alone, int8 activations change nothing on a GPU; codes of 4 bits they do.
TEST(PassClasses, GpusMultiplyKTypesWithInputsOf16Bits) {
  for (const char* format : {"q4_k", "q6_k", "int4"}) {
    const auto found = find(LargeCase{"rtx-4090", "llama-3-8b", format, 64 * kGiB, 512}, false);
    Plan plan = found->result.best.plan;
    found->profile.device->matmul.push_back(
        {*parse_weight_format("int4-g64"), 512, 4096, 4096, {1e18}, true});
    const auto seconds = [&](bool is_eight_bit) {
      plan.eight_bit_activations = is_eight_bit;
      return pass_seconds(found->model, plan, found->profile, found->request.input.kv_dtype,
                          found->request.job, 0, plan.pass_tokens);
    };
    const double in_16_bits = seconds(false);
    const double in_8_bits = seconds(true);
    const bool is_k = parse_weight_format(format)->is_k();
    EXPECT_TRUE(is_k ? in_8_bits == in_16_bits : in_8_bits < 0.95 * in_16_bits)
        << format << ": " << in_8_bits << " and " << in_16_bits;
  }
}

// What an engine chooses by is what the model says, in every class and at sizes between, too.
TEST(PassClasses, EstimatesAreTheModels) {
  const auto found = find(LargeCase{"rtx-4090", "llama-3.1-70b", "int4", 64 * kGiB, 512}, false);
  const Plan& plan = found->result.best.plan;
  ASSERT_GE(plan.classes.size(), 2u);
  const auto& input = found->request.input;
  const PassEstimates estimates =
      pass_estimates(found->model, plan, found->profile, input.kv_dtype, found->request.job);
  ASSERT_EQ(estimates.classes.size(), plan.classes.size());
  EXPECT_EQ(estimates.up_rate, found->profile.link.to_device.value);
  for (size_t c = 0; c < plan.classes.size(); ++c) {
    for (const int64_t tokens : {int64_t{1}, int64_t{3}, int64_t{16}, int64_t{50}, int64_t{300},
                                 plan.pass_tokens, 2 * plan.pass_tokens}) {
      const PassEstimate one = estimates.at(c, tokens);
      const double modelled =
          pass_seconds(found->model, plan, found->profile, input.kv_dtype, found->request.job, c,
                       std::min(tokens, plan.pass_tokens));
      const bool is_between = tokens > 4 && tokens < plan.pass_tokens;
      EXPECT_NEAR(one.seconds, modelled, (is_between ? 0.1 : 1e-9) * modelled)
          << "class " << c << ", " << tokens << " tokens";
      EXPECT_GE(one.seconds, 0.999 * std::max({one.held, one.up, one.others}));
      EXPECT_GE(one.held, std::max(one.device, one.inplace) * 0.999);
      EXPECT_LE(one.held, (one.device + one.inplace) * 1.001);
    }
    const auto bytes = static_cast<double>(plan.classes[c].sent_weight_bytes);
    EXPECT_GE(estimates.at(c, 1).up, bytes / estimates.up_rate);
  }
  EXPECT_GT(estimates.at(0, 1).inplace, 0);
  Plan one_class = plan;
  one_class.classes.resize(1);
  one_class.policy.larger_passes.clear();
  EXPECT_TRUE(
      pass_estimates(found->model, one_class, found->profile, input.kv_dtype, found->request.job)
          .classes.empty())
      << "nothing to choose between";
}

// A query of a long context is attended where its keys lie; a chunk of many brings them up.
TEST(PassClasses, ChunksAreAttendedOnTheHostUpToTheLinksTime) {
  const Profile profile = plain_machine(true);
  const ModelShape& model = shape_of("llama-2-7b");
  JobShape job;
  job.prompt_tokens = 10000;
  job.new_tokens = 2;
  // 1e4 positions x 16 KiB up at 1e10 B/s, against 4 x 1e4 x 4096 operations at 1e12 a token, and
  // its query and output.
  const double up = 10001.0 * 16384 / 1e10;
  const double of_token = 4 * 10001.0 * 4096 / 1e12 + 4 * 4096 * 2 / 1e10;
  EXPECT_EQ(host_attention_tokens(model, profile, DType::kF16, job),
            static_cast<int64_t>(up / of_token));
  Profile fast_link = profile;
  fast_link.link.to_device.value = fast_link.link.to_host.value = 1e14;
  EXPECT_EQ(host_attention_tokens(model, fast_link, DType::kF16, job), 1) << "a query at least";
}

}  // namespace
}  // namespace sluice::policy
