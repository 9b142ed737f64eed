#include <fmt/format.h>
#include <sluice/convert.h>

#include <atomic>
#include <optional>

#include "src/api/values.h"
#include "src/app/calibration_source.h"
#include "src/app/merge_lora.h"
#include "src/app/model_tokenizer.h"
#include "src/app/open_model.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/engine/stores/panel_quantiser.h"

namespace sluice {

namespace {
constexpr auto kSearch = kernels::RangeSearch::kClip;

app::QuantisationRequest request_of(const BoundModel& model, const ConvertOptions& options,
                                    std::stop_token cancel) {
  app::QuantisationRequest out;
  if (!options.weights.empty()) out.to = weights_of(options.weights);
  if (options.bits != 0) out.bits = options.bits;
  out.requantises = options.allow_requantise;
  out.search = kSearch;
  out.threads = options.threads;
  out.progress = options.preparing;
  out.cancel = std::move(cancel);
  app::CalibrationSource source{.most_tokens = options.calibrate_tokens,
                                .memory_budget_bytes = options.memory_budget_bytes,
                                .imatrix = options.imatrix,
                                .pretokenizer = options.pretokenizer};
  if (!options.calibrate.empty()) {
    source.read_text = [&] { return read_file(options.calibrate, kMostTextBytes); };
    source.text_name = options.calibrate.string();
  }
  if (source.is_given() && !options.lora.empty())
    throw Error(ErrorKind::kUser, "an adapter with `calibrate` or `imatrix`",
                "merge first, then convert what came out");
  app::add_calibration(source, model, out);
  return out;
}
}  // namespace

ConvertReport convert(const std::filesystem::path& path, const std::filesystem::path& destination,
                      const ConvertOptions& options, std::stop_token cancel) {
  const auto model = app::open_model(path);
  app::Quantisation quantisation(*model, request_of(*model, options, cancel));
  auto groups = quantisation.groups();
  std::optional<LoraAdapter> adapter;
  io::ConvertOptions how;
  how.quantiser_name = quantisation.name();
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
  if (model->checkpoint().format() == io::CheckpointFormat::kGguf)
    app::add_gguf_files(*model, how, options.pretokenizer);
  how.stop = &stop;
  if (options.progress)
    how.progress = [&](const io::ConvertProgress& at) {
      options.progress(at.done_bytes, at.total_bytes);
    };
  const io::ConvertReport report = io::convert_checkpoint(model->checkpoint(), groups, how);
  return {report.total_bytes, report.written_bytes};
}

}  // namespace sluice
