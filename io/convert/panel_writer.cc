#include "io/convert/panel_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "io/checkpoint/element_conversion.h"
#include "io/checkpoint/parallel_ranges.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice::io {

namespace {
constexpr int64_t kBatchBytes = 8 * kMiB;      // of f32 values
constexpr int64_t kPreparedBytes = 64 * kMiB;  // where a batch costs a pass over what was prepared
constexpr int64_t kPanelRows = WeightFormat::kPanelRows;
}  // namespace

PanelWriter::PanelWriter(const PlannedTensor& tensor, const ConvertOptions& options,
                         DirectWriter& writer)
    : tensor_(tensor),
      options_(options),
      writer_(writer),
      rows_(tensor.target.shape[0]),
      cols_(tensor.target.shape[1]),
      element_bytes_(dtype_bytes(tensor.source.dtype)) {
  SLUICE_ASSERT(options.quantise != nullptr, "the caller brings the quantiser");
  if (tensor.prepare) quantise_rows_ = tensor.prepare();
  const int64_t bytes = quantise_rows_ ? kPreparedBytes : kBatchBytes;
  batch_rows_ = round_up(std::max<int64_t>(bytes / 4 / cols_, 4 * kPanelRows), kPanelRows);
  batch_rows_ = std::min(batch_rows_, round_up(rows_, kPanelRows));
  source_.resize(static_cast<size_t>(batch_rows_ * cols_ * element_bytes_));
  values_.resize(static_cast<size_t>(batch_rows_ * cols_));
  panels_.resize(static_cast<size_t>(tensor.target.quantised.bytes(batch_rows_, cols_)));
}

void PanelWriter::add(std::span<const std::byte> piece) {
  while (!piece.empty()) {
    const int64_t rows = std::min(batch_rows_, rows_ - first_row_);
    const int64_t wanted = rows * cols_ * element_bytes_;
    const auto count = std::min(static_cast<int64_t>(piece.size()), wanted - gathered_);
    std::memcpy(source_.data() + gathered_, piece.data(), static_cast<size_t>(count));
    piece = piece.subspan(static_cast<size_t>(count));
    gathered_ += count;
    if (gathered_ == wanted) flush();
  }
}

// Rows [first, first + count) of the batch by what the tensor's rows and columns are scaled with.
void PanelWriter::scale(int64_t first, int64_t count) {
  const std::vector<float>& rows = tensor_.row_scale;
  const std::vector<float>& columns = tensor_.column_scale;
  if (rows.empty() && columns.empty()) return;
  for (int64_t row = first; row < first + count; ++row) {
    float* values = values_.data() + row * cols_;
    const float factor = rows.empty() ? 1.0f : rows[static_cast<size_t>(first_row_ + row)];
    for (int64_t col = 0; col < cols_; ++col)
      values[col] *= factor * (columns.empty() ? 1.0f : columns[static_cast<size_t>(col)]);
  }
}

void PanelWriter::flush() {
  const WeightFormat& format = tensor_.target.quantised;
  const int64_t rows = gathered_ / (cols_ * element_bytes_);
  const int64_t panels = (rows + kPanelRows - 1) / kPanelRows;
  const int64_t panel_bytes = format.panel_bytes(cols_);
  const float* importance = tensor_.importance.empty() ? nullptr : tensor_.importance.data();
  std::atomic<int64_t> refused{-1};
  parallel_ranges(options_.threads, panels, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kPanelRows;
    const int64_t count = std::min(rows, end * kPanelRows) - first;
    convert_elements(
        tensor_.source.dtype,
        std::span(source_).subspan(static_cast<size_t>(first * cols_ * element_bytes_),
                                   static_cast<size_t>(count * cols_ * element_bytes_)),
        DType::kF32,
        std::as_writable_bytes(std::span(values_).subspan(static_cast<size_t>(first * cols_),
                                                          static_cast<size_t>(count * cols_))));
    scale(first, count);
    if (quantise_rows_) return;
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t row = panel * kPanelRows;
      if (!options_.quantise(format, importance, values_.data() + row * cols_,
                             std::min(kPanelRows, rows - row), cols_,
                             panels_.data() + panel * panel_bytes))
        refused = first_row_ + row;
    }
  });
  if (quantise_rows_ && !quantise_rows_(values_.data(), rows, cols_, panels_.data()))
    refused = first_row_;
  if (refused >= 0)
    throw Error(
        ErrorKind::kFile,
        fmt::format("tensor {}, rows {} to {}: a value is infinite, NaN or too large for {}",
                    in_quotes(tensor_.source.name), refused.load(),
                    std::min(rows_, refused + kPanelRows) - 1, format_name(format)),
        "the checkpoint is damaged or overflowed when it was saved; use another one, or keep its "
        "element type (leave `weights` out)");
  writer_.append(
      std::span<const std::byte>(panels_).first(static_cast<size_t>(panels * panel_bytes)));
  first_row_ += rows;
  gathered_ = 0;
}

}  // namespace sluice::io
