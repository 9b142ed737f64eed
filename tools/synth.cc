// sluice synth: a checkpoint of any shape with random weights.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/durable_file.h"
#include "src/app/panel_quantiser.h"
#include "src/app/repeated_layers.h"
#include "src/app/store_layout.h"
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
  std::string shape, folder, dtype = "bf16", weights;
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
  return json.dump(2);
}

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
  return flags.layers == 0 ? config : with_layers(config, flags.shape, flags.layers);
}

// A folder of our own beside the one to write; goes with all it holds.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& beside) {
    std::filesystem::path name = std::filesystem::absolute(beside).lexically_normal();
    if (!name.has_filename()) name = name.parent_path();  // "folder/"
    std::error_code ignored;
    std::filesystem::create_directories(name.parent_path(), ignored);
    std::string pattern = (name.parent_path() / ".sluice-synth-XXXXXX").string();
    if (!mkdtemp(pattern.data()))
      throw Error(ErrorKind::kFile, fmt::format("{}: no folder can be made there", pattern),
                  "write to a folder whose parent can be written");
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

// Before minutes of work.
void require_free(const SynthFlags& flags) {
  std::error_code ignored;
  if (flags.overwrite || !std::filesystem::exists(flags.folder, ignored) ||
      std::filesystem::is_empty(flags.folder, ignored))
    return;
  throw Error(ErrorKind::kUser, fmt::format("{}: is not empty", flags.folder),
              "choose another folder, or pass --overwrite");
}

// Of a store of so many parameters, about: tables are counted as matrices are.
int64_t store_bytes(const WeightFormat& format, int64_t parameters) {
  constexpr int64_t kColumns = 8192;
  return static_cast<int64_t>(static_cast<double>(parameters) / kColumns *
                              static_cast<double>(format.row_bytes(kColumns)));
}

// Of what --overwrite replaces.
int64_t replaced_bytes(const SynthFlags& flags) {
  int64_t bytes = 0;
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(flags.folder, problem))
    if (entry.is_regular_file(problem)) bytes += static_cast<int64_t>(entry.file_size(problem));
  return bytes;
}

// The checkpoint at `source` to a packed store in the folder asked for.
void pack(const SynthFlags& flags, const WeightFormat& format, const std::filesystem::path& source,
          const std::atomic<bool>& stopped) {
  const BoundModel model = BoundModel::open(source);
  const auto search = kernels::RangeSearch::kMinMax;
  Progress progress("converting");
  io::ConvertOptions options;
  options.destination = flags.folder;
  options.overwrite = flags.overwrite;
  options.threads = flags.threads;
  options.quantise = app::panel_quantiser(search);
  options.quantiser_name = "minmax";
  options.stop = &stopped;
  options.progress = [&](const io::ConvertProgress& at) {
    progress.update(at.done_bytes, at.total_bytes,
                    fmt::format("{} of {}, {}", format_bytes(at.done_bytes),
                                format_bytes(at.total_bytes), at.group),
                    "");
  };
  try {
    io::convert_checkpoint(model.checkpoint(), app::store_groups(model, format, search), options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCancelled) throw;
    // What it was made of goes with this run.
    throw Error(ErrorKind::kCancelled, flags.folder + ": stopped before it was complete",
                "to write it anew, add --overwrite");
  }
}

void run(const SynthFlags& flags, std::stop_token stop) {
  if (flags.repeats_layers && flags.weights.empty())
    throw Error(ErrorKind::kUser, "--repeat-layers is for packed stores",
                "add --weights int4 (or bf16, ...)");
  std::optional<WeightFormat> format;
  if (!flags.weights.empty()) format = weight_format_argument(flags.weights, "--weights");
  const std::string whole_config = find_config(flags);
  const auto whole = make_family_model(ModelConfig(whole_config, flags.shape));
  const std::string config =
      flags.repeats_layers ? with_layers(whole_config, flags.shape, 1) : whole_config;
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
               static_cast<double>(whole->shape().num_parameters()) / 1e9,
               format_bytes(bytes).c_str(), flags.dtype.c_str(), flags.folder.c_str());
  if (flags.dry_run) return;
  std::optional<ScratchFolder> scratch;
  if (format) {
    require_free(flags);
    scratch.emplace(flags.folder);
    // For the checkpoint and the store that is made of it beside it: before minutes of writing.
    io::require_disk_space(scratch->path(),
                           bytes + store_bytes(*format, model->shape().num_parameters()),
                           replaced_bytes(flags));
  }
  // The writer wants a folder that holds nothing.
  const std::filesystem::path folder =
      scratch ? scratch->path() / "source" : std::filesystem::path(flags.folder);
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
  app::write_synthetic_model(model->shape(), config, folder, options);
  if (format) {
    pack(flags, *format, folder, stopped);
    if (flags.repeats_layers)
      app::repeat_layer(
          flags.folder, whole->shape(),
          with_layers(read_text((std::filesystem::path(flags.folder) / "config.json").string()),
                      flags.folder, whole->shape().num_layers));
  }
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
  parser->add_option("--weights", flags->weights,
                     "write a packed store in this format, as convert does: int4, int8, bf16, ...");
  parser->add_flag("--repeat-layers", flags->repeats_layers,
                   "a packed store whose layers are all one (hard links): a 175B model on 3 GB of "
                   "disk, for all but the disk's speed");
  parser->add_option("--seed", flags->seed, "of the random weights")->capture_default_str();
  parser->add_option("--layers", flags->layers, "another number of layers")
      ->check(CLI::Range(1, 4096));
  parser->add_option("-t,--threads", flags->threads, "threads (default: all)");
  parser->add_flag("--overwrite", flags->overwrite, "replace a model that is there");
  parser->add_flag("--dry-run", flags->dry_run, "say what would be written");
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
