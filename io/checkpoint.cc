#include "io/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "io/checkpoint_opener.h"

namespace sluice::io {

std::string_view checkpoint_format_name(CheckpointFormat format) noexcept {
  switch (format) {
    case CheckpointFormat::kSafetensors: return "safetensors";
    case CheckpointFormat::kTorchBin: return "PyTorch";
    case CheckpointFormat::kPackedStore: return "packed store";
    case CheckpointFormat::kGguf: return "GGUF";
    case CheckpointFormat::kGenerated: return "generated";
  }
  return "unknown";
}

Checkpoint::Checkpoint()
    : gguf_metadata_(std::make_shared<nlohmann::json>(nlohmann::json::object())) {}

Checkpoint Checkpoint::open(const std::filesystem::path& path) {
  return CheckpointOpener(path).open();
}

Checkpoint Checkpoint::describe(std::vector<TensorEntry> tensors, std::string config_text) {
  return CheckpointOpener({}).describe(std::move(tensors), std::move(config_text));
}

const TensorEntry* Checkpoint::find(std::string_view name) const noexcept {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](uint32_t position, std::string_view key) { return tensors_[position].name < key; });
  return found == by_name_.end() || tensors_[*found].name != name ? nullptr : &tensors_[*found];
}

CheckpointSummary summarize(const Checkpoint& checkpoint) {
  CheckpointSummary summary{.format = checkpoint.format(),
                            .file_count = static_cast<int64_t>(checkpoint.files().size()),
                            .tensor_count = static_cast<int64_t>(checkpoint.tensors().size()),
                            .tensor_bytes = checkpoint.total_bytes()};
  for (const CheckpointFile& file : checkpoint.files()) summary.file_bytes += file.bytes;
  std::set<std::tuple<int32_t, int64_t, int64_t>> ranges;
  for (const TensorEntry& tensor : checkpoint.tensors()) {
    if (!ranges.emplace(tensor.file_index, tensor.offset, tensor.bytes).second &&
        tensor.bytes > 0) {
      ++summary.tied_tensor_count;
      continue;
    }
    summary.parameters += element_count(tensor.shape).value_or(0);
    summary.bytes_by_dtype[element_name(tensor)] += tensor.bytes;
  }
  return summary;
}

}  // namespace sluice::io
