// What every plan that the search finds must keep to, on the machines that are shipped: nothing
// moves or computes faster than the machine can, no hand-made policy is much better, prompts of one
// length are not worse than longer ones.
#include <gtest/gtest.h>

#include <cmath>

#include "policy/search.h"
#include "policy/simulator.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "tests/policy/machine_fixture.h"
#include "tests/policy/plan_fixture.h"
#include "tests/rounds.h"

namespace sluice::policy {
namespace {

struct Question {
  std::string machine;
  std::string model;
  std::string weights;  // "" or a quantised format
  int64_t sequences;
  int64_t prompt;
  int64_t fresh;
};

struct Asked {
  Profile profile;
  ModelShape model;
  SearchRequest request;
};

std::unique_ptr<Asked> ask(const Question& q) {
  auto out = std::make_unique<Asked>();
  out->profile = *shipped_profile(q.machine);
  out->model = shape_of(q.model);
  if (!q.weights.empty()) out->model.set_weights(*parse_weight_format(q.weights));
  SearchRequest& request = out->request;
  request.input = input_for(out->model, out->profile.host_bytes);
  request.input.device_budget_bytes = out->profile.device_bytes;
  request.input.disk_budget_bytes = out->profile.disk_bytes;
  request.input.kv_dtype = DType::kF16;
  request.input.load_staging_bytes = 16 * kMiB;
  request.input.workload = {q.sequences, q.prompt, q.prompt + q.fresh,
                            q.sequences * (q.prompt + q.fresh)};
  request.profile = &out->profile;
  request.job = {q.sequences, static_cast<double>(q.prompt), static_cast<double>(q.fresh), q.prompt,
                 q.fresh};
  request.simulated_candidates = 6;
  return out;
}

double rate_of(const SearchResult& result, const Question& q) {
  const Prediction& p = prediction_of(result.best);
  const double rounds =
      std::ceil(static_cast<double>(q.sequences) / static_cast<double>(p.block_sequences));
  return static_cast<double>(q.sequences * q.fresh) / (rounds * p.seconds());
}

// What a block moves and computes, counted from its passes without the cost model.
struct Moved {
  double up = 0, down = 0, disk_read = 0, disk_write = 0;
  double host_memory = 0;
  double device_flops = 0, host_flops = 0;
  double device_attention_flops = 0;  // of chunks of prompts
};

double product_flops(const ModelShape& model, const Plan& plan, const BatchWork& work,
                     bool on_host) {
  double sum = 0;
  for (size_t i = 0; i < model.sublayers.size(); ++i)
    for (size_t w = 0; w < model.sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = model.sublayers[i].weights[w];
      if (weight.kind != WeightKind::kMatrix) continue;
      const bool is_head = model.sublayers[i].kind == SublayerKind::kHead;
      const auto rows = static_cast<double>(is_head ? work.logit_rows : work.tokens);
      const int64_t inplace = plan.classes[work.pass_class].inplace_rows(i, w);
      const int64_t here = on_host ? inplace : weight.rows - inplace;
      sum += 2 * rows * static_cast<double>(here) * static_cast<double>(weight.cols);
    }
  return sum;
}

void count_pass(const ModelShape& model, const Plan& plan, KvFormat kv, const PassWork& pass,
                double scale, Moved& out) {
  const auto visits = static_cast<double>(model.sublayers.size()) - 1;
  double inplace_bytes = 0;
  for (size_t i = 0; i < model.sublayers.size(); ++i)
    for (size_t w = 0; w < model.sublayers[i].weights.size(); ++w)
      inplace_bytes += static_cast<double>(model.rows_bytes(
          model.sublayers[i].weights[w], plan.classes[pass.pass_class].inplace_rows(i, w)));
  const auto disk_weights = static_cast<double>(plan.streamed_weight_bytes);
  const double up_weights =
      disk_weights + static_cast<double>(plan.classes[pass.pass_class].sent_weight_bytes);
  double up = up_weights, down = 0, read = disk_weights, write = 0, attended = 0;
  for (size_t i = 0; i < pass.loads.size(); ++i) {
    const MicroBatchLoad& load = pass.loads[i];
    const BatchWork& work = pass.work[i];
    const auto rows = static_cast<double>(load.activation_up_bytes);
    up += visits * rows;
    down += visits * rows;
    read += visits * static_cast<double>(load.activation_bytes);
    write += visits * static_cast<double>(load.activation_bytes);
    for (size_t group = 0; group < model.state_groups.size(); ++group) {
      const StateBytes& state = load.state.at(group);
      const auto layers = static_cast<double>(model.state_groups[group].num_layers);
      up += layers * static_cast<double>(state.up + state.outputs);
      down += layers * static_cast<double>(state.down + state.queries);
      read += layers * static_cast<double>(state.load);
      write += layers * static_cast<double>(state.store);
      out.device_attention_flops += scale * layers * work.attention.at(group).prefill_pairs * 4 *
                                    static_cast<double>(model.num_heads * model.head_dim);
      attended += layers * work.attention.at(group).host_history_tokens *
                  static_cast<double>(model.state_groups[group].state.token_bytes(kv));
    }
    out.device_flops += scale * product_flops(model, plan, work, false);
    out.host_flops += scale * product_flops(model, plan, work, true);
  }
  if (!plan.has_device) up = down = 0;
  out.up += scale * up;
  out.down += scale * down;
  out.disk_read += scale * read;
  out.disk_write += scale * write;
  // Every micro-batch reads the rows that are multiplied in place.
  out.host_memory += scale * (up + down + read + write + attended +
                              inplace_bytes * static_cast<double>(pass.loads.size()));
}

double peak(const Processor& processor) {
  double most = 0;
  for (const MatmulRate& row : processor.matmul) most = std::max(most, row.flops.value);
  return most;
}

const std::vector<Question>& questions() {
  static const std::vector<Question> list{{"t4", "opt-30b", "", 80, 600, 32},
                                          {"t4", "llama-3.1-70b", "int4", 96, 2048, 64},
                                          {"rtx-4090", "opt-30b", "", 64, 1024, 64},
                                          {"rtx-4090", "llama-3.1-70b", "int4", 16, 512, 128},
                                          {"rtx-4090", "llama-3.1-70b", "int4", 17, 512, 128},
                                          {"laptop-8gb", "llama-2-7b", "", 24, 100, 50},
                                          {"rtx-3060", "opt-66b", "int4", 40, 300, 40},
                                          {"rtx-3090", "llama-2-13b", "", 1, 1000, 100},
                                          {"h100", "llama-3.1-8b", "", 11, 6000, 1},
                                          {"rtx-4090", "llama-3.1-8b", "", 3, 30000, 2},
                                          {"laptop-8gb", "llama-3.1-8b", "int4", 2, 100000, 8},
                                          {"t4", "llama-3.1-70b", "int4", 5, 17000, 16}};
  return list;
}

TEST(SearchProperties, NoPlanMovesOrComputesFasterThanTheMachine) {
  for (const Question& q : some(questions())) {
    const auto asked = ask(q);
    const SearchResult found = search_policy(asked->request);
    const std::string name = q.machine + " " + q.model + " " + std::to_string(q.sequences);
    for (const Candidate& one : found.ranked) {
      const Prediction& p = prediction_of(one);
      const double seconds = p.seconds() * 1.001;  // of sampled passes, in whole bytes
      const BlockPasses block =
          block_passes(asked->model, one.plan, asked->request.job, 1000, 1000);
      Moved moved;
      for (size_t i = 0; i < block.passes.size(); ++i)
        count_pass(asked->model, one.plan, asked->request.input.kv_dtype, block.passes[i],
                   block.passes[i].passes, moved);
      const Profile& profile = asked->profile;
      EXPECT_LE(moved.up, seconds * profile.link.to_device.value) << name;
      EXPECT_LE(moved.down, seconds * profile.link.to_host.value) << name;
      EXPECT_LE(moved.disk_read, seconds * profile.disk_read()) << name;
      EXPECT_LE(moved.disk_write, seconds * profile.disk_write()) << name;
      EXPECT_LE(moved.host_memory, seconds * profile.host.memory_read.value) << name;
      EXPECT_LE(moved.host_flops, seconds * peak(profile.host)) << name;
      const double attention = prefill_attention_seconds(
          *profile.device, asked->request.input.kv_dtype, moved.device_attention_flops);
      EXPECT_LE(moved.device_flops / peak(*profile.device) + attention, seconds) << name;
    }
  }
}

// Copies up, attention on the host and rows in place at once, on a memory that is slower than each
// alone.
TEST(SearchProperties, WhatMovesThroughTheHostsMemoryIsNoFasterThanItIs) {
  const auto asked = ask({"t4", "opt-30b", "", 32, 128, 32});
  Policy policy;
  policy.weights = {0.125, 0.875, 0};
  policy.inplace_host_fraction = 0.25;
  policy.kv = {0, 1, 0};
  policy.attention = AttentionPlace::kHost;
  policy.micro_batch_sequences = 8;
  policy.micro_batches = 4;
  const KvFormat kv = asked->request.input.kv_dtype;
  for (const double memory : {3e9, 10e9, 30e9}) {
    asked->profile.host.memory_read.value = memory;
    const SearchResult result = evaluate_policy(asked->request, policy);
    const BlockPasses block =
        block_passes(asked->model, result.best.plan, asked->request.job, 1000, 1000);
    Moved moved;
    for (size_t i = 0; i < block.passes.size(); ++i)
      count_pass(asked->model, result.best.plan, kv, block.passes[i], 1, moved);
    for (const Prediction& p : {result.best.predicted, *result.best.simulated}) {
      EXPECT_GE(p.seconds() * 1.03, moved.host_memory / memory) << memory;
      EXPECT_NEAR(p.host_memory_seconds(), moved.host_memory / memory,
                  0.05 * moved.host_memory / memory);
    }
  }
}

TEST(SearchProperties, APromptIsNotWorseThanALongerOne) {
  for (const auto& [machine, model, weights] : some(std::vector{
           std::tuple{"t4", "opt-30b", ""}, std::tuple{"rtx-4090", "llama-3.1-70b", "int4"}})) {
    double before = 1e300;
    for (const int64_t prompt : {512, 513, 600, 1000, 1024, 1500}) {
      const Question q{machine, model, weights, 24, prompt, 32};
      const double rate = rate_of(search_policy(ask(q)->request), q);
      EXPECT_LE(rate, before * 1.03)
          << "a longer prompt is not faster: " << machine << " " << prompt;
      before = rate;
    }
  }
}

// By hand: any size of micro-batch in sequences and in tokens, with the shares that the search
// found.
TEST(SearchProperties, NoHandMadeBlockIsMuchBetter) {
  for (const Question& q : some(std::vector{Question{"t4", "opt-30b", "", 80, 1024, 32},
                                            Question{"t4", "opt-6.7b", "", 48, 700, 32}})) {
    const auto asked = ask(q);
    const SearchResult found = search_policy(asked->request);
    const double ours = rate_of(found, q);
    for (const int64_t size : {1, 10, 20, 80})
      for (const int64_t tokens : {int64_t{512}, q.prompt, 4 * q.prompt}) {
        if (size > q.sequences) continue;
        SearchRequest by_hand = asked->request;
        by_hand.constraints.micro_batch_sequences = size;
        by_hand.constraints.micro_batches = (q.sequences + size - 1) / size;
        by_hand.constraints.micro_batch_tokens = tokens;
        by_hand.simulated_candidates = 2;
        double rate = 0;
        try {
          rate = rate_of(search_policy(by_hand), q);
        } catch (const Error&) {
          continue;  // does not fit
        }
        EXPECT_LE(rate, ours * 1.03)
            << q.machine << " " << q.model << ": " << size << " sequences, " << tokens << " tokens";
      }
  }
}

// More memory of either kind takes no plan away: what was planned before fits still.
TEST(SearchProperties, MoreMemoryIsNeverSlower) {
  std::mt19937 random(48);
  const std::vector<std::pair<const char*, const char*>> models{
      {"qwen3-30b-a3b", "int4"}, {"gpt-oss-20b", "mxfp4"}, {"mixtral-8x7b", "int4"},
      {"llama-2-7b", ""},        {"glm-4.5-air", "int4"},  {"deepseek-v3", "int4"}};
  for (int round = 0; round < rounds(8); ++round) {
    const auto& [name, weights] = models[static_cast<size_t>(round) % models.size()];
    const int64_t sequences = std::vector<int64_t>{1, 1, 4, 40}[random() % 4];
    auto asked = ask({"rtx-3090", name, weights, sequences, 300, 100});
    asked->profile = random_machine(random, true);
    asked->request.simulated_candidates = 4;
    const auto bytes = static_cast<double>(asked->model.weight_bytes());
    const bool grows_device = random() % 3 == 0;
    double device = 0.15 + 0.2 * static_cast<double>(random() % 4);
    double host = grows_device ? 1.3 : 0.45, before = 1e300;
    for (int step = 0; step < 8; ++step) {
      asked->request.input.device_budget_bytes = static_cast<int64_t>(device * bytes) + kGiB;
      asked->request.input.memory_budget_bytes = static_cast<int64_t>(host * bytes) + 2 * kGiB;
      const SearchResult found = search_policy(asked->request);
      const Prediction& p = prediction_of(found.best);
      const double seconds = p.seconds() * std::ceil(static_cast<double>(sequences) /
                                                     static_cast<double>(p.block_sequences));
      // Several sequences of a mixture have blocks of many forms, not all of which are simulated.
      EXPECT_LE(seconds, before * (sequences == 1 ? 1.03 : 1.1))
          << name << " " << weights << ", " << sequences << " sequences, device " << device
          << ", host " << host << " of the weights, round " << round;
      before = std::min(before, seconds);
      (grows_device ? device : host) *= step < 4 ? 1.08 : 1.3;
    }
  }
}

TEST(SearchProperties, KvIsNotOnDiskWhereMemoryIsFree) {
  std::mt19937 random(77);
  int below = 0;
  for (int round = 0; round < rounds(24); ++round) {
    const bool has_device = round % 2 == 0;
    const Profile profile = random_machine(random, has_device);
    SearchRequest request;
    const ModelShape& model = shape_of("tinyllama-1.1b");
    const int64_t sequences = 1 + static_cast<int64_t>(random() % 40);
    request.input = input_for(model, static_cast<int64_t>(1 + random() % 12) * kGiB / 2);
    request.input.device_budget_bytes = has_device ? kGiB : 0;
    request.profile = &profile;
    request.job = {sequences, 64, 32, 64, 32};
    request.input.workload = {sequences, 64, 96, 96 * sequences};
    const Plan plan = search_policy(request).best.plan;
    const int64_t free = request.input.memory_budget_bytes - plan.memory_bytes();
    const int64_t kv_on_disk = plan.kv.front().bytes_of(plan.kv.front().disk_pages);
    if (plan.streamed_weight_bytes > 0) ++below;
    EXPECT_TRUE(kv_on_disk == 0 || free < kv_on_disk)
        << "round " << round << ": " << format_bytes(kv_on_disk) << " of KV on disk, "
        << format_bytes(free) << " of memory free";
    // Whatever is read in every pass is better kept in memory than nothing.
    EXPECT_TRUE(plan.streamed_weight_bytes == 0 || free < request.input.memory_budget_bytes / 8 ||
                has_device)
        << "round " << round;
  }
  EXPECT_GT(below, rounds(3)) << "some stream";
}

TEST(SearchProperties, LongPromptsAreSampledNotWalked) {
  for (const int64_t prompt : {32768, 200000}) {
    const Question q{"rtx-4090", "llama-2-7b", "", 8, prompt, 32};
    const SearchResult found = search_policy(ask(q)->request);
    EXPECT_GT(rate_of(found, q), 0);
    EXPECT_LT(found.linear_programs, 4000);
  }
}

TEST(SearchProperties, AStopEndsTheSearch) {
  const auto asked = ask(questions().front());
  std::stop_source stop;
  stop.request_stop();
  asked->request.stop = stop.get_token();
  try {
    search_policy(asked->request);
    FAIL() << "went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
  }
}

TEST(SearchProperties, APolicyGivenIsEvaluatedAsItIs) {
  const auto asked = ask(questions().front());
  Policy policy;
  policy.weights = {0.125, 0.625, 0.25};
  policy.kv = {0, 1, 0};
  policy.attention = AttentionPlace::kHost;
  policy.micro_batch_sequences = 16;
  policy.micro_batches = 5;
  policy.micro_batch_tokens = 333;
  policy.pass_tokens = 7777;
  policy.page_tokens = 32;
  policy.inplace_host_fraction = 0.125;
  const SearchResult result = evaluate_policy(asked->request, policy);
  EXPECT_EQ(policy_to_json(result.best.policy), policy_to_json(policy));
  EXPECT_EQ(result.candidates, 1);
  const Prediction again = simulate_block(asked->model, result.best.plan, asked->profile,
                                          asked->request.input.kv_dtype, asked->request.job);
  EXPECT_EQ(prediction_of(result.best).seconds(), again.seconds());
  policy.weights = {1, 0, 0};
  EXPECT_THROW(evaluate_policy(asked->request, policy), Error) << "60 GB in 16";
}

TEST(SearchProperties, ABoundThatCanNotBeKeptNamesTheSmallestThatCan) {
  const auto asked = ask({"t4", "opt-6.7b", "", 32, 200, 16});
  SearchRequest& request = asked->request;
  request.objective = Objective::kThroughputUnderLatency;
  request.latency_bound_seconds = 1e-3;
  try {
    search_policy(request);
    FAIL() << "in a millisecond";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    const std::string mend = error.mend();
    const size_t at = mend.find("`latency_bound_seconds` ");
    ASSERT_NE(at, std::string::npos) << mend;
    request.latency_bound_seconds = std::stod(mend.substr(at + 24));
    EXPECT_LE(prediction_of(search_policy(request).best).seconds(),
              request.latency_bound_seconds * 1.03);
    request.latency_bound_seconds *= 0.9;
    EXPECT_THROW(search_policy(request), Error) << "and it is the smallest";
  }
}

// As on a machine whose disk is full from the start, but told so: plans use what there is, and a
// shortage names the memory with which there is a plan.
TEST(SearchProperties, WithoutADiskEverythingLiesInMemory) {
  int planned = 0;
  int refused = 0;
  for (const Question& q : std::vector<Question>{{"t4", "opt-6.7b", "", 32, 200, 16},
                                                 {"t4", "opt-13b", "", 7, 33, 5},
                                                 {"t4", "opt-30b", "int4", 1, 512, 8},
                                                 {"rtx-4090", "llama-2-7b", "", 64, 1000, 16},
                                                 {"rtx-4090", "opt-175b", "", 4, 64, 4}}) {
    for (const int64_t host : {8 * kGiB, 30 * kGiB, 200 * kGiB}) {
      const auto asked = ask(q);
      asked->profile.disks.clear();
      asked->profile.disk_bytes = 0;
      SearchRequest& request = asked->request;
      request.input.disk_budget_bytes = 0;
      request.input.memory_budget_bytes = host;
      request.input.has_disk = false;
      const std::string what = q.machine + " " + q.model + " " + format_bytes(host);
      try {
        const SearchResult result = search_policy(request);
        EXPECT_FALSE(uses_disk(result.best.plan)) << what;
        EXPECT_TRUE(fits(request.input, result.best.plan)) << what;
        EXPECT_TRUE(std::isfinite(prediction_of(result.best).seconds())) << what;
        EXPECT_EQ(prediction_of(result.best).lane_seconds(Lane::kDiskRead), 0) << what;
        ++planned;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kResource) << what;
        EXPECT_NE(error.text().find("no disk"), std::string::npos) << error.text();
        const std::string mend = error.mend();
        const size_t at = mend.find("`memory_budget_bytes` ");
        ASSERT_NE(at, std::string::npos) << what << ": " << error.text() << "; " << mend;
        const std::string size = mend.substr(at + 22, mend.find_first_of("; ", at + 22) - at - 22);
        request.input.memory_budget_bytes = parse_bytes(size, "--cpu-mem");
        EXPECT_NO_THROW(search_policy(request)) << what << " with " << size;
        ++refused;
      }
    }
  }
  EXPECT_GT(planned, 5);
  EXPECT_GT(refused, 2);
  const auto asked = ask({"t4", "opt-6.7b", "", 32, 200, 16});
  asked->request.input.has_disk = false;
  Policy policy;
  policy.weights = {0.2, 0.3, 0.5};
  EXPECT_THROW(evaluate_policy(asked->request, policy), Error);
}

TEST(SearchProperties, AShortageNamesAsManySequencesAsWereAsked) {
  const auto asked = ask({"t4", "opt-30b", "", 32, 512, 32});
  SearchRequest& request = asked->request;
  request.constraints.micro_batch_sequences = 32;
  request.constraints.micro_batches = 1;
  request.input.device_budget_bytes = 64 * kMiB;
  request.input.memory_budget_bytes = 128 * kMiB;
  try {
    search_policy(request);
    FAIL() << "32 sequences of 30B in 192 MiB";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("32 sequences"), std::string::npos) << error.text();
  }
}

}  // namespace
}  // namespace sluice::policy
