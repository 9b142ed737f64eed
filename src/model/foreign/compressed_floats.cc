// Small floats of the compressed-tensors library. For a linear layer X with weights [rows, cols]:
//   nvfp4-pack-quantized  X.weight_packed u8 [rows, cols / 2], two e2m1 codes a byte, the earlier
//                         column low; X.weight_scale f8_e4m3 [rows, cols / 16];
//                         X.weight_global_scale f32 [1]; w = scale / global e2m1(code)
//   mxfp4-pack-quantized  X.weight_packed likewise; X.weight_scale u8 [rows, cols / 32], e8m0;
//                         w = 2^(scale - 127) e2m1(code)
//   mxfp6-pack-quantized  X.weight_packed u8 [rows, 3 cols / 4], four e2m3 codes in three bytes,
//                         the first from the lowest bit on; scales as of mxfp4
//   mxfp8-quantized       X.weight f8_e4m3 [rows, cols]; scales as of mxfp4
// (OCP Microscaling Formats 1.0; NVFP4: a group of 16 with a scale of e4m3.)
#include <cmath>

#include "src/base/microscaling.h"
#include "src/model/foreign/compressed_tensors.h"

namespace sluice {

namespace {
constexpr int64_t kMxGroup = 32, kNvGroup = 16;

// Elements of e2m3 are whole eighths.
float e2m3_eighths(uint32_t code) {
  const auto fraction = static_cast<float>(code & 7);
  const uint32_t exponent = code >> 3 & 3;
  const float magnitude =
      exponent == 0 ? fraction : (8 + fraction) * static_cast<float>(1u << (exponent - 1));
  return code & 32 ? -magnitude : magnitude;
}

class FloatDecoder final : public ForeignDecoder {
 public:
  FloatDecoder(CompressedFloat kind, int64_t cols, const ForeignBytes& parts)
      : kind_(kind),
        cols_(cols),
        group_(kind == CompressedFloat::kNvfp4 ? kNvGroup : kMxGroup),
        parts_(parts) {}

  void values(int64_t row, float* out) const override {
    for (int64_t col = 0; col < cols_; ++col) out[col] = scale(row, col) * element_of(row, col);
  }

  bool codes(int64_t row, int64_t group, uint8_t* out, float& scale_out,
             float& zero_out) const override {
    if (!scale(row, group, scale_out, zero_out)) return false;
    for (int64_t i = 0; i < kMxGroup; ++i) {
      const int64_t col = group * kMxGroup + i;
      out[i] = code_of(row, col);
      if (kind_ == CompressedFloat::kMxfp8 && (out[i] & 0x7f) == 0x7f) return false;
      if (kind_ == CompressedFloat::kMxfp6)
        out[i] = static_cast<uint8_t>(128 + static_cast<int>(e2m3_eighths(out[i])));
    }
    return true;
  }

  bool scale(int64_t row, int64_t group, float& scale_out, float& zero_out) const override {
    if (kind_ == CompressedFloat::kNvfp4) return false;
    const float value = scale(row, group * kMxGroup);
    scale_out = kind_ == CompressedFloat::kMxfp6 ? value / 8 : value;
    zero_out = kind_ == CompressedFloat::kMxfp6 ? 128 : 0;
    // Times the largest element it is still in f32, and it is stored in 16 bits.
    return std::isfinite(value) && value <= 0x1p+100f && value >= 0x1p-100f;
  }

  std::optional<CodeWords> words() const override {
    if (kind_ == CompressedFloat::kMxfp4)
      return CodeWords{parts_[0].data(), cols_ / 2, 4, WordOrder::kNibbles};
    if (kind_ == CompressedFloat::kMxfp8)
      return CodeWords{parts_[0].data(), cols_, 4, WordOrder::kBytes};
    return std::nullopt;
  }

 private:
  uint8_t code_of(int64_t row, int64_t col) const {
    switch (kind_) {
      case CompressedFloat::kMxfp8: return element<uint8_t>(parts_[0], row * cols_ + col);
      case CompressedFloat::kMxfp6: {
        const int64_t at = (row * cols_ + col) / 4 * 3;
        uint32_t word = 0;
        for (int i = 0; i < 3; ++i)
          word |= uint32_t{element<uint8_t>(parts_[0], at + i)} << (8 * i);
        return word >> (col % 4 * 6) & 63;
      }
      case CompressedFloat::kNvfp4:
      case CompressedFloat::kMxfp4: break;
    }
    const auto byte = element<uint8_t>(parts_[0], (row * cols_ + col) / 2);
    return col % 2 == 0 ? byte & 15 : byte >> 4;
  }
  float element_of(int64_t row, int64_t col) const {
    const uint8_t code = code_of(row, col);
    if (kind_ == CompressedFloat::kMxfp8) return e4m3_to_f32(code);
    return kind_ == CompressedFloat::kMxfp6 ? e2m3_eighths(code) / 8 : kE2m1Values[code];
  }
  float scale(int64_t row, int64_t col) const {
    const auto byte = element<uint8_t>(parts_[1], (row * cols_ + col) / group_);
    if (kind_ != CompressedFloat::kNvfp4) return e8m0_value(byte);
    return e4m3_to_f32(byte) / element<float>(parts_[2], 0);
  }

  CompressedFloat kind_;
  int64_t cols_;
  int64_t group_;
  const ForeignBytes& parts_;
};
}  // namespace

std::optional<CompressedFloat> compressed_float_of(const PartFinder& parts) {
  const io::TensorEntry* scale = parts.look(".weight_scale");
  if (parts.look(".weight_global_scale")) return CompressedFloat::kNvfp4;
  if (!scale || scale->dtype != DType::kU8) return std::nullopt;
  const io::TensorEntry* packed = parts.look(".weight_packed");
  if (!packed) return CompressedFloat::kMxfp8;
  const bool has_shape = packed->shape.size() == 2 && scale->shape.size() == 2;
  return has_shape && packed->shape[1] == scale->shape[1] * 24 ? CompressedFloat::kMxfp6
                                                               : CompressedFloat::kMxfp4;
}

ForeignMatrix compressed_float_matrix(CompressedFloat kind, const PartFinder& parts, int64_t rows,
                                      int64_t cols) {
  const bool is_nvfp4 = kind == CompressedFloat::kNvfp4;
  const int64_t group = is_nvfp4 ? kNvGroup : kMxGroup;
  if (cols % group != 0) parts.refuse(".weight_scale", "is of rows that are no whole groups");
  if (parts.look(".weight_zero_point"))
    parts.refuse(".weight_zero_point", "of small floats is not read");
  const int64_t row_bytes = kind == CompressedFloat::kMxfp8   ? cols
                            : kind == CompressedFloat::kMxfp6 ? cols / 4 * 3
                                                              : cols / 2;
  ForeignMatrix out{{}, rows, cols, {}, {}};
  out.parts = {
      kind == CompressedFloat::kMxfp8
          ? parts.need(".weight", {DType::kF8E4M3}, {rows, cols})
          : parts.need(".weight_packed", {DType::kU8}, {rows, row_bytes}),
      parts.need(".weight_scale", {is_nvfp4 ? DType::kF8E4M3 : DType::kU8}, {rows, cols / group})};
  out.cut = ForeignMatrix::Cut::kRows;
  out.steps = {{1, row_bytes}, {1, cols / group}};
  if (is_nvfp4) {
    const io::TensorEntry* global = parts.look(".weight_global_scale");
    out.parts.push_back(parts.need(
        ".weight_global_scale", {DType::kF32},
        io::element_count(global->shape) == 1 ? global->shape : std::vector<int64_t>{1}));
    out.steps.push_back({});
  }
  switch (kind) {
    // Nothing of ours has a scale of such precision for each 16 columns.
    case CompressedFloat::kNvfp4: out.format = WeightFormat::plain(DType::kBF16); break;
    case CompressedFloat::kMxfp4: out.format.encoding = Encoding::kMxfp4; break;
    case CompressedFloat::kMxfp6: out.format.encoding = Encoding::kInt8; break;
    case CompressedFloat::kMxfp8: out.format.encoding = Encoding::kFp8; break;
  }
  if (!is_nvfp4) out.format.group = static_cast<int32_t>(kMxGroup);
  out.decoder = [kind, cols](const ForeignBytes& bytes, const ForeignRun&) {
    return std::make_unique<FloatDecoder>(kind, cols, bytes);
  };
  return out;
}

}  // namespace sluice
