// sluice models: what other programs have fetched to this machine, and what it would do here.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/app/plan_report.h"
#include "src/app/plan_request.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/system_error.h"
#include "src/device/memory_limit.h"
#include "src/model/bound_model.h"
#include "src/profile/profile_cache.h"
#include "tools/command.h"
#include "tools/model_argument.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct ModelsFlags {
  bool json = false;
};

// What opening a model says of it.
struct Looked {
  std::string family, weights;
  std::string problem;         // why it does not run as it is; empty: it does
  std::optional<double> rate;  // tokens/s of one sequence, predicted
  std::string no_rate_because;
};

// One sequence of a chat's size, as `run` and `chat` compute it.
constexpr double kPromptTokens = 512;
constexpr double kNewTokens = 128;

double predicted_rate(const BoundModel& bound, const policy::Profile& profile) {
  const ModelShape& shape = bound.shape();
  app::PlanQuestion question;
  question.packed = &bound;
  question.model = &shape;
  question.profile = &profile;
  question.has_file = true;
  question.host_bytes = memory_limit().available_bytes;
  question.job.sequences = 1;
  question.job.prompt_tokens =
      std::min<double>(kPromptTokens, static_cast<double>(shape.max_positions) / 2);
  question.job.new_tokens =
      std::min<double>(kNewTokens, static_cast<double>(shape.max_positions) / 4);
  question.objective = policy::Objective::kLatency;
  const policy::SearchResult found = policy::search_policy(app::plan_request(question));
  const policy::Prediction& prediction =
      found.best.simulated ? *found.best.simulated : found.best.predicted;
  return prediction.decode_seconds > 0 ? question.job.new_tokens / prediction.decode_seconds : 0;
}

Looked look_at(const app::LocalModel& model, const std::optional<policy::Profile>& profile) {
  Looked out;
  out.problem = model.problem;
  if (!out.problem.empty()) return out;
  try {
    const BoundModel bound = BoundModel::open(model.path);
    out.family = bound.shape().family;
    out.weights =
        bound.foreign_method().empty() ? bound.shape().weights_name() : bound.foreign_method();
    if (profile) {
      try {
        out.rate = predicted_rate(bound, *profile);
      } catch (const Error& error) {
        out.no_rate_because = error.text();
      }
    }
    bound.require_runnable();
  } catch (const std::exception&) {
    out.problem = current_error().text();
  }
  return out;
}

nlohmann::ordered_json row_json(const app::LocalModel& model, const Looked& looked) {
  nlohmann::ordered_json row{{"name", model.name},
                             {"path", model.path.string()},
                             {"origin", app::model_origin_name(model.origin)},
                             {"weight_bytes", model.weight_bytes},
                             {"family", looked.family},
                             {"weights", looked.weights},
                             {"runs", looked.problem.empty()}};
  if (!looked.problem.empty()) row["problem"] = looked.problem;
  if (looked.rate) row["predicted_tokens_per_second"] = *looked.rate;
  if (!looked.no_rate_because.empty()) row["no_prediction"] = looked.no_rate_because;
  return row;
}

std::string row_text(const app::LocalModel& model, const Looked& looked, size_t width) {
  const std::string rate = looked.rate ? fmt::format("{:8.1f} tok/s", *looked.rate) : "";
  std::string says = looked.problem.empty() ? "runs" : looked.problem;
  if (!looked.no_rate_because.empty()) says += "; " + looked.no_rate_because;
  return fmt::format("{:<{}} {:>10}  {:<12} {:<10} {:>14}  {}\n", model.name, width,
                     format_bytes(model.weight_bytes), model_origin_name(model.origin),
                     looked.weights, rate, says);
}

void tell_where(const app::ModelFolders& folders) {
  std::string all;
  for (const auto* list : {&folders.hugging_face, &folders.ollama, &folders.lm_studio})
    for (const auto& folder : *list) all += (all.empty() ? "" : ", ") + folder.string();
  std::fprintf(stderr, "sluice: no models in %s\n", all.empty() ? "any known folder" : all.c_str());
}

void run_models(const ModelsFlags& flags) {
  const app::ModelFolders folders = model_folders();
  std::vector<app::LocalModel> models = app::local_models(folders);
  if (models.empty()) tell_where(folders);
  std::optional<policy::Profile> profile;
  if (const auto path = profile_cache_path("", 0); !path.empty())
    profile = load_cached_profile(path, [](std::string_view) {});
  auto rows = nlohmann::ordered_json::array();
  size_t width = 4;
  for (const app::LocalModel& model : models) width = std::max(width, model.name.size());
  Progress progress("models");
  int64_t seen = 0;
  for (const app::LocalModel& model : models) {
    progress.update(seen, std::ssize(models), fmt::format("{} of {}", seen, models.size()), "");
    const Looked looked = look_at(model, profile);
    ++seen;
    progress.hide();
    if (flags.json)
      rows.push_back(row_json(model, looked));
    else
      std::fputs(row_text(model, looked, width).c_str(), stdout);
  }
  if (flags.json) print_json(rows);
  if (!profile && !models.empty())
    std::fprintf(stderr,
                 "sluice: rates are predicted once `sluice profile` has measured this machine\n");
}
}  // namespace

Command add_models(CLI::App& program) {
  auto flags = std::make_shared<ModelsFlags>();
  CLI::App* parser = program.add_subcommand(
      "models", "models that Hugging Face, Ollama or LM Studio have fetched here, and their rates");
  parser->add_flag("--json", flags->json, "one JSON array on standard output");
  return {parser, [flags](const std::stop_token&) { run_models(*flags); }};
}

}  // namespace sluice::tools
