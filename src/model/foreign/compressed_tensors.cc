// Checkpoints of the compressed-tensors library (LLM Compressor, vLLM). For a linear layer X with
// weights [rows, cols]:
//   pack-quantized   X.weight_packed i32 [rows, cols bits / 32 rounded up], codes from the lowest
//                    bit on, across words, stored plus 2^(bits - 1); 2 to 8 bits. Earlier versions
//                    keep codes within words, 32 / bits (rounded down) in each
//                    X.weight_zero_point i32 [rows bits / 32, groups], packed along rows likewise
//   int-quantized, naive-quantized   X.weight i8 [rows, cols], X.weight_zero_point i8
//   float-quantized  X.weight f8_e4m3 [rows, cols]
//   all              X.weight_scale [rows, groups] (channel: 1; tensor: one element; block, of
//                    floats: [ceil(rows / R), ceil(cols / C)] of block_structure [R, C]);
//                    w = scale (q - zero_point)
//                    X.weight_g_idx i32 [cols] where groups follow activations
// Floats of 4 and 6 bits, and of 8 with scales of a byte: compressed_floats.cc. What is stored
// without zeros: compressed_sparse.cc.
#include "src/model/foreign/compressed_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace sluice {

namespace {
struct Layout {
  enum class Storage : uint8_t { kPacked, kInt8, kFp8 };
  Storage storage = Storage::kPacked;
  int64_t bits = 4;
  // So many codes fill so many words.
  int64_t unit = 8, unit_words = 1;
  int64_t rows = 0, cols = 0;
  int64_t groups = 1;  // scales of a row
  bool has_one_scale = false;
  DType scale_dtype = DType::kF32;
  int zeros = -1, indices = -1;  // which part, or none
  WeightFormat format;

  int64_t words_of(int64_t codes) const {  // the last unit's as many as it needs
    return codes / unit * unit_words + (codes % unit * bits + 31) / 32;
  }
  bool is_narrow() const { return storage == Storage::kPacked && bits <= 4; }
};

class Decoder final : public ForeignDecoder {
 public:
  Decoder(const Layout& layout, const ForeignRun& run, const ForeignBytes& parts)
      : layout_(layout), run_(run), parts_(parts) {
    if (layout.indices >= 0)
      check_groups(parts[static_cast<size_t>(layout.indices)], layout.cols, layout.groups,
                   "weight_g_idx");
  }

  void values(int64_t row, float* out) const override {
    for (int64_t col = 0; col < layout_.cols; ++col) {
      const int64_t group = group_of(col);
      const float q = layout_.storage == Layout::Storage::kFp8
                          ? e4m3_to_f32(element<uint8_t>(parts_[0], row * layout_.cols + col))
                          : static_cast<float>(code(row, col));
      out[col] = scale(row, group) * (q - static_cast<float>(zero(row, group)));
    }
  }

  bool codes(int64_t row, int64_t group, uint8_t* out, float& scale_out,
             float& zero_out) const override {
    if (!scale(row, group, scale_out, zero_out)) return false;
    const int64_t columns = layout_.format.group > 0 ? layout_.format.group : layout_.cols;
    const int64_t first = group * columns;
    const int64_t offset = code_offset();
    for (int64_t i = 0; i < columns; ++i) {
      if (layout_.format.encoding == Encoding::kFp8) {
        out[i] = element<uint8_t>(parts_[0], row * layout_.cols + first + i);
        if ((out[i] & 0x7f) == 0x7f) return false;
        continue;
      }
      out[i] = static_cast<uint8_t>(code(row, first + i) + offset);
    }
    return true;
  }

  bool scale(int64_t row, int64_t group, float& scale_out, float& zero_out) const override {
    if (layout_.indices >= 0) return false;
    const int64_t at = group_of(group * (layout_.format.group > 0 ? layout_.format.group : 0));
    scale_out = scale(row, at);
    const int64_t zero_point = zero(row, at);
    zero_out = static_cast<float>(zero_point + code_offset());
    return layout_.format.encoding != Encoding::kInt8 || zero_point == 0;
  }

  std::optional<CodeWords> words() const override {
    const bool is_packed = layout_.storage == Layout::Storage::kPacked;
    if (layout_.indices >= 0 || (is_packed && 32 % layout_.bits != 0) || layout_.bits < 4)
      return std::nullopt;
    const bool is_int4 = is_packed && layout_.bits == 4;
    const WordOrder order = is_int4                                     ? WordOrder::kNibbles
                            : layout_.storage == Layout::Storage::kInt8 ? WordOrder::kSignedBytes
                                                                        : WordOrder::kBytes;
    return CodeWords{parts_[0].data(), is_int4 ? layout_.cols / 2 : layout_.cols, 4, order};
  }

 private:
  int64_t code_offset() const { return layout_.format.encoding == Encoding::kInt4 ? 8 : 128; }
  int64_t group_of(int64_t col) const {
    if (layout_.indices >= 0)
      return element<int32_t>(parts_[static_cast<size_t>(layout_.indices)], col);
    return col / (layout_.cols / layout_.groups);
  }
  // Code number `at` of a row of packed codes: word w of the row is element first + w step.
  int64_t unpack(std::span<const std::byte> words, int64_t first, int64_t step, int64_t at) const {
    const int64_t bit = at % layout_.unit * layout_.bits;
    const int64_t word = at / layout_.unit * layout_.unit_words + bit / 32;
    uint64_t bits = element<uint32_t>(words, first + word * step);
    if (bit % 32 + layout_.bits > 32)
      bits |= uint64_t{element<uint32_t>(words, first + (word + 1) * step)} << 32;
    const auto code =
        static_cast<int64_t>(bits >> (bit % 32) & ((uint64_t{1} << layout_.bits) - 1));
    return code - (int64_t{1} << (layout_.bits - 1));
  }
  int64_t code(int64_t row, int64_t col) const {
    if (layout_.storage == Layout::Storage::kInt8)
      return element<int8_t>(parts_[0], row * layout_.cols + col);
    return unpack(parts_[0], row * layout_.words_of(layout_.cols), 1, col);
  }
  int64_t zero(int64_t row, int64_t group) const {
    if (layout_.zeros < 0) return 0;
    const auto& zeros = parts_[static_cast<size_t>(layout_.zeros)];
    if (layout_.storage == Layout::Storage::kInt8)
      return element<int8_t>(zeros, row * layout_.groups + group);
    return unpack(zeros, group, layout_.groups, rows_into_unit(run_, layout_.unit, 0) + row);
  }
  float scale(int64_t row, int64_t group) const {
    return float_element(parts_[1], layout_.scale_dtype,
                         layout_.has_one_scale ? 0 : row * layout_.groups + group);
  }

  Layout layout_;
  ForeignRun run_;
  const ForeignBytes& parts_;
};

// What config.json says of all groups of layers together; each matrix's tensors must agree.
struct Schemes {
  std::set<int64_t> int_bits, float_bits;
  bool are_all_asymmetric = true;
  std::optional<Fp8Block> block;
};

void require_one_of(const ModelConfig& settings, const char* key, const std::string& value,
                    std::initializer_list<std::string_view> known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  settings.refuse(fmt::format("{} \"{}\" is not read, only {}", key, value, fmt::join(known, ", ")),
                  kForeignMend);
}

// The library's whole list.
const std::initializer_list<std::string_view> kFormats = {"pack-quantized",
                                                          "int-quantized",
                                                          "naive-quantized",
                                                          "float-quantized",
                                                          "nvfp4-pack-quantized",
                                                          "mxfp4-pack-quantized",
                                                          "mxfp6-pack-quantized",
                                                          "mxfp8-quantized",
                                                          "dense",
                                                          "mixed-precision",
                                                          "sparse-bitmask",
                                                          "sparse-24-bitmask",
                                                          "marlin-24"};

// A group's "weights".
void read_scheme(const ModelConfig& weights, Schemes& schemes) {
  // Scales and zeros are read with the types that their tensors have; observers are the tool's own.
  weights.require_known(
      {"num_bits", "type", "symmetric", "group_size", "strategy", "dynamic", "actorder", "observer",
       "observer_kwargs", "scale_dtype", "zp_dtype", "block_structure"},
      kForeignMend);
  const std::string type = weights.text_or("type", "int");
  require_one_of(weights, "type", type, {"int", "float"});
  const int64_t bits = weights.integer_or("num_bits", 8, 1, 64);
  if (type == "float" ? bits != 4 && bits != 6 && bits != 8 : bits < 2 || bits > 8)
    weights.refuse(fmt::format("num_bits {} of type {}: int of 2 to 8 and float of 4, 6 and 8 are "
                               "read",
                               bits, type),
                   kForeignMend);
  if (weights.has("strategy"))
    require_one_of(weights, "strategy", weights.text_or("strategy", ""),
                   {"tensor", "channel", "group", "tensor_group", "block"});
  const auto block = fp8_block(weights, "block_structure");
  if (block.has_value() != (weights.text_or("strategy", "") == "block") || (block && type == "int"))
    weights.refuse("block_structure goes with the strategy \"block\" of type float", kForeignMend);
  if (block) schemes.block = block;
  if (weights.has("actorder"))
    require_one_of(weights, "actorder", weights.text_or("actorder", ""),
                   {"group", "weight", "dynamic", "static"});
  if (weights.boolean_or("dynamic", false))
    weights.refuse("weights that are quantised while they run are not read", kForeignMend);
  (type == "float" ? schemes.float_bits : schemes.int_bits).insert(bits);
  if (weights.boolean_or("symmetric", true)) schemes.are_all_asymmetric = false;
}

Schemes read_schemes(const ModelConfig& settings) {
  // Inputs and KV stay as exact as they are here, whatever the tool would have rounded them to.
  settings.require_known({"quant_method", "format", "ignore", "config_groups", "kv_cache_scheme",
                          "quantization_status", "global_compression_ratio", "sparsity_config",
                          "transform_config", "version", "run_compressed"},
                         kForeignMend);
  if (settings.has("format"))
    require_one_of(settings, "format", settings.text_or("format", ""), kFormats);
  const auto sparsity = settings.object("sparsity_config");
  const std::string sparse_format = sparsity ? sparsity->text_or("format", "dense") : "dense";
  require_one_of(settings, "sparsity_config", sparse_format,
                 {"dense", "sparse-bitmask", "sparse-24-bitmask"});
  // Rotations that the model's inputs need while it runs (SpinQuant, QuIP).
  if (const auto transform = settings.object("transform_config");
      transform && !transform->keys().empty())
    settings.refuse("transform_config: rotations of inputs are not read", kForeignMend);
  Schemes schemes;
  const auto groups = settings.object("config_groups");
  const bool has_groups = groups && !groups->keys().empty();
  if (!has_groups && sparse_format != "dense") return schemes;  // plain, without zeros
  if (!has_groups) settings.refuse("\"config_groups\" is missing", kForeignMend);
  for (const std::string& name : groups->keys()) {
    const ModelConfig group = *groups->object(name);
    group.require_known({"targets", "weights", "input_activations", "format"}, kForeignMend);
    if (group.has("format")) require_one_of(group, "format", group.text_or("format", ""), kFormats);
    if (const auto weights = group.object("weights")) read_scheme(*weights, schemes);
  }
  return schemes;
}

class CompressedTensors final : public ForeignWeights {
 public:
  CompressedTensors(const io::Checkpoint& checkpoint, const Schemes& schemes)
      : checkpoint_(checkpoint), schemes_(schemes) {}

  std::string method() const override { return "compressed-tensors"; }

  std::optional<ForeignMatrix> find(const WeightShape& weight) const override {
    if (const auto sparse = stem_of(checkpoint_, weight, ".bitmask"))
      return find_bitmask(PartFinder(checkpoint_, *sparse), weight);
    if (const auto sparse = stem_of(checkpoint_, weight, ".meta"))
      return find_marlin24(PartFinder(checkpoint_, *sparse), weight);
    const auto stem = stem_of(checkpoint_, weight, ".weight_scale");
    if (!stem) return std::nullopt;
    const PartFinder parts(checkpoint_, *stem);
    Layout layout;
    layout.rows = weight.rows;
    layout.cols = weight.cols;
    ForeignMatrix out{{}, weight.rows, weight.cols, {}, {}};
    if (const auto kind = compressed_float_of(parts)) {
      require_declared(parts, *kind == CompressedFloat::kMxfp8 ? ".weight" : ".weight_packed", true,
                       *kind == CompressedFloat::kMxfp8   ? 8
                       : *kind == CompressedFloat::kMxfp6 ? 6
                                                          : 4);
      return compressed_float_matrix(*kind, parts, weight.rows, weight.cols);
    }
    if (has_blocks(parts, weight))
      return fp8_matrix(weight, parts, parts, ".weight_scale", schemes_.block);
    add_codes(parts, layout, out);
    require_declared(parts,
                     layout.storage == Layout::Storage::kPacked ? ".weight_packed" : ".weight",
                     layout.storage == Layout::Storage::kFp8, layout.bits);
    add_scales(parts, layout, out);
    const auto group = group_within(weight.cols / layout.groups, weight.cols);
    const bool is_scattered = layout.indices >= 0;
    const bool is_int4 = layout.is_narrow();
    // One scale a row stays one where the codes are 8 bits.
    const bool is_row = layout.groups == 1 && !is_int4;
    if (!is_row && !group)
      parts.refuse(".weight_scale",
                   fmt::format("has {} groups of a row of {}: groups are multiples "
                               "of 32 columns",
                               layout.groups, weight.cols));
    out.format.encoding = layout.storage == Layout::Storage::kFp8 ? Encoding::kFp8
                          : is_int4 && !is_scattered              ? Encoding::kInt4
                                                                  : Encoding::kInt8;
    out.format.group = is_scattered ? 32 : is_row ? 0 : *group;
    layout.format = out.format;
    out.decoder = [layout](const ForeignBytes& bytes, const ForeignRun& run) {
      return std::make_unique<Decoder>(layout, run, bytes);
    };
    cut_rows(layout, out);
    return out;
  }

 private:
  static void cut_rows(const Layout& layout, ForeignMatrix& matrix) {
    const bool is_packed = layout.storage == Layout::Storage::kPacked;
    matrix.cut = ForeignMatrix::Cut::kRows;
    matrix.steps.resize(matrix.parts.size());  // whole, unless said
    matrix.steps[0] = {1, is_packed ? layout.words_of(layout.cols) * 4 : layout.cols};
    if (!layout.has_one_scale)
      matrix.steps[1] = {1, layout.groups * dtype_bytes(layout.scale_dtype)};
    if (layout.zeros >= 0)
      matrix.steps[static_cast<size_t>(layout.zeros)] =
          is_packed ? ForeignMatrix::Step{layout.unit, layout.groups * layout.unit_words * 4}
                    : ForeignMatrix::Step{1, layout.groups};
  }

  ForeignMatrix find_bitmask(const PartFinder& parts, const WeightShape& weight) const {
    ForeignMatrix out = bitmask_matrix(parts, weight.rows, weight.cols);
    if (out.format.is_quantised())
      require_declared(parts, ".compressed", out.format.encoding == Encoding::kFp8, 8);
    return out;
  }

  ForeignMatrix find_marlin24(const PartFinder& parts, const WeightShape& weight) const {
    ForeignMatrix out = marlin24_matrix(parts, weight.rows, weight.cols);
    require_declared(parts, ".weight_packed", false,
                     out.format.encoding == Encoding::kInt8 ? 8 : 4);
    return out;
  }

  void require_declared(const PartFinder& parts, const char* end, bool is_float,
                        int64_t bits) const {
    if ((is_float ? schemes_.float_bits : schemes_.int_bits).contains(bits)) return;
    parts.refuse(end,
                 fmt::format("has {} of {} bits, which no group of config.json's quantisation is",
                             is_float ? "floats" : "integers", bits));
  }

  bool has_blocks(const PartFinder& parts, const WeightShape& weight) const {
    const io::TensorEntry* codes = parts.look(".weight");
    if (!schemes_.block || !codes || codes->dtype != DType::kF8E4M3) return false;
    const auto [rows, cols] = *schemes_.block;
    const std::vector<int64_t> grid{(weight.rows + rows - 1) / rows,
                                    (weight.cols + cols - 1) / cols};
    return parts.look(".weight_scale")->shape == grid;
  }

  void add_codes(const PartFinder& parts, Layout& layout, ForeignMatrix& out) const {
    if (const io::TensorEntry* packed = parts.look(".weight_packed")) {
      find_bits(parts, *packed, layout);
      out.parts = {
          parts.need(".weight_packed", {DType::kI32}, {layout.rows, layout.words_of(layout.cols)})};
      return;
    }
    out.parts = {parts.need(".weight", {DType::kI8, DType::kF8E4M3}, {layout.rows, layout.cols})};
    layout.bits = 8;
    layout.storage =
        out.parts[0]->dtype == DType::kI8 ? Layout::Storage::kInt8 : Layout::Storage::kFp8;
  }

  // Of the widths that config.json names the one whose rows are as long.
  void find_bits(const PartFinder& parts, const io::TensorEntry& packed, Layout& layout) const {
    const int64_t words = packed.shape.size() == 2 ? packed.shape[1] : 0;
    for (const int64_t bits : schemes_.int_bits)
      for (const bool is_dense : {true, false}) {
        const bool is_even = is_dense && 32 % bits != 0;
        layout.bits = bits;
        layout.unit = is_even ? 32 : 32 / bits;
        layout.unit_words = is_even ? bits : 1;
        if (layout.words_of(layout.cols) == words) return;
      }
    parts.refuse(
        ".weight_packed",
        fmt::format("has {} words a row: no width that config.json names has so many", words));
  }

  void add_scales(const PartFinder& parts, Layout& layout, ForeignMatrix& out) const {
    const std::vector<DType> kinds{DType::kBF16, DType::kF16, DType::kF32};
    const io::TensorEntry* scale = parts.look(".weight_scale");
    layout.has_one_scale = io::element_count(scale->shape) == 1;
    if (!layout.has_one_scale) {
      layout.groups = scale->shape.size() == 2 ? scale->shape[1] : 1;
      if (layout.groups < 1 || layout.cols % layout.groups != 0)
        parts.refuse(".weight_scale", fmt::format("has shape {}", io::format_shape(scale->shape)));
      if (scale->shape.size() != 1)
        parts.need(".weight_scale", kinds, {layout.rows, layout.groups});
    }
    out.parts.push_back(parts.need(".weight_scale", kinds,
                                   layout.has_one_scale || scale->shape.size() != 1
                                       ? scale->shape
                                       : std::vector<int64_t>{layout.rows}));
    layout.scale_dtype = scale->dtype;
    if (parts.look(".weight_zero_point") && layout.storage != Layout::Storage::kFp8) {
      layout.zeros = static_cast<int>(out.parts.size());
      const bool is_packed = layout.storage == Layout::Storage::kPacked;
      if (layout.has_one_scale && !is_packed)
        parts.refuse(".weight_zero_point", "of a whole tensor is not read");
      out.parts.push_back(
          parts.need(".weight_zero_point", {is_packed ? DType::kI32 : DType::kI8},
                     {is_packed ? layout.words_of(layout.rows) : layout.rows, layout.groups}));
    }
    if (schemes_.are_all_asymmetric && layout.zeros < 0)
      parts.refuse(".weight_zero_point", "is missing, though config.json says asymmetric");
    if (parts.look(".weight_g_idx")) {
      layout.indices = static_cast<int>(out.parts.size());
      out.parts.push_back(parts.need(".weight_g_idx", {DType::kI32}, {layout.cols}));
    }
  }

  const io::Checkpoint& checkpoint_;
  Schemes schemes_;
};
}  // namespace

std::unique_ptr<ForeignWeights> compressed_tensors_weights(const ModelConfig& settings,
                                                           const io::Checkpoint& checkpoint) {
  return std::make_unique<CompressedTensors>(checkpoint, read_schemes(settings));
}

}  // namespace sluice
