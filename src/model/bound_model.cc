#include "src/model/bound_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>

#include "src/base/error.h"
#include "src/model/config.h"
#include "src/model/foreign/gguf_config.h"
#include "src/model/foreign/gguf_ends.h"
#include "src/model/left_over.h"
#include "src/model/text_part.h"

namespace sluice {

namespace {
bool has_rope(const FamilyModel& family) {
  for (size_t i = 0; i < family.shape().sublayers.size(); ++i)
    for (const Operator& op : family.program(i).operators)
      if (op.kind == Operator::Kind::kRope || !op.frequencies.empty()) return true;
  return false;
}

// What tools that pack weights call a part of one, where the weight itself is not there.
std::string packed_neighbour(const io::Checkpoint& checkpoint, const WeightShape& weight) {
  constexpr std::string_view kEnd = ".weight";
  for (const std::string& name : weight.names)
    if (name.ends_with(kEnd))
      for (const char* end : {".weight_packed", ".qweight", ".compressed", ".weight_scale",
                              ".weight_scale_inv", "_blocks", ".qzeros", ".weight_shape", ".SCB"}) {
        std::string packed = name.substr(0, name.size() - kEnd.size()) + end;
        if (checkpoint.find(packed)) return packed;
      }
  return {};
}

const io::TensorEntry& find_tensor(const io::Checkpoint& checkpoint, const WeightShape& weight) {
  for (const std::string& name : weight.names)
    if (const io::TensorEntry* tensor = checkpoint.find(name)) return *tensor;
  std::string wanted;
  if (checkpoint.format() == io::CheckpointFormat::kGguf)
    wanted = weight.gguf.name;  // else its names
  if (wanted.empty()) {
    constexpr size_t kMostNames = 4;  // the first names are not behind a larger model's
    const size_t named = std::min(weight.names.size(), kMostNames);
    wanted =
        fmt::format("{}", fmt::join(weight.names.begin(),
                                    weight.names.begin() + static_cast<ptrdiff_t>(named), " or "));
    if (named < weight.names.size()) wanted += " or a longer name of it";
  }
  const std::string stack = fused_name(checkpoint, weight);
  if (!stack.empty() && checkpoint.find(stack + "_blocks"))
    throw Error(ErrorKind::kFile,
                fmt::format("{}: tensor {}_blocks is in MXFP4, but config.json does not say so",
                            checkpoint.folder().string(), stack),
                "mend config.json: its \"quantization_config\" needs \"quant_method\": \"mxfp4\"");
  if (!stack.empty()) wanted += " or " + stack;
  if (const std::string packed = packed_neighbour(checkpoint, weight); !packed.empty())
    throw Error(
        ErrorKind::kFile,
        fmt::format("{}: tensor {} is missing, but {} is there: its weights are packed by a "
                    "tool that config.json does not name",
                    checkpoint.folder().string(), wanted, io::in_quotes(packed)),
        "mend config.json: its \"quantization_config\" must say how the weights are packed; "
        "download it again from the model's page");
  throw Error(ErrorKind::kFile,
              fmt::format("{}: tensor {} is missing", checkpoint.folder().string(), wanted),
              "the checkpoint is incomplete or its config.json belongs to another model; sluice "
              "inspect lists what is in it");
}

[[noreturn]] void refuse_shape(const io::Checkpoint& checkpoint, const io::TensorEntry& tensor,
                               const std::vector<int64_t>& wanted) {
  throw Error(
      ErrorKind::kFile,
      fmt::format("{}: tensor {} has shape {}, config.json says {}", checkpoint.folder().string(),
                  tensor.name, io::format_shape(tensor.shape), io::format_shape(wanted)),
      "config.json and weights belong to different models");
}

// Gives a name of its own to what the checkpoint has only as rows of a larger matrix, or of a
// stack of all experts' matrices. Names of what it was taken from.
std::set<std::string> take_apart(io::Checkpoint& checkpoint, const ForeignWeights* foreign,
                                 const ModelShape& shape) {
  std::vector<io::TensorRows> rows;
  for (const SublayerShape& sublayer : shape.sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      const WeightShape first = weight.of_expert(0);
      if (std::any_of(first.names.begin(), first.names.end(),
                      [&](const std::string& name) { return checkpoint.find(name); }))
        continue;
      std::vector<io::TensorRows> parts;
      if (foreign) parts = foreign->parts(weight);
      if (parts.empty() && weight.fused.tensors.empty()) continue;
      if (parts.empty()) parts = stack_parts(checkpoint, weight);
      rows.insert(rows.end(), parts.begin(), parts.end());
      const io::TensorEntry* whole = checkpoint.find(fused_name(checkpoint, weight));
      if (!parts.empty() || !whole) continue;
      std::vector<int64_t> wanted{weight.fused.tensor_rows, weight.cols};
      if (weight.experts > 0) wanted.insert(wanted.begin(), weight.experts);
      if (whole->shape != wanted) refuse_shape(checkpoint, *whole, wanted);
      for (int64_t expert = 0; expert < weight.tensors(); ++expert) {
        const WeightShape one = weight.of_expert(expert);
        rows.push_back({one.names.front(), whole->name, one.fused.first_row, one.rows});
      }
    }
  if (!rows.empty()) checkpoint.add_rows(rows);
  std::set<std::string> taken;
  for (const io::TensorRows& part : rows) taken.insert(part.matrix);
  return taken;
}

void check_shape(const io::Checkpoint& checkpoint, const WeightShape& weight,
                 const io::TensorEntry& tensor) {
  const std::vector<int64_t> wanted = weight.kind == WeightKind::kVector
                                          ? std::vector<int64_t>{weight.cols}
                                          : std::vector<int64_t>{weight.rows, weight.cols};
  // In more dimensions where the family says so; stores of ours have one.
  if (tensor.shape != wanted &&
      (weight.tensor_shape.empty() || tensor.shape != weight.tensor_shape))
    refuse_shape(checkpoint, tensor, weight.tensor_shape.empty() ? wanted : weight.tensor_shape);
  if (tensor.quantised.is_quantised()) {
    if (weight.may_be_quantised()) return;
    throw Error(
        ErrorKind::kFile,
        fmt::format("{}: tensor {} is {}, but only matrices of linear layers may be{}",
                    checkpoint.folder().string(), tensor.name, format_name(tensor.quantised),
                    weight.is_by_head ? ", and none that is multiplied head by head" : ""),
        weight.is_by_head ? "give a checkpoint that has it in f32, f16 or bf16"
                          : "convert the model again");
  }
  if (!is_weight_dtype(tensor.dtype))
    throw Error(ErrorKind::kFile,
                fmt::format("{}: tensor {} has element type {}", checkpoint.folder().string(),
                            tensor.name, dtype_name(tensor.dtype)),
                "sluice computes with f32, f16 and bf16 weights");
}

// "sluice_router": {"kind": "sticky", "seed": 1}.
std::optional<SyntheticRouting> read_routing(const ModelConfig& config, const ModelShape& shape) {
  const auto router = config.object("sluice_router");
  if (!router) return std::nullopt;
  router->require_known({"kind", "seed"}, "a newer sluice made this model: use that");
  if (shape.num_experts <= 1)
    config.refuse("\"sluice_router\" is of mixtures, and this model has no experts",
                  "take it out of config.json");
  const std::string kind = router->text_or("kind", "");
  const auto seed =
      static_cast<uint64_t>(router->integer_or("seed", 1, 0, std::numeric_limits<int64_t>::max()));
  if (const auto known = parse_synthetic_routing(kind)) return SyntheticRouting::of(*known, seed);
  config.refuse(fmt::format("\"sluice_router\" has the kind \"{}\"", kind),
                "give \"sticky\" or \"flat\", or take it out of config.json");
}

std::vector<int32_t> read_eos(const io::Checkpoint& checkpoint, const ModelConfig& config,
                              const ModelConfig& text, int64_t vocab_size) {
  std::vector<int32_t> ids;
  if (!checkpoint.generation_config_text().empty())
    ids = ModelConfig(checkpoint.generation_config_text(),
                      (checkpoint.folder() / "generation_config.json").string())
              .integers("eos_token_id");
  if (ids.empty()) ids = config.integers("eos_token_id");
  if (ids.empty()) ids = text.integers("eos_token_id");
  std::erase_if(ids, [&](int32_t id) { return id >= vocab_size; });
  return ids;
}

// The element type of what is not quantised, by its largest tensor: the table of tokens.
DType plain_type(const io::Checkpoint& checkpoint) {
  const io::TensorEntry* largest = nullptr;
  for (const io::TensorEntry& tensor : checkpoint.tensors())
    if (is_weight_dtype(tensor.dtype) && tensor.blocks == BlockType::kNone &&
        (!largest || tensor.bytes > largest->bytes))
      largest = &tensor;
  return largest ? largest->dtype : DType::kBF16;
}

// The type of most bytes stands for the whole shape; matrices of others keep theirs.
void name_plain_type(ModelShape& shape) {
  std::map<DType, int64_t> bytes;
  for (const SublayerShape& sublayer : shape.sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.dtype) bytes[*weight.dtype] += shape.rows_bytes(weight, weight.rows);
  int64_t most = 0;
  for (const auto& [dtype, size] : bytes)
    if (size > most) {
      most = size;
      shape.weight_dtype = dtype;
    }
  for (SublayerShape& sublayer : shape.sublayers)
    for (WeightShape& weight : sublayer.weights)
      if (weight.dtype == shape.weight_dtype) weight.dtype.reset();
}

// As foreign.find(); what may not be quantised becomes plain.
std::optional<ForeignMatrix> find_matrix(const io::Checkpoint& checkpoint,
                                         const ForeignWeights& foreign, const WeightShape& weight) {
  std::optional<ForeignMatrix> out = foreign.find(weight);
  if (out && out->format.is_quantised() && !weight.may_be_quantised()) {
    out->format = WeightFormat::plain(plain_type(checkpoint));
    if (out->cut == ForeignMatrix::Cut::kColumns) out->cut = ForeignMatrix::Cut::kWhole;
  }
  return out;
}
}  // namespace

io::TensorEntry made_tensor(const std::string& name, const WeightShape& weight,
                            const WeightFormat& format) {
  io::TensorEntry made;
  made.name = name;
  made.shape = weight.kind == WeightKind::kVector ? std::vector<int64_t>{weight.cols}
                                                  : std::vector<int64_t>{weight.rows, weight.cols};
  made.dtype = format.is_quantised() ? DType::kU8 : format.dtype;
  if (format.is_quantised()) made.quantised = format;
  made.bytes = format.is_quantised() ? format.bytes(weight.rows, weight.cols)
                                     : io::tensor_bytes(made.shape, made.dtype).value_or(0);
  return made;
}

BoundModel BoundModel::open(const std::filesystem::path& path, KTypes k_types,
                            const PositionWishes& positions) {
  BoundModel model = bind(io::Checkpoint::open(path), path.string(), k_types, positions);
  model.read_synthetic_routing();
  return model;
}

void BoundModel::read_synthetic_routing() {
  synthetic_routing_ = read_routing(ModelConfig(config_text_, path_.string()), shape_);
  if (synthetic_routing_)
    notes_.emplace_back(
        "tokens are routed by a made-up rule, as those of trained models, not by the weights "
        "(config.json's \"sluice_router\")");
}

BoundModel BoundModel::bind(io::Checkpoint opened, const std::string& name, KTypes k_types,
                            const PositionWishes& positions) {
  BoundModel model(std::move(opened));
  model.path_ = name;
  const io::Checkpoint& checkpoint = model.checkpoint_;
  const bool is_gguf = checkpoint.format() == io::CheckpointFormat::kGguf;
  const std::string config_path =
      (is_gguf ? checkpoint.files().front().path : checkpoint.folder() / "config.json").string();
  model.config_text_ = is_gguf ? gguf_config_json(checkpoint) : checkpoint.config_text();
  if (model.config_text_.empty())
    throw Error(ErrorKind::kFile, fmt::format("{} is missing", config_path),
                "give the model's whole folder, with config.json beside the weights");
  const ModelConfig config(model.config_text_, config_path);
  const TextPart part = text_part(config, checkpoint);
  model.positions_ = positions;
  model.family_ = make_family_model(with_positions(part.config, positions));
  if (positions.changes_rope() && !has_rope(*model.family_))
    throw Error(ErrorKind::kUser, fmt::format("{}: the model has no rotary positions", name),
                "leave `rope_scaling`, `rope_factor`, `rope_theta` and `rope_original` out");
  model.shape_ = model.family_->shape();
  if (!part.whole.empty()) name_as_part(part.whole, checkpoint, model.shape_);
  const std::unique_ptr<ForeignWeights> foreign = foreign_weights(part.config, checkpoint, k_types);
  const std::set<std::string> taken = take_apart(model.checkpoint_, foreign.get(), model.shape_);

  // The tensor that a foreign matrix becomes, as if it were there.
  const auto find_foreign = [&](const WeightShape& weight) -> const io::TensorEntry* {
    const bool is_linear = weight.kind == WeightKind::kMatrix && !weight.shares_table;
    if (!is_linear && !is_gguf) return nullptr;
    auto matrix = foreign ? find_matrix(checkpoint, *foreign, weight) : std::nullopt;
    const bool is_turned = !matrix;
    if (!matrix && weight.is_transposed) matrix = transposed_matrix(checkpoint, weight);
    if (!matrix) matrix = stacked_matrix(checkpoint, weight);
    if (!matrix) return nullptr;
    if (const auto same = model.made_by_source_.find(matrix->parts.front());
        same != model.made_by_source_.end())
      return same->second;  // tied
    io::TensorEntry& made =
        model.made_.emplace_back(made_tensor(weight.names.front(), weight, matrix->format));
    model.made_by_source_.emplace(matrix->parts.front(), &made);
    model.foreign_method_ = is_turned ? "transposed" : foreign->method();
    model.foreign_.emplace(&made, std::move(*matrix));
    return &made;
  };

  std::set<std::string_view> used(taken.begin(), taken.end());
  const auto find_one = [&](const WeightShape& weight) {
    const io::TensorEntry* made = find_foreign(weight);
    const io::TensorEntry& tensor = made ? *made : find_tensor(checkpoint, weight);
    check_shape(checkpoint, weight, tensor);
    used.insert(tensor.name);
    return &tensor;
  };
  for (SublayerShape& sublayer : model.shape_.sublayers) {
    auto& row = model.tensors_.emplace_back();
    for (WeightShape& weight : sublayer.weights) {
      auto& tensors = row.emplace_back();
      for (int64_t expert = 0; expert < weight.tensors(); ++expert)
        tensors.push_back(find_one(weight.of_expert(expert)));
      const io::TensorEntry& tensor = *tensors.front();
      weight.quantised = tensor.quantised;
      for (const io::TensorEntry* one : tensors) {
        const bool is_plain = !one->quantised.is_quantised();
        if ((one->quantised != tensor.quantised || (is_plain && one->dtype != tensor.dtype)) &&
            model.mixed_types_.empty())
          model.mixed_types_ =
              fmt::format("{}: {} is {} but {} is {}", name, tensor.name, io::element_name(tensor),
                          one->name, io::element_name(*one));
      }
      if (weight.kind != WeightKind::kVector && !tensor.quantised.is_quantised())
        weight.dtype = tensor.dtype;
    }
  }
  name_plain_type(model.shape_);
  model.eos_token_ids_ = read_eos(checkpoint, config, part.config, model.shape_.vocab_size);
  for (const auto& [made, matrix] : model.foreign_)
    for (const io::TensorEntry* part : matrix.parts) used.insert(part->name);
  if (checkpoint.format() == io::CheckpointFormat::kGguf)
    model.notes_ = gguf_notes_of_ids(checkpoint.gguf_metadata());
  if (std::string note = judge_left_over(checkpoint, config, part.whole, model.shape_, used);
      !note.empty())
    model.notes_.push_back(std::move(note));
  if (!model.shape_.note.empty()) model.notes_.push_back(model.shape_.note);
  return model;
}

void BoundModel::require_one_type() const {
  if (!mixed_types_.empty())
    throw Error(ErrorKind::kUser, mixed_types_,
                "give all experts of a layer one element type: "
                "sluice convert MODEL STORE --weights bf16");
}

void BoundModel::require_runnable() const { require_one_type(); }

const ForeignMatrix* BoundModel::foreign(size_t sublayer, size_t weight, size_t expert) const {
  const auto found = foreign_.find(tensors_[sublayer][weight][expert]);
  return found == foreign_.end() ? nullptr : &found->second;
}

}  // namespace sluice
