#include "src/app/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/app/plan_request.h"
#include "src/base/bytes.h"

namespace sluice::app {

namespace {
double rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

// Of less than this a rate says nothing but what the clock and the first touch cost.
constexpr double kTellingSeconds = 0.01;
std::string rate_text(double bytes, double seconds) {
  return seconds < kTellingSeconds ? "-" : format_rate(bytes / seconds);
}
std::string token_rate(double tokens, double seconds) {
  return seconds < kTellingSeconds ? fmt::format("{:>8}         ", "-")
                                   : fmt::format("{:8.2f} tokens/s", tokens / seconds);
}

// Tokens that came out of passes without a prompt: each running sequence's but its first.
double decode_rate(const EngineStats& stats, int64_t first_tokens) {
  return rate(static_cast<double>(stats.decode_tokens - first_tokens), stats.decode_seconds);
}

std::string lane_row(const std::string& name, const LaneStats& lane_stats, double wall) {
  const double share = wall > 0 ? 100 * lane_stats.busy_seconds / wall : 0;
  std::string row = fmt::format("  lane    {:<16} busy {:5.1f}%  {:>9}", name, share,
                                format_seconds(lane_stats.busy_seconds));
  if (lane_stats.bytes > 0)
    row += fmt::format("  {:>9}  {:>10}", format_bytes(lane_stats.bytes),
                       rate_text(static_cast<double>(lane_stats.bytes), lane_stats.busy_seconds));
  else if (lane_stats.wait_seconds > 0)
    row += fmt::format("  waited {} for transfers", format_seconds(lane_stats.wait_seconds));
  return row + "\n";
}
// What a pass of each class sends up and multiplies in place; with several, how many there were.
std::string class_rows(const policy::Plan& plan, const EngineStats& stats) {
  std::string text;
  for (size_t i = 0; i < plan.classes.size(); ++i) {
    const policy::PassClass& one = plan.classes[i];
    text += fmt::format("  tier    host    weights sent up  {:>10} a pass  computed here {:>10}",
                        format_bytes(one.sent_weight_bytes + plan.loaded_ahead_bytes()),
                        format_bytes(one.inplace_weight_bytes));
    if (plan.classes.size() > 1)
      text += fmt::format("  {:>4} passes from {} tokens, {}", stats.classes[i].passes,
                          std::max<int64_t>(one.execution.from_tokens, 1),
                          format_seconds(stats.classes[i].seconds));
    text += "\n";
  }
  return text;
}

// Of passes with prompt tokens, and of those without; 0: there were none.
double prefill_rate(const PassClassStats& of) {
  return rate(static_cast<double>(of.prefill_tokens), of.seconds - of.decode_pass_seconds);
}
double decode_rate(const PassClassStats& of) {
  return rate(static_cast<double>(of.decode_pass_tokens), of.decode_pass_seconds);
}

nlohmann::ordered_json classes_json(const policy::Plan& plan, const EngineStats& stats) {
  nlohmann::ordered_json classes = nlohmann::ordered_json::array();
  for (size_t i = 0; i < plan.classes.size(); ++i) {
    const policy::PassClass& one = plan.classes[i];
    const PassClassStats& of_class = stats.classes[i];
    classes.push_back({{"from_tokens", std::max<int64_t>(one.execution.from_tokens, 1)},
                       {"passes", of_class.passes},
                       {"prefill_tokens", of_class.prefill_tokens},
                       {"decode_tokens", of_class.decode_tokens},
                       {"seconds", of_class.seconds},
                       {"prefill_tokens_per_s", prefill_rate(of_class)},
                       {"decode_tokens_per_s", decode_rate(of_class)},
                       {"sent_bytes_per_pass", one.sent_weight_bytes + plan.loaded_ahead_bytes()},
                       {"inplace_bytes", one.inplace_weight_bytes}});
  }
  return classes;
}
}  // namespace

std::string run_table(const Engine& engine) {
  const EngineStats stats = engine.stats();
  const policy::Plan& plan = engine.plan();
  std::string text;
  text += fmt::format("  load    {:>10}  {:>9}  {}\n", format_bytes(stats.loaded_bytes),
                      format_seconds(stats.load_seconds),
                      rate_text(static_cast<double>(stats.loaded_bytes), stats.load_seconds));
  text += fmt::format("  prefill {:>7} tokens  {:>9}  {}\n", stats.prefill_tokens,
                      format_seconds(stats.prefill_seconds),
                      token_rate(static_cast<double>(stats.prefill_tokens), stats.prefill_seconds));
  const int64_t decoded = stats.decode_tokens - stats.first_tokens;
  text += fmt::format("  decode  {:>7} tokens  {:>9}  {}\n", decoded,
                      format_seconds(stats.decode_seconds),
                      token_rate(static_cast<double>(decoded), stats.decode_seconds));
  // A server has no time in all: it mostly waits for callers.
  const std::string in_all =
      stats.wall_seconds > 0
          ? fmt::format("  {:>9}  {:8.2f} generated tokens/s", format_seconds(stats.wall_seconds),
                        static_cast<double>(stats.decode_tokens) / stats.wall_seconds)
          : "";
  text += fmt::format("  total   {:>7} tokens{} in {} passes\n", stats.decode_tokens, in_all,
                      stats.passes);
  const auto tier = [&](const char* name, int64_t peak, int64_t planned, int64_t budget) {
    text += fmt::format("  tier    {:<6}  peak {:>10}  plan {:>10}  budget {:>10}\n", name,
                        format_bytes(peak), format_bytes(planned), format_bytes(budget));
  };
  if (plan.has_device)
    tier("device", stats.peak_device_bytes, plan.device_bytes(), stats.device_budget_bytes);
  tier(plan.has_device ? "host" : "memory", stats.peak_memory_bytes, plan.memory_bytes(),
       stats.memory_budget_bytes);
  if (stats.pinned_bytes + stats.pageable_bytes > 0)
    text += fmt::format("  tier    host    page-locked     {:>10}          pageable {:>10}\n",
                        format_bytes(stats.pinned_bytes), format_bytes(stats.pageable_bytes));
  if (plan.has_device) text += class_rows(plan, stats);
  text += fmt::format("  tier    disk    weights streamed {:>10} a {}pass  offloaded {:>10}\n",
                      format_bytes(plan.loaded_ahead_bytes()),
                      plan.demand_tokens > 0 && !plan.always_demands() ? "large " : "",
                      format_bytes(stats.peak_disk_bytes));
  if (stats.repacked_bytes > 0)
    text += fmt::format("  repack  {:>10} of streamed rows  {:>9}  {:>10}\n",
                        format_bytes(stats.repacked_bytes), format_seconds(stats.repack_seconds),
                        rate_text(static_cast<double>(stats.repacked_bytes), stats.repack_seconds));
  if (stats.experts.asked > 0)
    text += fmt::format(
        "  experts {:>7} asked for, {:.1f} % of them in memory ({} of {} are)\n",
        stats.experts.asked,
        100.0 * static_cast<double>(stats.experts.found) / static_cast<double>(stats.experts.asked),
        stats.experts.resident + stats.experts.slots, stats.experts.experts);
  if (const GuessCounts& guesses = stats.experts.guesses; guesses.guessed > 0)
    text += fmt::format(
        "  guesses {:>7} experts loaded ahead of being asked for, {:.1f} % of them right\n",
        guesses.guessed,
        100.0 * static_cast<double>(guesses.right) / static_cast<double>(guesses.guessed));
  if (stats.prefix_hit_tokens > 0)
    text += fmt::format("  prefix  {:>7} prompt tokens were known, not computed again\n",
                        stats.prefix_hit_tokens);
  if (stats.preemptions > 0)
    text += fmt::format("  KV ran short {} times: sequences gave way and were computed again\n",
                        stats.preemptions);
  Lane busiest = Lane::kDeviceCompute;
  double most = -1;
  for (const auto& [lane, lane_stats] : stats.lanes) {
    text += lane_row(lane_name(stats.machine, lane), lane_stats, stats.wall_seconds);
    if (lane_stats.busy_seconds > most) most = lane_stats.busy_seconds, busiest = lane;
  }
  if (most >= 0) text += fmt::format("  busiest lane: {}\n", lane_name(stats.machine, busiest));
  return text;
}

nlohmann::ordered_json stats_json(const Engine& engine,
                                  const std::optional<policy::Prediction>& prediction) {
  const EngineStats stats = engine.stats();
  // Without a device the top tier is host memory.
  const auto tiers = [&](int64_t device, int64_t host, int64_t disk) -> nlohmann::ordered_json {
    const bool has_device = engine.plan().has_device;
    return {
        {"device", has_device ? device : host}, {"host", has_device ? host : 0}, {"disk", disk}};
  };
  nlohmann::ordered_json lanes = nlohmann::ordered_json::object();
  for (const auto& [lane, lane_stats] : stats.lanes)
    lanes[lane_name(stats.machine, lane)] = {{"bytes", lane_stats.bytes},
                                             {"busy_s", lane_stats.busy_seconds},
                                             {"wait_s", lane_stats.wait_seconds},
                                             {"tasks", lane_stats.tasks}};
  nlohmann::ordered_json json{
      {"load_s", stats.load_seconds},
      {"loaded_bytes", stats.loaded_bytes},
      {"prefill_s", stats.prefill_seconds},
      {"prefill_tokens", stats.prefill_tokens},
      {"decode_s", stats.decode_seconds},
      {"decode_tokens", stats.decode_tokens},
      {"tokens_per_s", decode_rate(stats, stats.first_tokens)},
      {"total_tokens_per_s", rate(static_cast<double>(stats.decode_tokens), stats.wall_seconds)},
      {"passes", stats.passes},
      {"classes", classes_json(engine.plan(), stats)},
      {"preemptions", stats.preemptions},
      {"prefix_hit_tokens", stats.prefix_hit_tokens},
      {"peak_bytes",
       tiers(stats.peak_device_bytes, stats.peak_memory_bytes, stats.peak_disk_bytes)},
      {"budget_bytes",
       tiers(stats.device_budget_bytes, stats.memory_budget_bytes, stats.disk_budget_bytes)},
      {"pinned_bytes", stats.pinned_bytes},
      {"pageable_bytes", stats.pageable_bytes},
      {"planned_bytes", engine.plan().device_bytes() + engine.plan().memory_bytes()},
      {"streamed_bytes_per_pass", engine.plan().streamed_weight_bytes},
      {"gathered_bytes", stats.gathered_bytes},
      {"experts",
       {{"slots", stats.experts.slots},
        {"resident", stats.experts.resident},
        {"experts", stats.experts.experts},
        {"asked", stats.experts.asked},
        {"found", stats.experts.found},
        {"guessed", stats.experts.guesses.guessed},
        {"guessed_right", stats.experts.guesses.right}}},
      {"repacked_bytes", stats.repacked_bytes},
      {"repack_s", stats.repack_seconds},
      {"lanes", lanes},
      {"wall_s", stats.wall_seconds}};
  if (prediction) json["predicted"] = comparison_json(*prediction, stats);
  return json;
}

std::string class_table(const Engine& engine,
                        const std::vector<std::vector<double>>& first_tokens) {
  const policy::Plan& plan = engine.plan();
  if (plan.classes.size() < 2) return {};
  const EngineStats stats = engine.stats();
  std::string text =
      "| passes from | passes | prompt tokens | prefill tok/s | decode tok/s | first token ms p50 "
      "| "
      "weights sent up | multiplied in place |\n|---|---|---|---|---|---|---|---|\n";
  const auto shown = [](double value) {
    return value > 0 ? fmt::format("{:.4g}", value) : std::string("-");
  };
  for (size_t i = 0; i < plan.classes.size(); ++i) {
    const policy::PassClass& one = plan.classes[i];
    const PassClassStats& of = stats.classes[i];
    std::vector<double> first = i < first_tokens.size() ? first_tokens[i] : std::vector<double>();
    std::sort(first.begin(), first.end());
    text += fmt::format("| {} tokens | {} | {} | {} | {} | {} | {} | {} |\n",
                        std::max<int64_t>(one.execution.from_tokens, 1), of.passes,
                        of.prefill_tokens, shown(prefill_rate(of)), shown(decode_rate(of)),
                        first.empty() ? "-" : fmt::format("{:.4g}", 1000 * first[first.size() / 2]),
                        format_bytes(one.sent_weight_bytes + plan.streamed_weight_bytes),
                        format_bytes(one.inplace_weight_bytes));
  }
  return text;
}

std::string plan_sentence(const Engine& engine) {
  const policy::Plan& plan = engine.plan();
  const EngineStats stats = engine.stats();
  std::string text = policy::describe(plan.policy, plan.has_device) + "; ";
  if (plan.has_device)
    text += fmt::format("{} of {} of device memory, {} of {} of host memory in use; {} sent up",
                        format_bytes(plan.device_bytes()), format_bytes(stats.device_budget_bytes),
                        format_bytes(plan.memory_bytes()), format_bytes(stats.memory_budget_bytes),
                        format_bytes(plan.host_weight_bytes + plan.loaded_ahead_bytes()));
  else
    text += fmt::format("{} of {} in use", format_bytes(plan.memory_bytes()),
                        format_bytes(stats.memory_budget_bytes));
  const std::string in_memory =
      fmt::format("{} of {} experts in memory", stats.experts.resident + stats.experts.slots,
                  stats.experts.experts);
  const std::string passes =
      plan.demand_tokens == 0 ? "each pass"
      : plan.always_demands()
          ? "each pass, and experts when they are asked for, " + in_memory
          : fmt::format("passes of more than {}, {}", plan.demand_text(), in_memory);
  return text +
         fmt::format(
             "{} {} streamed in {}", plan.has_device ? "," : ";",
             format_bytes(plan.loaded_ahead_bytes()) + (plan.has_device ? " from disk" : ""),
             passes) +
         (plan.arrival_slot_bytes == 0
              ? ""
              : fmt::format(" from {}, repacked as they come at {:.2f} GB/s",
                            engine.model().path().string(), plan.repacked_bytes_per_second / 1e9));
}

std::string engine_plan_table(const Engine& engine) {
  const EngineStats stats = engine.stats();
  return policy::plan_table(engine.plan(), stats.memory_budget_bytes, stats.device_budget_bytes,
                            stats.disk_budget_bytes);
}

std::string fit_warning(const Engine& engine) {
  const policy::Plan& plan = engine.plan();
  if (plan.streamed_weight_bytes == 0 || plan.has_device) return {};
  if (plan.memory_bytes() - plan.ring_bytes + plan.streamed_weight_bytes >
      engine.stats().memory_budget_bytes)
    return {};
  return fmt::format(
      "this policy streams {} in each pass although the whole model would fit the budget of {}",
      format_bytes(plan.streamed_weight_bytes), format_bytes(engine.stats().memory_budget_bytes));
}

}  // namespace sluice::app
