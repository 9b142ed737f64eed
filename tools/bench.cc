// sluice bench: prefill and decode throughput over batch sizes, beside probes of the disk and of
// memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "io/async/disk_probe.h"
#include "src/app/generate_text.h"
#include "src/app/report.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/processor_name.h"
#include "src/device/memory_probe.h"
#include "tools/arguments.h"
#include "tools/bench_page.h"
#include "tools/chat_options.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct BenchFlags {
  EngineFlags engine;
  int64_t prompt_tokens = 32, new_tokens = 8;
  std::string batches = "1";
  int repetitions = 1;
  std::string memory_probe, html;
  bool no_disk_probe = false;
};

double probe_disk(const Engine& engine) {
  const auto& files = engine.model().checkpoint().files();
  const auto largest = std::max_element(
      files.begin(), files.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  constexpr int64_t kProbeBytes = int64_t{4} << 30;
  constexpr int64_t kRequest = kMiB;
  if (largest->bytes < kRequest) return 0;
  return io::probe_read_rate(largest->path.string(), kProbeBytes, kRequest, 64);
}

// Random prompts, all different, so that nothing is shared.
std::deque<GenerationRequest> make_requests(const BenchFlags& flags, int64_t batch,
                                            int64_t vocab_size) {
  std::deque<GenerationRequest> requests;
  uint64_t state = 88172645463325252u;
  for (int64_t i = 0; i < batch; ++i) {
    GenerationRequest& request = requests.emplace_back();
    request.id = static_cast<uint64_t>(i);
    for (int64_t t = 0; t < flags.prompt_tokens; ++t) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      request.prompt.push_back(static_cast<int32_t>(state % static_cast<uint64_t>(vocab_size)));
    }
    request.params.temperature = 0;
    request.params.ignore_eos = true;
    request.params.max_tokens = static_cast<int>(flags.new_tokens);
  }
  return requests;
}

struct Sample {
  double prefill_rate, decode_rate, decode_pass_seconds;
  double decode_pass_read_bytes;  // from disk
};

Sample run_once(Engine& engine, const BenchFlags& flags, int64_t batch, std::stop_token stop) {
  const EngineStats before = engine.stats();
  app::TextSink sink(nullptr);
  auto requests = make_requests(flags, batch, engine.model().shape().vocab_size);
  for (GenerationRequest& request : requests) request.adapter = adapter_in_turn(engine, request.id);
  app::PromptSource source(std::move(requests), sink);
  sink.on_result = [](app::TextResult&& result) {
    if (!result.refused.empty())
      throw Error(ErrorKind::kUser, result.refused, "lower --pp or --tg");
  };
  int64_t decode_passes = 0, read = 0, decode_read = 0;
  sink.on_pass_report = [&](const PassReport& report) {
    const int64_t so_far = report.lanes[Lane::kDiskRead].bytes;
    if (report.prefill_tokens == 0) {
      ++decode_passes;
      decode_read += so_far - read;
    }
    read = so_far;
  };
  engine.generate(source, sink, stop);
  const EngineStats after = engine.stats();
  const double prefill = after.prefill_seconds - before.prefill_seconds;
  const double decode = after.decode_seconds - before.decode_seconds;
  const auto decoded = static_cast<double>(after.decode_tokens - after.first_tokens -
                                           before.decode_tokens + before.first_tokens);
  return {
      static_cast<double>(after.prefill_tokens - before.prefill_tokens) / std::max(prefill, 1e-9),
      decode > 0 ? decoded / decode : 0,
      decode_passes > 0 ? decode / static_cast<double>(decode_passes) : 0,
      decode_passes > 0 ? static_cast<double>(decode_read) / static_cast<double>(decode_passes)
                        : 0};
}

nlohmann::ordered_json spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {{"min", values.front()}, {"median", values[values.size() / 2]}, {"max", values.back()}};
}

int probing_threads(const BenchFlags& flags) {
  return std::max(1, flags.engine.threads ? flags.engine.threads
                                          : static_cast<int>(std::thread::hardware_concurrency()));
}

// Bytes of weights that a pass multiplies.
int64_t multiplied_bytes(const ModelShape& shape) {
  int64_t bytes = 0;
  for (const SublayerShape& sublayer : shape.sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.kind == WeightKind::kMatrix) bytes += shape.rows_bytes(weight, weight.rows);
  return bytes;
}

// Disk and memory drift within seconds on shared hosts: a probe stands before and after each
// repetition, and a repetition is held against its own two: how much of the time of its decode
// passes reading so many bytes would take.
class Probes {
 public:
  explicit Probes(std::function<double()> probe) : probe_(std::move(probe)) {
    if (probe_) rates_.push_back(probe_());
  }
  void repeated(double pass_seconds, double bytes) {
    if (!probe_) return;
    rates_.push_back(probe_());
    const double rate = (rates_[rates_.size() - 2] + rates_.back()) / 2;
    if (bytes > 0 && rate > 0 && pass_seconds > 0) shares_.push_back(bytes / rate / pass_seconds);
  }
  const std::vector<double>& rates() const noexcept { return rates_; }
  const std::vector<double>& shares() const noexcept { return shares_; }

 private:
  std::function<double()> probe_;  // none: not asked for
  std::vector<double> rates_;
  std::vector<double> shares_;
};

nlohmann::ordered_json bench_batch(const BenchFlags& flags, int64_t batch, std::stop_token stop) {
  policy::Workload workload;
  for (int64_t i = 0; i < batch; ++i)
    app::add_to_workload(workload, flags.prompt_tokens, flags.new_tokens);
  std::unique_ptr<MemoryProbe> probed;  // before the engine takes what is free
  if (!flags.memory_probe.empty())
    probed = std::make_unique<MemoryProbe>(parse_bytes(flags.memory_probe, "--memory-probe"));
  TokenProgress progress(fmt::format("batch {}", batch), batch * flags.prompt_tokens,
                         batch * (flags.new_tokens - 1));
  const auto engine = open_engine(flags.engine, workload, stop, progress.listens());
  if (!engine) return {};
  engine->load(stop);
  std::vector<double> prefill, decode, pass;
  const auto on = [](bool is_asked, std::function<double()> probe) {
    return is_asked ? std::move(probe) : std::function<double()>();
  };
  Probes disk(on(!flags.no_disk_probe, [&] { return probe_disk(*engine); }));
  Probes memory(on(probed != nullptr, [&] { return probed->read_rate(probing_threads(flags)); }));
  // Of experts a pass reads those that it asks for and that are not there.
  const bool asks = engine->plan().demands_experts(batch);
  auto streamed = static_cast<double>(engine->plan().streamed_weight_bytes);
  const auto multiplied = static_cast<double>(multiplied_bytes(engine->model().shape()));
  for (int i = 0; i < flags.repetitions; ++i) {
    progress.begin();
    const Sample sample = run_once(*engine, flags, batch, stop);
    progress.end();
    prefill.push_back(sample.prefill_rate);
    decode.push_back(sample.decode_rate);
    pass.push_back(sample.decode_pass_seconds);
    if (asks) streamed = sample.decode_pass_read_bytes;
    disk.repeated(sample.decode_pass_seconds, streamed);
    memory.repeated(sample.decode_pass_seconds, multiplied);
  }
  nlohmann::ordered_json row{
      {"batch", batch},
      {"pp", flags.prompt_tokens},
      {"tg", flags.new_tokens},
      {"prefill_tokens_per_s", spread(prefill)},
      {"decode_tokens_per_s", spread(decode)},
      {"decode_pass_s", spread(pass)},
      {"disk_probe_bytes_per_s", disk.rates()},
      {"memory_probe_bytes_per_s", memory.rates()},
      {"streamed_bytes_per_pass", static_cast<int64_t>(streamed)},
      {"resident_weight_bytes", engine->plan().resident_weight_bytes},
      {"policy", nlohmann::ordered_json::parse(policy::policy_to_json(engine->plan().policy))},
      {"stats", app::stats_json(*engine, engine.found.prediction)},
      {"class_table", app::class_table(*engine)}};
  if (!disk.shares().empty()) row["share_of_disk_limit"] = spread(disk.shares());
  if (!memory.shares().empty()) row["share_of_memory_limit"] = spread(memory.shares());
  finish_run(flags.engine, engine);
  return row;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

void print_row(const nlohmann::ordered_json& row) {
  const auto middle = [&](const char* field) { return row[field]["median"].get<double>(); };
  const auto probe = [&](const char* field) {
    const auto rates = row[field].get<std::vector<double>>();
    return rates.empty() ? "-" : format_rate(median(rates));
  };
  const auto share = [&](const char* field) {
    return row.contains(field) ? fmt::format("{:.1f}%", 100 * middle(field)) : "-";
  };
  std::printf("| %lld | %.2f | %.3f | %.3f | %s | %s | %s | %s | %s |\n",
              static_cast<long long>(row["batch"].get<int64_t>()), middle("prefill_tokens_per_s"),
              middle("decode_tokens_per_s"), middle("decode_pass_s"),
              format_bytes(row["streamed_bytes_per_pass"].get<int64_t>()).c_str(),
              probe("disk_probe_bytes_per_s").c_str(), share("share_of_disk_limit").c_str(),
              probe("memory_probe_bytes_per_s").c_str(), share("share_of_memory_limit").c_str());
  std::fflush(stdout);
}

void run(const BenchFlags& flags, std::stop_token stop) {
  const std::vector<int32_t> batches = parse_ids(flags.batches, "--batch");
  if (batches.size() > 1 && !flags.engine.record_routing.empty())
    throw Error(ErrorKind::kUser,
                "--record-routing: each size of --batch would begin the file anew",
                "give one size");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  nlohmann::ordered_json out{{"model", flags.engine.model}};
  if (!flags.engine.json)
    std::printf(
        "| batch | prefill tok/s (pp%lld) | decode tok/s (tg%lld) | s per decode pass | streamed a "
        "pass | disk probe | of disk limit | memory probe | of memory limit |\n"
        "|---|---|---|---|---|---|---|---|---|\n",
        static_cast<long long>(flags.prompt_tokens), static_cast<long long>(flags.new_tokens));
  std::string classes;
  for (const int32_t batch : batches) {
    if (batch < 1) throw Error(ErrorKind::kUser, "--batch: sizes begin at 1", "write 1,8,32");
    nlohmann::ordered_json row = bench_batch(flags, batch, stop);
    if (row.is_null()) return;
    if (!flags.engine.json) print_row(row);
    const std::string table = row["class_table"];
    if (!table.empty()) classes += fmt::format("\nbatch {}:\n{}", batch, table);
    row.erase("class_table");
    rows.push_back(row);
  }
  if (!flags.engine.json) std::fputs(classes.c_str(), stdout);
  if (!flags.html.empty())
    write_file(flags.html,
               bench_html(rows, model_name(flags.engine.model),
                          fmt::format("{}, {} threads", processor_name(), probing_threads(flags))));
  out["results"] = rows;
  if (flags.engine.json) print_json(out);
}
}  // namespace

Command add_bench(CLI::App& program) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* parser =
      program.add_subcommand("bench", "prefill and decode throughput, beside a probe of the disk");
  flags->engine.adapter_use = AdapterUse::kInTurn;
  flags->engine.add_to(*parser);
  flags->engine.add_recording_to(*parser);
  parser->add_option("--pp,--prompt-len", flags->prompt_tokens, "prompt tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  parser->add_option("--tg,--gen-len", flags->new_tokens, "new tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  parser->add_option("--batch", flags->batches, "sequences, as 1,8,32")->capture_default_str();
  parser->add_option("--reps", flags->repetitions, "repetitions")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  parser->add_option(
      "--memory-probe", flags->memory_probe,
      "also measure memory reads over a buffer of this size, around each repetition");
  parser->add_option("--html", flags->html, "a page with plots of it");
  parser->add_flag("--no-disk-probe", flags->no_disk_probe, "leave the disk probe out");
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
