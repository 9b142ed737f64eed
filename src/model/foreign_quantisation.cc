#include "src/model/foreign_quantisation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "io/parallel_ranges.h"
#include "src/base/error.h"

namespace sluice {

namespace {
constexpr int64_t kInWord = 8;  // codes of a 32-bit word
constexpr const char* kMend =
    "convert the checkpoint that it was quantised from: sluice convert MODEL STORE --weights int4";

// Nibble of a word that holds one of its eight rows.
int64_t nibble_of(ForeignMatrix::Kind kind, int64_t row_in_word) {
  constexpr int64_t kAwq[kInWord] = {0, 4, 1, 5, 2, 6, 3, 7};
  return kind == ForeignMatrix::Kind::kAwq ? kAwq[row_in_word] : row_in_word;
}

template <typename T>
T element(const std::vector<std::byte>& bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

uint8_t nibble(uint32_t word, int64_t at) { return static_cast<uint8_t>(word >> (4 * at) & 15u); }
}  // namespace

std::optional<ForeignQuantisation> ForeignQuantisation::of(const ModelConfig& config) {
  const std::optional<ModelConfig> object = config.object("quantization_config");
  if (!object) return std::nullopt;
  const std::string method = object->text_or("quant_method", "");
  ForeignQuantisation out;
  if (method == "gptq") {
    out.kind_ = ForeignMatrix::Kind::kGptq;
    out.zeros_are_one_less_ = object->text_or("checkpoint_format", "gptq") != "gptq_v2";
    if (object->boolean_or("desc_act", false))
      object->refuse("desc_act (columns in order of activation) is not read", kMend);
  } else if (method == "awq") {
    out.kind_ = ForeignMatrix::Kind::kAwq;
    if (const std::string version = object->text_or("version", "gemm");
        version != "gemm" && version != "GEMM")
      object->refuse(fmt::format("AWQ version {} is not read, only gemm", version), kMend);
  } else {
    object->refuse(fmt::format("quantised by \"{}\": gptq and awq are read", method), kMend);
  }
  if (const int64_t bits = object->integer_or("bits", 4, 1, 64); bits != 4)
    object->refuse(fmt::format("{} bits: 4 are read", bits), kMend);
  const int64_t group = object->integer_or("group_size", 128, -1, 1 << 20);
  if (group != 32 && group != 64 && group != 128)
    object->refuse(fmt::format("group_size {}: 32, 64 and 128 are read", group), kMend);
  out.group_ = static_cast<int32_t>(group);
  return out;
}

std::string ForeignQuantisation::method_name() const {
  return kind_ == ForeignMatrix::Kind::kGptq ? "GPTQ" : "AWQ";
}

std::optional<ForeignMatrix> ForeignQuantisation::find(const io::Checkpoint& checkpoint,
                                                       const std::string& name, int64_t rows,
                                                       int64_t cols) const {
  constexpr std::string_view kEnd = ".weight";
  if (!name.ends_with(kEnd)) return std::nullopt;
  const std::string stem = name.substr(0, name.size() - kEnd.size());
  if (!checkpoint.find(stem + ".qweight")) return std::nullopt;
  ForeignMatrix out;
  out.kind = kind_;
  out.zeros_are_one_less = zeros_are_one_less_;
  out.format = {Encoding::kInt4, DType::kBF16, group_};
  out.rows = rows;
  out.cols = cols;
  const bool is_gptq = kind_ == ForeignMatrix::Kind::kGptq;
  const int64_t groups = cols / group_;
  struct Part {
    const char* end;
    DType dtype;
    std::vector<int64_t> shape;
  };
  const Part parts[] = {{".qweight", DType::kI32,
                         is_gptq ? std::vector<int64_t>{cols / kInWord, rows}
                                 : std::vector<int64_t>{cols, rows / kInWord}},
                        {".qzeros", DType::kI32, {groups, rows / kInWord}},
                        {".scales", DType::kF16, {groups, rows}}};
  for (const Part& part : parts) {
    const io::TensorEntry* tensor = checkpoint.find(stem + part.end);
    const std::string where =
        fmt::format("{}: tensor {}{}", checkpoint.folder().string(), stem, part.end);
    if (!tensor)
      throw Error(ErrorKind::kFile, fmt::format("{} is missing", where),
                  "download the checkpoint again");
    if (cols % group_ != 0 || rows % kInWord != 0 || tensor->shape != part.shape ||
        tensor->dtype != part.dtype)
      throw Error(ErrorKind::kFile,
                  fmt::format("{} is {} of shape {}; weights {} in groups of {} need {} of {}",
                              where, dtype_name(tensor->dtype), io::format_shape(tensor->shape),
                              io::format_shape(std::vector<int64_t>{rows, cols}), group_,
                              dtype_name(part.dtype), io::format_shape(part.shape)),
                  kMend);
    out.parts.push_back(tensor);
  }
  return out;
}

std::vector<std::byte> repack(const ForeignMatrix& matrix,
                              const std::vector<std::vector<std::byte>>& parts, PackGroup pack) {
  const auto& [codes, zeros, scales] = std::tie(parts[0], parts[1], parts[2]);
  const int64_t rows = matrix.rows, cols = matrix.cols, group = matrix.format.group;
  const bool is_gptq = matrix.kind == ForeignMatrix::Kind::kGptq;
  constexpr int64_t kPanelRows = WeightFormat::kPanelRows;
  const int64_t panel_bytes = matrix.format.panel_bytes(cols);
  std::vector<std::byte> out(static_cast<size_t>(matrix.format.bytes(rows, cols)));
  const auto code_at = [&](int64_t row, int64_t col) {
    if (is_gptq) return nibble(element<uint32_t>(codes, col / kInWord * rows + row), col % kInWord);
    return nibble(element<uint32_t>(codes, col * (rows / kInWord) + row / kInWord),
                  nibble_of(matrix.kind, row % kInWord));
  };
  io::parallel_ranges(0, (rows + kPanelRows - 1) / kPanelRows, 4, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> group_codes(static_cast<size_t>(kPanelRows * group));
    for (int64_t panel = begin; panel < end; ++panel)
      for (int64_t g = 0; g < cols / group; ++g) {
        float group_scales[kPanelRows] = {}, group_zeros[kPanelRows] = {};
        std::fill(group_codes.begin(), group_codes.end(), uint8_t{0});
        for (int64_t r = 0; r < std::min(kPanelRows, rows - panel * kPanelRows); ++r) {
          const int64_t row = panel * kPanelRows + r;
          group_scales[r] = f16_to_f32(element<uint16_t>(scales, g * rows + row));
          const auto word = element<uint32_t>(zeros, g * (rows / kInWord) + row / kInWord);
          group_zeros[r] = static_cast<float>(nibble(word, nibble_of(matrix.kind, row % kInWord))) +
                           (matrix.zeros_are_one_less ? 1.0f : 0.0f);
          for (int64_t c = 0; c < group; ++c)
            group_codes[static_cast<size_t>(r * group + c)] = code_at(row, g * group + c);
        }
        pack(matrix.format, cols, g, group_codes.data(), group_scales, group_zeros,
             out.data() + panel * panel_bytes);
      }
  });
  return out;
}

}  // namespace sluice
