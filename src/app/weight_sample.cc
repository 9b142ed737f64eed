#include "src/app/weight_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "io/files/input_file.h"
#include "kernels/elementwise.h"
#include "src/base/error.h"

namespace sluice::app {

namespace {
constexpr int64_t kRowsOfPanel = WeightFormat::kPanelRows;

}  // namespace

MatrixRows::MatrixRows(const BoundModel& model, size_t sublayer, size_t weight, size_t expert)
    : model_(model),
      tensor_(model.tensor(sublayer, weight, expert)),
      foreign_(model.foreign(sublayer, weight, expert)),
      rows_(model.shape().sublayers[sublayer].weights[weight].expert_rows()),
      cols_(model.shape().sublayers[sublayer].weights[weight].cols) {
  if (foreign_ ? foreign_->format.is_quantised() : tensor_.quantised.is_quantised())
    throw Error(ErrorKind::kUser, fmt::format("{} is quantised already", tensor_.name),
                "give the checkpoint that it was quantised from");
}

void MatrixRows::read(int64_t first, int64_t count, float* to) const {
  if (foreign_) return read_foreign(first, count, to);
  const int64_t row_bytes = cols_ * dtype_bytes(tensor_.dtype);
  const std::vector<std::byte> bytes = part(tensor_, first * row_bytes, count * row_bytes);
  kernels::convert(tensor_.dtype, bytes.data(), DType::kF32, to, count * cols_);
}

std::vector<std::byte> MatrixRows::part(const io::TensorEntry& of, int64_t offset,
                                        int64_t count) const {
  const io::InputFile file(model_.checkpoint().files()[static_cast<size_t>(of.file_index)].path);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  file.read(of.offset + offset, bytes, "rows of a weight");
  return bytes;
}

void MatrixRows::read_foreign(int64_t first, int64_t count, float* to) const {
  // What is cut by columns alone is quantised, and not read here.
  const bool by_rows = foreign_->cut == ForeignMatrix::Cut::kRows;
  const ForeignRun run =
      by_rows ? foreign_->run_of({first, count, 0, foreign_->cols}) : foreign_->whole();
  const std::vector<ForeignMatrix::Range> ranges = foreign_->ranges(run);
  std::vector<std::vector<std::byte>> parts;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const io::TensorEntry& of = *foreign_->parts[i];
    parts.push_back(part(of, ranges[i].offset - of.offset, ranges[i].bytes));
  }
  const ForeignBytes bytes(parts.begin(), parts.end());
  const auto decoder = foreign_->decoder(bytes, run);
  for (int64_t row = 0; row < count; ++row)
    decoder->values(first - run.first_row + row, to + row * cols_);
}

WeightSample sample_rows(const BoundModel& model, size_t sublayer, size_t weight, int64_t panels) {
  const WeightShape& shape = model.shape().sublayers[sublayer].weights[weight];
  const int64_t rows = shape.expert_rows();
  const int64_t experts = std::min(shape.tensors(), panels);
  const int64_t there = (rows + kRowsOfPanel - 1) / kRowsOfPanel;
  const int64_t sampled = std::min(there, panels / experts);
  WeightSample out{0, shape.cols, {}, {}};
  for (int64_t i = 0; i < experts; ++i) {
    const auto expert = static_cast<size_t>(shape.tensors() * i / experts);
    const MatrixRows reader(model, sublayer, weight, expert);
    WeightSample::Part& part = out.parts.emplace_back(expert, 0);
    for (int64_t j = 0; j < sampled; ++j) {
      const int64_t first = there * j / sampled * kRowsOfPanel;
      const int64_t count = std::min(kRowsOfPanel, rows - first);
      const size_t at = out.values.size();
      out.values.resize(at + static_cast<size_t>(count * shape.cols));
      reader.read(first, count, out.values.data() + at);
      part.rows += count;
      out.rows += count;
    }
  }
  return out;
}

}  // namespace sluice::app
