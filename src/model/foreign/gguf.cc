// GGUF's tensors: plain or in blocks, under their own names, the rows of q and k in pairs, experts'
// matrices of a layer in one stack [experts, rows, cols] or gate's and up's in one. All of them are
// read this way, since none may run as it lies.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/model/foreign/foreign.h"
#include "src/model/foreign/ggml_blocks.h"
#include "src/model/foreign/gguf_keys.h"
#include "src/model/foreign/gguf_names.h"

namespace sluice {

namespace {
// Within every so many rows the file has the weight's, which are `runs` runs, by turns: the first
// of each run, then the second of each.
struct RowOrder {
  int64_t rows = 0;  // 0: as they are
  int64_t runs = 2;
};

// What is done with a tensor's elements.
struct Change {
  float factor = 1;  // times this,
  float added = 0;   // less what the file has added already
};

class GgufDecoder : public ForeignDecoder {
 public:
  GgufDecoder(const io::TensorEntry& tensor, int64_t rows, int64_t cols, const RowOrder& order,
              const Change& change, const ForeignBytes& parts)
      : type_(tensor.blocks),
        dtype_(tensor.dtype),
        cols_(cols),
        row_bytes_(tensor.bytes / rows),
        order_(order),
        change_(change),
        data_(parts[0]) {}

  void values(int64_t row, float* out) const override {
    const int64_t from = source_row(row);
    if (type_ == BlockType::kNone) {
      for (int64_t col = 0; col < cols_; ++col)
        out[col] = float_element(data_, dtype_, from * cols_ + col) - change_.added;
      return;
    }
    const BlockLayout& layout = block_layout(type_);
    for (int64_t col = 0; col < cols_; col += layout.elements)
      decode_block(type_, block(from, col), out + col);
    if (change_.factor != 1)
      for (int64_t col = 0; col < cols_; ++col) out[col] *= change_.factor;
  }

  bool codes(int64_t row, int64_t group, uint8_t* out, float& scale, float& zero) const override {
    const int64_t col = group * 32;
    return block_codes(type_, block(source_row(row), col), col % block_layout(type_).elements / 32,
                       out, scale, zero);
  }

  bool parts(int64_t row, int64_t group, uint8_t* out, int8_t* scales, float& d) const override {
    return block_parts(type_, block(source_row(row), group * 256), out, scales, d);
  }

  const std::byte* row_bytes(int64_t row) const override {
    const bool is_as_it_lies = change_.added == 0 && change_.factor == 1;
    return is_as_it_lies ? data_.data() + source_row(row) * row_bytes_ : nullptr;
  }

 private:
  // The file's row for one of Hugging Face's.
  int64_t source_row(int64_t row) const {
    if (order_.rows == 0) return row;
    const int64_t run = order_.rows / order_.runs, at = row % order_.rows;
    return row - at + at % run * order_.runs + at / run;
  }
  const std::byte* block(int64_t row, int64_t col) const {
    const BlockLayout& layout = block_layout(type_);
    return data_.data() + (row * cols_ + col) / layout.elements * layout.bytes;
  }

  BlockType type_;
  DType dtype_;
  int64_t cols_;
  int64_t row_bytes_;
  RowOrder order_;
  Change change_;
  std::span<const std::byte> data_;
};

// Logarithms of what the file has as -exp of them.
class DecayDecoder final : public GgufDecoder {
 public:
  DecayDecoder(const io::TensorEntry& tensor, int64_t rows, const RowOrder& order,
               const ForeignBytes& parts)
      : GgufDecoder(tensor, rows, 1, order, {}, parts), name_(tensor.name) {}
  void values(int64_t row, float* out) const override {
    GgufDecoder::values(row, out);
    if (!(*out <= 0))
      throw Error(ErrorKind::kFile,
                  fmt::format("{} holds {}, but decays are negative", name_, *out), kForeignMend);
    *out = std::log(-*out);
  }
  const std::byte* row_bytes(int64_t) const override { return nullptr; }

 private:
  const std::string& name_;
};

// Expert by expert gate's and up's elements by turns, which the file has in a tensor each.
class TurnsDecoder final : public ForeignDecoder {
 public:
  TurnsDecoder(DType dtype, int64_t cols, const ForeignBytes& parts)
      : dtype_(dtype), cols_(cols), parts_(parts) {}
  void values(int64_t, float* out) const override {
    for (int64_t col = 0; col < cols_; ++col)
      out[col] = float_element(parts_[static_cast<size_t>(col % 2)], dtype_, col / 2);
  }

 private:
  DType dtype_;
  int64_t cols_;
  const ForeignBytes& parts_;
};

// Head by head rows that make keys of latent rows and rows that make values: [heads, rank, key
// width], which is turned, and [heads, value width, rank].
class HeadsDecoder final : public ForeignDecoder {
 public:
  HeadsDecoder(const io::TensorEntry& keys, const io::TensorEntry& values,
               const ForeignBytes& parts)
      : rank_(values.shape[2]),
        key_width_(keys.shape[2]),
        value_width_(values.shape[1]),
        keys_(all(keys, parts[0])),
        values_(all(values, parts[1])) {}
  void values(int64_t row, float* out) const override {
    const int64_t width = key_width_ + value_width_, head = row / width, at = row % width;
    for (int64_t col = 0; col < rank_; ++col)
      out[col] =
          at < key_width_
              ? keys_[static_cast<size_t>((head * rank_ + col) * key_width_ + at)]
              : values_[static_cast<size_t>((head * value_width_ + at - key_width_) * rank_ + col)];
  }

 private:
  static std::vector<float> all(const io::TensorEntry& tensor, std::span<const std::byte> bytes) {
    const int64_t cols = tensor.shape[2], rows = tensor.shape[0] * tensor.shape[1];
    std::vector<float> out(static_cast<size_t>(rows * cols));
    const GgufDecoder decoder(tensor, rows, cols, {}, {}, {bytes});
    for (int64_t row = 0; row < rows; ++row) decoder.values(row, out.data() + row * cols);
    return out;
  }

  int64_t rank_, key_width_, value_width_;
  std::vector<float> keys_, values_;
};

class GgufWeights final : public ForeignWeights {
 public:
  GgufWeights(const io::Checkpoint& checkpoint, KTypes k_types)
      : checkpoint_(checkpoint), k_types_(k_types) {
    const io::TensorEntry* table = checkpoint.find("token_embd.weight");
    if (table && table->blocks == BlockType::kNone) plain_ = table->dtype;
    const GgufKeys keys(checkpoint);
    if (keys.architecture().starts_with("qwen35"))
      tiles_ = keys.integer(keys.prefix() + "ssm.group_count").value_or(0);
  }

  std::string method() const override { return "GGUF"; }

  std::vector<io::TensorRows> parts(const WeightShape& weight) const override {
    const std::string whole = whole_of(weight);
    if (whole.empty()) return {};
    if (weight.kind == WeightKind::kVector) {
      need(whole, {whole_rows(weight, whole)});
      return {{weight.gguf.name, whole, weight.fused.first_row, weight.cols}};
    }
    const int64_t rows = weight.expert_rows();
    if (weight.experts == 0) {
      need(whole, {whole_rows(weight, whole), weight.cols});
      return {{weight.gguf.name, whole, weight.fused.first_row, rows}};
    }
    const Stack stack = stack_of(whole);
    need(stack.name, {weight.experts, stack.parts * rows, weight.cols});
    std::vector<io::TensorRows> out;
    for (int64_t expert = 0; expert < weight.experts; ++expert)
      out.push_back({weight.of_expert(expert).gguf.name, stack.name,
                     (expert * stack.parts + stack.part) * rows, rows});
    return out;
  }

  std::optional<ForeignMatrix> find(const WeightShape& weight) const override {
    const std::string name =
        is_apart(weight.gguf.name) ? apart_gguf_name(weight.gguf.name) : weight.gguf.name;
    if (name.ends_with(kGateBias)) return turns(weight);
    const io::TensorEntry* tensor = name.empty() ? nullptr : checkpoint_.find(name);
    if (!tensor && name.ends_with(kHeads)) return heads(weight);
    if (!tensor && name != weight.gguf.name) need(name, {weight.rows, weight.cols});
    if (!tensor) return std::nullopt;
    return matrix(weight, *tensor);
  }

 private:
  static constexpr std::string_view kGateBias = "ffn_gate_exps.bias";
  static constexpr std::string_view kHeads = "attn_kv_b.weight";
  static constexpr std::string_view kDecay = ".ssm_a";
  static constexpr std::string_view kGroupedNorm = ".ssm_norm.weight";

  // Whether the file has gate and up in a tensor each where others have one.
  bool is_apart(const std::string& name) const {
    std::string gate = apart_gguf_name(name);
    if (const size_t at = gate.find(".ffn_up."); at != std::string::npos)
      gate.replace(at + 1, 6, "ffn_gate");
    return !gate.empty() && checkpoint_.find(gate);
  }

  // The tensor that the weight is rows of; empty: it is none of another.
  std::string whole_of(const WeightShape& weight) const {
    const std::string& name = weight.gguf.name;
    if (const std::string joined = joined_gguf_name(name);
        !checkpoint_.find(name) && checkpoint_.find(joined))
      return joined;
    return is_apart(name) ? std::string() : whole_gguf_name(name);
  }
  // Its rows, whatever they are where the family has q of a layer alone and the file k and v too.
  int64_t whole_rows(const WeightShape& weight, const std::string& whole) const {
    const io::TensorEntry* tensor = checkpoint_.find(whole);
    if (weight.fused.tensor_rows > 0 || !tensor || tensor->shape.empty())
      return weight.fused.tensor_rows;
    return tensor->shape.front();
  }

  // Where all experts' matrices are: of each expert one of `parts` that lie one below the other.
  struct Stack {
    std::string name;
    int64_t parts = 1, part = 0;
  };
  Stack stack_of(const std::string& whole) const {
    for (const std::string_view own : {"ffn_gate_exps", "ffn_up_exps"}) {
      const size_t at = whole.find(own);
      if (at == std::string::npos || checkpoint_.find(whole)) continue;
      std::string both = whole;
      both.replace(at, own.size(), "ffn_gate_up_exps");
      if (checkpoint_.find(both)) return {both, 2, own == "ffn_up_exps" ? 1 : 0};
    }
    return {whole};
  }

  // Delta nets' value heads that share a key head lie one beside the other in a weight; some files
  // have the first of every key head, then the second of each.
  RowOrder order_of(const WeightShape& weight, int64_t rows) const {
    if (weight.gguf.paired_heads > 0) return {rows / weight.gguf.paired_heads, 2};
    for (const std::string_view end :
         {"ssm_alpha.weight", "ssm_beta.weight", "ssm_dt.bias", "ssm_a"})
      if (weight.gguf.name.ends_with(end) && tiles_ > 0 && rows % tiles_ == 0)
        return {rows, tiles_};
    return {};
  }

  // A vector as the family has it but for dimensions of 1; norms may be in groups.
  static bool is_shaped(const io::TensorEntry& tensor, const WeightShape& weight) {
    std::vector<int64_t> shape = weight.tensor_shape, theirs = tensor.shape;
    if (shape.empty()) shape = {weight.cols};
    if (theirs == shape) return true;
    std::erase(shape, 1);
    std::erase(theirs, 1);
    const bool is_grouped = weight.gguf.name.ends_with(kGroupedNorm) && theirs.size() == 2 &&
                            theirs[1] > 0 && weight.cols / theirs[1] == theirs[0] &&
                            weight.cols % theirs[1] == 0;
    return theirs == shape || is_grouped;
  }

  const io::TensorEntry& need(const std::string& name, const std::vector<int64_t>& shape) const {
    const PartFinder finder(checkpoint_, name);
    const io::TensorEntry* tensor = finder.look("");
    return *finder.need("", {tensor ? tensor->dtype : DType::kU8}, shape);
  }

  ForeignMatrix turns(const WeightShape& weight) const {
    std::string name = weight.gguf.name;
    const std::vector<int64_t> shape{weight.tensor_shape[0], weight.tensor_shape[1] / 2};
    ForeignMatrix out{WeightFormat::plain(DType::kF32), 1, weight.cols, {}, {}};
    for (const char* part : {"ffn_gate_exps.bias", "ffn_up_exps.bias"}) {
      name.replace(name.rfind("ffn_"), std::string::npos, part);
      out.parts.push_back(&need(name, shape));
      if (out.parts.back()->blocks != BlockType::kNone ||
          out.parts.back()->dtype != out.parts.front()->dtype)
        PartFinder(checkpoint_, name).refuse("", "is no bias of one type with the other");
    }
    out.decoder = [dtype = out.parts[0]->dtype, cols = weight.cols](const ForeignBytes& bytes,
                                                                    const ForeignRun&) {
      return std::make_unique<TurnsDecoder>(dtype, cols, bytes);
    };
    return out;
  }

  // Of files that have keys' and values' part of it apart.
  std::optional<ForeignMatrix> heads(const WeightShape& weight) const {
    const std::string stem = weight.gguf.name.substr(0, weight.gguf.name.size() - kHeads.size());
    const io::TensorEntry* keys = checkpoint_.find(stem + "attn_k_b.weight");
    if (!keys) return std::nullopt;
    const bool is_whole = keys->shape.size() == 3 && keys->shape[0] > 0 &&
                          keys->shape[1] == weight.cols && weight.rows % keys->shape[0] == 0 &&
                          weight.rows / keys->shape[0] > keys->shape[2];
    if (!is_whole)
      PartFinder(checkpoint_, keys->name)
          .refuse("", "has shape " + io::format_shape(keys->shape) + ", which makes no keys");
    const int64_t width = weight.rows / keys->shape[0] - keys->shape[2];
    const io::TensorEntry& values =
        need(stem + "attn_v_b.weight", {keys->shape[0], width, weight.cols});
    ForeignMatrix out{WeightFormat::plain(plain_), weight.rows, weight.cols, {keys, &values}, {}};
    out.decoder = [keys, &values](const ForeignBytes& bytes, const ForeignRun&) {
      return std::make_unique<HeadsDecoder>(*keys, values, bytes);
    };
    return out;
  }

  ForeignMatrix matrix(const WeightShape& weight, const io::TensorEntry& tensor) const {
    const bool is_vector = weight.kind == WeightKind::kVector;
    // A matrix of one row has lost a dimension.
    const bool is_line = is_vector || (weight.rows == 1 && tensor.shape.size() == 1);
    if (!is_vector || !is_shaped(tensor, weight))
      need(tensor.name, is_line ? std::vector<int64_t>{weight.cols}
                                : std::vector<int64_t>{weight.rows, weight.cols});
    // A vector in another order is a column of one value a row.
    const bool is_decay = is_vector && weight.gguf.name.ends_with(kDecay);
    const RowOrder order = order_of(weight, is_vector ? weight.cols : weight.rows);
    const bool is_column = is_vector && (order.rows > 0 || is_decay);
    const int64_t rows = is_column ? weight.cols : is_vector ? 1 : weight.rows;
    const int64_t cols = is_column ? 1 : weight.cols;
    const int64_t paired_heads = weight.gguf.paired_heads;
    if (paired_heads > 0 && rows % (2 * paired_heads) != 0)
      throw Error(ErrorKind::kFile, fmt::format("{}: rows are no pairs in heads", tensor.name),
                  kForeignMend);
    ForeignMatrix out{WeightFormat::plain(tensor.dtype), rows, cols, {&tensor}, {}};
    out.cut = ForeignMatrix::Cut::kRows;
    out.steps = {{1, tensor.bytes / rows}};
    if (order.rows > 0) out.multiple = order.rows;
    // Files have routers in f32, whatever the others are.
    const bool is_plain = tensor.blocks == BlockType::kNone;
    if (!is_plain && !weight.may_be_quantised())
      out.format = WeightFormat::plain(plain_);
    else if (!is_plain)
      out.format = format_for(tensor.blocks);
    const Change change{factor_of(tensor), weight.added};
    out.decoder = [&tensor, rows, cols, order, is_decay, change](
                      const ForeignBytes& bytes,
                      const ForeignRun&) -> std::unique_ptr<ForeignDecoder> {
      if (is_decay) return std::make_unique<DecayDecoder>(tensor, rows, order, bytes);
      return std::make_unique<GgufDecoder>(tensor, rows, cols, order, change, bytes);
    };
    return out;
  }

  // NVFP4 has a scale of the whole tensor beside it, of a stack one for each expert.
  float factor_of(const io::TensorEntry& tensor) const {
    constexpr std::string_view kEnd = ".weight";
    if (tensor.blocks != BlockType::kNVFP4 || !tensor.name.ends_with(kEnd)) return 1;
    std::string stem = tensor.name.substr(0, tensor.name.size() - kEnd.size());
    size_t expert = 0, experts = 1;
    if (const size_t at = stem.find("_exps."); at != std::string::npos) {
      expert = std::stoul(stem.substr(at + 6));
      stem.resize(at + 5);
    }
    const io::TensorEntry* scales = checkpoint_.find(stem + ".scale");
    if (!scales) return 1;
    if (!scales->shape.empty()) experts = static_cast<size_t>(scales->shape[0]);
    const GgufKeys keys(checkpoint_);
    const std::vector<float> all = keys.read_vector(*scales, static_cast<int64_t>(experts));
    if (expert >= all.size())
      keys.refuse(
          fmt::format("{} has {} scales, none for expert {}", scales->name, all.size(), expert),
          kForeignMend);
    return all[expert];
  }

  // Nothing of ours has NVFP4's scales; plain elements hold its values exactly.
  WeightFormat format_for(BlockType type) const {
    if (type == BlockType::kNVFP4) return WeightFormat::plain(plain_);
    if (const auto kept = k_type_format(type); kept && k_types_ == KTypes::kKept) return *kept;
    return format_of_blocks(type).value_or(WeightFormat{Encoding::kInt8, DType::kBF16, 32});
  }

  const io::Checkpoint& checkpoint_;
  KTypes k_types_;
  DType plain_ = DType::kF16;  // what plain matrices are, as the table of tokens is one
  int64_t tiles_ = 0;          // key heads of delta nets whose value heads take turns; 0: none do
};
}  // namespace

std::string apart_gguf_name(const std::string& name) {
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {"ffn_up.gate_rows", "ffn_gate"}, {"ffn_up.up_rows", "ffn_up"}};
  for (const auto& [part, apart] : kParts)
    if (const size_t at = name.find(part); at != std::string::npos)
      return std::string(name).replace(at, part.size(), apart);
  return {};
}

std::string joined_gguf_name(const std::string& name) {
  for (const std::string_view part : {".attn_q.", ".attn_k.", ".attn_v."})
    if (const size_t at = name.find(part); at != std::string::npos)
      return std::string(name).replace(at, part.size(), ".attn_qkv.");
  return {};
}

std::string whole_gguf_name(std::string name) {
  for (const std::string_view part :
       {".{e}", ".latent", ".turned", ".z", ".xbc", ".dt", ".gate_rows", ".up_rows"})
    if (const size_t at = name.find(part); at != std::string::npos)
      return name.erase(at, part.size());
  return {};
}

std::unique_ptr<ForeignWeights> gguf_weights(const io::Checkpoint& checkpoint, KTypes k_types) {
  return std::make_unique<GgufWeights>(checkpoint, k_types);
}

}  // namespace sluice
