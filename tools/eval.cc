// sluice eval: perplexity of a text.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "src/app/perplexity.h"
#include "src/app/report.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct EvalFlags {
  EngineFlags engine;
  std::string text;
  int64_t window = 512;
};

void run(const EvalFlags& flags, std::stop_token stop) {
  const auto tokenizer = need_tokenizer(flags.engine.model);
  const std::string text = read_text(flags.text);
  check_utf8(text, flags.text);
  const auto tokens = tokenizer->encode(text, text::AddSpecial::kNo);
  const int64_t window =
      std::min(flags.window, BoundModel::open(flags.engine.model).shape().max_positions);
  const auto windows = app::perplexity_windows(tokens, tokenizer->bos(), window);
  policy::Workload workload;
  workload.sequences = std::min<int64_t>(static_cast<int64_t>(windows.size()), 16);
  workload.max_prompt_tokens = workload.max_total_tokens = window;
  const auto engine = open_engine(flags.engine, workload);
  if (!engine) return;
  Progress progress("scoring");
  const app::Perplexity result = app::perplexity(
      *engine, tokens, tokenizer->bos(), window,
      [&](int64_t done, int64_t total) {
        progress.update(done, total, fmt::format("{} of {} windows", done, total), "");
      },
      stop);
  if (flags.engine.json)
    print_json({{"perplexity", result.value()},
                {"mean_nll", result.mean_nll},
                {"scored_tokens", result.scored_tokens},
                {"windows", result.windows},
                {"window_tokens", window},
                {"stats", app::stats_json(*engine)}});
  else
    std::printf(
        "perplexity %.6f over %lld tokens (mean NLL %.6f; %lld windows of %lld tokens, each begun "
        "with begin-of-text)\n",
        result.value(), static_cast<long long>(result.scored_tokens), result.mean_nll,
        static_cast<long long>(result.windows), static_cast<long long>(window));
  finish_run(flags.engine, *engine);
}
}  // namespace

Command add_eval(CLI::App& program) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* parser = program.add_subcommand("eval", "perplexity of a text file");
  flags->engine.add_to(*parser);
  parser->add_option("--text", flags->text, "the text file")->required();
  parser->add_option("--window", flags->window, "tokens of a window")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
