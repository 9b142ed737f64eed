#include "src/base/weight_format.h"

#include <charconv>

#include "src/base/bytes.h"

namespace sluice {

namespace {
constexpr int64_t kWholeRowColumns = 64;

struct EncodingName {
  Encoding encoding;
  std::string_view name;
  int32_t default_group;
};
constexpr EncodingName kEncodings[] = {
    {Encoding::kInt4, "int4", 64}, {Encoding::kInt8, "int8", 0},    {Encoding::kNf4, "nf4", 64},
    {Encoding::kFp8, "fp8", 0},    {Encoding::kMxfp4, "mxfp4", 32}, {Encoding::kQ2K, "q2_k", 256},
    {Encoding::kQ3K, "q3_k", 256}, {Encoding::kQ4K, "q4_k", 256},   {Encoding::kQ5K, "q5_k", 256},
    {Encoding::kQ6K, "q6_k", 256}, {Encoding::kQ4_1, "q4_1", 32},   {Encoding::kQ5_1, "q5_1", 32},
    {Encoding::kIq1, "iq1", 256},  {Encoding::kIq2, "iq2", 256},    {Encoding::kQ4_0, "q4_0", 32},
    {Encoding::kIq4, "iq4", 32}};

// Whether its groups are always the same.
bool has_one_group(const WeightFormat& format) noexcept {
  return format.encoding == Encoding::kMxfp4 || format.encoding >= Encoding::kQ4_0 || format.is_k();
}
}  // namespace

int64_t WeightFormat::code_bits() const noexcept {
  switch (encoding) {
    case Encoding::kInt4:
    case Encoding::kNf4:
    case Encoding::kMxfp4:
    case Encoding::kQ4_0:
    case Encoding::kIq4: return 4;
    case Encoding::kInt8:
    case Encoding::kFp8: return 8;
    case Encoding::kQ2K: return 2;
    case Encoding::kQ3K:
    case Encoding::kIq1:
    case Encoding::kIq2: return 3;
    case Encoding::kQ4K:
    case Encoding::kQ4_1: return 4;
    case Encoding::kQ5K:
    case Encoding::kQ5_1: return 5;
    case Encoding::kQ6K: return 6;
    case Encoding::kPlain: break;
  }
  return dtype_bytes(dtype) * 8;
}

int64_t WeightFormat::group_columns(int64_t cols) const noexcept {
  return group > 0 ? group : round_up(cols, kWholeRowColumns);
}

int64_t WeightFormat::groups(int64_t cols) const noexcept {
  const int64_t size = group_columns(cols);
  return size == 0 ? 0 : (cols + size - 1) / size;
}

int64_t WeightFormat::group_code_bytes(int64_t cols) const noexcept {
  return group_columns(cols) * kPanelRows * code_bits() / 8;
}

int64_t WeightFormat::panel_bytes(int64_t cols) const noexcept {
  return groups(cols) * (group_code_bytes(cols) + scale_bytes());
}

int64_t WeightFormat::row_bytes(int64_t cols) const noexcept {
  return is_quantised() ? panel_bytes(cols) / kPanelRows : cols * dtype_bytes(dtype);
}

int64_t WeightFormat::bytes(int64_t rows, int64_t cols) const noexcept {
  return (is_quantised() ? round_up(rows, kPanelRows) : rows) * row_bytes(cols);
}

std::string format_name(const WeightFormat& format) {
  for (const EncodingName& known : kEncodings)
    if (known.encoding == format.encoding)
      return std::string(known.name) + (format.group > 0 && !has_one_group(format)
                                            ? "-g" + std::to_string(format.group)
                                            : std::string());
  return std::string(dtype_name(format.dtype));
}

std::optional<WeightFormat> parse_weight_format(std::string_view name) noexcept {
  const size_t dash = name.find('-');
  for (const EncodingName& known : kEncodings) {
    if (name.substr(0, dash) != known.name) continue;
    WeightFormat format{known.encoding, DType::kBF16, known.default_group};
    if (dash == std::string_view::npos) return format;
    if (has_one_group(format)) return {};
    const std::string_view group = name.substr(dash + 1);
    if (!group.starts_with('g')) return {};
    const auto [end, problem] =
        std::from_chars(group.data() + 1, group.data() + group.size(), format.group);
    if (problem != std::errc{} || end != group.data() + group.size()) return {};
    if (format.group != 32 && format.group != 64 && format.group != 128) return {};
    return format;
  }
  const std::optional<DType> dtype = parse_dtype(name);
  if (!dtype || !is_weight_dtype(*dtype)) return {};
  return WeightFormat::plain(*dtype);
}

}  // namespace sluice
