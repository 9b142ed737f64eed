#include "io/checkpoint/tensor_entry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sluice::io {

std::optional<int64_t> element_count(std::span<const int64_t> shape) noexcept {
  int64_t count = 1;
  bool is_empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(count, size, &count)) {
      return std::nullopt;
    }
  }
  return is_empty ? 0 : count;
}

std::optional<int64_t> tensor_bytes(std::span<const int64_t> shape, DType dtype) noexcept {
  const std::optional<int64_t> count = element_count(shape);
  int64_t bytes = 0;
  if (!count || __builtin_mul_overflow(*count, dtype_bytes(dtype), &bytes)) return std::nullopt;
  return bytes;
}

std::string element_name(const TensorEntry& tensor) {
  if (tensor.quantised.is_quantised()) return format_name(tensor.quantised);
  if (tensor.blocks != BlockType::kNone) return std::string(block_layout(tensor.blocks).name);
  return std::string(dtype_name(tensor.dtype));
}

std::optional<int64_t> quantised_bytes(std::span<const int64_t> shape, const WeightFormat& format) {
  // Sums over a row must fit 32 bits, and sizes 64.
  constexpr int64_t kMostColumns = 65536;
  constexpr int64_t kMostRows = int64_t{1} << 40;
  if (shape.size() != 2 || shape[0] <= 0 || shape[1] <= 0 || shape[0] > kMostRows ||
      shape[1] > kMostColumns)
    return std::nullopt;
  return format.bytes(shape[0], shape[1]);
}

TensorEntry as_filed(const TensorEntry& tensor) {
  if (!tensor.quantised.is_quantised()) return tensor;
  TensorEntry filed = tensor;
  const int64_t panel = tensor.quantised.panel_bytes(tensor.shape[1]);
  filed.shape = {tensor.bytes / panel, panel};
  filed.quantised = {};
  return filed;
}

std::string format_shape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 200;
  std::string result = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + (text.size() > kShown ? "...\"" : "\"");
}

}  // namespace sluice::io
