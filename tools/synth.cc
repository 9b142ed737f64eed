// sluice synth: a checkpoint of any shape with random weights.
#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/app/repeated_layers.h"
#include "src/app/store_layout.h"
#include "src/app/synthetic.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/synthetic_routing.h"
#include "src/engine/stores/panel_quantiser.h"
#include "src/model/builtin.h"
#include "src/model/family.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct SynthFlags {
  std::string shape, folder, dtype = "bf16", weights, router;
  uint64_t seed = 1;
  int64_t layers = 0;
  bool overwrite = false, dry_run = false, repeats_layers = false;
  int threads = 0;
};

std::string with_layers(const std::string& config, const std::string& name, int64_t layers) {
  auto json = nlohmann::ordered_json::parse(config, nullptr, false);
  if (!json.is_object())
    throw Error(ErrorKind::kFile, name + ": not a JSON object", "give a Hugging Face config.json");
  json["num_hidden_layers"] = layers;
  const auto types = json.find("layer_types");  // a list of all layers
  if (types != json.end() && types->is_array() && std::ssize(*types) > layers)
    types->erase(types->begin() + layers, types->end());
  return json.dump(2);
}

// "sticky", "flat:7", "weights": how tokens of a mixture are routed. Empty: "sticky".
std::string with_router(const std::string& config, const SynthFlags& flags, bool is_mixture) {
  auto json = nlohmann::ordered_json::parse(config);
  json.erase("sluice_router");
  if (!is_mixture) {
    if (flags.router.empty()) return json.dump(2);
    throw Error(ErrorKind::kUser,
                fmt::format("--router: {} has no experts to choose among", flags.shape),
                "leave it out, or give a mixture of experts");
  }
  const std::string& whole = flags.router.empty() ? "sticky" : flags.router;
  const size_t colon = whole.find(':');
  const std::string kind = whole.substr(0, colon);
  uint64_t seed = flags.seed;
  bool is_known = parse_synthetic_routing(kind) || whole == "weights";
  if (is_known && colon != std::string::npos) {
    const std::string digits = whole.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seed);
    is_known = error == std::errc() && end == digits.data() + digits.size() &&
               seed <= uint64_t{std::numeric_limits<int64_t>::max()};
  }
  if (!is_known)
    throw Error(ErrorKind::kUser, fmt::format("--router \"{}\" is none", whole),
                "give sticky, flat (each with :SEED or without), or weights");
  if (kind != "weights") json["sluice_router"] = {{"kind", kind}, {"seed", seed}};
  return json.dump(2);
}

std::string find_config(const SynthFlags& flags) {
  std::string config;
  if (auto builtin = builtin_config(flags.shape))
    config = *builtin;
  else if (is_folder(flags.shape))
    config = read_text((std::filesystem::path(flags.shape) / "config.json").string(),
                       kMostSettingsBytes);
  else if (is_there(flags.shape))
    config = read_text(flags.shape, kMostSettingsBytes);
  else
    throw Error(ErrorKind::kUser,
                fmt::format("\"{}\" is neither a built-in shape nor a config.json", flags.shape),
                fmt::format("built in: {}", fmt::join(builtin_model_names(), ", ")));
  return flags.layers == 0 ? config : with_layers(config, flags.shape, flags.layers);
}

// Straight to a packed store: what it is made of is never on disk. Returns the bytes written.
int64_t pack(const SynthFlags& flags, const WeightFormat& format, const ModelShape& shape,
             const std::string& config, const app::SyntheticOptions& options) {
  app::SyntheticCheckpoint source = app::synthetic_checkpoint(shape, config, options);
  const BoundModel model = BoundModel::bind(std::move(source.checkpoint), flags.shape);
  const auto search = kernels::RangeSearch::kMinMax;
  Progress progress("writing");
  io::ConvertOptions convert;
  convert.destination = flags.folder;
  convert.overwrite = flags.overwrite;
  convert.threads = flags.threads;
  convert.quantise = panel_quantiser(search);
  convert.quantiser_name = fmt::format("minmax, synth seed {}", flags.seed);
  convert.source_bytes = source.source_bytes;
  convert.texts.emplace_back("config.json", source.config_json);
  convert.stop = options.write.stop;
  convert.progress = [&](const io::ConvertProgress& at) {
    progress.update(at.done_bytes, at.total_bytes,
                    fmt::format("{} of {}, {}", format_bytes(at.done_bytes),
                                format_bytes(at.total_bytes), at.group),
                    progress.rate(at.done_bytes));
  };
  const auto report =
      io::convert_checkpoint(model.checkpoint(), app::store_groups(model, format, search), convert);
  return report.total_bytes;
}

void run(const SynthFlags& flags, std::stop_token stop) {
  if (flags.repeats_layers && flags.weights.empty())
    throw Error(ErrorKind::kUser, "--repeat-layers is for packed stores",
                "add --weights int4 (or bf16, ...)");
  std::optional<WeightFormat> format;
  if (!flags.weights.empty()) format = weight_format_argument(flags.weights, "--weights");
  std::string whole_config = find_config(flags);
  const auto whole = make_family_model(ModelConfig(whole_config, flags.shape));
  whole_config = with_router(whole_config, flags, whole->shape().num_experts > 1);
  const std::string config =
      flags.repeats_layers
          ? with_layers(whole_config, flags.shape, app::layers_of_each_kind(whole->shape()))
          : whole_config;
  const auto model = make_family_model(ModelConfig(config, flags.shape));
  app::SyntheticOptions options;
  options.dtype = *parse_dtype(flags.dtype);
  options.seed = flags.seed;
  options.write.overwrite = flags.overwrite;
  options.write.threads = flags.threads;
  std::atomic<bool> stopped{false};
  const std::stop_callback callback(stop, [&] { stopped = true; });
  options.write.stop = &stopped;
  ModelShape stored = model->shape();
  stored.set_weights(WeightFormat::plain(options.dtype));
  if (format) stored.set_weights(*format);
  std::fprintf(stderr, "sluice: %s, %.4g billion parameters, %s of %s to %s\n", flags.shape.c_str(),
               static_cast<double>(whole->shape().num_parameters()) / 1e9,
               format_bytes(stored.weight_bytes()).c_str(),
               format ? format_name(*format).c_str() : flags.dtype.c_str(), flags.folder.c_str());
  if (flags.dry_run) return;
  const auto started = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::max(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count(), 1e-9);
  };
  int64_t written = 0;
  if (format) {
    written = pack(flags, *format, model->shape(), config, options);
    if (flags.repeats_layers) {
      std::fprintf(stderr,
                   "sluice: one layer stands for all of its kind: the disk reads the same blocks "
                   "again and again, and its cache holds them\n");
      app::repeat_layers(flags.folder, whole->shape(),
                         app::with_dtype(whole_config, options.dtype));
    }
  } else {
    Progress progress("writing");
    options.write.progress = [&](const io::WriteProgress& at) {
      progress.update(
          at.done_bytes, at.total_bytes,
          fmt::format("{} of {}", format_bytes(at.done_bytes), format_bytes(at.total_bytes)),
          format_rate(static_cast<double>(at.done_bytes) / elapsed()));
    };
    written = app::write_synthetic_model(model->shape(), config, flags.folder, options);
  }
  std::fprintf(stderr, "sluice: %s written in %s, %s\n", format_bytes(written).c_str(),
               format_seconds(elapsed()).c_str(),
               format_rate(static_cast<double>(written) / elapsed()).c_str());
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
  parser->add_option("--weights", flags->weights,
                     "write a packed store in this format, as convert does: int4, int8, bf16, ...");
  parser->add_flag(
      "--repeat-layers", flags->repeats_layers,
      "a packed store whose layers of a kind are all one (hard links): a 175B model on "
      "3 GB of disk, for all but the disk's speed");
  parser->add_option("--router", flags->router,
                     "how tokens of a mixture choose experts: sticky (default), as measured in "
                     "trained models; flat, more evenly; both with :SEED; weights: by its own");
  parser->add_option("--seed", flags->seed, "of the random weights")->capture_default_str();
  parser->add_option("--layers", flags->layers, "another number of layers")
      ->check(CLI::Range(1, 4096));
  parser->add_option("-t,--threads", flags->threads, "threads (default: all)");
  parser->add_flag("--overwrite", flags->overwrite, "replace a model that is there");
  parser->add_flag("--dry-run", flags->dry_run, "say what would be written");
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
