#include "src/app/mixture_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/app/plan_report.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/side_by_side.h"

namespace sluice::app {

namespace {
using policy::Candidate;
using policy::SearchRequest;
using policy::SearchResult;
using Json = nlohmann::ordered_json;

constexpr int64_t kLargerJob = 4;
constexpr int64_t kUsers[] = {1, 4, 16, 64};
// Together they are to be so much faster than one alone to be called a gain.
constexpr double kGain = 1.25;

struct ModelBytes {
  int64_t active = 0;
  int64_t routed = 0;
};

ModelBytes bytes_of_a_token(const ModelShape& model) {
  ModelBytes out;
  for (const SublayerShape& sublayer : model.sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      if (weight.experts > 0) {
        const int64_t one = model.rows_bytes(weight, weight.expert_rows());
        out.routed += model.experts_per_token * one;
      } else {
        const int64_t rows = weight.kind == WeightKind::kTable ? 1 : weight.rows;
        out.active += model.rows_bytes(weight, rows);
      }
    }
  out.active += out.routed;
  return out;
}

// A decode pass of the candidate's block, where it has any.
std::optional<policy::PassWork> decode_pass(const SearchRequest& request,
                                            const Candidate& candidate) {
  policy::BlockPasses block =
      policy::block_passes(*request.input.model, candidate.plan, request.job, 1, 1);
  if (block.passes.empty() || block.passes.back().is_prefill) return std::nullopt;
  return std::move(block.passes.back());
}

SearchRequest with_sequences(SearchRequest request, int64_t sequences) {
  const int64_t before = std::max<int64_t>(request.input.workload.sequences, 1);
  request.input.workload.total_tokens = request.input.workload.total_tokens / before * sequences;
  request.input.workload.prompt_tokens = request.input.workload.prompt_tokens / before * sequences;
  request.input.workload.sequences = sequences;
  request.job.sequences = sequences;
  // A block that was asked for is what is larger now.
  if (request.constraints.micro_batch_sequences) {
    const int64_t count = std::max<int64_t>(request.constraints.micro_batches.value_or(1), 1);
    request.constraints.micro_batch_sequences = std::max<int64_t>(sequences / count, 1);
  }
  return request;
}

std::optional<SearchResult> found(const SearchRequest& request) {
  try {
    return policy::search_policy(request);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    return std::nullopt;  // it does not fit
  }
}

std::optional<SearchRequest> without_device(const SearchRequest& request,
                                            const policy::Profile& host) {
  // Who placed things by hand meant this machine; who has neither disk nor room has no such plan.
  const policy::SearchConstraints& fixed = request.constraints;
  if (fixed.weights || fixed.kv || fixed.activations || !request.input.host_workspace_bytes)
    return std::nullopt;
  SearchRequest alone = request;
  alone.profile = &host;
  alone.constraints = {};
  alone.input.device_budget_bytes = 0;
  alone.input.disk_reaches_device = false;
  alone.input.workspace_bytes = request.input.host_workspace_bytes;
  alone.input.host_workspace_bytes = nullptr;
  alone.input.host_staging_bytes = nullptr;
  return alone;
}

// Nothing where so many have no room together.
std::optional<UsersAtATime> users_at_a_time(const SearchRequest& request, int64_t users) {
  SearchRequest one = with_sequences(request, users);
  one.simulated_candidates = std::min(request.simulated_candidates, 2);
  one.objective = policy::Objective::kThroughput;
  // All at once, or these are not so many users.
  one.constraints.micro_batch_sequences = users;
  one.constraints.micro_batches = 1;
  const auto result = found(one);
  if (!result) return std::nullopt;
  const auto facts = mixture_facts(one, result->best);
  const policy::Prediction& expected = policy::prediction_of(result->best);
  if (!facts || facts->pass_tokens == 0 || expected.decode_seconds <= 0) return std::nullopt;
  const double decoded = expected.new_tokens - static_cast<double>(expected.block_sequences);
  return UsersAtATime{users, decoded / expected.decode_seconds,
                      facts->decode.read_bytes / static_cast<double>(facts->pass_tokens)};
}

// Up to the first number of users that have no room together.
std::vector<UsersAtATime> users_at_a_time(const SearchRequest& request) {
  std::array<std::optional<UsersAtATime>, std::size(kUsers)> all;
  run_side_by_side(all.size(), [&](size_t i) { all[i] = users_at_a_time(request, kUsers[i]); });
  std::vector<UsersAtATime> out;
  for (const auto& one : all) {
    if (!one) break;
    out.push_back(*one);
  }
  return out;
}

Json decode_json(const MixtureFacts& facts) {
  const policy::ExpertTraffic& decode = facts.decode;
  return {{"tokens", facts.pass_tokens},
          {"asked_experts_a_layer",
           decode.asked / static_cast<double>(std::max<int64_t>(decode.layers, 1))},
          {"asked_bytes", decode.asked_bytes},
          {"found_share", decode.found_share()},
          {"inplace_bytes", decode.inplace_bytes},
          {"read_bytes", decode.read_bytes},
          {"up_bytes", decode.up_bytes},
          {"moved_bytes_a_token", facts.moved_bytes_a_token()},
          {"slots", decode.slots},
          {"loads", decode.demands ? "what is asked for" : "all that is elsewhere"},
          {"router", facts.has_slots() ? "fitted" : "even"}};
}

std::string size(double bytes) { return format_bytes(static_cast<int64_t>(std::llround(bytes))); }

std::string of_tokens(int64_t tokens) {
  return fmt::format("{} token{}", tokens, tokens == 1 ? "" : "s");
}

std::string found_text(const MixtureFacts& facts) {
  const policy::ExpertTraffic& decode = facts.decode;
  const double all = std::max(decode.asked_bytes, 1.0);
  if (facts.has_slots())
    return fmt::format(
        "{:.1f}% of that is found in memory: {} slots a layer{}; a router skewed and sticky as "
        "measured ones",
        100 * decode.found_share(), decode.slots,
        decode.inplace_bytes > 0
            ? fmt::format(" where the CPU multiplies, and {:.1f}% on the device",
                          100 * decode.found_bytes / all)
            : std::string());
  std::string text = fmt::format("{:.1f}% of that is where it is computed (even routing)",
                                 100 * decode.found_bytes / all);
  if (decode.inplace_bytes > 0)
    text += fmt::format("; {:.1f}% is multiplied in place by the CPU",
                        100 * decode.inplace_bytes / all);
  return text;
}

std::string moved_text(const MixtureFacts& facts) {
  const policy::ExpertTraffic& decode = facts.decode;
  if (decode.read_bytes + decode.up_bytes <= 0) return "no expert moves";
  std::string text = decode.demands ? "the others are loaded: "
                                    : "every such pass moves all others, asked for or not: ";
  if (decode.read_bytes > 0) text += size(decode.read_bytes) + " from disk";
  if (decode.up_bytes > 0)
    text +=
        fmt::format("{}{} up the link", decode.read_bytes > 0 ? ", " : "", size(decode.up_bytes));
  return text + fmt::format("; {} a token", size(facts.moved_bytes_a_token()));
}

std::string users_text(const MixtureWhatIfs& what_ifs) {
  std::string text;
  for (const UsersAtATime& one : what_ifs.users)
    text += fmt::format("{}{} at a time {:.4g} tokens/s of {} read each",
                        text.empty() ? "  users        " : "\n               ", one.sequences,
                        one.decode_tokens_per_second, size(one.read_bytes_a_token));
  if (text.empty()) return text;
  const int64_t most = what_ifs.users_without_gain();
  if (most > 0)
    text += fmt::format(
        "\n               more users gain nothing up to {}: together they decode hardly faster "
        "than "
        "one alone,\n               whose experts are found in memory",
        most);
  return text + "\n";
}

std::string what_if_text(const MixtureWhatIfs& what_ifs) {
  std::string text;
  const auto add = [&](const std::string& what) {
    text += fmt::format("  {:<12} {}\n", text.empty() ? "what if" : "", what);
  };
  if (what_ifs.larger_block)
    add(fmt::format("{} sequences: {:.4g} tokens/s in blocks of {}, instead of {:.4g}",
                    what_ifs.larger_job, what_ifs.larger_block->tokens_per_second,
                    what_ifs.larger_block->block_sequences, what_ifs.now));
  if (what_ifs.more_memory)
    add(fmt::format("{} of host memory: {:.4g} tokens/s", format_bytes(what_ifs.more_memory_bytes),
                    *what_ifs.more_memory));
  if (what_ifs.without_device)
    add(
        fmt::format("without the device, experts in slots and loaded when asked for: "
                    "{:.4g} tokens/s",
                    *what_ifs.without_device));
  return text;
}
}  // namespace

double MixtureFacts::moved_bytes_a_token() const noexcept {
  if (pass_tokens == 0) return 0;
  return std::max(decode.read_bytes, decode.up_bytes) / static_cast<double>(pass_tokens);
}

std::optional<MixtureFacts> mixture_facts(const SearchRequest& request,
                                          const Candidate& candidate) {
  const ModelShape& model = *request.input.model;
  const ModelBytes bytes = bytes_of_a_token(model);
  if (bytes.routed == 0) return std::nullopt;
  MixtureFacts out;
  out.experts = model.num_experts;
  out.chosen = model.experts_per_token;
  out.total_bytes = model.weight_bytes();
  out.active_bytes = bytes.active;
  out.routed_bytes = bytes.routed;
  if (const auto pass = decode_pass(request, candidate)) {
    out.pass_tokens = pass->tokens();
    out.decode = policy::expert_traffic(model, candidate.plan, *pass);
  }
  return out;
}

int64_t MixtureWhatIfs::users_without_gain() const noexcept {
  int64_t most = 0;
  for (const UsersAtATime& one : users)
    if (one.sequences > 1 && one.read_bytes_a_token > 0 &&
        one.decode_tokens_per_second < kGain * users.front().decode_tokens_per_second)
      most = one.sequences;
  return most;
}

std::optional<MixtureWhatIfs> find_mixture_what_ifs(const SearchRequest& request,
                                                    const SearchResult& result) {
  const auto facts = mixture_facts(request, result.best);
  if (!facts) return std::nullopt;
  MixtureWhatIfs out;
  out.now = job_tokens_per_second(result.best, request.job);
  out.more_memory_bytes = 2 * request.input.memory_budget_bytes;
  const bool is_batch = request.objective != policy::Objective::kLatency;
  if (is_batch) out.larger_job = kLargerJob * request.job.sequences;
  const auto find_larger = [&] {
    SearchRequest larger = with_sequences(request, out.larger_job);
    larger.simulated_candidates = std::min(request.simulated_candidates, 2);
    larger.constraints.micro_batch_tokens = result.best.policy.micro_batch_tokens;
    if (const auto other = found(larger))
      out.larger_block = {job_tokens_per_second(other->best, larger.job),
                          policy::prediction_of(other->best).block_sequences};
  };
  const auto find_without_device = [&] {
    policy::Profile host = *request.profile;
    host.device.reset();
    const auto alone = without_device(request, host);
    const auto other = alone ? found(*alone) : std::nullopt;
    const auto slots = other ? mixture_facts(*alone, other->best) : std::nullopt;
    if (slots && slots->has_slots())
      out.without_device = job_tokens_per_second(other->best, alone->job);
  };
  run_side_by_side(2, [&](size_t i) {
    if (i == 0 && is_batch) find_larger();
    if (i == 0) return;
    if (request.input.device_budget_bytes > 0)
      find_without_device();
    else if (facts->has_slots())
      out.users = users_at_a_time(request);
  });
  return out;
}

Json mixture_json(const std::optional<MixtureFacts>& facts,
                  const std::optional<MixtureWhatIfs>& what_ifs) {
  if (!facts) return nullptr;
  Json json{{"experts", facts->experts},           {"experts_per_token", facts->chosen},
            {"layers", facts->decode.layers},      {"total_bytes", facts->total_bytes},
            {"active_bytes", facts->active_bytes}, {"routed_bytes_a_token", facts->routed_bytes}};
  json["decode_pass"] = nullptr;
  if (facts->pass_tokens > 0) json["decode_pass"] = decode_json(*facts);
  json["what_if"] = nullptr;
  if (!what_ifs) return json;
  Json& other = json["what_if"] = {{"now_tokens_per_s", what_ifs->now}};
  if (what_ifs->larger_block)
    other["larger_block"] = {{"sequences", what_ifs->larger_job},
                             {"block_sequences", what_ifs->larger_block->block_sequences},
                             {"tokens_per_s", what_ifs->larger_block->tokens_per_second}};
  if (what_ifs->more_memory)
    other["more_memory"] = {{"host_bytes", what_ifs->more_memory_bytes},
                            {"tokens_per_s", *what_ifs->more_memory}};
  if (what_ifs->without_device)
    other["without_device"] = {{"tokens_per_s", *what_ifs->without_device}};
  if (what_ifs->users.empty()) return json;
  other["users"] = Json::array();
  for (const UsersAtATime& one : what_ifs->users)
    other["users"].push_back({{"sequences", one.sequences},
                              {"decode_tokens_per_s", one.decode_tokens_per_second},
                              {"read_bytes_a_token", one.read_bytes_a_token}});
  other["users_without_gain"] = what_ifs->users_without_gain();
  return json;
}

std::string mixture_text(const std::optional<MixtureFacts>& facts,
                         const std::optional<MixtureWhatIfs>& what_ifs) {
  if (!facts) return {};
  const policy::ExpertTraffic& decode = facts->decode;
  std::string text = fmt::format(
      "  mixture      a token goes to {} of {} experts in each of {} layers; of {} it takes {}, of "
      "which {} are experts'\n",
      facts->chosen, facts->experts, decode.layers, format_bytes(facts->total_bytes),
      format_bytes(facts->active_bytes), format_bytes(facts->routed_bytes));
  if (facts->pass_tokens > 0)
    text += fmt::format(
        "  experts      a decode pass ({}) goes to {:.1f} of a layer's {}, {} in all\n"
        "               {}\n               {}\n",
        of_tokens(facts->pass_tokens),
        decode.asked / static_cast<double>(std::max<int64_t>(decode.layers, 1)), facts->experts,
        size(decode.asked_bytes), found_text(*facts), moved_text(*facts));
  if (what_ifs) text += what_if_text(*what_ifs) + users_text(*what_ifs);
  return text + "\n";
}

}  // namespace sluice::app
