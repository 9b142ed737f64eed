#include <fmt/format.h>
#include <sluice/convert.h>

#include <atomic>
#include <optional>

#include "src/api/values.h"
#include "src/app/gguf_tokenizer.h"
#include "src/app/merge_lora.h"
#include "src/app/open_model.h"
#include "src/app/store_layout.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/engine/stores/panel_quantiser.h"
#include "src/text/tokenizer.h"

namespace sluice {

namespace {
constexpr auto kSearch = kernels::RangeSearch::kClip;

// What a GGUF file says of the model and its text, as files; a tokenizer beside it is better.
void add_gguf_files(const BoundModel& model, io::ConvertOptions& options) {
  options.texts.emplace_back("config.json", model.config_text());
  const std::filesystem::path& folder = model.checkpoint().folder();
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tiktoken.model", "tokenizer_config.json"})
    if (is_file(folder / name)) options.extra_files.push_back(folder / name);
  if (text::Tokenizer::exists(folder)) return;
  for (auto& file : app::gguf_tokenizer_files(model.checkpoint().gguf_metadata(),
                                              model.checkpoint().files().front().path.string()))
    if (!is_file(folder / file.first)) options.texts.push_back(std::move(file));
}
}  // namespace

ConvertReport convert(const std::filesystem::path& path, const std::filesystem::path& destination,
                      const ConvertOptions& options, std::stop_token cancel) {
  const auto model = app::open_model(path);
  std::optional<WeightFormat> to;
  if (!options.weights.empty()) to = weights_of(options.weights);
  auto groups = app::store_groups(*model, to, kSearch, nullptr);
  std::optional<LoraAdapter> adapter;
  io::ConvertOptions how;
  how.quantiser_name = "clip";
  if (!options.lora.empty()) {
    adapter = LoraAdapter::open(options.lora);
    app::merge_lora(*model, *adapter, kSearch, groups);
    how.quantiser_name += fmt::format(", merged {:016x}", adapter->fingerprint());
  }
  std::atomic<bool> stop = false;
  const std::stop_callback stopping(cancel, [&] { stop = true; });
  how.destination = destination;
  how.overwrite = options.overwrite;
  how.threads = options.threads;
  how.quantise = panel_quantiser(kSearch);
  if (model->checkpoint().format() == io::CheckpointFormat::kGguf) add_gguf_files(*model, how);
  how.stop = &stop;
  if (options.progress)
    how.progress = [&](const io::ConvertProgress& at) {
      options.progress(at.done_bytes, at.total_bytes);
    };
  const io::ConvertReport report = io::convert_checkpoint(model->checkpoint(), groups, how);
  return {report.total_bytes, report.written_bytes};
}

}  // namespace sluice
