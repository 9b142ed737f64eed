// Checkpoints of bitsandbytes as transformers saves them. For a linear layer X with weights
// [rows, cols]:
//   4 bits (QLoRA, arXiv:2305.14314)
//     X.weight        u8 [rows cols / 2, 1], two codes a byte, the earlier one high; row-major
//     X.weight.absmax f32 [blocks], or with double quantisation u8 [blocks] of
//     X.weight.nested_absmax f32, X.weight.nested_quant_map f32 [256]
//     X.weight.quant_map f32 [16], the codebook
//     X.weight.quant_state.bitsandbytes__nf4 (or __fp4)  u8, JSON: blocksize, shape, nested_offset
//     w = quant_map[q] absmax[block];  double: absmax = nested_quant_map[u8] nested_absmax + offset
//   8 bits (LLM.int8(), arXiv:2208.07339)
//     X.weight i8 [rows, cols], X.SCB f32 [rows];  w = q SCB / 127
//     X.weight_format u8, 0 where rows lie as they are
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "src/base/error.h"
#include "src/model/foreign/foreign.h"

namespace sluice {

namespace {
constexpr int64_t kBlock = 64;

[[noreturn]] void refuse(const std::string& problem) {
  throw Error(ErrorKind::kFile, "bitsandbytes: " + problem, kForeignMend);
}

class Int8Decoder final : public ForeignDecoder {
 public:
  Int8Decoder(int64_t cols, const ForeignBytes& parts) : cols_(cols), parts_(parts) {
    // 0: rows as they are; others are tiles of single GPUs.
    if (parts.size() > 2 && element<uint8_t>(parts[2], 0) != 0)
      refuse(fmt::format("weight_format {}: rows in tiles are not read",
                         element<uint8_t>(parts[2], 0)));
  }
  void values(int64_t row, float* out) const override {
    for (int64_t col = 0; col < cols_; ++col)
      out[col] = scale(row) * static_cast<float>(element<int8_t>(parts_[0], row * cols_ + col));
  }
  bool codes(int64_t row, int64_t, uint8_t* out, float& scale_out, float& zero) const override {
    scale(row, 0, scale_out, zero);
    for (int64_t col = 0; col < cols_; ++col)
      out[col] = static_cast<uint8_t>(element<int8_t>(parts_[0], row * cols_ + col) + 128);
    return true;
  }
  bool scale(int64_t row, int64_t, float& scale_out, float& zero) const override {
    scale_out = scale(row);
    zero = 128;
    return true;
  }
  std::optional<CodeWords> words() const override {
    return CodeWords{parts_[0].data(), cols_, 4, WordOrder::kSignedBytes};
  }

 private:
  float scale(int64_t row) const { return element<float>(parts_[1], row) / 127.0f; }
  int64_t cols_;
  const ForeignBytes& parts_;
};

// A matrix of 4-bit codes.
struct FourBits {
  int64_t rows = 0, cols = 0;
  int64_t group = 0;  // of ours
  bool keeps_codes = false;
  int64_t unit_rows = 1;  // that are whole blocks
  std::string name;
};

// Parts: codes, absmax, codebook, state; then nested absmax and codebook.
class FourBitDecoder final : public ForeignDecoder {
 public:
  FourBitDecoder(const FourBits& matrix, const ForeignRun& run, const ForeignBytes& parts)
      : cols_(matrix.cols),
        group_(matrix.group),
        keeps_codes_(matrix.keeps_codes),
        skipped_(rows_into_unit(run, matrix.unit_rows, 0) * matrix.cols),
        first_block_((run.first_row * matrix.cols - skipped_) / kBlock),
        parts_(parts) {
    const std::string& name = matrix.name;
    try {
      const auto* text = reinterpret_cast<const char*>(parts[3].data());
      const auto state = nlohmann::json::parse(text, text + parts[3].size());
      if (state.at("blocksize").get<int64_t>() != kBlock)
        refuse(fmt::format("{}: blocks of {}: 64 are read", name,
                           state.at("blocksize").get<int64_t>()));
      if (state.at("shape").get<std::vector<int64_t>>() !=
          std::vector<int64_t>{matrix.rows, matrix.cols})
        refuse(fmt::format("{}: its state says shape {}", name, state.at("shape").dump()));
      if (parts.size() > 4) {
        offset_ = state.at("nested_offset").get<float>();
        nested_block_ = state.at("nested_blocksize").get<int64_t>();
        const int64_t blocks = matrix.rows * matrix.cols / kBlock;
        const auto nested = static_cast<int64_t>(parts[4].size()) / 4;
        if (nested_block_ < 1 || (blocks + nested_block_ - 1) / nested_block_ != nested)
          refuse(fmt::format("{}: {} nested blocks for {} blocks", name, nested, blocks));
      }
    } catch (const nlohmann::json::exception& error) {
      refuse(fmt::format("{}: quant_state: {}", name, error.what()));
    }
  }

  void values(int64_t row, float* out) const override {
    for (int64_t col = 0; col < cols_; ++col) {
      const int64_t at = skipped_ + row * cols_ + col;
      out[col] = element<float>(parts_[2], code(at)) * scale(at / kBlock);
    }
  }

  bool codes(int64_t row, int64_t group, uint8_t* out, float& scale_out,
             float& zero) const override {
    if (!scale(row, group, scale_out, zero)) return false;
    const int64_t first = row * cols_ + group * group_;
    for (int64_t i = 0; i < group_; ++i) out[i] = code(first + i);
    return true;
  }

  bool scale(int64_t row, int64_t group, float& scale_out, float& zero) const override {
    if (!keeps_codes_) return false;
    scale_out = scale((row * cols_ + group * group_) / kBlock);
    zero = 0;
    return true;
  }

  std::optional<CodeWords> words() const override {
    if (!keeps_codes_) return std::nullopt;
    return CodeWords{parts_[0].data(), cols_ / 2, 4, WordOrder::kHighNibblesFirst};
  }

 private:
  uint8_t code(int64_t at) const {
    const auto byte = element<uint8_t>(parts_[0], at / 2);
    return at % 2 == 0 ? byte >> 4 : byte & 15;
  }
  float scale(int64_t block) const {
    if (parts_.size() <= 4) return element<float>(parts_[1], block);
    const auto code = element<uint8_t>(parts_[1], block);
    return element<float>(parts_[5], code) *
               element<float>(parts_[4], (first_block_ + block) / nested_block_) +
           offset_;
  }

  int64_t cols_;
  int64_t group_;
  bool keeps_codes_;
  int64_t skipped_;      // elements before the run's first row
  int64_t first_block_;  // of the run
  const ForeignBytes& parts_;
  float offset_ = 0;
  int64_t nested_block_ = 256;
};

class BitsAndBytes final : public ForeignWeights {
 public:
  explicit BitsAndBytes(const io::Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  std::string method() const override { return "bitsandbytes"; }

  std::optional<ForeignMatrix> find(const WeightShape& weight) const override {
    if (const auto stem = stem_of(checkpoint_, weight, ".SCB")) return int8(weight, *stem);
    for (const bool is_nf4 : {true, false})
      if (const auto stem = stem_of(checkpoint_, weight, state_name(is_nf4)))
        return four_bit(weight, *stem, is_nf4);
    return std::nullopt;
  }

 private:
  static const char* state_name(bool is_nf4) {
    return is_nf4 ? ".weight.quant_state.bitsandbytes__nf4"
                  : ".weight.quant_state.bitsandbytes__fp4";
  }

  ForeignMatrix int8(const WeightShape& weight, const std::string& stem) const {
    const PartFinder parts(checkpoint_, stem);
    ForeignMatrix out{{Encoding::kInt8, DType::kBF16, 0}, weight.rows, weight.cols, {}, {}};
    out.parts = {parts.need(".weight", {DType::kI8}, {weight.rows, weight.cols}),
                 parts.need(".SCB", {DType::kF32}, {weight.rows})};
    if (const io::TensorEntry* form = parts.look(".weight_format")) {
      if (form->dtype != DType::kU8 || form->bytes != 1)
        parts.refuse(".weight_format", "is not one u8");
      out.parts.push_back(form);
    }
    out.cut = ForeignMatrix::Cut::kRows;
    out.steps = {{1, weight.cols}, {1, 4}};
    out.steps.resize(out.parts.size());
    out.decoder = [cols = weight.cols](const ForeignBytes& bytes, const ForeignRun&) {
      return std::make_unique<Int8Decoder>(cols, bytes);
    };
    return out;
  }

  ForeignMatrix four_bit(const WeightShape& weight, const std::string& stem, bool is_nf4) const {
    const PartFinder parts(checkpoint_, stem);
    const int64_t elements = weight.rows * weight.cols;
    if (elements % kBlock != 0 || weight.cols % 2 != 0)
      parts.refuse(".weight", "is not whole blocks of 64");
    const int64_t blocks = elements / kBlock;
    // A block runs on over the end of a row where rows are not whole blocks.
    const bool keeps_codes = is_nf4 && weight.cols % kBlock == 0;
    ForeignMatrix out{{keeps_codes ? Encoding::kNf4 : Encoding::kInt8, DType::kBF16,
                       keeps_codes ? static_cast<int32_t>(kBlock) : 32},
                      weight.rows,
                      weight.cols,
                      {},
                      {}};
    const io::TensorEntry* absmax =
        parts.need(".weight.absmax", {DType::kF32, DType::kU8}, {blocks});
    const io::TensorEntry* state = parts.look(state_name(is_nf4));
    out.parts = {parts.need(".weight", {DType::kU8}, {elements / 2, 1}), absmax,
                 parts.need(".weight.quant_map", {DType::kF32}, {16}), state};
    if (absmax->dtype == DType::kU8) {
      const io::TensorEntry* nested = parts.look(".weight.nested_absmax");
      if (!nested || nested->dtype != DType::kF32)
        parts.refuse(".weight.nested_absmax", "is missing or not f32");
      out.parts.push_back(nested);
      out.parts.push_back(parts.need(".weight.nested_quant_map", {DType::kF32}, {256}));
    }
    const int64_t unit = kBlock / std::gcd(weight.cols, kBlock);
    out.cut = ForeignMatrix::Cut::kRows;
    out.steps = {{unit, unit * weight.cols / 2},
                 {unit, unit * weight.cols / kBlock * dtype_bytes(absmax->dtype)}};
    out.steps.resize(out.parts.size());
    const FourBits bits{weight.rows, weight.cols, out.format.group,
                        keeps_codes, unit,        stem + ".weight"};
    out.decoder = [bits](const ForeignBytes& bytes, const ForeignRun& run) {
      return std::make_unique<FourBitDecoder>(bits, run, bytes);
    };
    return out;
  }

  const io::Checkpoint& checkpoint_;
};
}  // namespace

std::unique_ptr<ForeignWeights> bitsandbytes_weights(const ModelConfig& settings,
                                                     const io::Checkpoint& checkpoint) {
  // The tensors say what each layer is; the rest is how transformers would compute.
  settings.require_known(
      {"quant_method", "load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit",
       "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype",
       "bnb_4bit_quant_storage", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight",
       "llm_int8_skip_modules", "llm_int8_threshold", "modules_to_not_convert"},
      kForeignMend);
  if (const std::string storage = settings.text_or("bnb_4bit_quant_storage", "uint8");
      storage != "uint8")
    settings.refuse(fmt::format("codes stored as {} are not read, only uint8", storage),
                    kForeignMend);
  return std::make_unique<BitsAndBytes>(checkpoint);
}

}  // namespace sluice
