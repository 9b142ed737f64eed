// sluice bench throughput and bench latency: whole requests on an engine of this process, and how
// long each took. Definitions as in src/serve/load.h.
#include <fmt/format.h>

#include <chrono>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>

#include "src/app/generate_text.h"
#include "src/app/node_rates.h"
#include "src/app/report.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "tools/chat_options.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/load_shape.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct OfflineFlags {
  EngineFlags engine;
  LoadShape shape;
  int batch = 1;
  int warm_ups = 1;
  std::vector<std::string> nodes;  // results of other runs
  int64_t rows = 0;
};

using Clock = std::chrono::steady_clock;

// Requests that are there from the start, and when their tokens came.
class Stopwatch final : public RequestSource, public GenerationSink {
 public:
  Stopwatch(const std::vector<serve::LoadRequest>& load, int64_t vocab, Clock::time_point zero)
      : zero_(zero), sent_(now()), records_(load.size()) {
    for (const serve::LoadRequest& one : load) {
      GenerationRequest& request = waiting_.emplace_back();
      request.id = waiting_.size() - 1;
      request.prompt = one.prompt;
      for (int32_t& id : request.prompt) id = static_cast<int32_t>(id % vocab);
      request.params.temperature = 0;
      request.params.ignore_eos = true;
      request.params.max_tokens = one.max_tokens;
      records_[request.id].sent = sent_;
      records_[request.id].prompt_tokens = static_cast<int64_t>(one.prompt.size());
    }
  }

  std::function<void(int64_t done)> on_done;
  std::function<AdapterPtr(uint64_t)> adapter_of;  ///< a request's

  std::optional<GenerationRequest> next() override {
    if (waiting_.empty()) return std::nullopt;
    GenerationRequest request = std::move(waiting_.front());
    waiting_.pop_front();
    if (adapter_of) request.adapter = adapter_of(request.id);
    return request;
  }
  bool on_token(uint64_t id, const sampling::Choice&) override {
    serve::LoadRecord& record = records_[id];
    const double at = now();
    if (record.output_tokens++ == 0) {
      record.first_token = at;
      first_of_pass_.push_back(at - record.sent);
    } else {
      record.gaps.push_back(at - last_[id]);
    }
    last_[id] = at;
    return true;
  }
  void on_finish(uint64_t id, FinishReason reason) override {
    records_[id].is_answered = reason != FinishReason::kCancelled;
    records_[id].end = now();
    if (on_done) on_done(++done_);
  }
  void on_refused(uint64_t, const std::string& message) override {
    throw Error(ErrorKind::kUser, message, "lower --pp or --tg, or raise --ctx-size");
  }
  void on_pass(const PassReport& report) override {
    ++passes_;
    if (first_tokens_.size() <= report.pass_class) first_tokens_.resize(report.pass_class + 1);
    std::vector<double>& of_class = first_tokens_[report.pass_class];
    of_class.insert(of_class.end(), first_of_pass_.begin(), first_of_pass_.end());
    first_of_pass_.clear();
  }

  const std::vector<serve::LoadRecord>& records() const { return records_; }
  int64_t passes() const { return passes_; }
  /// [class of pass] seconds to the first tokens that came in its passes.
  const std::vector<std::vector<double>>& first_tokens() const { return first_tokens_; }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - zero_).count(); }

  Clock::time_point zero_;
  double sent_;
  std::deque<GenerationRequest> waiting_;
  std::vector<serve::LoadRecord> records_;
  std::map<uint64_t, double> last_;
  std::vector<double> first_of_pass_;
  std::vector<std::vector<double>> first_tokens_;
  int64_t done_ = 0, passes_ = 0;
};

void print(const EngineFlags& flags, const OpenedEngine& engine, nlohmann::ordered_json row,
           int64_t passes, const std::vector<std::vector<double>>& first_tokens) {
  row.erase("refused_429");
  row["passes"] = passes;
  if (flags.json) {
    row["policy"] = nlohmann::ordered_json::parse(policy::policy_to_json(engine->plan().policy));
    row["stats"] = app::stats_json(*engine, engine.found.prediction);
    print_json({{"model", flags.model}, {"results", nlohmann::ordered_json::array({row})}});
    return;
  }
  const auto ms = [&](const char* measure) {
    return fmt::format("{:.4g} / {:.4g} / {:.4g}", row[measure]["p50"].get<double>(),
                       row[measure]["p90"].get<double>(), row[measure]["p99"].get<double>());
  };
  std::fputs(fmt::format(
                 "| requests | req/s | output tok/s | total tok/s | passes | TTFT ms p50/p90/p99 | "
                 "TPOT ms p50/p90/p99 | E2E ms p50/p90/p99 |\n|---|---|---|---|---|---|---|---|\n"
                 "| {} | {:.4g} | {:.4g} | {:.4g} | {} | {} | {} | {} |\n",
                 row["answered"].get<int64_t>(), row["requests_per_s"].get<double>(),
                 row["output_tokens_per_s"].get<double>(), row["total_tokens_per_s"].get<double>(),
                 passes, ms("ttft_ms"), ms("tpot_ms"), ms("e2e_ms"))
                 .c_str(),
             stdout);
  const std::string classes = app::class_table(*engine, first_tokens);
  if (!classes.empty()) std::printf("\n%s", classes.c_str());
}

OpenedEngine engine_for(const OfflineFlags& flags, const std::vector<serve::LoadRequest>& together,
                        std::stop_token stop) {
  policy::Workload workload;
  for (const serve::LoadRequest& one : together)
    app::add_to_workload(workload, static_cast<int64_t>(one.prompt.size()), one.max_tokens);
  auto engine = open_engine(flags.engine, workload, stop);
  if (engine) engine->load(stop);
  return engine;
}

// What was measured on several machines, together.
void print_nodes(const OfflineFlags& flags) {
  std::vector<app::NodeRate> nodes;
  std::string model;
  for (const std::string& path : flags.nodes) {
    const std::string text = read_file(path, kMostSettingsBytes, Streams::kAllow);
    nodes.push_back(app::measured_node(path, text));
    const auto other = model_name(nlohmann::json::parse(text).value("model", ""));
    if (path != flags.nodes.front() && other != model)
      throw Error(ErrorKind::kUser,
                  fmt::format("{} is of {}, and {} of {}", flags.nodes.front(), model, path, other),
                  "measure one model on all nodes");
    model = other;
  }
  if (flags.engine.json)
    print_json(app::nodes_json(nodes, flags.rows));
  else
    std::fputs(app::nodes_text(nodes, flags.rows).c_str(), stdout);
}

// All requests at once: how many an hour.
void run_throughput(const OfflineFlags& flags, std::stop_token stop) {
  if (!flags.nodes.empty()) return print_nodes(flags);
  if (flags.rows > 0)
    throw Error(ErrorKind::kUser, "--rows has no effect without --nodes", "leave it out");
  if (flags.engine.model.empty())
    throw Error(ErrorKind::kUser, "no model given", "name one, or results with --nodes");
  const auto load = flags.shape.make(0);
  const auto engine = engine_for(flags, load, stop);
  if (!engine) return;
  Stopwatch watch(load, engine->model().shape().vocab_size, Clock::now());
  watch.adapter_of = [&](uint64_t id) { return adapter_in_turn(*engine, id); };
  Progress progress("throughput");
  const auto all = static_cast<int64_t>(load.size());
  watch.on_done = [&](int64_t done) {
    progress.update(done, all, fmt::format("{}/{} requests", done, all), "");
  };
  engine->generate(watch, watch, stop);
  if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped");
  finish_run(flags.engine, engine);
  print(flags.engine, engine, serve::summarise(watch.records()), watch.passes(),
        watch.first_tokens());
}

// Batches of one size, one after the other: how long one takes.
void run_latency(const OfflineFlags& flags, std::stop_token stop) {
  const auto load = flags.shape.make(0);
  const auto batch = static_cast<size_t>(flags.batch);
  const int batches = static_cast<int>(load.size() / batch);
  if (batches <= flags.warm_ups)
    throw Error(ErrorKind::kUser,
                fmt::format("{} requests make {} batches of {}, and {} are warm-ups", load.size(),
                            batches, batch, flags.warm_ups),
                "take a longer file, or a smaller --batch");
  const auto begin_of = [&](int number) {
    return load.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(number) * batch);
  };
  const auto engine = engine_for(flags, {begin_of(0), begin_of(1)}, stop);
  if (!engine) return;
  const auto zero = Clock::now();
  std::vector<serve::LoadRecord> records;
  int64_t passes = 0;
  std::vector<std::vector<double>> first_tokens;  // [class of pass]
  Progress progress("latency");
  for (int number = 0; number < batches; ++number) {
    Stopwatch watch({begin_of(number), begin_of(number + 1)}, engine->model().shape().vocab_size,
                    zero);
    watch.adapter_of = [&](uint64_t id) { return adapter_in_turn(*engine, id); };
    engine->generate(watch, watch, stop);
    if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped");
    progress.update(number + 1, batches, fmt::format("{}/{} batches", number + 1, batches), "");
    if (number < flags.warm_ups) continue;
    records.insert(records.end(), watch.records().begin(), watch.records().end());
    passes += watch.passes();
    const auto& of_batch = watch.first_tokens();
    if (first_tokens.size() < of_batch.size()) first_tokens.resize(of_batch.size());
    for (size_t i = 0; i < of_batch.size(); ++i)
      first_tokens[i].insert(first_tokens[i].end(), of_batch[i].begin(), of_batch[i].end());
  }
  finish_run(flags.engine, engine);
  print(flags.engine, engine, serve::summarise(records), passes, first_tokens);
}
}  // namespace

Command add_bench_throughput(CLI::App& program) {
  auto flags = std::make_shared<OfflineFlags>();
  CLI::App* parser = program.add_subcommand(
      "bench-throughput", "many requests at once, without a server (also: bench throughput)");
  flags->engine.adapter_use = AdapterUse::kInTurn;
  flags->engine.add_to(*parser);
  flags->shape.add_to(*parser, LoadShape::Arrivals::kAtOnce);
  parser->get_option("--model")->required(false);  // --nodes needs none
  parser
      ->add_option("--nodes", flags->nodes,
                   "measure nothing: what runs with --json wrote on several machines (a.json,"
                   "b.json), together")
      ->delimiter(',');
  parser->add_option("--rows", flags->rows, "with --nodes: how long so many rows take")
      ->check(CLI::NonNegativeNumber);
  return {parser, [flags](std::stop_token stop) { run_throughput(*flags, stop); }};
}

Command add_bench_latency(CLI::App& program) {
  auto flags = std::make_shared<OfflineFlags>();
  flags->shape.requests = 5;
  CLI::App* parser = program.add_subcommand(
      "bench-latency", "batches of one size in turn, without a server (also: bench latency)");
  flags->engine.adapter_use = AdapterUse::kInTurn;
  flags->engine.add_to(*parser);
  flags->shape.add_to(*parser, LoadShape::Arrivals::kAtOnce);
  parser->add_option("--batch", flags->batch, "requests of a batch")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  parser->add_option("--warm-ups", flags->warm_ups, "batches that are not counted")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  return {parser, [flags](std::stop_token stop) {
            OfflineFlags all = *flags;
            all.shape.requests = (flags->shape.requests + flags->warm_ups) * flags->batch;
            run_latency(all, stop);
          }};
}

}  // namespace sluice::tools
