// Plans of mixtures whose experts are not all in memory: who has slots, what passes are expected to
// read, and that model and simulation agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "policy/cost_model.h"
#include "policy/expert_traffic.h"
#include "policy/layer_cost.h"
#include "policy/pass_classes.h"
#include "policy/routing_model.h"
#include "policy/search.h"
#include "policy/simulator.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "tests/policy/machine_fixture.h"
#include "tests/policy/plan_fixture.h"

namespace sluice::policy {
namespace {

ModelShape qwen() {
  ModelShape model = shape_of("qwen3-30b-a3b");
  model.set_weights(*parse_weight_format("int4"));
  return model;
}

Policy keeps(double share, int64_t sequences) {
  Policy policy;
  policy.weights = memory_share(share);
  policy.micro_batch_sequences = sequences;
  return policy;
}

TierShares tiers(double device, double host) { return {device, host, 1 - device - host}; }

PlanInput input_of(const ModelShape& model, int64_t sequences) {
  PlanInput input = input_for(model, int64_t{1} << 42);
  input.workload.sequences = sequences;
  input.workload.max_prompt_tokens = 16;
  input.workload.max_total_tokens = 48;
  return input;
}

TEST(ExpertPlan, WhatEveryTokenNeedsIsThereFirstAndExpertsAreThereWhole) {
  const ModelShape model = qwen();
  const PlanInput input = input_of(model, 1);
  for (const double share : {0.02, 0.1, 0.3, 0.9}) {
    const Plan plan = make_plan(input, keeps(share, 1));
    int64_t slots = 0, layers = 0, away_from_dense = 0, slot_bytes = 0, gathered = 0;
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const ScheduleExperts& layer = plan.experts[i];
      layers += layer.experts > 0;
      slots += layer.slots;
      for (size_t w = 0; w < plan.rows[i].size(); ++w) {
        const WeightShape& weight = model.sublayers[i].weights[w];
        const RowSplit& split = plan.rows[i][w];
        EXPECT_EQ(split.resident + split.disk, weight.rows);
        if (weight.kind == WeightKind::kTable)
          gathered += model.rows_bytes(weight, split.disk);
        else if (weight.experts == 0)
          away_from_dense += split.disk;
        else
          EXPECT_EQ(split.resident, layer.slots * weight.expert_rows());
      }
      for (const int32_t first : layer.first_parts) {
        const auto at = static_cast<size_t>(first);
        slot_bytes += layer.slots * plan.parts[i][at].bytes;
        for (size_t e = 0; e < 128; ++e) {
          EXPECT_EQ(plan.parts[i][at + e].expert, static_cast<int32_t>(e));
          EXPECT_EQ(plan.parts[i][at + e].bytes, plan.parts[i][at].bytes);
        }
      }
    }
    EXPECT_EQ(plan.expert_slot_bytes, slot_bytes);
    const int64_t guesses = std::min(kMostGuessSlots, slots / 16);
    EXPECT_EQ(plan.guess_slot_bytes, slots > 0 ? guesses * (slot_bytes / slots) : 0);
    if (share < 0.05) {
      EXPECT_GT(away_from_dense, 0);
      EXPECT_EQ(layers, 0) << "no room for any";
      EXPECT_EQ(plan.demand_tokens, 0);
      continue;
    }
    EXPECT_EQ(away_from_dense, 0);
    EXPECT_EQ(layers, 48);
    EXPECT_GT(plan.demand_tokens, 0);
    const auto total = static_cast<double>(model.weight_bytes());
    EXPECT_NEAR(static_cast<double>(plan.resident_weight_bytes) / total, share, 0.01);
    // Of the table a token takes a row: experts are worth more.
    EXPECT_EQ(gathered, model.rows_bytes(model.sublayers[0].weights[0], model.vocab_size));
    EXPECT_EQ(plan.resident_weight_bytes + plan.streamed_weight_bytes + gathered,
              plan.weight_bytes);
    // The ring takes what a pass that does not ask streams of two layers, and no more.
    const double away = (1 - share) * total / 48;
    EXPECT_LT(static_cast<double>(plan.ring_bytes), 2.2 * away + 8e6);
  }
}

TEST(ExpertPlan, APolicyMaySayThatNobodyAsks) {
  const ModelShape model = qwen();
  const PlanInput input = input_of(model, 1);
  Policy policy = keeps(0.3, 1);
  policy.demand_tokens = 0;
  const Plan none = make_plan(input, policy);
  EXPECT_EQ(none.expert_slot_bytes, 0);
  EXPECT_FALSE(none.demands_experts(1));
  policy.demand_tokens = 5;
  const Plan five = make_plan(input, policy);
  EXPECT_TRUE(five.demands_experts(5));
  EXPECT_FALSE(five.demands_experts(6));
  EXPECT_EQ(parse_policy(policy_to_json(policy), "here").demand_tokens, 5);
  EXPECT_EQ(parse_policy("{}", "here").demand_tokens, -1);
  EXPECT_THROW(parse_policy("{\"demand_tokens\": -2}", "here"), Error);
  policy.guess_slots = 6;
  EXPECT_EQ(parse_policy(policy_to_json(policy), "here").guess_slots, 6);
  EXPECT_EQ(parse_policy("{}", "here").guess_slots, -1);
  EXPECT_THROW(parse_policy("{\"guess_slots\": 4097}", "here"), Error);
}

// Where passes are small, what streams whole layers for large ones takes room from slots: the
// search finds that by itself, and is never slower than with either way fixed.
TEST(ExpertPlan, TheSearchTriesWhetherAllPassesAsk) {
  const ModelShape model = qwen();
  const Profile profile = plain_machine(false);
  for (const int64_t prompt : {4, 600}) {
    SearchRequest request;
    request.input = input_of(model, 1);
    request.input.workload.max_prompt_tokens = prompt;
    request.input.workload.max_total_tokens = prompt + 64;
    request.input.memory_budget_bytes = 6 * kGiB;
    request.profile = &profile;
    request.job = {.sequences = 1, .prompt_tokens = static_cast<double>(prompt), .new_tokens = 64};
    const SearchResult free = search_policy(request);
    const auto seconds = [](const SearchResult& one) { return one.best.simulated->seconds(); };
    for (const int64_t fixed : {int64_t{48}, kAlwaysDemands}) {
      request.start.demand_tokens = fixed;
      const SearchResult one = search_policy(request);
      EXPECT_EQ(one.best.plan.demand_tokens, fixed);
      EXPECT_LE(seconds(free), 1.005 * seconds(one)) << prompt << " " << fixed;
    }
    if (prompt == 4) EXPECT_TRUE(free.best.plan.always_demands());
  }
}

// Beside a device the host multiplies the rows of a pass that asks: it pays up to where the model
// has the two ways cross, and the search's border is no worse than others.
TEST(ExpertPlan, BesideADeviceTheBorderIsWhereAskingStopsBeingFaster) {
  ModelShape model = shape_of("qwen3-235b-a22b");
  model.set_weights(*parse_weight_format("int4"));
  const Profile profile = *shipped_profile("rtx-4090");
  int64_t least = INT64_MAX, most = 0;
  for (const int64_t prompt : {40, 100, 400}) {
    SearchRequest request;
    request.input = input_of(model, 1);
    request.input.workload.max_prompt_tokens = prompt;
    request.input.workload.max_total_tokens = prompt + 64;
    request.input.memory_budget_bytes = 64 * kGiB;
    request.input.device_budget_bytes = 22 * kGiB;
    request.profile = &profile;
    request.job = {.sequences = 1, .prompt_tokens = static_cast<double>(prompt), .new_tokens = 64};
    const Candidate free = search_policy(request).best;
    const Plan& plan = free.plan;
    ASSERT_GT(plan.demand_tokens, 0);
    EXPECT_FALSE(plan.always_demands());
    const auto seconds = [&](int64_t tokens, int64_t demand) {
      Plan one = plan;
      one.demand_tokens = demand;
      return pass_seconds(model, one, profile, request.input.kv_dtype, request.job,
                          plan.policy.pass_class_of(tokens), tokens);
    };
    const int64_t border = plan.demand_tokens;
    EXPECT_LT(seconds(border, border), seconds(border, 0)) << border;
    if (border + border / 8 < prompt) {
      EXPECT_GT(seconds(border + border / 8, prompt), 0.9 * seconds(border + border / 8, 0));
    } else {
      EXPECT_EQ(border, prompt) << "as large as passes are";
    }
    least = std::min(least, border);
    most = std::max(most, border);
    for (const int64_t fixed : {30, 60, 120, 240}) {
      request.start.demand_tokens = fixed;
      const Candidate other = search_policy(request).best;
      EXPECT_LE(free.simulated->seconds(), 1.01 * other.simulated->seconds())
          << prompt << " tokens, border " << fixed;
    }
  }
  EXPECT_EQ(least, 40);
  EXPECT_GT(most, 100);
}

// A token's experts that are in no slot, and nothing else.
TEST(ExpertPlan, ADecodePassReadsWhatTheRoutingModelSays) {
  const ModelShape model = qwen();
  const Profile profile = plain_machine(false);
  for (const int64_t sequences : {1, 8, 16, 128}) {
    const PlanInput input = input_of(model, sequences);
    const Plan plan = make_plan(input, keeps(0.3, sequences));
    JobShape job;
    job.sequences = sequences;
    job.prompt_tokens = 16;
    job.new_tokens = 32;
    std::vector<CostTerm> terms;
    predict(model, plan, profile, input.kv_dtype, job, &terms);
    double expected = 0;
    for (size_t i = 0; i < plan.experts.size(); ++i) {
      const ScheduleExperts& layer = plan.experts[i];
      if (layer.experts == 0) continue;
      const auto away = static_cast<double>(layer.experts - layer.slots);
      const double share =
          plan.demands_experts(sequences) ? missing_share({128, 8, layer.slots}, sequences) : 1;
      for (const int32_t first : layer.first_parts)
        expected += 31 * away * share *
                    static_cast<double>(plan.parts[i][static_cast<size_t>(first)].bytes);
    }
    double read = 0;
    for (const CostTerm& term : terms)
      if (!term.is_prefill && term.what == "weights from disk") read += term.amount;
    EXPECT_NEAR(read, expected, 1e-6 * expected) << sequences;
  }
}

// Of one text, chunk by chunk; a block of as many sequences asks for more.
TEST(ExpertPlan, APromptReadsWhatTheRoutingModelSaysOfOneText) {
  const ModelShape model = qwen();
  const Profile profile = plain_machine(false);
  for (const int64_t prompt : {8, 60, 180, 600}) {
    PlanInput input = input_of(model, 1);
    input.workload.max_prompt_tokens = prompt;
    input.workload.max_total_tokens = prompt + 8;
    Policy policy = keeps(0.3, 1);
    policy.micro_batch_tokens = 100;
    const Plan plan = make_plan(input, policy);
    JobShape job;
    job.sequences = 1;
    job.prompt_tokens = static_cast<double>(prompt);
    job.new_tokens = 8;
    double independent = 0;
    std::vector<double> chunks;
    for (int64_t left = prompt; left > 0; left -= 100) {
      chunks.push_back(independent_tokens(std::min<int64_t>(left, 100)));
      independent += chunks.back();
    }
    const bool asks = prompt < 200;
    EXPECT_EQ(independent <= static_cast<double>(plan.demand_tokens), asks);
    double expected = 0;
    for (size_t i = 0; i < plan.experts.size(); ++i)
      for (const int32_t first : plan.experts[i].first_parts) {
        double missing = 0;  // of all in no slot
        for (const double chunk : chunks)
          missing += missing_share({128, 8, plan.experts[i].slots}, chunk);
        expected += static_cast<double>(128 - plan.experts[i].slots) * (asks ? missing : 1) *
                    static_cast<double>(plan.parts[i][static_cast<size_t>(first)].bytes);
      }
    std::vector<CostTerm> terms;
    const Prediction modelled = predict(model, plan, profile, input.kv_dtype, job, &terms);
    double read = 0;
    for (const CostTerm& term : terms)
      if (term.is_prefill && term.what == "weights from disk") read += term.amount;
    EXPECT_NEAR(read, expected, 1e-6 * expected) << prompt;
    const Prediction simulated = simulate_block(model, plan, profile, input.kv_dtype, job);
    EXPECT_NEAR(modelled.prefill_seconds / simulated.prefill_seconds, 1, 0.2) << prompt;

    const PassWork pass = block_passes(model, plan, job, 1, 1).passes.front();
    JobShape many;
    many.sequences = prompt;
    many.prompt_tokens = 1;
    many.new_tokens = 8;
    const Plan block = make_plan(input_of(model, prompt), keeps(0.3, prompt));
    const PassWork of_many = block_passes(model, block, many, 1, 1).passes.back();
    EXPECT_EQ(of_many.routed().all, pass.routed().all);
    EXPECT_EQ(of_many.routed().independent, static_cast<double>(prompt));
    EXPECT_NEAR(pass.routed().independent, independent, 1e-9);
    if (prompt == 60)
      EXPECT_LT(expert_traffic(model, plan, pass).asked,
                0.75 * expert_traffic(model, block, of_many).asked);
  }
}

// Without a device a pass is as large as what it asks for, and beside one, whose host multiplies
// its rows, as these.
TEST(ExpertPlan, WhichPassesAskCountsTokensOfOneTextTogether) {
  const ModelShape model = qwen();
  PlanInput input = input_of(model, 1);
  input.workload.max_prompt_tokens = 400;
  input.workload.max_total_tokens = 448;
  Policy policy = keeps(0.1, 1);
  policy.demand_tokens = 36;
  policy.micro_batch_tokens = 512;
  const auto prompt_of = [](int64_t tokens) {
    RoutedTokens out;
    out.add_run(tokens);
    return out;
  };
  const Plan plan = make_plan(input, policy);
  EXPECT_TRUE(plan.demands_experts(36));
  EXPECT_FALSE(plan.demands_experts(37));
  EXPECT_TRUE(plan.demands_experts(prompt_of(190)));
  EXPECT_FALSE(plan.demands_experts(prompt_of(191)));
  EXPECT_EQ(plan.asking_rows(), 190) << "there is room for their answers";
  EXPECT_EQ(plan.demand_text(), "36 tokens (190 of one prompt)");
  policy.micro_batch_tokens = 64;
  EXPECT_EQ(make_plan(input, policy).asking_rows(), 64);

  policy.weights = tiers(0.1, 0.2);
  input.device_budget_bytes = int64_t{1} << 42;
  const Plan beside = make_plan(input, policy);
  EXPECT_TRUE(beside.demands_experts(prompt_of(36)));
  EXPECT_FALSE(beside.demands_experts(prompt_of(37)));
  EXPECT_EQ(beside.asking_rows(), 36);
  EXPECT_EQ(beside.demand_text(), "36 tokens");
}

TEST(ExpertPlan, ModelAndSimulationAgree) {
  const ModelShape model = qwen();
  const Profile profile = plain_machine(false);
  for (const int64_t sequences : {1, 8, 16, 128})
    for (const double share : {0.1, 0.3, 0.7}) {
      const PlanInput input = input_of(model, sequences);
      const Plan plan = make_plan(input, keeps(share, sequences));
      JobShape job;
      job.sequences = sequences;
      job.prompt_tokens = 16;
      job.new_tokens = 32;
      const Prediction modelled = predict(model, plan, profile, input.kv_dtype, job);
      const Prediction simulated = simulate_block(model, plan, profile, input.kv_dtype, job);
      EXPECT_NEAR(modelled.decode_seconds / simulated.decode_seconds, 1, 0.15)
          << sequences << " sequences, " << share << " resident";
    }
}

PlanInput beside_a_device(const ModelShape& model, int64_t sequences) {
  PlanInput input = input_of(model, sequences);
  input.device_budget_bytes = int64_t{1} << 42;
  return input;
}

// What every token needs goes to the device first, then experts; the host's share are slots.
TEST(ExpertPlan, BesideADeviceSlotsAreTheHosts) {
  const ModelShape model = qwen();
  for (const auto& [device, host] :
       {std::pair{0.1, 0.2}, {0.3, 0.3}, {0.1, 0.8}, {0.02, 0.3}, {0.1, 0.0}}) {
    Policy policy;
    policy.weights = tiers(device, host);
    const Plan plan = make_plan(beside_a_device(model, 1), policy);
    int64_t slot_bytes = 0, away_from_device = 0, gathered = 0;
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const ScheduleExperts& layer = plan.experts[i];
      for (size_t w = 0; w < plan.rows[i].size(); ++w) {
        const WeightShape& weight = model.sublayers[i].weights[w];
        const RowSplit& split = plan.rows[i][w];
        EXPECT_EQ(split.resident + split.inplace + split.host + split.disk, weight.rows);
        if (weight.kind == WeightKind::kTable) {
          EXPECT_EQ(split.disk, weight.rows) << "experts are worth more";
          gathered += model.rows_bytes(weight, split.disk);
        } else if (weight.experts == 0) {
          EXPECT_TRUE(host == 0 || split.disk == 0) << "the host has room for it";
          away_from_device += weight.rows - split.resident;
        } else if (host > 0) {
          EXPECT_EQ(split.resident, layer.resident * weight.expert_rows());
          EXPECT_EQ(split.inplace, layer.slots * weight.expert_rows());
        } else {
          EXPECT_EQ(split.inplace + layer.experts, 0);
        }
      }
      if (layer.experts == 0) continue;
      EXPECT_TRUE(layer.is_below);
      EXPECT_LT(layer.resident + layer.slots, layer.experts);
      for (const int32_t first : layer.first_parts) {
        const auto at = static_cast<size_t>(first);
        slot_bytes += layer.slots * plan.parts[i][at].bytes;
        for (int64_t e = 0; e < layer.others(); ++e)
          EXPECT_EQ(plan.parts[i][at + static_cast<size_t>(e)].expert, layer.resident + e);
      }
    }
    EXPECT_EQ(away_from_device > 0, device < 0.05);
    EXPECT_EQ(plan.expert_slot_bytes, slot_bytes);
    EXPECT_EQ(plan.demand_tokens > 0, host > 0);
    const auto total = static_cast<double>(model.weight_bytes());
    const auto share = [&](int64_t bytes) { return static_cast<double>(bytes) / total; };
    EXPECT_NEAR(share(plan.resident_weight_bytes), device, 0.01);
    EXPECT_NEAR(share(plan.host_home_bytes), host, 0.01);
    EXPECT_NEAR(share(plan.streamed_weight_bytes + gathered), 1 - device - host, 0.01);
    int64_t line = 0;
    for (const PlanLine& one : plan.memory) line += one.what == "experts in slots" ? one.bytes : 0;
    EXPECT_EQ(line, slot_bytes);
  }
}

// Of passes that ask: nothing of an expert goes up, and the disk brings what is in no slot.
TEST(ExpertPlan, BesideADeviceModelAndSimulationAgree) {
  const ModelShape model = qwen();
  const Profile profile = plain_machine(true);
  for (const int64_t sequences : {1, 8, 128})
    for (const auto& [device, host] : {std::pair{0.1, 0.2}, {0.3, 0.3}, {0.1, 0.6}}) {
      const PlanInput input = beside_a_device(model, sequences);
      Policy policy;
      policy.weights = tiers(device, host);
      policy.micro_batch_sequences = sequences;
      const Plan plan = make_plan(input, policy);
      JobShape job;
      job.sequences = sequences;
      job.prompt_tokens = 16;
      job.new_tokens = 32;
      std::vector<CostTerm> terms;
      const Prediction modelled = predict(model, plan, profile, input.kv_dtype, job, &terms);
      double read = 0, up = 0, expected = 0;
      for (const CostTerm& term : terms) {
        read += !term.is_prefill && term.what == "weights from disk" ? term.amount : 0;
        up += !term.is_prefill && term.what == "weights up" ? term.amount : 0;
      }
      const bool asks = plan.demands_experts(sequences);
      EXPECT_EQ(up > 0, !asks) << up;
      for (size_t i = 0; i < plan.experts.size(); ++i)
        for (const int32_t first : plan.experts[i].first_parts) {
          const ScheduleExperts& layer = plan.experts[i];
          const double missing = asks ? asked_experts(layer, 8, sequences).missing
                                      : static_cast<double>(layer.others() - layer.slots);
          expected +=
              31 * missing * static_cast<double>(plan.parts[i][static_cast<size_t>(first)].bytes);
        }
      EXPECT_NEAR(read, expected, 1e-6 * expected) << sequences;
      const Prediction simulated = simulate_block(model, plan, profile, input.kv_dtype, job);
      EXPECT_NEAR(modelled.decode_seconds / simulated.decode_seconds, 1, 0.16)
          << sequences << " sequences, " << device << " on the device, " << host << " on the host";
    }
}

// One exchange a layer by arithmetic, however many experts of it are in place.
TEST(ExpertPlan, ExpertsInPlaceCrossTheLinkTogether) {
  const ModelShape model = qwen();
  Profile profile = plain_machine(true);
  profile.device->threads = 0;  // its own memory and queue, as a GPU has
  profile.device->synchronise_seconds.value = 3e-5;
  profile.link.latency_seconds.value = 1e-5;
  for (const int64_t tokens : {1, 5, 64})
    for (const double host : {0.1, 0.5, 0.9}) {
      Policy policy;
      policy.weights = {1 - host, host, 0};
      policy.inplace_host_fraction = host;
      const Plan plan = make_plan(beside_a_device(model, tokens), policy);
      BatchWork work;
      work.tokens = tokens;
      work.independent_tokens = static_cast<double>(tokens);
      ProductSeconds products;
      double exchanges = 0, asked = 0;
      for (size_t i = 0; i < model.sublayers.size(); ++i) {
        if (expert_bytes(model, i) == 0) continue;
        std::set<int64_t> held;
        for (size_t w = 0; w < model.sublayers[i].weights.size(); ++w)
          if (const WeightShape& weight = model.sublayers[i].weights[w]; weight.experts > 0)
            held.insert(plan.classes[0].inplace_rows(i, w) / weight.expert_rows());
        ASSERT_EQ(held.size(), 1U) << "an expert is in one memory with all three matrices";
        const auto in_place = static_cast<double>(*held.begin());
        const TaskSeconds one = compute_seconds(model, plan, profile, KvFormat(DType::kBF16), i,
                                                ComputeStep::kWhole, work, products);
        const double chance = std::min(1.0, in_place * even_share({128, 8, 0}, tokens));
        // The route is another wait.
        EXPECT_NEAR(one.hand_overs, 1 + chance, 1e-9) << tokens << " tokens, " << host;
        const double bytes = chance * static_cast<double>(tokens) * 2048 * 4;
        const double latency = profile.link.latency_seconds.value;
        const double wait = hand_over_seconds(profile);
        EXPECT_NEAR(one.exchange_down,
                    bytes / profile.link.to_host.value + chance * (latency + wait), 1e-12);
        EXPECT_NEAR(one.exchange_up, bytes / profile.link.to_device.value + chance * latency,
                    1e-12);
        EXPECT_GT(wait, 0);
        exchanges += chance;
        asked += in_place * even_share({128, 8, 0}, tokens);
      }
      EXPECT_GT(exchanges, 1);
      EXPECT_GE(asked, exchanges);
    }
}

// Where all passes ask no ring holds a layer's experts, in whatever memory the rings are.
TEST(ExpertPlan, WhereAllPassesAskNoRingHoldsALayersExperts) {
  const ModelShape model = qwen();
  int64_t layer_bytes = 0;
  for (size_t i = 0; i < model.sublayers.size(); ++i)
    layer_bytes = std::max(layer_bytes, model.num_experts * expert_bytes(model, i));
  for (const bool has_device : {false, true}) {
    Policy policy = keeps(0.3, 1);
    if (has_device) policy.weights = tiers(0.1, 0.2);
    const PlanInput input = has_device ? beside_a_device(model, 1) : input_of(model, 1);
    const Plan some = make_plan(input, policy);
    policy.demand_tokens = kAlwaysDemands;
    const Plan all = make_plan(input, policy);
    EXPECT_TRUE(all.demands_experts(int64_t{1} << 20));
    EXPECT_EQ(all.expert_slot_bytes, some.expert_slot_bytes);
    EXPECT_GT(some.ring_bytes, layer_bytes / 2);
    EXPECT_LT(all.ring_bytes, layer_bytes / 8);
    EXPECT_GT(some.loaded_ahead_bytes(), some.weight_bytes / 2);
    EXPECT_LT(all.loaded_ahead_bytes(), all.weight_bytes / 100);
    EXPECT_EQ(all.streamed_weight_bytes, some.streamed_weight_bytes);
    EXPECT_EQ(all.classes.front().sent_weight_bytes, 0);
    EXPECT_EQ(all.classes.front().inplace_weight_bytes, has_device ? all.inplace_weight_bytes : 0);
    if (has_device) {
      EXPECT_GT(some.host_ring_bytes, layer_bytes / 2);
      EXPECT_LT(all.host_ring_bytes, layer_bytes / 8);
    }
  }
}

// A model whose layers are a quarter of the memory: they don't pass through it whole, and a token
// reads its own experts.
TEST(ExpertPlan, AllPassesAskWhereALayersExpertsTakeTooMuchMemory) {
  ModelShape model = shape_of("deepseek-v3");
  model.set_weights(*parse_weight_format("int4"));
  const Profile profile = plain_machine(false);
  SearchRequest request;
  request.input = input_of(model, 1);
  request.input.memory_budget_bytes = 24 * kGiB;
  request.profile = &profile;
  request.job.sequences = 1;
  request.job.prompt_tokens = 16;
  request.job.new_tokens = 32;
  const Candidate found = search_policy(request).best;
  EXPECT_EQ(found.policy.demand_tokens, kAlwaysDemands);
  EXPECT_LE(found.plan.memory_bytes(), 24 * kGiB);
  request.start.demand_tokens = 0;
  EXPECT_LT(5 * prediction_of(found).decode_seconds,
            prediction_of(search_policy(request).best).decode_seconds);
}
}  // namespace
}  // namespace sluice::policy
