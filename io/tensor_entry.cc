#include "io/tensor_entry.h"

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
