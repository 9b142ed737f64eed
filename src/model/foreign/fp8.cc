// Checkpoints in FP8 as DeepSeek-V3, R1, Kimi-K2, MiniMax-M2 and Qwen3 publish them: quant_method
// "fp8". For a linear layer X with weights [rows, cols]:
//   X.weight            f8_e4m3 [rows, cols]
//   X.weight_scale_inv  [ceil(rows / R), ceil(cols / C)] of weight_block_size [R, C]: f32, bf16,
//                       f16, or u8, which are exponents of two and 127 more
//   X.weight_scale      likewise; without a block size one element, or one of each row
//   w = scale of its block * e4m3(code)
// Here a row has scales of its own: a block's is repeated in all of its rows, and nothing is
// rounded.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/base/microscaling.h"
#include "src/model/foreign/foreign.h"

namespace sluice {

namespace {
constexpr int32_t kLargestBlock = 1 << 20;

struct Fp8Layout {
  int64_t cols = 0;
  int64_t block_rows = 0, block_cols = 0;
  int64_t scale_cols = 0;
  bool has_one_scale = false;
  int64_t first_row = 0, rows = 0;  // of the matrix that the scales are of
  DType scale_dtype = DType::kF32;
  int64_t group_columns = 0;  // of ours
};

class Fp8Decoder final : public ForeignDecoder {
 public:
  Fp8Decoder(const Fp8Layout& layout, const ForeignRun& run, const ForeignBytes& parts)
      : layout_(layout),
        first_row_(layout.has_one_scale ? 0
                                        : rows_into_unit(run, layout.block_rows, layout.first_row)),
        parts_(parts) {}

  void values(int64_t row, float* out) const override {
    for (int64_t col = 0; col < layout_.cols; ++col)
      out[col] = scale(row, col) * e4m3_to_f32(code(row, col));
  }

  bool codes(int64_t row, int64_t group, uint8_t* out, float& scale_out,
             float& zero_out) const override {
    const int64_t first = group * layout_.group_columns;
    const int64_t count = std::min(layout_.group_columns, layout_.cols - first);
    if (!scale(row, group, scale_out, zero_out)) return false;
    for (int64_t i = 0; i < count; ++i) {
      out[i] = code(row, first + i);
      if ((out[i] & 0x7f) == 0x7f) return false;
    }
    return true;
  }

  bool scale(int64_t row, int64_t group, float& scale_out, float& zero_out) const override {
    scale_out = scale(row, group * layout_.group_columns);
    zero_out = 0;
    return std::isfinite(scale_out);
  }

  std::optional<CodeWords> words() const override {
    return CodeWords{parts_[0].data(), layout_.cols, 4, WordOrder::kBytes};
  }

 private:
  uint8_t code(int64_t row, int64_t col) const {
    return element<uint8_t>(parts_[0], row * layout_.cols + col);
  }
  float scale(int64_t row, int64_t col) const {
    const int64_t at = layout_.has_one_scale
                           ? 0
                           : (first_row_ + row) / layout_.block_rows * layout_.scale_cols +
                                 col / layout_.block_cols;
    if (layout_.scale_dtype == DType::kU8) return e8m0_value(element<uint8_t>(parts_[1], at));
    return float_element(parts_[1], layout_.scale_dtype, at);
  }

  Fp8Layout layout_;
  int64_t first_row_;  // of its block
  const ForeignBytes& parts_;
};

// One scale serves all, or each row has one, or each block.
Fp8Layout layout_of(const WeightShape& weight, bool is_part, const io::TensorEntry& scales,
                    const std::optional<Fp8Block>& block) {
  Fp8Layout out;
  out.cols = weight.cols;
  out.first_row = is_part ? weight.fused.first_row : 0;
  out.rows = is_part ? weight.fused.tensor_rows : weight.rows;
  out.block_rows = out.rows;
  out.block_cols = weight.cols;
  out.scale_cols = 1;
  if (block) {
    out.block_rows = block->rows;
    out.block_cols = block->cols;
    out.scale_cols = (weight.cols + block->cols - 1) / block->cols;
  } else if (io::element_count(scales.shape) != 1) {
    out.block_rows = 1;
  }
  out.scale_dtype = scales.dtype;
  out.has_one_scale = io::element_count(scales.shape) == 1;
  return out;
}

std::vector<int64_t> scales_shape(const Fp8Layout& layout, const std::vector<int64_t>& shape) {
  const int64_t rows = (layout.rows + layout.block_rows - 1) / layout.block_rows;
  if (rows * layout.scale_cols == 1 && io::element_count(shape) == 1) return shape;
  if (layout.block_rows == 1 && layout.scale_cols == 1 && shape.size() == 1) return {rows};
  return {rows, layout.scale_cols};
}

// The widest of our groups that a block is whole ones of; a row's last may be short.
int32_t group_in(const Fp8Layout& layout, const PartFinder& parts, const std::string& end) {
  for (const int32_t ours : {128, 64, 32})
    if (layout.block_cols % ours == 0) return ours;
  parts.refuse(
      end, fmt::format("is of blocks of {} columns: multiples of 32 are read", layout.block_cols));
}

class Fp8Weights final : public ForeignWeights {
 public:
  Fp8Weights(const io::Checkpoint& checkpoint, std::optional<Fp8Block> block)
      : checkpoint_(checkpoint), block_(block) {}

  std::string method() const override { return "FP8"; }

  std::optional<ForeignMatrix> find(const WeightShape& weight) const override {
    for (const char* end : {".weight_scale_inv", ".weight_scale"}) {
      if (const auto stem = stem_of(checkpoint_, weight, end)) {
        const PartFinder parts(checkpoint_, *stem);
        return fp8_matrix(weight, parts, parts, end, block_);
      }
      if (const auto whole = stem_of_whole(checkpoint_, weight); checkpoint_.find(whole + end)) {
        const auto stem = stem_of(checkpoint_, weight, ".weight");
        if (!stem) PartFinder(checkpoint_, whole).refuse(end, "is of a stack, which is not read");
        return fp8_matrix(weight, PartFinder(checkpoint_, *stem), PartFinder(checkpoint_, whole),
                          end, block_);
      }
    }
    return std::nullopt;
  }

 private:
  // Of the larger matrix whose rows the weight is; they have a name of their own by then.
  static std::string stem_of_whole(const io::Checkpoint& checkpoint, const WeightShape& weight) {
    constexpr std::string_view kEnd = ".weight";
    const std::string whole = fused_name(checkpoint, weight);
    return whole.ends_with(kEnd) ? whole.substr(0, whole.size() - kEnd.size()) : whole;
  }

  const io::Checkpoint& checkpoint_;
  std::optional<Fp8Block> block_;
};

void require_one_of(const ModelConfig& settings, const char* key, const char* usual,
                    std::initializer_list<std::string_view> known) {
  const std::string value = settings.text_or(key, usual);
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  settings.refuse(fmt::format("{} \"{}\" is not read", key, value), kForeignMend);
}
}  // namespace

ForeignMatrix fp8_matrix(const WeightShape& weight, const PartFinder& codes,
                         const PartFinder& scales, const std::string& end,
                         const std::optional<Fp8Block>& block) {
  const io::TensorEntry& found = *scales.look(end);
  Fp8Layout layout = layout_of(weight, &codes != &scales, found, block);
  ForeignMatrix out{{}, weight.rows, weight.cols, {}, {}};
  out.parts = {codes.need(".weight", {DType::kF8E4M3}, {weight.rows, weight.cols}),
               scales.need(end, {DType::kF32, DType::kBF16, DType::kF16, DType::kU8},
                           scales_shape(layout, found.shape))};
  out.format.encoding = Encoding::kFp8;
  out.format.group = layout.scale_cols == 1 ? 0 : group_in(layout, scales, end);
  layout.group_columns = out.format.group_columns(weight.cols);
  out.cut = ForeignMatrix::Cut::kRows;
  out.steps = {{1, weight.cols}, {}};
  if (!layout.has_one_scale)
    out.steps[1] = {layout.block_rows, layout.scale_cols * dtype_bytes(layout.scale_dtype),
                    layout.first_row};
  out.decoder = [layout](const ForeignBytes& bytes, const ForeignRun& run) {
    return std::make_unique<Fp8Decoder>(layout, run, bytes);
  };
  return out;
}

std::optional<Fp8Block> fp8_block(const ModelConfig& settings, const char* key) {
  if (!settings.has(key)) return std::nullopt;
  const std::vector<int32_t> sizes = settings.integers(key);
  const bool is_block = sizes.size() == 2 && std::all_of(sizes.begin(), sizes.end(), [](int32_t n) {
                          return n > 0 && n <= kLargestBlock;
                        });
  if (!is_block)
    settings.refuse(fmt::format("{} is not two numbers, rows and columns of a block", key),
                    kForeignMend);
  return Fp8Block{sizes[0], sizes[1]};
}

std::unique_ptr<ForeignWeights> fp8_weights(const ModelConfig& settings,
                                            const io::Checkpoint& checkpoint) {
  // Tensors say which layers are quantised. Inputs stay as exact as they are here, whatever the
  // tool would have rounded them to.
  settings.require_known(
      {"quant_method", "fmt", "weight_block_size", "activation_scheme", "modules_to_not_convert",
       "ignored_layers", "modules_to_convert", "scale_fmt", "expert_dtype", "dequantize"},
      kForeignMend);
  require_one_of(settings, "fmt", "e4m3", {"e4m3", "float8_e4m3fn"});
  require_one_of(settings, "activation_scheme", "dynamic", {"dynamic", "static"});
  require_one_of(settings, "scale_fmt", "float", {"float", "ue8m0"});
  require_one_of(settings, "expert_dtype", "fp8", {"fp8"});
  if (!settings.texts("modules_to_convert").empty())
    settings.refuse("modules_to_convert: tables of tokens in FP8 are not read", kForeignMend);
  return std::make_unique<Fp8Weights>(checkpoint, fp8_block(settings, "weight_block_size"));
}

}  // namespace sluice
