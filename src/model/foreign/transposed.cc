// Matrices that a checkpoint has as [inputs, outputs] (GPT-2's Conv1D): turned when it is
// converted.
#include "src/model/foreign/foreign.h"

namespace sluice {

namespace {
class TransposedDecoder final : public ForeignDecoder {
 public:
  TransposedDecoder(DType dtype, int64_t rows, int64_t cols, const ForeignBytes& parts)
      : dtype_(dtype), rows_(rows), cols_(cols), data_(parts[0]) {}

  void values(int64_t row, float* out) const override {
    for (int64_t col = 0; col < cols_; ++col)
      out[col] = float_element(data_, dtype_, col * rows_ + row);
  }

 private:
  DType dtype_;
  int64_t rows_, cols_;
  std::span<const std::byte> data_;
};
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
  ForeignMatrix out{WeightFormat::plain(tensor->dtype), weight.rows, weight.cols, {tensor}, {}};
  out.decoder = [dtype = tensor->dtype, rows = weight.rows,
                 cols = weight.cols](const ForeignBytes& bytes) {
    return std::make_unique<TransposedDecoder>(dtype, rows, cols, bytes);
  };
  return out;
}

}  // namespace sluice
