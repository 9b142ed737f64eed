// sluice eval: perplexity of a text, next-token accuracy, and one configuration held against the
// saved logits of another.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/app/perplexity.h"
#include "src/app/report.h"
#include "src/base/error.h"
#include "src/jobs/npy_reader.h"
#include "src/jobs/npy_writer.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct EvalFlags {
  EngineFlags engine;
  std::string text, accuracy, save_logits, against;
  int64_t window = 512;
  int64_t stride = 0;
};

// What is to be scored, and how its numbers are called.
struct Job {
  std::vector<app::ScoredSequence> sequences;
  int64_t window = 0;
};

// A line of next-token accuracy: the last word of "text", or "target" after "prompt".
app::ScoredSequence last_word(const text::Tokenizer& tokenizer, const nlohmann::json& line,
                              const std::string& where) {
  std::string prompt, target;
  const auto has = [&](const char* key) { return line.contains(key) && line[key].is_string(); };
  if (line.is_object() && has("prompt") && has("target")) {
    prompt = line["prompt"].get<std::string>();
    target = line["target"].get<std::string>();
  } else if (line.is_object() && has("text")) {
    const auto text = line["text"].get<std::string>();
    const size_t space = text.find_last_of(' ');
    if (space != std::string::npos && space > 0) {
      prompt = text.substr(0, space);
      target = text.substr(space);
    }
  } else {
    throw Error(ErrorKind::kUser, fmt::format("{}: neither text nor prompt and target", where),
                R"(write {"text": "..."} or {"prompt": "...", "target": " word"} a line)");
  }
  app::ScoredSequence out;
  if (const auto bos = tokenizer.bos()) out.tokens.push_back(*bos);
  const auto before = tokenizer.encode(prompt, text::AddSpecial::kNo);
  const auto all = tokenizer.encode(prompt + target, text::AddSpecial::kNo);
  // A word may join with what stands before it: then its tokens begin where the two differ.
  const auto same = std::mismatch(before.begin(), before.end(), all.begin(), all.end()).first;
  out.first_target =
      std::max<int64_t>((same - before.begin()) + static_cast<int64_t>(out.tokens.size()), 1);
  out.tokens.insert(out.tokens.end(), all.begin(), all.end());
  if (out.first_target >= static_cast<int64_t>(out.tokens.size()))
    throw Error(ErrorKind::kUser, fmt::format("{}: has no word to predict", where),
                "give at least two words");
  return out;
}

Job accuracy_job(const text::Tokenizer& tokenizer, const std::string& path) {
  Job job;
  std::istringstream lines(read_text(path, kMostTextBytes));
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}, line {}", path, number);
    check_utf8(line, where);
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded())
      throw Error(ErrorKind::kUser, fmt::format("{}: not JSON", where),
                  "write one JSON object a line");
    job.sequences.push_back(last_word(tokenizer, json, where));
    job.window = std::max(job.window, static_cast<int64_t>(job.sequences.back().tokens.size()));
  }
  if (job.sequences.empty())
    throw Error(ErrorKind::kUser, fmt::format("{}: no line to score", path), "give JSON lines");
  return job;
}

Job text_job(const EvalFlags& flags, const text::Tokenizer& tokenizer, int64_t max_positions) {
  const std::string text = read_text(flags.text, kMostTextBytes);
  check_utf8(text, flags.text);
  Job job;
  job.window = std::min(flags.window, max_positions);
  job.sequences = app::perplexity_windows(tokenizer.encode(text, text::AddSpecial::kNo),
                                          tokenizer.bos(), job.window, flags.stride);
  return job;
}

// One configuration against the logits of another.
class Comparison {
 public:
  Comparison(const std::string& path, int64_t rows, int64_t vocab) : saved_(path) {
    if (saved_.rows() != rows || saved_.columns() != vocab)
      throw Error(ErrorKind::kUser,
                  fmt::format("{}: {} rows of {} logits, this run scores {} tokens of a vocabulary "
                              "of {}",
                              path, saved_.rows(), saved_.columns(), rows, vocab),
                  "save them with the same text, --window, --stride and tokenizer");
  }
  void add(const app::TokenScore& score, std::span<const float> logits) {
    const std::span<const float> saved = saved_.row(score.row);
    divergences_.push_back(app::kl_divergence(saved, logits));
    base_nll_ += app::negative_log_likelihood(saved, score.token);
    const auto top = [](std::span<const float> row) {
      return std::max_element(row.begin(), row.end()) - row.begin();
    };
    if (top(saved) == top(logits)) ++same_top_;
  }
  nlohmann::json result() {
    std::sort(divergences_.begin(), divergences_.end());
    const auto count = static_cast<double>(divergences_.size());
    double sum = 0;
    for (double divergence : divergences_) sum += divergence;
    const auto at = [&](double share) {
      return divergences_[static_cast<size_t>(share * (count - 1))];
    };
    return {{"kl_mean", sum / count},
            {"kl_median", at(0.5)},
            {"kl_p99", at(0.99)},
            {"kl_max", divergences_.back()},
            {"top1_agreement", static_cast<double>(same_top_) / count},
            {"saved_perplexity", std::exp(base_nll_ / count)}};
  }

 private:
  jobs::NpyReader saved_;
  std::vector<double> divergences_;
  double base_nll_ = 0;
  int64_t same_top_ = 0;
};

void print_result(const nlohmann::json& result, int64_t window) {
  if (result.contains("accuracy"))
    std::printf(
        "accuracy %.4f over %lld lines (all tokens of the last word are the likeliest); "
        "perplexity of the words %.6f over %lld tokens\n",
        result["accuracy"].get<double>(), static_cast<long long>(result["lines"].get<int64_t>()),
        result["perplexity"].get<double>(),
        static_cast<long long>(result["scored_tokens"].get<int64_t>()));
  else
    std::printf(
        "perplexity %.6f over %lld tokens (mean NLL %.6f; %lld windows of %lld tokens, each begun "
        "with begin-of-text)\n",
        result["perplexity"].get<double>(),
        static_cast<long long>(result["scored_tokens"].get<int64_t>()),
        result["mean_nll"].get<double>(), static_cast<long long>(result["windows"].get<int64_t>()),
        static_cast<long long>(window));
  if (result.contains("kl_mean"))
    std::printf(
        "against the saved logits (perplexity %.6f): KL divergence mean %.6f, median %.6f, "
        "99%% %.6f, largest %.6f; same top token %.2f%%\n",
        result["saved_perplexity"].get<double>(), result["kl_mean"].get<double>(),
        result["kl_median"].get<double>(), result["kl_p99"].get<double>(),
        result["kl_max"].get<double>(), 100 * result["top1_agreement"].get<double>());
}

void run(const EvalFlags& flags, std::stop_token stop) {
  if (flags.text.empty() == flags.accuracy.empty())
    throw Error(ErrorKind::kUser, "eval scores one thing at a time",
                "give --text FILE (perplexity) or --accuracy FILE.jsonl");
  const auto tokenizer = need_tokenizer(flags.engine);
  const auto model = open_model(flags.engine, flags.accuracy.empty() ? flags.window : 0);
  const ModelShape& shape = model->shape();
  const Job job = flags.accuracy.empty() ? text_job(flags, *tokenizer, shape.max_positions)
                                         : accuracy_job(*tokenizer, flags.accuracy);
  policy::Workload workload;
  workload.sequences = std::min<int64_t>(static_cast<int64_t>(job.sequences.size()), 16);
  workload.max_prompt_tokens = workload.max_total_tokens = job.window;
  int64_t tokens = 0;
  for (const auto& sequence : job.sequences) tokens += static_cast<int64_t>(sequence.tokens.size());
  TokenProgress progress("scored", tokens);
  const auto engine = open_engine(flags.engine, model, workload, stop, progress.listens());
  if (!engine) return;
  const int64_t rows = app::scored_tokens(job.sequences);
  std::optional<jobs::NpyWriter> saved;
  if (!flags.save_logits.empty()) saved.emplace(flags.save_logits, shape.vocab_size);
  std::optional<Comparison> comparison;
  if (!flags.against.empty()) comparison.emplace(flags.against, rows, shape.vocab_size);
  std::vector<bool> is_right(job.sequences.size(), true);
  const app::Perplexity scored = app::perplexity(
      *engine, job.sequences,
      [&](const app::TokenScore& score, std::span<const float> logits) {
        if (!score.is_top) is_right[score.sequence] = false;
        if (saved) saved->put(score.row, logits);
        if (comparison) comparison->add(score, logits);
      },
      {}, stop);
  progress.end();
  if (saved) saved->finish();
  nlohmann::json result{{"perplexity", scored.value()},
                        {"mean_nll", scored.mean_nll},
                        {"scored_tokens", scored.scored_tokens},
                        {"windows", scored.windows},
                        {"window_tokens", job.window}};
  if (!flags.accuracy.empty()) {
    result["lines"] = job.sequences.size();
    result["accuracy"] = static_cast<double>(std::count(is_right.begin(), is_right.end(), true)) /
                         static_cast<double>(is_right.size());
  }
  if (comparison) result.update(comparison->result());
  if (flags.engine.json) {
    result["stats"] = app::stats_json(*engine);
    print_json(result);
  } else {
    print_result(result, job.window);
  }
  finish_run(flags.engine, engine);
}
}  // namespace

Command add_eval(CLI::App& program) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* parser = program.add_subcommand(
      "eval", "perplexity of a text, next-token accuracy, one configuration against another");
  flags->engine.add_to(*parser);
  parser->add_option("--text", flags->text, "perplexity of this text file");
  parser->add_option("--accuracy", flags->accuracy,
                     "JSON lines with \"text\": how often the last word is the likeliest");
  parser->add_option("--window", flags->window, "tokens of a window")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  parser
      ->add_option("--stride", flags->stride,
                   "begin a window every so many tokens and score what is new in it (0: windows "
                   "share nothing)")
      ->check(CLI::Range(0, 1 << 20));
  parser->add_option("--save-logits", flags->save_logits,
                     "keep the logits of every scored token (.npy, f32)");
  parser->add_option("--against", flags->against,
                     "saved logits to hold this configuration against: KL divergence, top token");
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
