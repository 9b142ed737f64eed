// Experts in MXFP4 as gpt-oss's checkpoints have them (OCP Microscaling Formats 1.0, as
// transformers' mxfp4 integration lays them out). Of a stack X of all experts' matrices [rows,
// cols] of a layer:
//   X_blocks  u8 [experts, rows, cols / 32, 16], two codes a byte, the earlier column low
//   X_scales  u8 [experts, rows, cols / 32], exponents of two and 127 more; 255 is no number
//   w = 2^(scale - 127) e2m1(code)
// Each expert's part is cut out first, so that its bytes are read alone: of its weights those are
// its rows that WeightShape::fused says.
#include <fmt/format.h>

#include "src/base/error.h"
#include "src/base/microscaling.h"
#include "src/model/foreign/foreign.h"

namespace sluice {

namespace {
constexpr int64_t kBlock = 32;
constexpr int64_t kBlockBytes = kBlock / 2;
constexpr uint8_t kLargestScale = 252;  // times the largest code it is still in f32
constexpr const char* kBlocks = ".blocks";
constexpr const char* kScales = ".scales";

// Parts: blocks and scales of one expert.
class Mxfp4Decoder final : public ForeignDecoder {
 public:
  Mxfp4Decoder(int64_t cols, const FusedRows& rows, const ForeignBytes& parts)
      : groups_(cols / kBlock), rows_(rows), parts_(parts) {}

  void values(int64_t row, float* out) const override {
    for (int64_t group = 0; group < groups_; ++group) {
      const int64_t block = block_of(row, group);
      const float scale = e8m0_value(element<uint8_t>(parts_[1], block));
      for (int64_t i = 0; i < kBlock; ++i)
        out[group * kBlock + i] = scale * kE2m1Values[code(block, i)];
    }
  }

  bool codes(int64_t row, int64_t group, uint8_t* out, float& scale, float& zero) const override {
    const int64_t block = block_of(row, group);
    const auto byte = element<uint8_t>(parts_[1], block);
    if (byte > kLargestScale) return false;
    scale = e8m0_value(byte);
    zero = 0;
    for (int64_t i = 0; i < kBlock; ++i) out[i] = code(block, i);
    return true;
  }

  bool scale(int64_t row, int64_t group, float& scale, float& zero) const override {
    const auto byte = element<uint8_t>(parts_[1], block_of(row, group));
    scale = e8m0_value(byte);
    zero = 0;
    return byte <= kLargestScale;
  }

  std::optional<CodeWords> words() const override {
    return CodeWords{parts_[0].data() + block_of(0, 0) * kBlockBytes,
                     rows_.step * groups_ * kBlockBytes, 4, WordOrder::kNibbles};
  }

 private:
  int64_t block_of(int64_t row, int64_t group) const {
    return (rows_.first_row + row * rows_.step) * groups_ + group;
  }
  uint8_t code(int64_t block, int64_t i) const {
    const auto byte = element<uint8_t>(parts_[0], block * kBlockBytes + i / 2);
    return i % 2 == 0 ? byte & 15 : byte >> 4;
  }

  int64_t groups_;
  FusedRows rows_;
  const ForeignBytes& parts_;
};

class Mxfp4 final : public ForeignWeights {
 public:
  explicit Mxfp4(const io::Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  std::string method() const override { return "MXFP4"; }

  std::vector<io::TensorRows> parts(const WeightShape& weight) const override {
    if (weight.experts == 0 || weight.fused.tensors.empty()) return {};
    const std::string stack = fused_name(checkpoint_, weight, "_blocks");
    const bool has_blocks = checkpoint_.find(stack + "_blocks") != nullptr;
    if (!has_blocks && !checkpoint_.find(stack + "_scales")) return {};
    const int64_t groups = weight.cols / kBlock, rows = weight.fused.tensor_rows;
    const PartFinder finder(checkpoint_, stack);
    if (weight.cols % kBlock != 0)
      finder.refuse("_blocks",
                    fmt::format("can't hold rows of {} values: they are no whole blocks of {}",
                                weight.cols, kBlock));
    finder.need("_blocks", {DType::kU8}, {weight.experts, rows, groups, kBlockBytes});
    finder.need("_scales", {DType::kU8}, {weight.experts, rows, groups});
    std::vector<io::TensorRows> out;
    for (int64_t expert = 0; expert < weight.experts; ++expert) {
      const std::string stem = stem_of_expert(weight, expert);
      out.push_back({stem + kBlocks, stack + "_blocks", expert * rows * groups, rows * groups});
      out.push_back({stem + kScales, stack + "_scales", expert * rows, rows});
    }
    return out;
  }

  std::optional<ForeignMatrix> find(const WeightShape& weight) const override {
    const auto stem = stem_of(checkpoint_, weight, kBlocks);
    if (!stem) return std::nullopt;
    ForeignMatrix out{{Encoding::kMxfp4, DType::kBF16, kBlock}, weight.rows, weight.cols, {}, {}};
    out.parts = {checkpoint_.find(*stem + kBlocks), checkpoint_.find(*stem + kScales)};
    SLUICE_ASSERT(out.parts[1], "parts() cuts out both");
    // As WeightShape::of_expert() has it, rows are counted through all experts.
    FusedRows rows = weight.fused;
    rows.first_row %= stack_rows(*out.parts[0], weight.cols);
    // Those that lie between are read too.
    const int64_t groups = weight.cols / kBlock, skipped = rows.first_row / rows.step;
    rows.first_row %= rows.step;
    out.cut = ForeignMatrix::Cut::kRows;
    out.steps = {{1, rows.step * groups * kBlockBytes, skipped}, {1, rows.step * groups, skipped}};
    out.decoder = [cols = weight.cols, rows](const ForeignBytes& bytes, const ForeignRun&) {
      return std::make_unique<Mxfp4Decoder>(cols, rows, bytes);
    };
    return out;
  }

 private:
  // Of one expert.
  static int64_t stack_rows(const io::TensorEntry& blocks, int64_t cols) {
    return blocks.bytes / kBlockBytes / (cols / kBlock);
  }
  static std::string stem_of_expert(const WeightShape& weight, int64_t expert) {
    const std::string name = weight.of_expert(expert).names.front();
    return name.substr(0, name.rfind(".weight"));
  }

  const io::Checkpoint& checkpoint_;
};
}  // namespace

std::unique_ptr<ForeignWeights> mxfp4_weights(const ModelConfig& settings,
                                              const io::Checkpoint& checkpoint) {
  // Which modules are not quantised the tensors say; "dequantize" is how transformers would
  // compute.
  settings.require_known({"quant_method", "modules_to_not_convert", "dequantize"}, kForeignMend);
  return std::make_unique<Mxfp4>(checkpoint);
}

}  // namespace sluice
