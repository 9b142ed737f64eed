#include "tools/plan_buying.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "src/app/buying.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/model/builtin.h"
#include "src/model/planning_shapes.h"
#include "tools/arguments.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
using app::format_three_digits;

// "int4,bf16": several formats, "own" among them.
std::vector<std::optional<WeightFormat>> formats_of(const std::string& text) {
  std::vector<std::optional<WeightFormat>> out;
  std::string rest = text.empty() ? "int4" : text;
  while (!rest.empty()) {
    const std::string one = rest.substr(0, rest.find(','));
    rest.erase(0, one.size() + 1);
    if (one == "own")
      out.emplace_back();
    else
      out.emplace_back(weight_format_argument(one, "--weights"));
  }
  return out;
}

std::vector<std::string> models_like(const std::string& part) {
  std::vector<std::string> out;
  for (const std::string& name : builtin_model_names())
    if (name.find(part) != std::string::npos) out.push_back(name);
  if (out.empty())
    throw Error(ErrorKind::kUser,
                fmt::format("--fits: no built-in model has \"{}\" in its name", part),
                "sluice plan --list-models names them; leave it out for all");
  return out;
}

nlohmann::ordered_json fit_json(const app::Fit& fit) {
  nlohmann::ordered_json out{{"model", fit.model},
                             {"parameters", fit.parameters},
                             {"weights", fit.weights},
                             {"weight_bytes", fit.weight_bytes},
                             {"device_bytes", fit.placed.device},
                             {"host_bytes", fit.placed.host},
                             {"disk_bytes", fit.placed.disk},
                             {"one_user_tokens_per_s", fit.one_user},
                             {"together_tokens_per_s", fit.together}};
  if (!fit.refusal.empty()) out["refusal"] = fit.refusal;
  return out;
}

// A share of the weights as people read it.
std::string share_text(double bytes, const app::TierBytes& all) {
  const double percent = all.total() > 0 ? 100 * bytes / all.total() : 0;
  return percent < 0.5 ? "-" : fmt::format("{:.0f}%", percent);
}

// Of what runs, the answers to what people ask first.
class Highlights {
 public:
  void add(const app::Fit& fit) {
    if (!whole_ && fit.refusal.empty() && fit.placed.device >= 0.995 * fit.placed.total())
      whole_ = fit;
    for (auto& [rate, best] : fastest_)
      if (!best && fit.one_user >= rate) best = fit;
  }
  std::string text(bool has_device) const {
    std::string out;
    if (has_device && whole_)
      out +=
          fmt::format("the largest that the device's memory holds whole: {} in {}, {} tokens/s\n",
                      whole_->model, whole_->weights, format_three_digits(whole_->one_user));
    for (const auto& [rate, best] : fastest_)
      if (best)
        out += fmt::format("the largest at {:g} tokens/s or more for one user: {} in {}, {}\n",
                           rate, best->model, best->weights, format_three_digits(best->one_user));
    return out;
  }

 private:
  std::optional<app::Fit> whole_;
  std::vector<std::pair<double, std::optional<app::Fit>>> fastest_{{20, {}}, {10, {}}, {5, {}}};
};

app::PartPrices part_prices(const PlanFlags& flags) {
  app::PartPrices out;
  for (const std::string& one : flags.part_prices) {
    const size_t equals = one.find('=');
    const std::string part = one.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : one.substr(equals + 1);
    char* end = nullptr;
    const double price = std::strtod(value.c_str(), &end);
    const std::vector<std::string> cards = policy::shipped_profile_names();
    const bool is_known = part == "memory" || part.starts_with("disk-") ||
                          std::find(cards.begin(), cards.end(), part) != cards.end();
    if (!is_known || value.empty() || *end != '\0' || !(price >= 0))
      throw Error(
          ErrorKind::kUser, fmt::format("--part-prices {}: no part and its price", one),
          "write memory=4 (a GiB), disk-7=90 (one of 7GB/s) or rtx-4090=1500 (sluice profile "
          "--list names the cards)");
    out[part] = price;
  }
  return out;
}

double target_rate(const std::string& text) {
  char* end = nullptr;
  const double rate = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  if (end == text.c_str() || !(rate > 0 && rate < 1e9) ||
      (!unit.empty() && unit != "tok/s" && unit != " tok/s" && unit != " tokens/s" &&
       unit != "tokens/s" && unit != "t/s"))
    throw Error(ErrorKind::kUser, fmt::format("--target {}: no rate", text), "write 10 or 10tok/s");
  return rate;
}

std::string change_text(const app::Change& change) {
  std::vector<std::string> parts;
  for (const app::ChangedPart& part : change.parts) parts.push_back(part.what);
  return fmt::format("{}", fmt::join(parts, " and "));
}

nlohmann::ordered_json target_json(const PlanFlags& flags, const Question& q, double rate,
                                   const app::TargetAnswer& answer) {
  nlohmann::ordered_json out{{"model", flags.model},
                             {"hardware", q.profile.name},
                             {"target_tokens_per_s", rate},
                             {"tokens_per_s", answer.as_it_is},
                             {"changes", nlohmann::ordered_json::array()}};
  for (const app::Change& change : answer.changes) {
    nlohmann::ordered_json one{{"tokens_per_s", change.tokens_per_second},
                               {"parts", nlohmann::ordered_json::array()}};
    for (const app::ChangedPart& part : change.parts) one["parts"].push_back(part.what);
    if (const auto price = change.price()) one["price"] = *price;
    out["changes"].push_back(std::move(one));
  }
  return out;
}
}  // namespace

void run_fits(const PlanFlags& flags, const std::stop_token& stop) {
  app::FitsQuestion question;
  question.models = models_like(flags.model);
  question.formats = formats_of(flags.weights);
  const policy::Profile machine = hardware_of(flags, stop);
  question.profile = &machine;
  question.device_bytes = budget(flags.device_memory, "--gpu-mem");
  question.host_bytes = budget(flags.host_memory, "--cpu-mem");
  question.job = job_of(flags, 1);
  question.together = flags.sequences != 0 ? flags.sequences : question.together;
  if (question.together == 1) question.together = 0;
  question.at_least = flags.at_least;
  if (!flags.kv_dtype.empty()) question.kv_dtype = parse_kv_format(flags.kv_dtype);
  const bool has_device = machine.device.has_value();
  if (!flags.json) {
    std::printf("%s: models that answer one user at %s tokens/s or more, the largest first\n",
                machine.name.c_str(), format_three_digits(flags.at_least).c_str());
    std::printf("  prompts of %s tokens, %s new; where the weights lie is said for one user\n\n",
                flags.prompt.c_str(), flags.fresh.c_str());
    std::printf("  %-20s %-10s %9s %7s %7s %6s %10s %12s\n", "model", "weights", "size",
                has_device ? "device" : "", "memory", "disk", "one user",
                question.together > 0 ? fmt::format("{} users", question.together).c_str() : "");
  }
  auto rows = nlohmann::ordered_json::array();
  Highlights highlights;
  size_t count = 0;
  app::find_fits(question, stop, [&](const app::Fit& fit) {
    ++count;
    highlights.add(fit);
    if (flags.json) {
      rows.push_back(fit_json(fit));
      return;
    }
    std::printf(
        "  %-20s %-10s %9s %7s %7s %6s %10s %12s\n", fit.model.c_str(), fit.weights.c_str(),
        format_bytes(fit.weight_bytes).c_str(),
        has_device ? share_text(fit.placed.device, fit.placed).c_str() : "",
        share_text(has_device ? fit.placed.host : fit.placed.device + fit.placed.host, fit.placed)
            .c_str(),
        share_text(fit.placed.disk, fit.placed).c_str(), format_three_digits(fit.one_user).c_str(),
        fit.together > 0 ? format_three_digits(fit.together).c_str() : "");
    std::fflush(stdout);  // each as it is found
  });
  if (flags.json) return print_json({{"hardware", machine.name}, {"fits", rows}});
  if (count == 0) std::printf("  none: give a lower --at-least, or --weights q2_k\n");
  std::printf("\n%s", highlights.text(has_device).c_str());
}

void run_target(const PlanFlags& flags, const std::stop_token& stop) {
  Question q;
  const double rate = target_rate(flags.target);
  const app::PartPrices prices = part_prices(flags);
  fill(flags, stop, q);
  if (flags.sequences == 0) {
    q.asked.job.sequences = 1;
    q.asked.objective = policy::Objective::kLatency;
  }
  app::TargetQuestion question{q.asked, rate, prices};
  const app::TargetAnswer answer = [&] {
    const Waiting waiting("planning with other parts");
    return app::find_target(question, stop);
  }();
  if (flags.json) return print_json(target_json(flags, q, rate, answer));
  const std::string users =
      q.asked.job.sequences == 1 ? "one user" : fmt::format("{} users", q.asked.job.sequences);
  std::printf(
      "%s on %s, %s: %s\n", flags.model.c_str(), q.profile.name.c_str(), users.c_str(),
      answer.as_it_is > 0
          ? fmt::format("{} tokens/s as it is", format_three_digits(answer.as_it_is)).c_str()
          : "does not run as it is");
  if (answer.as_it_is >= rate) {
    std::printf("  nothing needs to change for %s\n", format_three_digits(rate).c_str());
    return;
  }
  if (answer.changes.empty())
    std::printf(
        "  no format, memory, disk or card that is known here, and no two of them, reach %s\n",
        format_three_digits(rate).c_str());
  constexpr size_t kMostShown = 12;
  for (const app::Change& change : answer.changes) {
    if (&change - answer.changes.data() == kMostShown) {
      std::printf("  and %zu more (--json has all)\n", answer.changes.size() - kMostShown);
      break;
    }
    const auto price = change.price();
    std::printf("  %8s tokens/s  with %s%s\n",
                format_three_digits(change.tokens_per_second).c_str(), change_text(change).c_str(),
                price && *price > 0 ? fmt::format(": {:g}", *price).c_str() : "");
  }
}

std::optional<double> cost_of_million(const PlanFlags& flags, double tokens_per_second) {
  if (flags.price.empty()) return std::nullopt;
  return app::price_of_million(app::parse_hour_price(flags.price), tokens_per_second);
}

std::string cost_text(double cost, const std::string& price) {
  return fmt::format("a million new tokens cost {} (at {})", format_three_digits(cost), price);
}

}  // namespace sluice::tools
