// Checkpoints that GPTQ (arXiv:2210.17323) and AWQ (arXiv:2306.00978) tools have quantised, as
// their safetensors files hold them: for a linear layer X with weights [rows, cols] in words of
// 32 / bits codes
//   GPTQ  X.qweight i32 [cols / per_word, rows], code i of a word is column per_word r + i
//   AWQ   X.qweight i32 [cols, rows / 8], codes 0..7 of a word are rows 8 c + 0, 2, 4, 6, 1, 3, 5,
//   7 both  X.qzeros  i32 [groups, rows / per_word], packed as rows of X.qweight are (GPTQ: in
//   order,
//         and one less than the zero unless checkpoint_format is gptq_v2)
//         X.scales  f16 [groups, rows];  w = scale (q - zero)
//   GPTQ  X.g_idx   i32 [cols], the group of each column; with desc_act groups are no neighbours
#include <fmt/format.h>

#include "src/base/error.h"
#include "src/model/foreign/foreign.h"

namespace sluice {

namespace {
struct Packing {
  bool is_awq = false;
  bool zeros_are_one_less = false;
  bool is_scattered = false;  // columns of a group are not neighbours
  bool is_symmetric = false;  // zeros are in the middle
  int64_t bits = 4;
  int64_t group = 128;  // 0 or less: the whole row
  int64_t per_word() const { return 32 / bits; }
};

class PackedDecoder final : public ForeignDecoder {
 public:
  PackedDecoder(const Packing& packing, int64_t ours, const ForeignRun& run,
                const ForeignBytes& parts)
      : packing_(packing),
        rows_(run.rows),
        cols_(run.cols),
        first_col_(run.first_col),
        ours_(ours),
        codes_(parts[0]),
        zeros_(parts[1]),
        scales_(parts[2]),
        groups_(packing.is_scattered ? &parts[3] : nullptr) {
    if (groups_)
      check_groups(*groups_, cols_, static_cast<int64_t>(scales_.size()) / 2 / rows_, "g_idx");
    else if (parts.size() > 3)
      require_in_order(parts[3]);
  }

  void values(int64_t row, float* out) const override {
    // Groups follow activations in any order, so all of them are at hand.
    const int64_t groups = std::ssize(scales_) / 2 / rows_, n = packing_.per_word();
    std::vector<float> scales, zeros;
    for (int64_t group = 0; group < groups; ++group) {
      scales.push_back(scale(row, group));
      zeros.push_back(zero(row, group));
    }
    const auto put = [&](int64_t col, uint32_t code) {
      const auto group =
          static_cast<size_t>(groups_ ? element<int32_t>(*groups_, col) : group_of(col));
      out[col] = scales[group] * (static_cast<float>(code) - zeros[group]);
    };
    if (packing_.is_awq) {
      for (int64_t col = 0; col < cols_; ++col) put(col, code(row, col));
      return;
    }
    for (int64_t first = 0; first < cols_; first += n) {
      const auto word = element<uint32_t>(codes_, first / n * rows_ + row);
      for (int64_t i = 0; i < n; ++i) put(first + i, at(word, i));
    }
  }

  bool codes(int64_t row, int64_t group, uint8_t* out, float& scale_out,
             float& zero_out) const override {
    if (!scale(row, group, scale_out, zero_out)) return false;
    const int64_t first = group * ours_;
    for (int64_t i = 0; i < ours_; ++i) out[i] = static_cast<uint8_t>(code(row, first + i));
    return true;
  }

  bool scale(int64_t row, int64_t group, float& scale_out, float& zero_out) const override {
    if (groups_) return false;
    scale_out = scale(row, group_of(group * ours_));
    zero_out = zero(row, group_of(group * ours_));
    return packing_.bits == 4 || zero_out == 128;
  }

  std::optional<CodeWords> words() const override {
    if (groups_) return std::nullopt;
    if (packing_.is_awq) return CodeWords{codes_.data(), 4, rows_ / 8 * 4, WordOrder::kRowNibbles};
    return CodeWords{codes_.data(), 4, rows_ * 4,
                     packing_.bits == 4 ? WordOrder::kNibbles : WordOrder::kBytes};
  }

 private:
  void require_in_order(std::span<const std::byte> indices) const {
    for (int64_t col = 0; col < cols_; ++col)
      if (element<int32_t>(indices, col) != first_group() + group_of(col))
        throw Error(ErrorKind::kFile,
                    fmt::format("g_idx puts column {} into group {}, but config.json has desc_act "
                                "false: columns in order",
                                first_col_ + col, element<int32_t>(indices, col)),
                    "set \"desc_act\" to true if the file is right");
  }
  int64_t first_group() const { return packing_.group > 0 ? first_col_ / packing_.group : 0; }
  // Counted from the run's first, whose columns may begin within it.
  int64_t group_of(int64_t col) const {
    return packing_.group > 0 ? (first_col_ + col) / packing_.group - first_group() : 0;
  }
  uint32_t at(uint32_t word, int64_t place) const {
    return word >> (packing_.bits * place) & ((1u << packing_.bits) - 1);
  }
  // Place in a word of one of its rows.
  int64_t place_of(int64_t row_in_word) const {
    constexpr int64_t kAwq[] = {0, 4, 1, 5, 2, 6, 3, 7};
    return packing_.is_awq ? kAwq[row_in_word] : row_in_word;
  }
  uint32_t code(int64_t row, int64_t col) const {
    const int64_t n = packing_.per_word();
    if (packing_.is_awq)
      return at(element<uint32_t>(codes_, col * (rows_ / n) + row / n), place_of(row % n));
    return at(element<uint32_t>(codes_, col / n * rows_ + row), col % n);
  }
  float zero(int64_t row, int64_t group) const {
    const int64_t n = packing_.per_word();
    const auto word = element<uint32_t>(zeros_, group * (rows_ / n) + row / n);
    // One less than 0 is the largest: zeros are codes.
    const uint32_t zero = at(word, place_of(row % n)) + (packing_.zeros_are_one_less ? 1 : 0);
    return static_cast<float>(at(zero, 0));
  }
  float scale(int64_t row, int64_t group) const {
    return f16_to_f32(element<uint16_t>(scales_, group * rows_ + row));
  }

  Packing packing_;
  int64_t rows_, cols_, first_col_, ours_;
  std::span<const std::byte> codes_;
  std::span<const std::byte> zeros_;
  std::span<const std::byte> scales_;
  const std::span<const std::byte>* groups_;
};

class PackedWeights final : public ForeignWeights {
 public:
  PackedWeights(const Packing& packing, const io::Checkpoint& checkpoint)
      : packing_(packing), checkpoint_(checkpoint) {}

  std::string method() const override { return packing_.is_awq ? "AWQ" : "GPTQ"; }

  std::optional<ForeignMatrix> find(const WeightShape& weight) const override {
    const auto stem = stem_of(checkpoint_, weight, ".qweight");
    if (!stem) return std::nullopt;
    const PartFinder parts(checkpoint_, *stem);
    ForeignMatrix out;
    out.rows = weight.rows;
    out.cols = weight.cols;
    const auto group = group_within(packing_.group, weight.cols);
    const int64_t n = packing_.per_word();
    if (!group || weight.rows % n != 0 || weight.cols % n != 0)
      parts.refuse(".qweight", fmt::format("is {} of {} x {} in groups of {}: groups are whole "
                                           "multiples of 32 columns, and divide the row",
                                           method(), weight.rows, weight.cols, packing_.group));
    const bool keeps_codes =
        !packing_.is_scattered && (packing_.bits == 4 || packing_.is_symmetric);
    out.format = {keeps_codes && packing_.bits == 4 ? Encoding::kInt4 : Encoding::kInt8,
                  DType::kBF16, keeps_codes ? *group : 32};
    const int64_t groups = packing_.group > 0 ? weight.cols / packing_.group : 1;
    out.parts = {parts.need(".qweight", {DType::kI32},
                            packing_.is_awq ? std::vector<int64_t>{weight.cols, weight.rows / n}
                                            : std::vector<int64_t>{weight.cols / n, weight.rows}),
                 parts.need(".qzeros", {DType::kI32}, {groups, weight.rows / n}),
                 parts.need(".scales", {DType::kF16}, {groups, weight.rows})};
    if (packing_.is_scattered || (!packing_.is_awq && parts.look(".g_idx")))
      out.parts.push_back(parts.need(".g_idx", {DType::kI32}, {weight.cols}));
    out.decoder = [packing = packing_, ours = out.format.group](const ForeignBytes& bytes,
                                                                const ForeignRun& run) {
      return std::make_unique<PackedDecoder>(packing, ours, run, bytes);
    };
    cut_columns(out);
    return out;
  }

 private:
  // Some input columns lie together, of all rows; rows never do.
  void cut_columns(ForeignMatrix& matrix) const {
    const int64_t n = packing_.per_word(), rows = matrix.rows;
    matrix.cut = ForeignMatrix::Cut::kColumns;
    matrix.multiple = matrix.format.group;
    const bool has_runs = packing_.group > 0 && !packing_.is_scattered;
    const int64_t group = has_runs ? packing_.group : 0;
    matrix.steps = {
        packing_.is_awq ? ForeignMatrix::Step{1, rows / n * 4} : ForeignMatrix::Step{n, rows * 4},
        {group, rows / n * 4},
        {group, rows * 2},
        {1, 4}};
    matrix.steps.resize(matrix.parts.size());
  }

  Packing packing_;
  const io::Checkpoint& checkpoint_;
};

int64_t read_group(const ModelConfig& settings) {
  const int64_t group = settings.integer_or("group_size", 128, -1, 1 << 20);
  if (group != -1 && (group < 32 || group % 32 != 0))
    settings.refuse(fmt::format("group_size {}: multiples of 32 and -1 are read", group),
                    kForeignMend);
  return group;
}

// Settings of single modules (GPTQModel): only that some stay as they are, which tensors show.
void refuse_other_modules(const ModelConfig& settings) {
  const auto rules = settings.object("dynamic");
  if (!rules) return;
  for (const std::string& pattern : rules->keys())
    if (!pattern.starts_with("-:"))
      rules->refuse(fmt::format("\"{}\" has settings of its own, which are not read", pattern),
                    kForeignMend);
}

void require_gptq_settings(const ModelConfig& settings) {
  settings.require_known(
      {// read here
       "quant_method", "bits", "group_size", "sym", "desc_act", "checkpoint_format", "format",
       "dynamic", "pack_dtype", "is_marlin_format",
       // which modules: their tensors show it
       "lm_head", "modules_in_block_to_quantize", "modules_to_not_convert",
       "block_name_to_quantize", "module_name_preceding_first_block",
       // how the codes were searched for, and by which kernels the tool multiplies
       "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "mse", "dataset",
       "tokenizer", "batch_size", "pad_token_id", "model_seqlen", "max_input_length",
       "cache_block_outputs", "use_cuda_fp16", "use_exllama", "disable_exllama", "exllama_config",
       "backend", "act_group_aware", "hyb_act", "offload_to_disk",
       // where it came from
       "meta", "quantizer", "version", "model_name_or_path", "model_file_base_name"},
      kForeignMend);
  for (const char* key : {"checkpoint_format", "format"})
    if (const std::string form = settings.text_or(key, "gptq"); form != "gptq" && form != "gptq_v2")
      settings.refuse(fmt::format("{} \"{}\" is not read, only gptq and gptq_v2", key, form),
                      kForeignMend);
  if (settings.boolean_or("is_marlin_format", false))
    settings.refuse("weights packed for Marlin are not read", kForeignMend);
  if (const std::string type = settings.text_or("pack_dtype", "int32"); type != "int32")
    settings.refuse(fmt::format("codes packed in {} are not read, only int32", type), kForeignMend);
  refuse_other_modules(settings);
}
}  // namespace

std::unique_ptr<ForeignWeights> gptq_weights(const ModelConfig& settings,
                                             const io::Checkpoint& checkpoint) {
  require_gptq_settings(settings);
  Packing packing;
  packing.zeros_are_one_less =
      settings.text_or("checkpoint_format", settings.text_or("format", "gptq")) != "gptq_v2";
  packing.is_scattered = settings.boolean_or("desc_act", false);
  packing.is_symmetric = settings.boolean_or("sym", true);
  packing.bits = settings.integer_or("bits", 4, 1, 64);
  if (packing.bits != 4 && packing.bits != 8)
    settings.refuse(fmt::format("{} bits: 4 and 8 are read", packing.bits), kForeignMend);
  packing.group = read_group(settings);
  return std::make_unique<PackedWeights>(packing, checkpoint);
}

std::unique_ptr<ForeignWeights> awq_weights(const ModelConfig& settings,
                                            const io::Checkpoint& checkpoint) {
  // Zeros are read as the file has them; modules that are not quantised have plain tensors.
  settings.require_known(
      {"quant_method", "bits", "group_size", "version", "zero_point", "modules_to_not_convert",
       "backend", "do_fuse", "modules_to_fuse", "fuse_max_seq_len", "exllama_config"},
      kForeignMend);
  Packing packing;
  packing.is_awq = true;
  if (const std::string version = settings.text_or("version", "gemm");
      version != "gemm" && version != "GEMM")
    settings.refuse(fmt::format("AWQ version {} is not read, only gemm", version), kForeignMend);
  if (const int64_t bits = settings.integer_or("bits", 4, 1, 64); bits != 4)
    settings.refuse(fmt::format("{} bits: 4 are read", bits), kForeignMend);
  packing.group = read_group(settings);
  return std::make_unique<PackedWeights>(packing, checkpoint);
}

}  // namespace sluice
