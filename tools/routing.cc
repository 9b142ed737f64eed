// sluice routing: what a recorded run tells of a mixture's routers, and what caches of experts
// would have found on it.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/printable.h"
#include "src/cache/routing_figures.h"
#include "src/cache/routing_replay.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
constexpr int64_t kMostTraceBytes = int64_t{2} << 30;

struct RoutingFlags {
  std::string file;
  std::optional<int64_t> slots;
  std::optional<double> share;
  std::optional<double> decay;
  std::string phase = "decode";
  bool is_one_by_one = false;
  bool json = false;
};

// Caches of one size.
struct SizeRow {
  int64_t slots = 0;
  double lru = 0;
  double asked_for = -1;  // with the decay that was asked for; -1: none was
  BestDecay best;         // of those tried
  double most = 0;        // that any cache finds
  int64_t cache_bytes = 0;
  double read_bytes = 0;       // a token, with the best decay or the one asked for
  std::vector<double> layers;  // hits of each with routers, with that decay
};

const std::vector<double>& tried_decays() {
  static const std::vector<double> decays = {0,    0.3,  0.5,  0.7,   0.8,   0.9,
                                             0.95, 0.98, 0.99, 0.995, 0.999, 1};
  return decays;
}

std::vector<int64_t> sizes(const RoutingFlags& flags, const RoutingTrace& trace) {
  if (flags.slots && flags.share)
    throw Error(ErrorKind::kUser, "--slots and --share both say how large the cache is",
                "give one of them");
  if (flags.slots && *flags.slots > trace.experts)
    throw Error(ErrorKind::kUser,
                fmt::format("--slots {}: a layer has {} experts", *flags.slots, trace.experts),
                "give fewer");
  if (flags.slots) return {*flags.slots};
  if (flags.share) return {std::llround(*flags.share / 100 * static_cast<double>(trace.experts))};
  std::vector<int64_t> out;
  for (const int64_t times : {1, 2, 3, 4, 6, 8, 12}) {
    const int64_t slots = times * trace.chosen;
    if (slots < trace.experts) out.push_back(slots);
  }
  if (out.empty()) out.push_back(trace.experts);
  return out;
}

// Experts of all layers, as far as the file says how large they are.
int64_t bytes_of_slots(const RoutingTrace& trace, int64_t slots) {
  int64_t bytes = 0;
  for (const RoutingTrace::Layer& layer : trace.layers)
    if (!layer.tokens.empty()) bytes += slots * layer.expert_bytes;
  return bytes;
}

SizeRow replay_size(const RoutingTrace& trace, ReplayOptions options, const RoutingFlags& flags,
                    int64_t tokens) {
  SizeRow row;
  row.slots = options.slots;
  row.lru = replay_cache(trace, options, 0).hit_rate();
  row.best = find_best_decay(trace, options, tried_decays());
  const double decay = flags.decay.value_or(row.best.decay);
  const ReplayResult found = replay_cache(trace, options, decay);
  if (flags.decay) row.asked_for = found.hit_rate();
  row.most = replay_best(trace, options).hit_rate();
  row.cache_bytes = bytes_of_slots(trace, options.slots);
  for (size_t i = 0; i < trace.layers.size(); ++i) {
    if (trace.layers[i].tokens.empty()) continue;
    const ExpertCache::Counts& counts = found.layers[i];
    row.read_bytes +=
        static_cast<double>((counts.asked - counts.found) * trace.layers[i].expert_bytes) /
        static_cast<double>(std::max<int64_t>(tokens, 1));
    row.layers.push_back(counts.asked > 0
                             ? static_cast<double>(counts.found) / static_cast<double>(counts.asked)
                             : 0);
  }
  return row;
}

nlohmann::ordered_json or_null(double value) {
  return value < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
}

template <typename Keys, typename Values>
nlohmann::ordered_json by_key(const Keys& keys, const Values& values) {
  nlohmann::ordered_json out;
  for (size_t i = 0; i < keys.size(); ++i) out[fmt::format("{}", keys[i])] = or_null(values[i]);
  return out;
}

nlohmann::ordered_json row_json(const SizeRow& row, const RoutingTrace& trace,
                                const RoutingFlags& flags) {
  nlohmann::ordered_json out{
      {"slots", row.slots},
      {"share", static_cast<double>(row.slots) / static_cast<double>(trace.experts)},
      {"cache_bytes", row.cache_bytes},
      {"lru_hit_rate", row.lru},
      {"best_decay", row.best.decay},
      {"best_decay_hit_rate", row.best.hit_rate},
      {"most_hit_rate", row.most}};
  if (flags.decay) {
    out["decay"] = *flags.decay;
    out["hit_rate"] = row.asked_for;
  }
  out["read_bytes_per_token"] = row.read_bytes;
  out["layer_hit_rates"] = row.layers;
  return out;
}

nlohmann::ordered_json figures_json(const RoutingFigures& figures) {
  return {{"tokens", figures.tokens},
          {"prompt_tokens", figures.prompt_tokens},
          {"decoded_tokens", figures.decoded_tokens},
          {"sequences", figures.sequences},
          {"passes", figures.passes},
          {"tokens_per_pass", or_null(figures.tokens_a_pass)},
          {"experts_per_pass", or_null(figures.experts_a_pass)},
          {"overlap_at_lag", by_key(RoutingFigures::kLags, figures.overlap)},
          {"seen_in_last", by_key(RoutingFigures::kWindows, figures.seen)},
          {"distinct_in_tokens", by_key(RoutingFigures::kStretches, figures.distinct)},
          {"distinct_if_uniform", by_key(RoutingFigures::kStretches, figures.uniform)},
          {"share_on_hottest", by_key(RoutingFigures::kHottest, figures.hottest)},
          {"entropy", or_null(figures.entropy)},
          {"least_entropy", or_null(figures.least_entropy)},
          {"most_entropy", or_null(figures.most_entropy)}};
}

std::string figure(double value, const char* form) {
  return value < 0 ? "-" : fmt::format(fmt::runtime(form), value);
}

template <typename Keys, typename Values>
void print_figures(const char* what, const Keys& keys, const Values& values, const char* form) {
  std::string text;
  for (size_t i = 0; i < keys.size(); ++i)
    text += fmt::format("  {}: {}", keys[i], figure(values[i], form));
  std::printf("%-44s%s\n", what, text.c_str());
}

void print_trace(const RoutingFlags& flags, const RoutingTrace& trace,
                 const RoutingFigures& figures) {
  std::printf("%s: %s (%s), %lld of %zu layers with routers, %lld of %lld experts for a token\n",
              printable(flags.file).c_str(), printable(trace.model).c_str(),
              printable(trace.family).c_str(), static_cast<long long>(figures.routed_layers),
              trace.layers.size(), static_cast<long long>(trace.chosen),
              static_cast<long long>(trace.experts));
  std::printf(
      "%lld tokens of prompts, %lld behind them; counted (--phase %s): %lld of %lld sequences, in "
      "%lld passes of %s tokens and %s experts a layer\n\n",
      static_cast<long long>(figures.prompt_tokens), static_cast<long long>(figures.decoded_tokens),
      flags.phase.c_str(), static_cast<long long>(figures.tokens),
      static_cast<long long>(figures.sequences), static_cast<long long>(figures.passes),
      figure(figures.tokens_a_pass, "{:.1f}").c_str(),
      figure(figures.experts_a_pass, "{:.1f}").c_str());
  print_figures("of a token's experts, so many tokens before", RoutingFigures::kLags,
                figures.overlap, "{:.3f}");
  print_figures("in one of the last so many tokens", RoutingFigures::kWindows, figures.seen,
                "{:.3f}");
  print_figures("experts that so many tokens touch", RoutingFigures::kStretches, figures.distinct,
                "{:.1f}");
  print_figures("  were all equally likely", RoutingFigures::kStretches, figures.uniform, "{:.1f}");
  print_figures("choices on this share of the experts", RoutingFigures::kHottest, figures.hottest,
                "{:.3f}");
  std::printf("%-44s  %s, of layers %s to %s (1: all used alike)\n\n", "entropy of their use",
              figure(figures.entropy, "{:.3f}").c_str(),
              figure(figures.least_entropy, "{:.3f}").c_str(),
              figure(figures.most_entropy, "{:.3f}").c_str());
}

void print_rows(const RoutingFlags& flags, const RoutingTrace& trace,
                const std::vector<SizeRow>& rows) {
  const std::string asked = flags.decay ? fmt::format(" decay {:g} |", *flags.decay) : "";
  std::printf(
      "caches that begin empty, %s: share of experts that were there\n"
      "| slots a layer | of all | cache | LRU |%s best decay | with it | best possible | read a "
      "token |\n|---|---|---|---|%s---|---|---|---|\n",
      flags.is_one_by_one ? "experts one after the other" : "a pass's experts at once",
      asked.c_str(), flags.decay ? "---|" : "");
  for (const SizeRow& row : rows) {
    const bool knows_bytes = row.cache_bytes > 0 || row.read_bytes > 0;
    const std::string with = flags.decay ? fmt::format(" {:.3f} |", row.asked_for) : "";
    std::printf("| %lld | %.0f%% | %s | %.3f |%s %g | %.3f | %.3f | %s |\n",
                static_cast<long long>(row.slots),
                100 * static_cast<double>(row.slots) / static_cast<double>(trace.experts),
                knows_bytes ? format_bytes(row.cache_bytes).c_str() : "-", row.lru, with.c_str(),
                row.best.decay, row.best.hit_rate, row.most,
                knows_bytes ? format_bytes(std::llround(row.read_bytes)).c_str() : "-");
  }
}

void check(const char* flag, const std::optional<double>& value) {
  if (value && std::isnan(*value))
    throw Error(ErrorKind::kUser, fmt::format("{}: not a number", flag), "see --help");
}

void run(const RoutingFlags& flags) {
  check("--decay", flags.decay);
  check("--share", flags.share);
  const RoutingTrace trace = [&] {
    const Waiting waiting("reading");
    return parse_routing_trace(read_text(flags.file, kMostTraceBytes), printable(flags.file));
  }();
  ReplayOptions options;
  options.tokens = flags.phase == "decode"   ? RoutedTokens::kDecoded
                   : flags.phase == "prompt" ? RoutedTokens::kPrompts
                                             : RoutedTokens::kAll;
  options.is_one_by_one = flags.is_one_by_one;
  const RoutingFigures figures = routing_figures(trace, options.tokens);
  if (figures.tokens == 0)
    throw Error(ErrorKind::kFile,
                fmt::format("{}: no tokens of phase {}", printable(flags.file), flags.phase),
                "give --phase all");
  std::vector<SizeRow> rows;
  const std::vector<int64_t> all_slots = sizes(flags, trace);
  Progress progress("replaying");
  for (const int64_t slots : all_slots) {
    progress.update(std::ssize(rows), std::ssize(all_slots),
                    fmt::format("{} of {} sizes", rows.size(), all_slots.size()), "");
    options.slots = slots;
    rows.push_back(replay_size(trace, options, flags, figures.tokens));
  }
  progress.end();
  if (!flags.json) {
    print_trace(flags, trace, figures);
    print_rows(flags, trace, rows);
    return;
  }
  nlohmann::ordered_json out{{"file", flags.file},
                             {"model", trace.model},
                             {"family", trace.family},
                             {"layers", trace.layers.size()},
                             {"routed_layers", figures.routed_layers},
                             {"experts", trace.experts},
                             {"experts_per_token", trace.chosen},
                             {"phase", flags.phase},
                             {"figures", figures_json(figures)}};
  for (const SizeRow& row : rows) out["caches"].push_back(row_json(row, trace, flags));
  print_json(out);
}
}  // namespace

Command add_routing(CLI::App& program) {
  auto flags = std::make_shared<RoutingFlags>();
  CLI::App* parser = program.add_subcommand(
      "routing", "what a recorded run of a mixture tells, and what caches of experts would find");
  parser
      ->add_option("file", flags->file,
                   "what --record-routing wrote, or another \"route_trace v1\"; - for standard "
                   "input")
      ->required();
  parser
      ->add_option("--slots", flags->slots, "experts that a layer's cache holds (default: several)")
      ->check(CLI::Range(int64_t{0}, RoutingTrace::kMostExperts));
  parser->add_option("--share", flags->share, "the same as percent of a layer's experts")
      ->check(CLI::Range(0.0, 100.0));
  parser
      ->add_option("--decay", flags->decay,
                   "worth of a use a token later, beside the best of those tried: 0 (the one used "
                   "longest ago goes) to 1 (the least used goes)")
      ->check(CLI::Range(0.0, 1.0));
  parser->add_option("--phase", flags->phase, "decode, prompt or all: which tokens count")
      ->check(CLI::IsMember({"decode", "prompt", "all"}))
      ->capture_default_str();
  parser->add_flag("--one-by-one", flags->is_one_by_one,
                   "a token's experts one after the other, as other programs count; else a pass "
                   "asks for each once");
  parser->add_flag("--json", flags->json, "one JSON object on standard output");
  return {parser, [flags](const std::stop_token&) { run(*flags); }};
}

}  // namespace sluice::tools
