#include "src/model/foreign/foreign.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"

namespace sluice {

const char* const kForeignMend =
    "convert the checkpoint that it was quantised from: sluice convert MODEL STORE --weights int4";

bool ForeignDecoder::codes(int64_t, int64_t, uint8_t*, float&, float&) const { return false; }
bool ForeignDecoder::parts(int64_t, int64_t, uint8_t*, int8_t*, float&) const { return false; }
const std::byte* ForeignDecoder::row_bytes(int64_t) const { return nullptr; }
std::optional<SpacedElements> ForeignDecoder::elements() const { return std::nullopt; }
std::optional<CodeWords> ForeignDecoder::words() const { return std::nullopt; }
bool ForeignDecoder::scale(int64_t, int64_t, float&, float&) const { return false; }

std::vector<io::TensorRows> ForeignWeights::parts(const WeightShape&) const { return {}; }

ForeignRun ForeignMatrix::run_of(const ForeignRun& wanted) const noexcept {
  ForeignRun out = whole();
  if (cut == Cut::kWhole) return out;
  const bool by_rows = cut == Cut::kRows;
  const int64_t first = by_rows ? wanted.first_row : wanted.first_col;
  const int64_t count = by_rows ? wanted.rows : wanted.cols;
  const int64_t begin = first / multiple * multiple;
  const int64_t end =
      std::min(by_rows ? rows : cols, (first + count + multiple - 1) / multiple * multiple);
  (by_rows ? out.first_row : out.first_col) = begin;
  (by_rows ? out.rows : out.cols) = end - begin;
  return out;
}

std::vector<ForeignMatrix::Range> ForeignMatrix::ranges(const ForeignRun& run) const {
  std::vector<Range> out;
  const int64_t first = cut == Cut::kRows ? run.first_row : run.first_col;
  const int64_t count = cut == Cut::kRows ? run.rows : run.cols;
  for (size_t i = 0; i < parts.size(); ++i) {
    const io::TensorEntry& part = *parts[i];
    out.push_back({part.offset, part.bytes});
    if (cut == Cut::kWhole || steps[i].step == 0) continue;
    const auto [step, unit_bytes, skipped] = steps[i];
    const int64_t begin = (skipped + first) / step * unit_bytes;
    const int64_t end = (skipped + first + count + step - 1) / step * unit_bytes;
    out.back().offset += begin;
    out.back().bytes = std::min(end, part.bytes) - begin;
  }
  return out;
}

int64_t ForeignMatrix::bytes(const ForeignRun& run) const {
  int64_t all = 0;
  for (const Range& range : ranges(run)) all += range.bytes;
  return all;
}

ForeignBytes ForeignMatrix::within(const ForeignBytes& all, const ForeignRun& run) const {
  ForeignBytes out;
  const std::vector<Range> needed = ranges(run);
  for (size_t i = 0; i < parts.size(); ++i)
    out.push_back(all[i].subspan(static_cast<size_t>(needed[i].offset - parts[i]->offset),
                                 static_cast<size_t>(needed[i].bytes)));
  return out;
}

int64_t ForeignMatrix::row_bytes() const noexcept {
  const bool is_one = cut == Cut::kRows && steps.size() == 1 && steps.front().step == 1;
  return is_one ? steps.front().bytes : 0;
}

std::unique_ptr<ForeignWeights> foreign_weights(const ModelConfig& config,
                                                const io::Checkpoint& checkpoint, KTypes k_types) {
  if (checkpoint.format() == io::CheckpointFormat::kPackedStore) return nullptr;  // ours
  if (checkpoint.format() == io::CheckpointFormat::kGguf) return gguf_weights(checkpoint, k_types);
  // The older name is what early writers of compressed-tensors gave it.
  std::optional<ModelConfig> settings = config.object("quantization_config");
  if (!settings) settings = config.object("compression_config");
  if (!settings) return nullptr;
  const std::string method = settings->text_or("quant_method", "");
  if (method == "gptq") return gptq_weights(*settings, checkpoint);
  if (method == "awq") return awq_weights(*settings, checkpoint);
  if (method == "bitsandbytes") return bitsandbytes_weights(*settings, checkpoint);
  if (method == "compressed-tensors") return compressed_tensors_weights(*settings, checkpoint);
  if (method == "fp8") return fp8_weights(*settings, checkpoint);
  if (method == "mxfp4") return mxfp4_weights(*settings, checkpoint);
  settings->refuse(fmt::format("quantised by \"{}\": gptq, awq, bitsandbytes, "
                               "compressed-tensors, fp8 and mxfp4 are read",
                               method),
                   kForeignMend);
}

void PartFinder::refuse(const std::string& end, const std::string& problem) const {
  throw Error(ErrorKind::kFile,
              fmt::format("{}: tensor {}{} {}", checkpoint_.folder().string(), stem_, end, problem),
              kForeignMend);
}

const io::TensorEntry* PartFinder::need(const std::string& end, const std::vector<DType>& dtypes,
                                        const std::vector<int64_t>& shape) const {
  const io::TensorEntry* tensor = look(end);
  if (!tensor) refuse(end, "is missing");
  if (tensor->shape != shape)
    refuse(end, fmt::format("has shape {}; {} is needed", io::format_shape(tensor->shape),
                            io::format_shape(shape)));
  if (std::find(dtypes.begin(), dtypes.end(), tensor->dtype) == dtypes.end())
    refuse(end, fmt::format("has element type {}; {} is needed", dtype_name(tensor->dtype),
                            dtype_name(dtypes.front())));
  return tensor;
}

std::string fused_name(const io::Checkpoint& checkpoint, const WeightShape& weight,
                       std::string_view end) {
  const std::vector<std::string>& names = weight.fused.tensors;
  for (const std::string& name : names)
    if (checkpoint.find(name + std::string(end))) return name;
  return names.empty() ? std::string() : names.front();
}

std::optional<std::string> stem_of(const io::Checkpoint& checkpoint, const WeightShape& weight,
                                   const std::string& end) {
  constexpr std::string_view kEnd = ".weight";
  for (const std::string& name : weight.names) {
    if (!name.ends_with(kEnd)) continue;
    std::string stem = name.substr(0, name.size() - kEnd.size());
    if (checkpoint.find(stem + end)) return stem;
  }
  return std::nullopt;
}

std::optional<int32_t> group_within(int64_t group, int64_t cols) {
  const int64_t whole = group > 0 ? group : cols;
  for (const int32_t ours : {128, 64, 32})
    if (whole % ours == 0 && cols % whole == 0) return ours;
  return std::nullopt;
}

void check_groups(std::span<const std::byte> indices, int64_t cols, int64_t groups,
                  const std::string& what) {
  for (int64_t col = 0; col < cols; ++col)
    if (const auto group = element<int32_t>(indices, col); group < 0 || group >= groups)
      throw Error(ErrorKind::kFile, fmt::format("{} of column {} is {}", what, col, group),
                  kForeignMend);
}

float float_element(std::span<const std::byte> bytes, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return element<float>(bytes, index);
  const auto half = element<uint16_t>(bytes, index);
  return dtype == DType::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
}

}  // namespace sluice
