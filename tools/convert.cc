// sluice convert: a checkpoint to a packed store.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "io/checkpoint/packed_store.h"
#include "src/app/calibration_source.h"
#include "src/app/merge_lora.h"
#include "src/app/model_tokenizer.h"
#include "src/app/quantisation.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/engine/stores/panel_quantiser.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/flag_words.h"
#include "tools/model_argument.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct ConvertFlags {
  std::string model, destination, weights, range = "clip", calibration, imatrix, memory, lora,
                                           pretokenizer;
  int64_t calibration_tokens = 16384;
  std::optional<double> bits;
  bool requantises = false, overwrite = false, verify = false, dry_run = false, json = false;
  int threads = 0;
};

// The library looks at an atomic; Ctrl-C comes as a stop token.
struct StopFlag {
  std::atomic<bool> flag{false};
  std::stop_callback<std::function<void()>> callback;
  explicit StopFlag(std::stop_token stop) : callback(std::move(stop), [this] { flag = true; }) {}
};

// What is done of the request is shown as it goes on: a bar for each kind of work.
class Steps {
 public:
  void update(std::string_view what, int64_t done, int64_t total, std::string_view of) {
    if (what != what_) {
      end();
      what_ = what;
      bar_.emplace(what_);
    }
    if (total > 0) bar_->update(done, total, fmt::format("{} of {} {}", done, total, of), "");
  }
  void end() {
    if (bar_) bar_->end();
    bar_.reset();
    what_.clear();
  }

 private:
  std::string what_;
  std::optional<Progress> bar_;
};

app::QuantisationRequest quantisation_request(const ConvertFlags& flags, const BoundModel& model,
                                              Steps& steps, std::stop_token stop) {
  app::QuantisationRequest out;
  if (!flags.weights.empty()) out.to = weight_format_argument(flags.weights, "--weights");
  out.bits = flags.bits;
  out.requantises = flags.requantises;
  if (flags.requantises && out.to && model.foreign_method().empty() && model.shape().is_quantised())
    std::fprintf(
        stderr,
        "sluice: quantising %s anew: what was lost stays lost, and more is; the checkpoint "
        "that it was quantised from gives a better store\n",
        model.shape().weights_name().c_str());
  if (flags.range == "minmax") out.search = kernels::RangeSearch::kMinMax;
  out.threads = flags.threads;
  out.cancel = std::move(stop);
  out.progress = [&steps](std::string_view what, int64_t done, int64_t total, std::string_view of) {
    steps.update(what, done, total, of);
  };
  app::CalibrationSource source;
  if (!flags.calibration.empty()) {
    source.read_text = [&] { return read_text(flags.calibration, kMostTextBytes); };
    source.text_name = flags.calibration;
  }
  source.most_tokens = flags.calibration_tokens;
  if (!flags.memory.empty()) source.memory_budget_bytes = parse_bytes(flags.memory, "--cpu-mem");
  source.imatrix = flags.imatrix;
  source.pretokenizer = flags.pretokenizer;
  if (source.is_given() && !flags.lora.empty()) {
    const std::string flag = source.read_text ? "--calibrate" : "--imatrix";
    throw Error(ErrorKind::kUser, "--merge-lora with " + flag,
                "merge first, then convert what came out with " + flag);
  }
  if (const int64_t tokens = app::add_calibration(source, model, out); tokens > 0)
    std::fprintf(stderr, "sluice: calibrating on %lld tokens\n", static_cast<long long>(tokens));
  return out;
}

void say_what_is_too_wide(int64_t wide) {
  if (wide > 0)
    std::fprintf(stderr,
                 "sluice: %lld linear layers are too wide to make up for errors (more than %s of "
                 "sums each); theirs count by column alone\n",
                 static_cast<long long>(wide), format_bytes(app::kMostHessianBytes).c_str());
}

void print_report(const ConvertFlags& flags, const io::ConvertReport& report, double seconds) {
  if (flags.json)
    print_json({{"destination", flags.destination},
                {"total_bytes", report.total_bytes},
                {"written_bytes", report.written_bytes},
                {"groups", report.groups},
                {"resumed_groups", report.resumed_groups},
                {"seconds", seconds}});
  else
    std::fprintf(
        stderr, "sluice: %s written in %s, %s%s\n", format_bytes(report.written_bytes).c_str(),
        format_seconds(seconds).c_str(),
        format_rate(static_cast<double>(report.written_bytes) / std::max(seconds, 1e-9)).c_str(),
        report.resumed_groups > 0 ? fmt::format("; {} of {} groups were there already",
                                                report.resumed_groups, report.groups)
                                        .c_str()
                                  : "");
}

void run(const ConvertFlags& flags, std::stop_token stop) {
  const BoundModel model = BoundModel::open(flags.model);
  Steps steps;
  app::QuantisationRequest request = quantisation_request(flags, model, steps, stop);
  const auto search = request.search;
  app::Quantisation quantisation(model, std::move(request));
  steps.end();
  say_what_is_too_wide(quantisation.too_wide());
  auto groups = quantisation.groups();
  std::optional<LoraAdapter> adapter;
  if (!flags.lora.empty()) {
    adapter = LoraAdapter::open(flags.lora);
    app::merge_lora(model, *adapter, search, groups);
    std::fprintf(stderr, "sluice: merging %s: %zu matrices changed, %zu tensors replaced\n",
                 adapter->name.c_str(), adapter->matrices.size(), adapter->saved.size());
  }
  const int64_t bytes = io::packed_store_bytes(model.checkpoint(), groups);
  std::fprintf(stderr, "sluice: %s of %s to %s in %zu groups\n", format_bytes(bytes).c_str(),
               quantisation.description().c_str(), flags.destination.c_str(), groups.size());
  if (flags.dry_run) return;
  StopFlag stopping(std::move(stop));
  Progress progress("converting");
  const auto started = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  io::ConvertOptions options;
  options.destination = flags.destination;
  options.overwrite = flags.overwrite;
  options.verify_finished = flags.verify;
  options.threads = flags.threads;
  options.quantise = panel_quantiser(search);
  options.quantiser_name = quantisation.name();
  if (adapter) options.quantiser_name += fmt::format(", merged {:016x}", adapter->fingerprint());
  if (model.checkpoint().format() == io::CheckpointFormat::kGguf)
    app::add_gguf_files(model, options, flags.pretokenizer, [](const Error& error) {
      std::fprintf(stderr, "sluice: no tokenizer is written: %s\n", in_flags(error.what()).c_str());
    });
  options.stop = &stopping.flag;
  options.progress = [&](const io::ConvertProgress& at) {
    progress.update(at.done_bytes, at.total_bytes,
                    fmt::format("{} of {}, {}", format_bytes(at.done_bytes),
                                format_bytes(at.total_bytes), at.group),
                    format_rate(static_cast<double>(at.done_bytes) / std::max(elapsed(), 1e-9)));
  };
  const io::ConvertReport report = io::convert_checkpoint(model.checkpoint(), groups, options);
  progress.end();
  if (flags.verify) {
    Progress verifying("verifying");
    io::verify_store(flags.destination, verifying.shows_verifying(), &stopping.flag);
  }
  print_report(flags, report, elapsed());
}
}  // namespace

Command add_convert(CLI::App& program) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* parser = program.add_subcommand(
      "convert", "write a packed store: a layer contiguous, aligned, checksummed; resumable");
  take_model_names(
      parser->add_option("model,-m,--model", flags->model,
                         "model folder, GGUF file, or a name that `sluice models` lists"))
      ->required();
  add_pretokenizer_option(*parser, flags->pretokenizer);
  parser->add_option("destination,-o,--output", flags->destination, "folder to write")->required();
  parser->add_option(
      "--weights", flags->weights,
      "f32, f16, bf16, int8, int4, nf4, fp8 or mxfp4; -g32, -g64, -g128: columns that share "
      "a scale (int4-g128); q4_0, iq4, q2_k to q6_k: as GGUF's types (default: as they are)");
  parser->add_option(
      "--bits", flags->bits,
      "bits a weight, scales included: a format for each matrix, q2_k to as it is, so that least "
      "is lost (4.5; best with --calibrate)");
  parser
      ->add_option("--int4-range", flags->range,
                   "clip: the range with the least squared error; minmax: of all values")
      ->check(CLI::IsMember({"clip", "minmax"}));
  parser->add_option(
      "--calibrate", flags->calibration,
      "text file: quantise with a view to what the weights are multiplied with on it "
      "(AWQ and GPTQ)");
  parser->add_option("--imatrix", flags->imatrix,
                     "llama.cpp's importance matrix of the model (.dat or .gguf), in place of a "
                     "text");
  parser
      ->add_option("--calibrate-tokens", flags->calibration_tokens, "tokens of it to use, at most")
      ->check(CLI::Range(1, 1 << 28))
      ->capture_default_str();
  parser->add_option("--merge-lora", flags->lora,
                     "folder of a PEFT adapter (LoRA, rsLoRA, DoRA): add it to the weights");
  parser->add_option("--cpu-mem,--cpu-memory", flags->memory,
                     "host memory of the calibration's run (default: what is free)");
  parser->add_option("-t,--threads", flags->threads, "threads that convert (default: all)");
  parser->add_flag("--allow-requantise", flags->requantises,
                   "of a store that is quantised: --weights from the values that it has");
  parser->add_flag("--overwrite", flags->overwrite, "replace what is there");
  parser->add_flag("--verify", flags->verify, "read everything back and compare checksums");
  parser->add_flag("--dry-run", flags->dry_run, "say what would be written");
  parser->add_flag("--json", flags->json, "one JSON object on standard output");
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
