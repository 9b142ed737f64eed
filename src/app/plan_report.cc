#include "src/app/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/side_by_side.h"

namespace sluice::app {

namespace {
using policy::Candidate;
using policy::Plan;
using policy::Policy;
using policy::Prediction;
using policy::SearchRequest;
using policy::SearchResult;
using Json = nlohmann::ordered_json;

constexpr double kWorthSaying = 1.03;

TierBytes kv_bytes(const Plan& plan) {
  TierBytes out{};
  for (const policy::KvPlan& kv : plan.kv) {
    out.device += static_cast<double>(kv.bytes_of(kv.memory_pages));
    out.host += static_cast<double>(kv.bytes_of(kv.host_pages));
    out.disk += static_cast<double>(kv.bytes_of(kv.disk_pages));
  }
  return out;
}

TierBytes activation_bytes(const Plan& plan, const ModelShape& model) {
  const double bytes = static_cast<double>(plan.pass_tokens * model.hidden_row_bytes());
  const policy::TierShares placed = plan.placed(plan.policy.activations);
  return {bytes * placed.device, bytes * placed.host, bytes * placed.disk};
}

std::string percent_of(double part, double whole) {
  return whole > 0 ? fmt::format("{:5.1f}%", 100 * part / whole) : std::string("    - ");
}

std::string tier_row(const char* what, const TierBytes& bytes) {
  const auto cell = [&](double value) {
    return fmt::format("{:>10} {}", format_bytes(static_cast<int64_t>(value)),
                       percent_of(value, bytes.total()));
  };
  return fmt::format("  {:<12} {}   {}   {}\n", what, cell(bytes.device), cell(bytes.host),
                     cell(bytes.disk));
}

Json shares_json(const policy::TierShares& shares) {
  return {{"device", shares.device}, {"host", shares.host}, {"disk", shares.disk}};
}

Json lanes_json(const Prediction& prediction) {
  Json lanes = Json::object();
  for (size_t i = 0; i < prediction.prefill_lanes.size(); ++i) {
    const Lane lane(i);
    const double busy = prediction.lane_seconds(lane);
    if (busy > 0)
      lanes[lane_name(named_lanes(), lane)] = {
          {"busy_s", busy},
          {"share", busy / std::max(prediction.seconds(), 1e-12)},
          {"prefill_s", prediction.prefill_lanes[lane]},
          {"decode_s", prediction.decode_lanes[lane]}};
  }
  return lanes;
}

// "33.2% of the weights in place in passes of 1 to 7 tokens, 15.6% from 8, 0.0% from 20".
std::string inplace_text(const Policy& policy) {
  std::string text = fmt::format("{:.1f}% of the weights in place",
                                 100 * policy.execution(0).inplace_host_fraction);
  if (policy.larger_passes.empty()) return text;
  text += fmt::format(" in passes of 1 to {} tokens", policy.larger_passes[0].from_tokens - 1);
  for (const policy::PassExecution& one : policy.larger_passes)
    text += fmt::format(", {:.1f}% from {}", 100 * one.inplace_host_fraction, one.from_tokens);
  return text;
}

std::string attention_text(const Policy& policy) {
  const auto name = [&](const policy::PassExecution& one) {
    const bool splits =
        one.attention == policy::AttentionPlace::kHost && policy.host_attention_tokens > 0;
    return fmt::format(
        "{}{}", policy::attention_name(one.attention),
        splits ? fmt::format(" (of more than {} new tokens of a sequence on the device)",
                             policy.host_attention_tokens)
               : "");
  };
  policy::PassExecution before = policy.execution(0);
  std::string text = name(before);
  for (const policy::PassExecution& one : policy.larger_passes) {
    if (one.attention != before.attention)
      text += fmt::format(", from {} tokens a pass on the {}", one.from_tokens, name(one));
    before = one;
  }
  return text;
}

// Twice of one resource, or nothing when the machine has none of it.
struct Resource {
  const char* what;
  bool (*twice)(SearchRequest&, policy::Profile&);
};

void twice(policy::Figure& figure) { figure.value *= 2; }

void twice(policy::Processor& processor, bool memory) {
  if (memory) {
    twice(processor.memory_read);
    for (policy::AttentionRate& rate : processor.attention) twice(rate.decode_bytes);
    return;
  }
  for (policy::MatmulRate& rate : processor.matmul) twice(rate.flops);
  for (policy::AttentionRate& rate : processor.attention) twice(rate.prefill_flops);
}

constexpr Resource kResources[] = {
    {"the device's memory",
     [](SearchRequest& request, policy::Profile&) {
       request.input.device_budget_bytes *= 2;
       return request.input.device_budget_bytes > 0;
     }},
    {kHostMemory,
     [](SearchRequest& request, policy::Profile&) {
       request.input.memory_budget_bytes *= 2;
       return true;
     }},
    {"the disk's speed",
     [](SearchRequest&, policy::Profile& profile) {
       for (policy::Disk& disk : profile.disks)
         for (policy::Figure* figure :
              {&disk.read, &disk.write, &disk.mixed_read, &disk.mixed_write, &disk.busy_read})
           twice(*figure);
       return !profile.disks.empty();
     }},
    {"the link's speed",
     [](SearchRequest&, policy::Profile& profile) {
       twice(profile.link.to_device);
       twice(profile.link.to_host);
       return profile.device.has_value();
     }},
    {"the device's arithmetic",
     [](SearchRequest&, policy::Profile& profile) {
       if (profile.device) twice(*profile.device, false);
       return profile.device.has_value();
     }},
    {"the host's arithmetic",
     [](SearchRequest&, policy::Profile& profile) {
       twice(profile.host, false);
       return true;
     }},
    {"the host's memory bandwidth", [](SearchRequest&, policy::Profile& profile) {
       twice(profile.host, true);
       return true;
     }}};

// Tokens a second of a block's prompts, and of its new tokens behind the first.
struct PhaseRates {
  double prefill = 0;
  double decode = 0;
};

PhaseRates phase_rates(const Prediction& prediction, const policy::JobShape& job) {
  const auto sequences = static_cast<double>(prediction.block_sequences);
  const auto rate = [](double tokens, double seconds) {
    return seconds > 0 ? tokens / seconds : 0;
  };
  return {rate(sequences * job.prompt_tokens, prediction.prefill_seconds),
          rate(prediction.new_tokens - sequences, prediction.decode_seconds)};
}

std::optional<MixtureWhatIfs> mixture_of(const std::optional<WhatIfs>& what_ifs) {
  return what_ifs ? what_ifs->mixture : std::nullopt;
}
}  // namespace

std::string bottleneck_name(const Prediction& prediction) {
  const Lane lane = prediction.bottleneck();
  if (prediction.host_memory_seconds() > prediction.lane_seconds(lane)) return "host memory";
  return lane_name(named_lanes(), lane);
}

double job_blocks(const Candidate& candidate, const policy::JobShape& job) {
  const int64_t block = std::max<int64_t>(prediction_of(candidate).block_sequences, 1);
  return std::ceil(static_cast<double>(job.sequences) / static_cast<double>(block));
}

double job_tokens_per_second(const Candidate& candidate, const policy::JobShape& job) {
  const double seconds = job_blocks(candidate, job) * prediction_of(candidate).seconds();
  return seconds > 0 ? static_cast<double>(job.sequences) * job.new_tokens / seconds : 0;
}

TierBytes placed_weights(const Plan& plan) {
  const auto host = static_cast<double>(plan.host_home_bytes);
  const auto device = static_cast<double>(plan.resident_weight_bytes);
  return {device, host, std::max(0.0, static_cast<double>(plan.weight_bytes) - device - host)};
}

double placement_error(const Plan& plan) {
  const TierBytes placed = placed_weights(plan);
  const policy::TierShares asked = plan.placed(plan.policy.weights);
  const auto all = static_cast<double>(std::max<int64_t>(plan.weight_bytes, 1));
  return std::max({std::abs(placed.device / all - asked.device),
                   plan.has_device ? std::abs(placed.host / all - asked.host) : 0,
                   std::abs(placed.disk / all - asked.disk)});
}

WhatIfs find_what_ifs(const SearchRequest& request, const SearchResult& result) {
  const double now = job_tokens_per_second(result.best, request.job);
  std::array<std::optional<double>, std::size(kResources)> with_twice;  // tokens a second
  std::optional<MixtureWhatIfs> mixture;
  // Searches that know nothing of each other: the mixture's, which are the longest, come first.
  run_side_by_side(1 + with_twice.size(), [&](size_t i) {
    if (i == 0) {
      mixture = find_mixture_what_ifs(request, result);
      return;
    }
    SearchRequest more = request;
    policy::Profile profile = *request.profile;
    if (!kResources[i - 1].twice(more, profile)) return;
    more.profile = &profile;
    more.simulated_candidates = std::min(request.simulated_candidates, 2);
    // As many again for each resource: micro-batches of the size found will do.
    more.constraints.micro_batch_tokens = result.best.policy.micro_batch_tokens;
    with_twice[i - 1] = job_tokens_per_second(policy::search_policy(more).best, request.job);
  });
  WhatIfs out;
  for (size_t i = 0; i < with_twice.size(); ++i) {
    const std::string_view what = kResources[i].what;
    const std::optional<double>& then = with_twice[i];
    if (then && now > 0 && *then / now >= kWorthSaying)
      out.lifts.push_back({std::string(what), *then / now});
    if (mixture && what == kHostMemory) mixture->more_memory = then;
  }
  std::sort(out.lifts.begin(), out.lifts.end(),
            [](const Lift& a, const Lift& b) { return a.factor > b.factor; });
  out.mixture = std::move(mixture);
  return out;
}

Json plan_json(const PlanSubject& subject, const SearchRequest& request, const SearchResult& result,
               const std::optional<WhatIfs>& what_ifs) {
  const Candidate& best = result.best;
  const Plan& plan = best.plan;
  const Policy& policy = best.policy;
  const Prediction& prediction = prediction_of(best);
  const policy::PlanInput& input = request.input;
  const bool has_device = plan.has_device;
  const auto tiers = [&](int64_t device, int64_t host, int64_t disk) -> Json {
    return {
        {"device", has_device ? device : host}, {"host", has_device ? host : 0}, {"disk", disk}};
  };
  Json json;
  json["model"] = subject.model;
  json["hardware"] = subject.hardware;
  json["job"] = {{"sequences", request.job.sequences},
                 {"prompt_tokens", request.job.prompt_tokens},
                 {"new_tokens", request.job.new_tokens}};
  json["policy"] = {{"micro_batch", policy.micro_batch_sequences},
                    {"micro_batches", policy.micro_batches},
                    {"weights", shares_json(policy.weights)},
                    {"kv", shares_json(policy.kv)},
                    {"activations", shares_json(policy.activations)},
                    {"attention", policy::attention_name(policy.attention)},
                    {"weight_dtype", input.model->weights_name()},
                    {"kv_dtype", kv_format_name(input.kv_dtype)},
                    {"inplace_host_fraction", policy.inplace_host_fraction},
                    {"micro_batch_tokens", policy.micro_batch_tokens},
                    {"pass_tokens", policy.pass_tokens},
                    {"page_tokens", policy.page_tokens}};
  json["policy_file"] = Json::parse(policy::policy_to_json(policy));
  const PhaseRates rates = phase_rates(prediction, request.job);
  json["predicted"] = {{"prefill_s", prediction.prefill_seconds},
                       {"decode_s", prediction.decode_seconds},
                       {"prefill_tokens_per_s", rates.prefill},
                       {"decode_tokens_per_s", rates.decode},
                       {"tokens_per_s", job_tokens_per_second(best, request.job)},
                       {"job_s", job_blocks(best, request.job) * prediction.seconds()},
                       {"latency_s", prediction.latency_seconds()},
                       {"block_sequences", prediction.block_sequences},
                       {"lanes", lanes_json(prediction)},
                       {"host_memory_s", prediction.host_memory_seconds()},
                       {"bottleneck", bottleneck_name(prediction)},
                       {"by", best.simulated ? "simulator" : "cost model"}};
  json["peak_bytes"] = tiers(plan.device_bytes(), plan.memory_bytes(), plan.disk_bytes());
  json["limits_bytes"] =
      tiers(input.device_budget_bytes, input.memory_budget_bytes, input.disk_budget_bytes);
  json["placement_error"] = placement_error(plan);
  json["lifts"] = nullptr;  // not asked for
  if (what_ifs) {
    json["lifts"] = Json::array();
    for (const Lift& lift : what_ifs->lifts)
      json["lifts"].push_back({{"twice", lift.what}, {"factor", lift.factor}});
  }
  json["mixture"] = mixture_json(mixture_facts(request, best), mixture_of(what_ifs));
  json["search_s"] = result.search_seconds;
  json["candidates"] = result.candidates;
  return json;
}

std::string plan_text(const PlanSubject& subject, const SearchRequest& request,
                      const SearchResult& result, const std::optional<WhatIfs>& what_ifs) {
  const Candidate& best = result.best;
  const Plan& plan = best.plan;
  const Policy& policy = best.policy;
  const ModelShape& model = *request.input.model;
  const Prediction& p = prediction_of(best);
  std::string text = fmt::format(
      "{} ({:.1f} billion parameters, {} of {}) on {}\n{} sequences, {:.0f} prompt tokens and "
      "{:.0f} "
      "new ones each\n\n",
      subject.model, static_cast<double>(model.num_parameters()) / 1e9,
      format_bytes(model.weight_bytes()), model.weights_name(), subject.hardware,
      request.job.sequences, request.job.prompt_tokens, request.job.new_tokens);
  text += fmt::format("  {:<12} {:>17}   {:>17}   {:>17}\n", "",
                      plan.has_device ? "device" : "memory", plan.has_device ? "host" : "", "disk");
  text += tier_row("weights", placed_weights(plan));
  text += tier_row("KV", kv_bytes(plan));
  text += tier_row("activations", activation_bytes(plan, model));
  text += fmt::format("  {:<12} ", "peak");
  if (plan.has_device)
    text += fmt::format("{:>10} of {}   ", format_bytes(plan.device_bytes()),
                        format_bytes(request.input.device_budget_bytes));
  text += fmt::format(
      "{:>10} of {}   {:>10} of {}\n\n", format_bytes(plan.memory_bytes()),
      format_bytes(request.input.memory_budget_bytes), format_bytes(plan.disk_bytes()),
      !request.input.has_disk               ? "none"
      : request.input.disk_budget_bytes > 0 ? format_bytes(request.input.disk_budget_bytes)
                                            : "any");
  if (placed_weights(plan).disk > 0)
    text.insert(text.size() - 1,
                "               (of the disk: what is offloaded; the weights there are the model's "
                "file)\n");
  text += fmt::format(
      "  block        {} sequences x {} micro-batches; prefill: micro-batches of {} tokens, {} a "
      "pass\n",
      policy.micro_batch_sequences, policy.micro_batches,
      std::min(policy.micro_batch_tokens, plan.pass_tokens), plan.pass_tokens);
  if (plan.has_device)
    text += fmt::format(
        "  computes     device; the CPU multiplies {}; attention over KV below the device on the "
        "{}\n",
        inplace_text(policy), attention_text(policy));
  text += fmt::format("  placed       as asked to within {:.2f}% of the weights' bytes\n\n",
                      100 * placement_error(plan));
  text += mixture_text(mixture_facts(request, best), mixture_of(what_ifs));
  const double blocks = job_blocks(best, request.job);
  const char* of_a_block = blocks > 1 ? ", in a block" : "";
  const PhaseRates rates = phase_rates(p, request.job);
  text += fmt::format("  prefill      {:>10}  {:10.2f} tokens/s{}\n",
                      format_seconds(p.prefill_seconds), rates.prefill, of_a_block);
  text += fmt::format("  decode       {:>10}  {:10.2f} tokens/s{}\n",
                      format_seconds(p.decode_seconds), rates.decode, of_a_block);
  text +=
      fmt::format("  total        {:>10}  {:10.2f} generated tokens/s, {}{} a block\n",
                  format_seconds(blocks * p.seconds()), job_tokens_per_second(best, request.job),
                  blocks > 1 ? fmt::format("{:.0f} blocks, ", blocks) : "",
                  format_seconds(p.latency_seconds()));
  const auto share = [](double part, double whole) { return 100 * part / std::max(whole, 1e-12); };
  for (size_t i = 0; i < p.prefill_lanes.size(); ++i) {
    const Lane lane(i);
    if (p.lane_seconds(lane) > 0)
      text +=
          fmt::format("  lane         {:<16} busy {:5.1f}%  prefill {:5.1f}%  decode {:5.1f}%\n",
                      lane_name(named_lanes(), lane), share(p.lane_seconds(lane), p.seconds()),
                      share(p.prefill_lanes[lane], p.prefill_seconds),
                      share(p.decode_lanes[lane], p.decode_seconds));
  }
  if (p.host_memory_seconds() > 0)
    text += fmt::format("  memory       {:<16} busy {:5.1f}%  prefill {:5.1f}%  decode {:5.1f}%\n",
                        "of the host", share(p.host_memory_seconds(), p.seconds()),
                        share(p.prefill_host_memory_seconds, p.prefill_seconds),
                        share(p.decode_host_memory_seconds, p.decode_seconds));
  text += fmt::format("  bottleneck   {}", bottleneck_name(p));
  if (what_ifs && what_ifs->lifts.empty()) text += "; twice of no single resource gives 3% more";
  if (what_ifs)
    for (const Lift& lift : what_ifs->lifts)
      text += fmt::format("\n               twice {} would give {:.2f}x", lift.what, lift.factor);
  text += fmt::format("\n\n  {} blocks and placements looked at in {}; figures by the {}\n",
                      result.candidates, format_seconds(result.search_seconds),
                      best.simulated ? "simulated schedule" : "cost model");
  return text;
}

}  // namespace sluice::app
