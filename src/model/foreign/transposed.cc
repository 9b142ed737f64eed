// Matrices that a checkpoint has as [inputs, outputs]: turned as they are loaded, streamed or
// converted, some inputs (columns of the weight) at a time. Lone ones (GPT-2's Conv1D), and stacks
// of all experts' matrices of a layer [experts, inputs, outputs] of whose outputs every so manieth
// is a weight's row (gpt-oss).
#include <fmt/format.h>

#include "src/model/foreign/foreign.h"

namespace sluice {

namespace {
class TransposedDecoder final : public ForeignDecoder {
 public:
  // `rows` of the tensor; its is_transposed is true.
  TransposedDecoder(DType dtype, const FusedRows& rows, int64_t cols, const ForeignBytes& parts)
      : dtype_(dtype), rows_(rows), cols_(cols), data_(parts[0]) {}

  std::optional<SpacedElements> elements() const override {
    const int64_t element = dtype_bytes(dtype_);
    return SpacedElements{data_.data() + rows_.first_row * element, rows_.step * element,
                          rows_.tensor_rows * element};
  }

  void values(int64_t row, float* out) const override {
    for (int64_t col = 0; col < cols_; ++col)
      out[col] = float_element(data_, dtype_,
                               col * rows_.tensor_rows + rows_.first_row + row * rows_.step);
  }

 private:
  DType dtype_;
  FusedRows rows_;
  int64_t cols_;
  std::span<const std::byte> data_;
};

constexpr const char* kPart = ".stack";
// Bytes: pieces of a row that are made beside each other share none.
constexpr int64_t kCacheLine = 64;

ForeignMatrix turned(const io::TensorEntry& tensor, const WeightShape& weight,
                     const FusedRows& rows) {
  ForeignMatrix out{WeightFormat::plain(tensor.dtype), weight.rows, weight.cols, {&tensor}, {}};
  out.decoder = [dtype = tensor.dtype, rows](const ForeignBytes& bytes, const ForeignRun& run) {
    return std::make_unique<TransposedDecoder>(dtype, rows, run.cols, bytes);
  };
  out.cut = ForeignMatrix::Cut::kColumns;
  out.steps = {{1, rows.tensor_rows * dtype_bytes(tensor.dtype), 0}};
  out.multiple = kCacheLine / dtype_bytes(tensor.dtype);
  return out;
}
}  // namespace

std::optional<ForeignMatrix> transposed_matrix(const io::Checkpoint& checkpoint,
                                               const WeightShape& weight) {
  const bool is_theirs = checkpoint.format() == io::CheckpointFormat::kSafetensors ||
                         checkpoint.format() == io::CheckpointFormat::kTorchBin;
  const auto stem = stem_of(checkpoint, weight, ".weight");
  if (!weight.is_transposed || !is_theirs || !stem) return std::nullopt;
  const io::TensorEntry* tensor =
      PartFinder(checkpoint, *stem)
          .need(".weight", {DType::kF32, DType::kF16, DType::kBF16}, {weight.cols, weight.rows});
  return turned(*tensor, weight, {{}, 0, weight.rows, 1, true});
}

std::vector<io::TensorRows> stack_parts(const io::Checkpoint& checkpoint,
                                        const WeightShape& weight) {
  const FusedRows& rows = weight.fused;
  const std::string stack = fused_name(checkpoint, weight);
  if (weight.experts == 0 || rows.lies_together() || !checkpoint.find(stack)) return {};
  PartFinder(checkpoint, stack)
      .need("", {DType::kF32, DType::kF16, DType::kBF16},
            {weight.experts, weight.cols, rows.tensor_rows});
  std::vector<io::TensorRows> out;
  for (int64_t expert = 0; expert < weight.experts; ++expert) {
    const std::string name = weight.of_expert(expert).names.front();
    out.push_back(
        {name.substr(0, name.rfind(".weight")) + kPart, stack, expert * weight.cols, weight.cols});
  }
  return out;
}

std::optional<ForeignMatrix> stacked_matrix(const io::Checkpoint& checkpoint,
                                            const WeightShape& weight) {
  const auto stem = stem_of(checkpoint, weight, kPart);
  if (!stem || weight.fused.lies_together()) return std::nullopt;
  const io::TensorEntry& part = *checkpoint.find(*stem + kPart);
  FusedRows rows = weight.fused;  // counted through all experts (WeightShape::of_expert)
  rows.tensor_rows = part.shape.back();
  rows.first_row %= rows.tensor_rows;
  return turned(part, weight, rows);
}

}  // namespace sluice
