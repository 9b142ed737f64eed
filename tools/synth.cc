// sluice synth: a checkpoint of any shape with random weights.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "src/app/synthetic.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/model/builtin.h"
#include "src/model/family.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct SynthFlags {
  std::string shape, folder, dtype = "bf16";
  uint64_t seed = 1;
  int64_t layers = 0;
  bool overwrite = false, dry_run = false;
  int threads = 0;
};

std::string find_config(const SynthFlags& flags) {
  std::string config;
  if (auto builtin = builtin_config(flags.shape))
    config = *builtin;
  else if (std::filesystem::is_directory(flags.shape))
    config = read_text((std::filesystem::path(flags.shape) / "config.json").string());
  else if (std::filesystem::exists(flags.shape))
    config = read_text(flags.shape);
  else
    throw Error(ErrorKind::kUser,
                fmt::format("\"{}\" is neither a built-in shape nor a config.json", flags.shape),
                fmt::format("built in: {}", fmt::join(builtin_model_names(), ", ")));
  if (flags.layers == 0) return config;
  auto json = nlohmann::ordered_json::parse(config, nullptr, false);
  if (!json.is_object())
    throw Error(ErrorKind::kFile, flags.shape + ": not a JSON object",
                "give a Hugging Face config.json");
  json["num_hidden_layers"] = flags.layers;
  return json.dump(2);
}

void run(const SynthFlags& flags, std::stop_token stop) {
  const std::string config = find_config(flags);
  const auto model = make_family_model(ModelConfig(config, flags.shape));
  app::SyntheticOptions options;
  options.dtype = *parse_dtype(flags.dtype);
  options.seed = flags.seed;
  options.write.overwrite = flags.overwrite;
  options.write.threads = flags.threads;
  std::atomic<bool> stopped{false};
  const std::stop_callback callback(stop, [&] { stopped = true; });
  options.write.stop = &stopped;
  const int64_t bytes = model->shape().num_parameters() * dtype_bytes(options.dtype);
  std::fprintf(stderr, "sluice: %s, %.4g billion parameters, %s of %s to %s\n", flags.shape.c_str(),
               static_cast<double>(model->shape().num_parameters()) / 1e9,
               format_bytes(bytes).c_str(), flags.dtype.c_str(), flags.folder.c_str());
  if (flags.dry_run) return;
  Progress progress("writing");
  const auto started = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::max(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count(), 1e-9);
  };
  options.write.progress = [&](const io::WriteProgress& at) {
    progress.update(
        at.done_bytes, at.total_bytes,
        fmt::format("{} of {}", format_bytes(at.done_bytes), format_bytes(at.total_bytes)),
        format_rate(static_cast<double>(at.done_bytes) / elapsed()));
  };
  app::write_synthetic_model(model->shape(), config, flags.folder, options);
  std::fprintf(stderr, "sluice: written in %s, %s\n", format_seconds(elapsed()).c_str(),
               format_rate(static_cast<double>(bytes) / elapsed()).c_str());
}
}  // namespace

Command add_synth(CLI::App& program) {
  auto flags = std::make_shared<SynthFlags>();
  CLI::App* parser = program.add_subcommand(
      "synth", "a checkpoint of any shape with random weights, for speed work");
  parser
      ->add_option("shape", flags->shape,
                   "a built-in name (opt-30b, llama-2-7b, ...) or a config.json")
      ->required();
  parser->add_option("folder", flags->folder, "folder to write")->required();
  parser->add_option("--dtype", flags->dtype, "bf16, f16 or f32")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}))
      ->capture_default_str();
  parser->add_option("--seed", flags->seed, "of the random weights")->capture_default_str();
  parser->add_option("--layers", flags->layers, "another number of layers")
      ->check(CLI::Range(1, 4096));
  parser->add_option("-t,--threads", flags->threads, "threads (default: all)");
  parser->add_flag("--overwrite", flags->overwrite, "replace a model that is there");
  parser->add_flag("--dry-run", flags->dry_run, "say what would be written");
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
