// Checkpoints that GPTQ (arXiv:2210.17323) and AWQ (arXiv:2306.00978) tools have quantised, as
// their safetensors files hold them: for a linear layer X with weights [rows, cols]
//   GPTQ  X.qweight i32 [cols bits / 32, rows]: the codes of 32 / bits columns fill a word, from
//   its
//         lowest bits on; of 3 bits those of 32 columns three words, one behind the other
//   AWQ   X.qweight i32 [cols, rows / 8], codes 0..7 of a word are rows 8 c + 0, 2, 4, 6, 1, 3, 5,
//   7 both  X.qzeros  i32 [groups, rows bits / 32], packed along rows (GPTQ: in order, and one less
//         than the zero unless checkpoint_format is gptq_v2)
//         X.scales  f16 [groups, rows];  w = scale (q - zero)
//   GPTQ  X.g_idx   i32 [cols], the group of each column; with desc_act groups are no neighbours
// and for other kernels
//   AWQ's gemv  X.qweight i32 [rows, cols / 8] and X.qzeros i32 [rows, W], codes in order,
//               X.scales f16 [rows, 8 W], 8 W the groups and what fills them up
//   Marlin      GPTQ X.B and X.s, AWQ X.qweight and X.scales: marlin.h
#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "src/base/error.h"
#include "src/model/foreign/foreign.h"
#include "src/model/foreign/marlin.h"

namespace sluice {

namespace {
struct Packing {
  bool is_awq = false;
  bool zeros_are_one_less = false;
  bool is_scattered = false;  // columns of a group are not neighbours
  bool is_symmetric = false;  // zeros are in the middle
  int64_t bits = 4;
  int64_t group = 128;  // 0 or less: the whole row
  // So many codes fill so many words.
  int64_t unit() const { return bits == 3 ? 32 : 32 / bits; }
  int64_t unit_words() const { return bits == 3 ? 3 : 1; }
  int64_t words(int64_t codes) const { return codes / unit() * unit_words(); }
  // What fits int4's codes and zeros.
  bool is_narrow() const { return bits <= 4; }
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
    const int64_t groups = std::ssize(scales_) / 2 / rows_;
    std::vector<float> scales, zeros;
    for (int64_t group = 0; group < groups; ++group) {
      scales.push_back(scale(row, group));
      zeros.push_back(zero(row, group));
    }
    for (int64_t col = 0; col < cols_; ++col) {
      const auto group =
          static_cast<size_t>(groups_ ? element<int32_t>(*groups_, col) : group_of(col));
      out[col] = scales[group] * (static_cast<float>(code(row, col)) - zeros[group]);
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
    return packing_.is_narrow() || zero_out == 128;
  }

  std::optional<CodeWords> words() const override {
    if (groups_ || packing_.bits < 4) return std::nullopt;
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
  // Code `place` of a unit whose words are `step` apart.
  uint32_t field(std::span<const std::byte> words, int64_t first, int64_t step,
                 int64_t place) const {
    const int64_t bit = place * packing_.bits, word = first + bit / 32 * step, shift = bit % 32;
    uint32_t code = element<uint32_t>(words, word) >> shift;
    if (shift + packing_.bits > 32) code |= element<uint32_t>(words, word + step) << (32 - shift);
    return code & mask();
  }
  uint32_t mask() const { return (1u << packing_.bits) - 1; }
  // Place in a word of one of its rows.
  int64_t place_of(int64_t row_in_word) const {
    constexpr int64_t kAwq[] = {0, 4, 1, 5, 2, 6, 3, 7};
    return packing_.is_awq ? kAwq[row_in_word] : row_in_word;
  }
  uint32_t code(int64_t row, int64_t col) const {
    const int64_t n = packing_.unit();
    if (packing_.is_awq) return field(codes_, col * (rows_ / n) + row / n, 1, place_of(row % n));
    return field(codes_, packing_.words(col / n * n) * rows_ + row, rows_, col % n);
  }
  float zero(int64_t row, int64_t group) const {
    const int64_t n = packing_.unit();
    const int64_t first = group * packing_.words(rows_) + packing_.words(row / n * n);
    // One less than 0 is the largest: zeros are codes.
    const uint32_t zero =
        field(zeros_, first, 1, place_of(row % n)) + (packing_.zeros_are_one_less ? 1 : 0);
    return static_cast<float>(zero & mask());
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

// Settings of the modules that a pattern names (GPTQModel's "dynamic"): the first that matches from
// a name's beginning on.
struct ModuleRule {
  std::regex pattern;
  std::optional<Packing> packing;  // nothing: such modules are plain
};

class PackedWeights final : public ForeignWeights {
 public:
  PackedWeights(const Packing& packing, std::vector<ModuleRule> rules,
                const io::Checkpoint& checkpoint)
      : packing_(packing), rules_(std::move(rules)), checkpoint_(checkpoint) {}

  std::string method() const override { return packing_.is_awq ? "AWQ" : "GPTQ"; }

  std::optional<ForeignMatrix> find(const WeightShape& weight) const override {
    const auto stem = stem_of(checkpoint_, weight, ".qweight");
    if (!stem) return std::nullopt;
    const PartFinder parts(checkpoint_, *stem);
    const Packing& packing = packing_of(*stem, parts);
    ForeignMatrix out;
    out.rows = weight.rows;
    out.cols = weight.cols;
    const auto group = group_within(packing.group, weight.cols);
    const int64_t n = packing.unit();
    if (!group)
      parts.refuse(".qweight", fmt::format("is {} of {} x {} in groups of {}: groups are whole "
                                           "multiples of 32 columns, and divide the row",
                                           method(), weight.rows, weight.cols, packing.group));
    if (weight.rows % n != 0 || weight.cols % n != 0)
      parts.refuse(".qweight",
                   fmt::format("is {} of {} x {} in codes of {} bits, which fill words by {}",
                               method(), weight.rows, weight.cols, packing.bits, n));
    const bool keeps_codes = !packing.is_scattered && (packing.is_narrow() || packing.is_symmetric);
    out.format = {keeps_codes && packing.is_narrow() ? Encoding::kInt4 : Encoding::kInt8,
                  DType::kBF16, keeps_codes ? *group : 32};
    const int64_t groups = packing.group > 0 ? weight.cols / packing.group : 1;
    out.parts = {
        parts.need(".qweight", {DType::kI32},
                   packing.is_awq ? std::vector<int64_t>{weight.cols, weight.rows / n}
                                  : std::vector<int64_t>{packing.words(weight.cols), weight.rows}),
        parts.need(".qzeros", {DType::kI32}, {groups, packing.words(weight.rows)}),
        parts.need(".scales", {DType::kF16}, {groups, weight.rows})};
    if (packing.is_scattered || (!packing.is_awq && parts.look(".g_idx")))
      out.parts.push_back(parts.need(".g_idx", {DType::kI32}, {weight.cols}));
    out.decoder = [packing, ours = out.format.group](const ForeignBytes& bytes,
                                                     const ForeignRun& run) {
      return std::make_unique<PackedDecoder>(packing, ours, run, bytes);
    };
    cut_columns(packing, out);
    return out;
  }

 private:
  // Some input columns lie together, of all rows; rows never do.
  static void cut_columns(const Packing& packing, ForeignMatrix& matrix) {
    const int64_t rows = matrix.rows, zeros_bytes = packing.words(rows) * 4;
    matrix.cut = ForeignMatrix::Cut::kColumns;
    matrix.multiple = matrix.format.group;
    const bool has_runs = packing.group > 0 && !packing.is_scattered;
    const int64_t group = has_runs ? packing.group : 0;
    matrix.steps = {packing.is_awq
                        ? ForeignMatrix::Step{1, zeros_bytes}
                        : ForeignMatrix::Step{packing.unit(), packing.unit_words() * rows * 4},
                    {group, zeros_bytes},
                    {group, rows * 2},
                    {1, 4}};
    matrix.steps.resize(matrix.parts.size());
  }

  static bool matches(const ModuleRule& rule, const std::string& module, const PartFinder& parts) {
    try {
      return std::regex_search(module, rule.pattern, std::regex_constants::match_continuous);
    } catch (const std::regex_error&) {
      parts.refuse(".qweight", "has a name that a pattern of \"dynamic\" takes too long to match");
    }
  }
  const Packing& packing_of(const std::string& module, const PartFinder& parts) const {
    for (const ModuleRule& rule : rules_)
      if (matches(rule, module, parts)) {
        if (!rule.packing)
          parts.refuse(".qweight", "is there, though config.json's \"dynamic\" leaves it plain");
        return *rule.packing;
      }
    return packing_;
  }

  Packing packing_;
  std::vector<ModuleRule> rules_;
  const io::Checkpoint& checkpoint_;
};

// Rows of codes that lie together (AWQ's gemv).
class RowDecoder final : public ForeignDecoder {
 public:
  struct Layout {
    int64_t cols = 0, group = 0, ours = 0;
    int64_t zero_words = 0;  // of a row
  };
  RowDecoder(const Layout& layout, const ForeignBytes& parts) : layout_(layout), parts_(parts) {}

  void values(int64_t row, float* out) const override {
    for (int64_t col = 0; col < layout_.cols; ++col) {
      const int64_t group = col / layout_.group;
      out[col] =
          scale_of(row, group) *
          (static_cast<float>(code(parts_[0], row, layout_.cols / 8, col)) - zero_of(row, group));
    }
  }
  bool codes(int64_t row, int64_t group, uint8_t* out, float& scale_out,
             float& zero_out) const override {
    for (int64_t i = 0; i < layout_.ours; ++i)
      out[i] =
          static_cast<uint8_t>(code(parts_[0], row, layout_.cols / 8, group * layout_.ours + i));
    return scale(row, group, scale_out, zero_out);
  }
  bool scale(int64_t row, int64_t group, float& scale_out, float& zero_out) const override {
    const int64_t theirs = group * layout_.ours / layout_.group;
    scale_out = scale_of(row, theirs);
    zero_out = zero_of(row, theirs);
    return true;
  }
  std::optional<CodeWords> words() const override {
    return CodeWords{parts_[0].data(), layout_.cols / 2, 4, WordOrder::kNibbles};
  }

 private:
  static uint32_t code(std::span<const std::byte> words, int64_t row, int64_t row_words,
                       int64_t at) {
    return element<uint32_t>(words, row * row_words + at / 8) >> (at % 8 * 4) & 15;
  }
  float zero_of(int64_t row, int64_t group) const {
    return static_cast<float>(code(parts_[1], row, layout_.zero_words, group));
  }
  float scale_of(int64_t row, int64_t group) const {
    return f16_to_f32(element<uint16_t>(parts_[2], row * layout_.zero_words * 8 + group));
  }

  Layout layout_;
  const ForeignBytes& parts_;
};

// AWQ for its gemv kernel, and GPTQ or AWQ for Marlin's.
class KernelWeights final : public ForeignWeights {
 public:
  enum class Kernel : uint8_t { kGemv, kMarlinGptq, kMarlinAwq };
  KernelWeights(Kernel kernel, int64_t group, const io::Checkpoint& checkpoint)
      : kernel_(kernel), group_(group), checkpoint_(checkpoint) {}

  std::string method() const override { return kernel_ == Kernel::kMarlinGptq ? "GPTQ" : "AWQ"; }
  std::optional<ForeignMatrix> find(const WeightShape& weight) const override {
    const bool is_gptq = kernel_ == Kernel::kMarlinGptq;
    const auto stem = stem_of(checkpoint_, weight, is_gptq ? ".B" : ".qweight");
    if (!stem) return std::nullopt;
    const PartFinder parts(checkpoint_, *stem);
    if (kernel_ == Kernel::kGemv) return row_matrix(parts, weight.rows, weight.cols);
    return marlin_matrix(parts, is_gptq ? ".B" : ".qweight", is_gptq ? ".s" : ".scales",
                         weight.rows, weight.cols, group_);
  }

 private:
  ForeignMatrix row_matrix(const PartFinder& parts, int64_t rows, int64_t cols) const {
    const auto ours = group_within(group_, cols);
    if (!ours)
      parts.refuse(".qweight", fmt::format("is of {} x {} in groups of {}: groups are whole "
                                           "multiples of 32 columns, and divide the row",
                                           rows, cols, group_));
    RowDecoder::Layout layout{cols, group_ > 0 ? group_ : cols, *ours};
    const io::TensorEntry* zeros = parts.look(".qzeros");
    const int64_t groups = cols / layout.group;
    if (zeros && zeros->shape.size() == 2)
      layout.zero_words = std::max(zeros->shape[1], (groups + 7) / 8);
    ForeignMatrix out;
    out.rows = rows;
    out.cols = cols;
    out.format = {Encoding::kInt4, DType::kBF16, *ours};
    out.parts = {parts.need(".qweight", {DType::kI32}, {rows, cols / 8}),
                 parts.need(".qzeros", {DType::kI32}, {rows, layout.zero_words}),
                 parts.need(".scales", {DType::kF16}, {rows, layout.zero_words * 8})};
    out.decoder = [layout](const ForeignBytes& bytes, const ForeignRun&) {
      return std::make_unique<RowDecoder>(layout, bytes);
    };
    out.cut = ForeignMatrix::Cut::kRows;
    out.steps = {{1, cols / 2}, {1, layout.zero_words * 4}, {1, layout.zero_words * 16}};
    return out;
  }

  Kernel kernel_;
  int64_t group_;
  const io::Checkpoint& checkpoint_;
};

int64_t read_group(const ModelConfig& settings) {
  const int64_t group = settings.integer_or("group_size", 128, -1, 1 << 20);
  if (group != -1 && (group < 32 || group % 32 != 0))
    settings.refuse(fmt::format("group_size {}: multiples of 32 and -1 are read", group),
                    kForeignMend);
  return group;
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
    if (const std::string form = settings.text_or(key, "gptq");
        form != "gptq" && form != "gptq_v2" && form != "marlin")
      settings.refuse(
          fmt::format("{} \"{}\" is not read, only gptq, gptq_v2 and marlin", key, form),
          kForeignMend);
  if (const std::string type = settings.text_or("pack_dtype", "int32"); type != "int32")
    settings.refuse(fmt::format("codes packed in {} are not read, only int32", type), kForeignMend);
}

bool is_for_marlin(const ModelConfig& settings) {
  return settings.boolean_or("is_marlin_format", false) ||
         settings.text_or("checkpoint_format", settings.text_or("format", "")) == "marlin";
}

// What that kernel can multiply, so that nothing else is packed for it.
void require_marlin(const ModelConfig& settings) {
  const int64_t bits = settings.integer_or("bits", 4, 1, 64);
  if (bits != 4 || !settings.boolean_or("sym", true) || settings.boolean_or("zero_point", false) ||
      settings.has("dynamic"))
    settings.refuse("packed for Marlin, and not all of 4 bits with zeros in the middle",
                    kForeignMend);
}

int64_t read_bits(const ModelConfig& settings, int64_t otherwise) {
  const int64_t bits = settings.integer_or("bits", otherwise, 1, 64);
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
    settings.refuse(fmt::format("{} bits: 2, 3, 4 and 8 are read", bits), kForeignMend);
  return bits;
}

std::vector<ModuleRule> read_rules(const ModelConfig& settings, const Packing& packing) {
  std::vector<ModuleRule> out;
  const auto rules = settings.object("dynamic");
  if (!rules) return out;
  for (const std::string& key : rules->keys()) {
    const bool is_plain = key.starts_with("-:");
    const std::string pattern = is_plain || key.starts_with("+:") ? key.substr(2) : key;
    ModuleRule& rule = out.emplace_back();
    try {
      rule.pattern = std::regex(pattern);
    } catch (const std::regex_error&) {
      rules->refuse(fmt::format("\"{}\" is no regular expression that can be read", key),
                    kForeignMend);
    }
    if (is_plain) continue;
    const ModelConfig own = *rules->object(key);  // keys() leaves out what is null
    own.require_known({"bits", "group_size", "sym", "desc_act", "act_group_aware", "mse",
                       "damp_percent", "static_groups"},
                      kForeignMend);
    rule.packing = packing;
    rule.packing->bits = read_bits(own, packing.bits);
    if (own.has("group_size")) rule.packing->group = read_group(own);
    rule.packing->is_symmetric = own.boolean_or("sym", packing.is_symmetric);
    rule.packing->is_scattered = own.boolean_or("desc_act", packing.is_scattered);
  }
  return out;
}
}  // namespace

std::unique_ptr<ForeignWeights> gptq_weights(const ModelConfig& settings,
                                             const io::Checkpoint& checkpoint) {
  require_gptq_settings(settings);
  if (is_for_marlin(settings)) {
    require_marlin(settings);
    return std::make_unique<KernelWeights>(KernelWeights::Kernel::kMarlinGptq, read_group(settings),
                                           checkpoint);
  }
  Packing packing;
  packing.zeros_are_one_less =
      settings.text_or("checkpoint_format", settings.text_or("format", "gptq")) != "gptq_v2";
  packing.is_scattered = settings.boolean_or("desc_act", false);
  packing.is_symmetric = settings.boolean_or("sym", true);
  packing.bits = read_bits(settings, 4);
  packing.group = read_group(settings);
  return std::make_unique<PackedWeights>(packing, read_rules(settings, packing), checkpoint);
}

std::unique_ptr<ForeignWeights> awq_weights(const ModelConfig& settings,
                                            const io::Checkpoint& checkpoint) {
  // Zeros are read as the file has them; modules that are not quantised have plain tensors.
  settings.require_known(
      {"quant_method", "bits", "group_size", "version", "zero_point", "modules_to_not_convert",
       "backend", "do_fuse", "modules_to_fuse", "fuse_max_seq_len", "exllama_config"},
      kForeignMend);
  if (const int64_t bits = settings.integer_or("bits", 4, 1, 64); bits != 4)
    settings.refuse(fmt::format("{} bits: 4 are read", bits), kForeignMend);
  std::string version = settings.text_or("version", "gemm");
  std::transform(version.begin(), version.end(), version.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  using Kernel = KernelWeights::Kernel;
  if (version == "marlin") require_marlin(settings);
  if (version == "marlin" || version == "gemv")
    return std::make_unique<KernelWeights>(version == "gemv" ? Kernel::kGemv : Kernel::kMarlinAwq,
                                           read_group(settings), checkpoint);
  if (version != "gemm")
    settings.refuse(fmt::format("AWQ version {} is not read, only gemm, gemv and marlin", version),
                    kForeignMend);
  Packing packing;
  packing.is_awq = true;
  packing.group = read_group(settings);
  return std::make_unique<PackedWeights>(packing, std::vector<ModuleRule>(), checkpoint);
}

}  // namespace sluice
