// sluice plan: what a model would do on a machine, and with which policy.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "policy/flexgen/flexgen.h"
#include "policy/simulator.h"
#include "src/app/buying.h"
#include "src/app/node_rates.h"
#include "src/app/plan_html.h"
#include "src/app/plan_report.h"
#include "src/app/plan_request.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/model/builtin.h"
#include "src/model/planning_shapes.h"
#include "src/profile/profile_cache.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/flag_words.h"
#include "tools/model_argument.h"
#include "tools/output.h"
#include "tools/plan_buying.h"
#include "tools/plan_question.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
// FlexGen's equations as they are, with the policy given and the constants of the T4 that it ships.
void run_flexgen(const PlanFlags& flags) {
  using namespace policy::flexgen;
  if (flags.percent.size() != 6 || flags.micro_batch < 1 || flags.micro_batches < 1)
    throw Error(ErrorKind::kUser, "--cost-model " + flags.cost_model + " evaluates a given policy",
                "give --percent (six numbers), --gpu-batch-size and --num-gpu-batches");
  double prompt = 0;
  double fresh = 0;
  int64_t longest = 0;
  parse_length(flags.prompt, "--prompt-len", prompt, longest);
  parse_length(flags.fresh, "--gen-len", fresh, longest);
  const ModelShape shape = app::planning_model(flags.model);
  const Model model{static_cast<double>(shape.num_layers),
                    static_cast<double>(shape.hidden_size),
                    static_cast<double>(shape.intermediate_size),
                    static_cast<double>(shape.num_heads),
                    prompt,
                    fresh};
  Policy given;
  given.gpu_batch = static_cast<double>(flags.micro_batch);
  given.num_gpu_batches = static_cast<double>(flags.micro_batches);
  given.percent = {flags.percent[0] / 100, flags.percent[1] / 100, flags.percent[2] / 100,
                   flags.percent[3] / 100, flags.percent[4] / 100, flags.percent[5] / 100};
  const Preset preset = flags.cost_model == "flexgen-paper" ? Preset::kPaper : Preset::kCode;
  const Evaluation answer = evaluate(preset, model, given, code_t4());
  if (flags.json) {
    nlohmann::ordered_json json{{"model", flags.model},
                                {"hardware", "flexgen-t4"},
                                {"cost_model", flags.cost_model},
                                {"predicted",
                                 {{"prefill_s", answer.prefill_seconds},
                                  {"decode_s", answer.decode_seconds},
                                  {"tokens_per_s", answer.tokens_per_second}}}};
    json["terms"] = nlohmann::ordered_json::array();
    for (const Evaluation::Row& row : answer.rows())
      json["terms"].push_back({{"name", row.name}, {"value", row.value}, {"unit", row.unit}});
    print_json(json);
    return;
  }
  std::printf("%s by %s, the equations and T4 constants as published\n", flags.model.c_str(),
              flags.cost_model.c_str());
  for (const Evaluation::Row& row : answer.rows())
    std::printf("  %-32s %12.4f %s\n", row.name.c_str(), row.value, row.unit.c_str());
}

// Ours against a grid: is the choice as good as the simulator can tell?
void simulate_grid(const policy::SearchRequest& request, const policy::SearchResult& result) {
  struct Row {
    double rate;
    std::string what;
  };
  std::vector<Row> rows;
  const bool has_device = request.input.device_budget_bytes > 0;
  const int64_t block = result.best.policy.block_sequences();
  for (const double device : {0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0})
    for (const double host : {0.0, 0.25, 0.5, 0.75, 1.0})
      for (const double kv : {0.0, 0.5, 1.0})
        for (const auto place : {policy::AttentionPlace::kDevice, policy::AttentionPlace::kHost})
          for (const int64_t size :
               {block, std::max<int64_t>(block / 2, 1), std::max<int64_t>(block / 8, 1)}) {
            if (!has_device && (host > 0 || place == policy::AttentionPlace::kHost)) continue;
            policy::Policy one = result.best.policy;
            one.weights = {device, (1 - device) * host, (1 - device) * (1 - host)};
            one.kv = {kv, has_device ? 1 - kv : 0, has_device ? 0 : 1 - kv};
            one.activations = {1, 0, 0};
            one.attention = place;
            one.inplace_host_fraction = 0;
            one.micro_batch_sequences = std::min(size, result.best.policy.micro_batch_sequences);
            one.micro_batches = std::max<int64_t>(size / one.micro_batch_sequences, 1);
            policy::Candidate candidate;
            candidate.policy = one;
            candidate.plan = policy::make_plan(request.input, one);
            if (!policy::fits(request.input, candidate.plan)) continue;
            candidate.simulated =
                policy::simulate_block(*request.input.model, candidate.plan, *request.profile,
                                       request.input.kv_dtype, request.job);
            rows.push_back({app::job_tokens_per_second(candidate, request.job),
                            policy::describe(one, has_device)});
          }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.rate > b.rate; });
  const double ours = app::job_tokens_per_second(result.best, request.job);
  const auto better =
      std::count_if(rows.begin(), rows.end(), [&](const Row& row) { return row.rate > ours; });
  std::printf("\n  of %zu policies of a grid that fit, %td are faster in the simulator\n",
              rows.size(), better);
  if (!rows.empty())
    std::printf("  the grid's best: %.4g tokens/s against %.4g (%.2fx): %s\n", rows.front().rate,
                ours, ours / rows.front().rate, rows.front().what.c_str());
}

// A choice of formats that --allow permits.
struct FormatChoice {
  std::optional<WeightFormat> weights;  // nothing: as they are
  std::optional<KvFormat> kv;
  std::string name() const {
    return fmt::format("{} weights, {} KV", weights ? format_name(*weights) : "own",
                       kv ? kv_format_name(*kv) : "own");
  }
};

void take(const FormatChoice& choice, Question& q) {
  if (choice.weights) q.model.set_weights(*choice.weights);
  if (choice.kv) q.asked.kv_dtype = choice.kv;
}

// The formats that --allow permits, those that are there first; never more than the user allowed.
std::vector<FormatChoice> allowed_choices(const std::vector<std::string>& allow) {
  std::vector<std::optional<WeightFormat>> weights{std::nullopt};
  std::vector<std::optional<KvFormat>> kvs{std::nullopt};
  for (const std::string& one : allow) {
    const std::string format = one.substr(0, one.rfind('-'));
    if (one.ends_with("-weights") && parse_weight_format(format) &&
        parse_weight_format(format)->is_quantised())
      weights.push_back(parse_weight_format(format));
    else if (one.ends_with("-kv") && parse_kv_format(format) &&
             parse_kv_format(format)->is_quantised())
      kvs.push_back(parse_kv_format(format));
    else
      throw Error(
          ErrorKind::kUser, fmt::format("--allow {}: nothing of that name", one),
          "int4-weights, int8-weights, nf4-weights, fp8-weights, int8-kv, k8v4-kv, int4-kv, "
          "or with a group (int4-g128-weights)");
  }
  std::vector<FormatChoice> choices;
  for (const auto& weight : weights)
    for (const auto& kv : kvs) choices.push_back({weight, kv});
  return choices;
}

struct Answered {
  Question question;
  std::string choice;  // of formats
  policy::SearchRequest request;
  policy::SearchResult result;
};

// The answer with the best of the formats that --allow permits; `change` sees each question first.
std::unique_ptr<Answered> answer(const PlanFlags& flags, const std::stop_token& stop,
                                 const std::function<void(Question&)>& change = {}) {
  const std::vector<FormatChoice> choices = allowed_choices(flags.allow);
  std::unique_ptr<Answered> best;
  double best_rate = 0;
  std::exception_ptr shortage;
  for (const FormatChoice& choice : choices) {
    auto one = std::make_unique<Answered>();  // the request points into the question
    fill(flags, stop, one->question);
    if (change) change(one->question);
    take(choice, one->question);
    one->choice = choice.name();
    double rate = 0;
    try {
      const Waiting waiting("planning");
      one->request = app::plan_request(one->question.asked);
      one->request.stop = stop;
      one->result = one->question.policy
                        ? policy::evaluate_policy(one->request, *one->question.policy)
                        : policy::search_policy(one->request);
      rate = app::job_tokens_per_second(one->result.best, one->request.job);
    } catch (const Error& error) {
      // What is permitted and does not run is not chosen; the formats that are there come first.
      const bool is_refused = choice.kv && error.kind() == ErrorKind::kUser;
      if (is_refused) std::fprintf(stderr, "sluice: %s\n", in_flags(error.what()).c_str());
      if (error.kind() != ErrorKind::kResource && !is_refused) throw;
      if (!is_refused) shortage = std::current_exception();  // the last choice's, the smallest
    }
    if (choices.size() > 1)
      std::fprintf(stderr, "sluice: with %s: %s\n", choice.name().c_str(),
                   rate > 0 ? fmt::format("{:.4g} tokens/s", rate).c_str() : "no plan");
    // What is there already wins a tie.
    if (rate > best_rate * 1.001) {
      best = std::move(one);
      best_rate = rate;
    }
  }
  if (!best) std::rethrow_exception(shortage);
  return best;
}

void run_sweep(const PlanFlags& flags, const std::string& sweep, const std::stop_token& stop) {
  const size_t equals = sweep.find('=');
  const std::string what = sweep.substr(0, equals);
  std::string values = equals == std::string::npos ? "" : sweep.substr(equals + 1);
  if (values.empty())
    throw Error(ErrorKind::kUser, fmt::format("--sweep {} has no values", sweep),
                "write gpu-mem=8GiB,16GiB,24GiB");
  if (!flags.json)
    std::printf("%-12s %12s %10s %12s  %s\n", what.c_str(), "tokens/s", "block", "latency",
                "bottleneck");
  auto rows = nlohmann::ordered_json::array();
  while (!values.empty()) {
    std::fflush(stdout);  // each row as it comes
    const std::string value = values.substr(0, values.find(','));
    values.erase(0, value.size() + 1);
    try {
      const auto answered = answer(flags, stop, [&](Question& q) { apply(what, value, q); });
      const policy::SearchRequest& request = answered->request;
      const policy::SearchResult& result = answered->result;
      const policy::Prediction& p = policy::prediction_of(result.best);
      if (flags.json) {
        auto json = app::plan_json({flags.model, answered->question.profile.name}, request, result,
                                   std::nullopt);
        json[what] = value;
        rows.push_back(std::move(json));
      } else {
        std::printf("%-12s %12.4g %10lld %12s  %s%s\n", value.c_str(),
                    app::job_tokens_per_second(result.best, request.job),
                    static_cast<long long>(p.block_sequences),
                    format_seconds(p.latency_seconds()).c_str(), app::bottleneck_name(p).c_str(),
                    flags.allow.empty() ? "" : (", with " + answered->choice).c_str());
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResource) throw;
      if (flags.json)
        rows.push_back({{what, value}, {"error", error.text()}});
      else
        std::printf("%-12s does not fit: %s\n", value.c_str(), error.text().c_str());
    }
  }
  if (flags.json) print_json(rows);
}

// The plan of one node of several for `sequences` rows: its machine, with what it has less or
// slower
// ("box.json:cpu-mem=16GiB:disk-read=200MB/s").
std::unique_ptr<Answered> answer_node(const PlanFlags& flags, const std::string& node,
                                      int64_t sequences, const std::stop_token& stop) {
  PlanFlags one = flags;
  size_t at = node.find(':');
  one.hardware = node.substr(0, at);
  one.sequences = sequences;
  return answer(one, stop, [&](Question& q) {
    while (at != std::string::npos) {
      const size_t next = node.find(':', at + 1);
      const std::string change = node.substr(at + 1, next - at - 1);
      const size_t equals = change.find('=');
      apply(change.substr(0, equals), equals == std::string::npos ? "" : change.substr(equals + 1),
            q);
      at = next;
    }
  });
}

app::NodeRate rate_of_node(const PlanFlags& flags, const std::string& node, int64_t sequences,
                           const std::stop_token& stop) {
  try {
    const auto answered = answer_node(flags, node, sequences, stop);
    const policy::JobShape& job = answered->request.job;
    app::NodeRate out;
    out.name = node;
    out.tokens_per_second = app::job_tokens_per_second(answered->result.best, job);
    out.rows_per_second = out.tokens_per_second / job.new_tokens;
    out.bottleneck = app::bottleneck_name(policy::prediction_of(answered->result.best));
    return out;
  } catch (const Error& error) {
    throw error.with_context("--nodes " + node);
  }
}

// Every node with a plan of its own, and what they do together.
void run_nodes(const PlanFlags& flags, const std::stop_token& stop) {
  const int64_t rows = flags.sequences;
  std::vector<app::NodeRate> nodes(flags.nodes.size());
  std::vector<int64_t> share(nodes.size(), 256);
  if (rows > 0)
    std::fill(share.begin(), share.end(),
              std::max<int64_t>(rows / static_cast<int64_t>(nodes.size()), 1));
  // Nodes that are alike are asked about once.
  std::map<std::pair<std::string, int64_t>, app::NodeRate> asked;
  // Shares follow from rates, and rates from shares where a node's last block is not full.
  for (int round = 0; round < (rows > 0 ? 2 : 1); ++round) {
    double sum = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const std::pair question{flags.nodes[i], share[i]};
      auto found = asked.find(question);
      if (found == asked.end())
        found = asked.emplace(question, rate_of_node(flags, question.first, share[i], stop)).first;
      nodes[i] = found->second;
      sum += nodes[i].rows_per_second;
    }
    for (size_t i = 0; i < nodes.size() && rows > 0; ++i)
      share[i] = std::max<int64_t>(
          std::llround(static_cast<double>(rows) * nodes[i].rows_per_second / sum), 1);
  }
  if (flags.json) {
    auto json = app::nodes_json(nodes, rows);
    json["model"] = flags.model;
    print_json(json);
  } else {
    std::printf("%s on %zu nodes\n%s", flags.model.c_str(), nodes.size(),
                app::nodes_text(nodes, rows).c_str());
  }
}

// What says nothing where models or machines are compared.
template <typename Refuse>
void refuse_beside_purchase(const PlanFlags& flags, const Refuse& refuse) {
  const char* question = flags.is_fits ? "--fits" : !flags.target.empty() ? "--target" : nullptr;
  refuse(!flags.part_prices.empty() && flags.target.empty(), "--part-prices", "no --target");
  refuse(flags.at_least != 1 && !flags.is_fits, "--at-least", "no --fits");
  if (!question) return;
  refuse(flags.is_fits && !flags.target.empty(), "--target", "--fits");
  refuse(!flags.html.empty(), "--html", question);
  refuse(!flags.output_policy.empty(), "--output-policy", question);
  refuse(!flags.sweeps.empty(), "--sweep", question);
  refuse(!flags.nodes.empty(), "--nodes", question);
  refuse(flags.simulate_all, "--simulate-all", question);
  refuse(flags.cost_model != "ours", "--cost-model", question);
  refuse(!flags.policy_file.empty(), "--policy", question);
  refuse(!flags.percent.empty(), "--percent", question);
  refuse(!flags.allow.empty(), "--allow", question);
  refuse(!flags.price.empty(), "--price", question);
  refuse(flags.is_fits && !flags.disk_memory.empty(), "--disk-mem", question);
}

void refuse_without_effect(const PlanFlags& flags) {
  const auto refuse = [](bool is_given, const char* flag, const char* with) {
    if (is_given)
      throw Error(ErrorKind::kUser, fmt::format("{} has no effect with {}", flag, with),
                  "leave one of them out");
  };
  if (!flags.sweeps.empty()) {
    refuse(!flags.html.empty(), "--html", "--sweep");
    refuse(!flags.output_policy.empty(), "--output-policy", "--sweep");
    refuse(flags.simulate_all, "--simulate-all", "--sweep");
  }
  refuse(flags.simulate_all && flags.json, "--simulate-all", "--json");
  refuse(flags.gpu.has_value() && !flags.device.empty(), "--gpu", "--device cpu");
  if (!flags.nodes.empty()) {
    refuse(!flags.html.empty(), "--html", "--nodes");
    refuse(!flags.output_policy.empty(), "--output-policy", "--nodes");
    refuse(!flags.sweeps.empty(), "--sweep", "--nodes");
    refuse(flags.simulate_all, "--simulate-all", "--nodes");
    refuse(flags.cost_model != "ours", "--cost-model", "--nodes");
  }
  refuse_beside_purchase(flags, refuse);
  if (flags.cost_model == "ours") return;
  const std::string flexgen = "--cost-model " + flags.cost_model;
  refuse(!flags.html.empty(), "--html", flexgen.c_str());
  refuse(!flags.output_policy.empty(), "--output-policy", flexgen.c_str());
  refuse(flags.simulate_all, "--simulate-all", flexgen.c_str());
  refuse(!flags.sweeps.empty(), "--sweep", flexgen.c_str());
  refuse(!flags.allow.empty(), "--allow", flexgen.c_str());
  refuse(flags.is_gpu_direct, "--gpu-direct", flexgen.c_str());
  refuse(!flags.weights.empty(), "--weights", flexgen.c_str());
  refuse(!flags.kv_dtype.empty(), "--kv-dtype", flexgen.c_str());
  refuse(!flags.policy_file.empty(), "--policy", flexgen.c_str());
  refuse(flags.sequences != 0, "--sequences", flexgen.c_str());
  refuse(flags.gpu.has_value(), "--gpu", flexgen.c_str());
  refuse(!flags.device.empty(), "--device", flexgen.c_str());
  refuse(flags.attention_sparsity != 1, "--attn-sparsity", flexgen.c_str());
}

void run_plan(const PlanFlags& flags, const std::stop_token& stop) {
  if (flags.list_models) {
    for (const std::string& name : builtin_model_names())
      std::printf("%-18s %8.1f billion parameters\n", name.c_str(),
                  static_cast<double>(planning_shape(name)->num_parameters()) / 1e9);
    return;
  }
  if (flags.is_fits) {
    refuse_without_effect(flags);
    return run_fits(flags, stop);
  }
  if (flags.model.empty())
    throw Error(
        ErrorKind::kUser, "no model given",
        "sluice plan --model opt-175b --hardware t4; --list-models names the built-in ones");
  refuse_without_effect(flags);
  if (!flags.price.empty()) app::parse_hour_price(flags.price);  // before anything is measured
  if (flags.cost_model != "ours") return run_flexgen(flags);
  if (!flags.nodes.empty()) return run_nodes(flags, stop);
  if (!flags.target.empty()) return run_target(flags, stop);
  for (const std::string& sweep : flags.sweeps) run_sweep(flags, sweep, stop);
  if (!flags.sweeps.empty()) return;
  const std::unique_ptr<Answered> answered = answer(flags, stop);
  const policy::SearchRequest& request = answered->request;
  const policy::SearchResult& result = answered->result;
  if (const std::string note = app::context_note(request); !note.empty())
    std::fprintf(stderr, "sluice: %s\n", in_flags(note).c_str());
  // What twice of a resource would give is asked of a search: a policy that is given stays as it
  // is.
  std::optional<app::WhatIfs> what_ifs;
  if (!flags.no_lifts && !answered->question.policy) {
    const Waiting waiting("planning with more of each resource");
    what_ifs = app::find_what_ifs(request, result);
  }
  const app::PlanSubject subject{flags.model, answered->question.profile.name};
  if (const size_t others = answered->question.profile.more_devices.size(); others > 0)
    std::fprintf(stderr, "sluice: %s has %zu devices; the plan is for one, %s (--gpu chooses)\n",
                 subject.hardware.c_str(), others + 1,
                 answered->question.profile.device->name.c_str());
  const auto cost = cost_of_million(flags, app::job_tokens_per_second(result.best, request.job));
  if (flags.json) {
    auto json = app::plan_json(subject, request, result, what_ifs);
    if (cost) json["million_tokens_cost"] = *cost;
    print_json(json);
  } else {
    std::fputs(app::plan_text(subject, request, result, what_ifs).c_str(), stdout);
    if (cost) std::printf("  %s\n", cost_text(*cost, flags.price).c_str());
  }
  if (flags.simulate_all && !flags.json) simulate_grid(request, result);
  if (!flags.html.empty()) {
    write_file(flags.html, app::plan_html(subject, request, result, what_ifs));
    std::fprintf(stderr, "sluice: a page of it: %s\n", flags.html.c_str());
  }
  if (!flags.output_policy.empty())
    write_file(flags.output_policy, policy::policy_to_json(result.best.policy) + "\n");
}

// The machine that is asked about, and how much of it.
void add_machine(CLI::App& parser, PlanFlags& flags) {
  parser
      .add_option("--hardware", flags.hardware,
                  "profile by name (sluice profile --list) or file (default: this machine)")
      ->envname("SLUICE_HARDWARE");
  parser
      .add_option("--gpu", flags.gpu,
                  "which device of a machine with several, from 0 (a run computes on one)")
      ->check(CLI::NonNegativeNumber);
  parser
      .add_option("--device", flags.device,
                  "cpu: the machine as if it had no device (default: with it)")
      ->check(CLI::IsMember({"cpu"}));
  parser.add_option("--gpu-mem,--gpu-memory", flags.device_memory, "device memory (default: all)")
      ->envname("SLUICE_GPU_MEM");
  parser.add_option("--cpu-mem,--cpu-memory", flags.host_memory, "host memory (default: all)")
      ->envname("SLUICE_CPU_MEM");
  parser
      .add_option("--disk-mem,--disk-memory", flags.disk_memory,
                  "disk for offloaded KV and activations (default: all)")
      ->envname("SLUICE_DISK_MEM");
}

// What is asked of several machines, or of one that changes.
void add_questions(CLI::App& parser, PlanFlags& flags) {
  parser.add_option("--sweep", flags.sweeps, "one row for each value, as gpu-mem=8GiB,16GiB,24GiB");
  parser
      .add_option("--nodes", flags.nodes,
                  "several machines on one job of --sequences rows: profiles, as a.json,b.json; "
                  "a.json:cpu-mem=16GiB:disk-read=200MB/s changes one (docs/jobs.md)")
      ->delimiter(',');
  parser.add_flag(
      "--fits", flags.is_fits,
      "which built-in models the machine runs, and how fast; MODEL: part of their names");
  parser.add_option("--at-least", flags.at_least, "of --fits: tokens/s of one user")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  parser.add_option("--target", flags.target,
                    "tokens/s of one user (of --sequences): what to change so that it is reached");
  parser
      .add_option("--part-prices", flags.part_prices,
                  "of --target: memory=4 (a GiB), disk-7=90 (one of 7GB/s), rtx-4090=1500, ...")
      ->delimiter(',');
  parser.add_option("--price", flags.price,
                    "0.60/h, or 450W@0.30/kWh: says what a million new tokens cost");
}
}  // namespace

Command add_plan(CLI::App& program) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* parser = program.add_subcommand(
      "plan", "what a model would do on a machine, without the machine or the weights");
  add_model_option(*parser, flags->model,
                   "built-in name (--list-models), model folder, config.json, or a name that "
                   "`sluice models` lists",
                   BuiltInNames::kYes);
  add_machine(*parser, *flags);
  parser->add_option("--prompt-len", flags->prompt, "prompt tokens, or mean:longest")
      ->capture_default_str();
  parser->add_option("--gen-len", flags->fresh, "new tokens, or mean:longest")
      ->capture_default_str();
  parser->add_option("--sequences,--batch", flags->sequences,
                     "sequences of the job (default: the policy's block, else 256)");
  parser->add_option("--objective", flags->objective, "throughput, latency, or bounded")
      ->check(CLI::IsMember({"throughput", "latency", "bounded"}))
      ->capture_default_str();
  parser->add_option("--latency-bound", flags->latency_bound,
                     "seconds for a block (--objective bounded)");
  parser->add_option("--policy", flags->policy_file, "evaluate this policy");
  parser
      ->add_option("--percent", flags->percent,
                   "evaluate: weights, KV, activations: device and host share each")
      ->expected(6);
  parser->add_option("--gpu-batch-size,--micro-batch", flags->micro_batch,
                     "sequences of a micro-batch");
  parser->add_option("--num-gpu-batches,--micro-batches", flags->micro_batches,
                     "micro-batches of a block");
  parser->add_option("--weights", flags->weights,
                     "weights as f32, f16, bf16, int8, int4, nf4, fp8 or mxfp4 (-g32, -g64, -g128: "
                     "a group's columns), q4_0, iq4, or q2_k to q6_k");
  parser->add_flag("--gpu-direct", flags->is_gpu_direct,
                   "weights come from disk straight into the GPU's memory (GPUDirect Storage)");
  parser
      ->add_option("--attn-sparsity", flags->attention_sparsity,
                   "sparse attention: share of a context's values that is read")
      ->check(CLI::Range(1e-6, 1.0));
  add_kv_dtype_option(*parser, flags->kv_dtype);
  parser
      ->add_option("--allow", flags->allow,
                   "formats that the plan may choose when they are faster: int4-weights, int4-kv, "
                   "int8-weights, int8-kv (default: none)")
      ->delimiter(',');
  add_questions(*parser, *flags);
  parser->add_option("--output-policy", flags->output_policy,
                     "write the policy to a file that run and batch take (--policy)");
  parser
      ->add_option("--cost-model", flags->cost_model,
                   "ours, or FlexGen's published equations for a given policy")
      ->check(CLI::IsMember({"ours", "flexgen-code", "flexgen-paper"}))
      ->capture_default_str();
  parser->add_option("--html", flags->html, "write one self-contained page with pictures");
  parser->add_flag("--simulate-all", flags->simulate_all,
                   "simulate a grid of policies beside the one found");
  parser->add_flag("--no-lifts", flags->no_lifts, "don't search again with twice of each resource");
  parser->add_flag("--list-models", flags->list_models, "names of the built-in shapes");
  parser->add_flag("--json", flags->json, "one JSON object on standard output");
  return {parser, [flags](std::stop_token stop) { run_plan(*flags, stop); }};
}

}  // namespace sluice::tools
