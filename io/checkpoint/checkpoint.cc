#include "io/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>

#include "io/checkpoint/checkpoint_opener.h"
#include "src/base/error.h"

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

Checkpoint::Checkpoint() : gguf_metadata_(std::make_shared<GgufMetadata>()) {}

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

namespace {
// Of a matrix, or of a stack of matrices one below the other; of a vector its elements.
int64_t rows_of(const TensorEntry& tensor) {
  if (tensor.shape.empty()) return 0;
  if (tensor.shape.size() == 1) return tensor.blocks == BlockType::kNone ? tensor.shape[0] : 0;
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  return rows;
}
}  // namespace

void Checkpoint::add_rows(const std::vector<TensorRows>& added) {
  std::vector<TensorEntry> made;
  for (const TensorRows& rows : added) {
    const TensorEntry* matrix = find(rows.matrix);
    const int64_t all_rows = matrix ? rows_of(*matrix) : 0;
    const bool is_there = all_rows > 0 && rows.first_row >= 0 && rows.rows > 0 &&
                          rows.first_row <= all_rows - rows.rows &&
                          !matrix->quantised.is_quantised();
    if (!is_there || find(rows.name))
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: {} rows from row {} on of tensor {} can't be tensor {}",
                              folder_.string(), rows.rows, rows.first_row, in_quotes(rows.matrix),
                              in_quotes(rows.name)),
                  "the checkpoint is incomplete or its config.json belongs to another model");
    TensorEntry entry = *matrix;
    const int64_t row_bytes = matrix->bytes / all_rows;
    entry.name = rows.name;
    entry.shape = {rows.rows};
    if (matrix->shape.size() > 1) entry.shape.push_back(matrix->shape.back());
    entry.offset += rows.first_row * row_bytes;
    entry.bytes = rows.rows * row_bytes;
    made.push_back(std::move(entry));
  }
  tensors_.insert(tensors_.end(), std::make_move_iterator(made.begin()),
                  std::make_move_iterator(made.end()));
  put_in_order();
}

void Checkpoint::put_in_order() {
  const auto place = [](const TensorEntry& tensor) {
    return std::tie(tensor.file_index, tensor.offset, tensor.name);
  };
  std::sort(tensors_.begin(), tensors_.end(),
            [&](const TensorEntry& a, const TensorEntry& b) { return place(a) < place(b); });
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
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
