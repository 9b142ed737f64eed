// GGUF's tensors: plain or in blocks, under their own names, the rows of q and k in pairs. All of
// them are read this way, since none may run as it lies.
#include <fmt/format.h>

#include "src/base/error.h"
#include "src/model/foreign/foreign.h"
#include "src/model/foreign/ggml_blocks.h"

namespace sluice {

namespace {
class GgufDecoder final : public ForeignDecoder {
 public:
  GgufDecoder(const io::TensorEntry& tensor, int64_t rows, int64_t cols, int64_t paired_heads,
              float added, const ForeignBytes& parts)
      : type_(tensor.blocks),
        dtype_(tensor.dtype),
        cols_(cols),
        row_bytes_(tensor.bytes / rows),
        head_rows_(paired_heads > 0 ? rows / paired_heads : 0),
        added_(added),
        data_(parts[0]) {}

  void values(int64_t row, float* out) const override {
    const int64_t from = source_row(row);
    if (type_ == BlockType::kNone) {
      for (int64_t col = 0; col < cols_; ++col)
        out[col] = float_element(data_, dtype_, from * cols_ + col) - added_;
      return;
    }
    const BlockLayout& layout = block_layout(type_);
    for (int64_t col = 0; col < cols_; col += layout.elements)
      decode_block(type_, block(from, col), out + col);
  }

  bool codes(int64_t row, int64_t group, uint8_t* out, float& scale, float& zero) const override {
    const int64_t col = group * 32;
    return block_codes(type_, block(source_row(row), col), col % block_layout(type_).elements / 32,
                       out, scale, zero);
  }

  const std::byte* row_bytes(int64_t row) const override {
    return added_ == 0 ? data_.data() + source_row(row) * row_bytes_ : nullptr;
  }

 private:
  // The file's row for one of Hugging Face's.
  int64_t source_row(int64_t row) const {
    if (head_rows_ == 0) return row;
    const int64_t half = head_rows_ / 2, at = row % head_rows_;
    return row - at + at % half * 2 + at / half;
  }
  const std::byte* block(int64_t row, int64_t col) const {
    const BlockLayout& layout = block_layout(type_);
    return data_.data() + (row * cols_ + col) / layout.elements * layout.bytes;
  }

  BlockType type_;
  DType dtype_;
  int64_t cols_;
  int64_t row_bytes_;
  int64_t head_rows_;
  float added_;  // to what the weight holds
  std::span<const std::byte> data_;
};

class GgufWeights final : public ForeignWeights {
 public:
  explicit GgufWeights(const io::Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  std::string method() const override { return "GGUF"; }

  std::optional<ForeignMatrix> find(const WeightShape& weight) const override {
    const io::TensorEntry* tensor =
        weight.gguf.name.empty() ? nullptr : checkpoint_.find(weight.gguf.name);
    if (!tensor) return std::nullopt;
    return matrix(weight, *tensor, weight.gguf.paired_heads);
  }

 private:
  ForeignMatrix matrix(const WeightShape& weight, const io::TensorEntry& tensor,
                       int64_t paired_heads) const {
    const bool is_vector = weight.kind == WeightKind::kVector;
    PartFinder(checkpoint_, tensor.name)
        .need("", {tensor.dtype},
              is_vector ? std::vector<int64_t>{weight.cols}
                        : std::vector<int64_t>{weight.rows, weight.cols});
    // A bias of paired rows is a column of one value a row.
    const bool is_column = is_vector && paired_heads > 0;
    const int64_t rows = is_column ? weight.cols : is_vector ? 1 : weight.rows;
    const int64_t cols = is_column ? 1 : weight.cols;
    if (paired_heads > 0 && rows % (2 * paired_heads) != 0)
      throw Error(ErrorKind::kFile, fmt::format("{}: rows are no pairs in heads", tensor.name),
                  kForeignMend);
    ForeignMatrix out{WeightFormat::plain(tensor.dtype), rows, cols, {&tensor}, {}};
    out.file_row_bytes = tensor.bytes / rows;
    if (paired_heads > 0) out.row_multiple = rows / paired_heads;
    if (tensor.blocks != BlockType::kNone) {
      out.format = !weight.may_be_quantised()
                       ? WeightFormat::plain(DType::kF16)
                       : format_of_blocks(tensor.blocks)
                             .value_or(WeightFormat{Encoding::kInt8, DType::kBF16, 32});
    }
    out.decoder = [&tensor, rows, cols, paired_heads,
                   added = weight.added](const ForeignBytes& bytes) {
      return std::make_unique<GgufDecoder>(tensor, rows, cols, paired_heads, added, bytes);
    };
    return out;
  }

  const io::Checkpoint& checkpoint_;
};
}  // namespace

std::unique_ptr<ForeignWeights> gguf_weights(const io::Checkpoint& checkpoint) {
  return std::make_unique<GgufWeights>(checkpoint);
}

}  // namespace sluice
