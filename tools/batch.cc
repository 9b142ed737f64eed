// sluice batch: a file of requests in, a file of answers out, safe against crashes; alone, as one
// shard of several, or as one rank of several (batch_ranks.cc).
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/app/report.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/mutex.h"
#include "src/jobs/shard.h"
#include "src/transport/transport.h"
#include "tools/batch_files.h"
#include "tools/batch_lines.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
const char* variable(const char* name) { return std::getenv(name); }

// What of the job this process does, and where its records go.
struct Part {
  std::optional<jobs::Shard> shard;  // nothing: all of it
  std::string output;
};

Part part_of(const BatchFlags& flags) {
  if (flags.shard_text.empty()) return {std::nullopt, flags.output};
  const jobs::Shard shard =
      jobs::parse_shard(flags.shard_text, [](const char* name) -> std::optional<std::string> {
        const char* value = variable(name);
        return value ? std::optional<std::string>(value) : std::nullopt;
      });
  return {shard, flags.output == "-" ? flags.output : jobs::shard_path(flags.output, shard)};
}

// Passes, for people who wait: what the engine's thread reports, and the pass under way, which
// another may compute.
class BatchProgress {
 public:
  explicit BatchProgress(int64_t requests) : requests_(requests) {}
  void listen(EngineOptions& options) {
    options.pass_progress = [this](const RunningPass& pass) {
      const MutexLock lock(mutex_);
      if (progress_.is_due()) show(fmt::format("pass {} at {:.0f} %", pass.pass, 100 * pass.share));
    };
  }
  void take(const PassReport& report, int64_t done) {
    const MutexLock lock(mutex_);
    done_ = done;
    running_ = report.running;
    tokens_ += report.decode_tokens;
    seconds_ += report.seconds;
    show(fmt::format("pass {}", report.pass));
  }

  void end() {
    const MutexLock lock(mutex_);
    progress_.end();
  }

 private:
  void show(const std::string& pass) SLUICE_REQUIRES(mutex_) {
    std::string amount = fmt::format("{}/{} requests", done_, requests_);
    if (running_ > 0) amount += fmt::format(", {} running", running_);
    const std::string rate =
        tokens_ > 0 ? fmt::format("{:.2f} tokens/s, ", static_cast<double>(tokens_) / seconds_)
                    : "";
    progress_.update(done_, requests_, amount + ",", rate + pass);
  }

  Mutex mutex_;
  const int64_t requests_;
  int64_t done_ SLUICE_GUARDED_BY(mutex_) = 0;
  int64_t running_ SLUICE_GUARDED_BY(mutex_) = 0;
  Progress progress_ SLUICE_GUARDED_BY(mutex_){"batch"};
  int64_t tokens_ SLUICE_GUARDED_BY(mutex_) = 0;
  double seconds_ SLUICE_GUARDED_BY(mutex_) = 0;
};

void report(const BatchFlags& flags, const Part& part, const BatchRun& run, int64_t skipped,
            const OpenedEngine& engine, const std::string& output) {
  if (!flags.engine.json) {
    std::fprintf(stderr, "  %lld requests answered, %lld error records, %lld already there: %s\n",
                 static_cast<long long>(run.answered()), static_cast<long long>(run.failed()),
                 static_cast<long long>(skipped), output.c_str());
    return;
  }
  nlohmann::ordered_json json{{"requests", run.answered() + run.failed()},
                              {"answered", run.answered()},
                              {"failed", run.failed()},
                              {"skipped", skipped},
                              {"output", part.output}};
  if (part.shard) json["shard"] = part.shard->name();
  json["policy"] = nlohmann::ordered_json::parse(policy::policy_to_json(engine->plan().policy));
  json["stats"] = app::stats_json(*engine, engine.found.prediction);
  print_json(json);
}

void run_alone(const BatchFlags& flags, std::stop_token stop) {
  const BatchModel model(flags);
  const BatchInput from(flags.input);
  if (flags.output == "-" && flags.engine.json)
    throw Error(ErrorKind::kUser, "--json and -o - both write to standard output",
                "leave one of them out");
  const Part part = part_of(flags);
  std::optional<BatchOutput> to;
  std::optional<jobs::ResultsFile> results;
  if (!flags.engine.dry_run || is_there(part.output)) {
    to.emplace(part.output);
    results.emplace(to->path(), model.config, model.name);
    if (part.output != "-") jobs::take_others(*results, flags.output, part.shard);
  }
  if (results && results->resumed_records() > 0)
    std::fprintf(stderr, "sluice: %s holds %lld answers; going on after them\n",
                 part.output.c_str(), static_cast<long long>(results->resumed_records()));
  const auto reader_of = [&](std::istream& input) {
    return jobs::JobReader(input, from.name(), flags.sampling.checked(),
                           results ? &*results : nullptr, model.vocab_size(),
                           part.shard.value_or(jobs::Shard()));
  };
  std::ifstream first_look(from.path());
  jobs::JobReader surveyed = reader_of(first_look);
  const Survey found = [&] {
    const Waiting waiting("reading requests");
    return survey(surveyed, model, model.longest(flags));
  }();
  std::fprintf(stderr, "sluice: %lld requests to run\n", static_cast<long long>(found.requests));

  EngineFlags part_flags = flags.engine;
  if (part.shard && !part_flags.record_routing.empty())
    part_flags.record_routing = jobs::shard_path(part_flags.record_routing, *part.shard);
  BatchProgress progress(found.requests);
  const auto engine = open_engine(part_flags, model.model, found.workload, stop,
                                  [&](EngineOptions& options) { progress.listen(options); });
  if (!engine) return;
  std::ifstream input(from.path());
  jobs::JobReader reader = reader_of(input);
  FileLines lines(reader);
  BatchRun run(lines, *results, model, engine->adapters());
  run.on_record = [&to] { to->forward(); };
  run.sink().on_pass_report = [&](const PassReport& report) { progress.take(report, run.done()); };
  if (found.requests > 0)
    engine->generate(run, run.sink(), stop);
  else
    while (run.next()) continue;  // error records only: no weight is read for them
  results->flush();
  to->forward();
  progress.end();
  finish_run(flags.engine, engine);
  report(flags, part, run, reader.skipped(), engine, to->name());
  fail_for_errors(*results, to->name());
}

void run(const BatchFlags& flags, std::stop_token stop) {
  const bool is_rank = flags.shard_text.empty() && is_started_by_mpi(variable);
  return is_rank ? run_rank(flags, std::move(stop)) : run_alone(flags, std::move(stop));
}
}  // namespace

Command add_batch(CLI::App& program) {
  auto flags = std::make_shared<BatchFlags>();
  CLI::App* parser = program.add_subcommand(
      "batch", "answer a JSONL file of requests; started again, it continues");
  flags->engine.adapter_use = AdapterUse::kByRequest;
  flags->engine.add_to(*parser);
  flags->engine.add_recording_to(*parser);
  flags->sampling.add_to(*parser, 128);
  flags->chat.add_to(*parser, "Chat", ChatOptions::Has::kTemplateOnly);
  flags->chat.add_reading_to(*parser, "Chat");
  parser
      ->add_option("input,-i,--input", flags->input,
                   "OpenAI batch lines or {\"prompt\": ...} lines; - for standard input")
      ->required();
  parser
      ->add_option("-o,--output", flags->output,
                   "answers, one line each, in the order they end (custom_id says whose), synced; "
                   "- for standard output")
      ->required();
  const char* machines = "Several machines (docs/jobs.md)";
  parser
      ->add_option("--shard", flags->shard_text,
                   "answer only shard i of n, as 0/3, into OUTPUT.shard-0-of-3; auto: as Slurm, "
                   "Kubernetes or mpirun number this process; batch merge puts them together")
      ->group(machines);
  parser
      ->add_option("--rank-deadline", flags->rank_deadline,
                   "under mpirun: seconds without a word after which a rank's rows go to others")
      ->check(CLI::Range(2.0, 1e6))
      ->capture_default_str()
      ->group(machines);
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
