#pragma once
// How K and V are stored in pages: elements of one type, or quantised. A page of one layer is
// [K, V][KV heads] heads; a plain head is [page_tokens][head_dim] elements. A quantised head is the
// codes, [page_tokens] rows of code_bytes(), and then f16 scales and minima,
// [groups][scale, minimum][page_tokens]: value = scale * code + minimum. An 8-bit row is head_dim
// bytes (a multiple of 16); a 4-bit row is blocks of 16 bytes, byte i holding elements i (low) and
// i + 16. Plain values; thread safe.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/dtype.h"

namespace sluice {

enum class KvEncoding : uint8_t { kPlain, kInt8, kInt4 };

struct KvFormat {
  KvEncoding encoding = KvEncoding::kPlain;
  DType dtype = DType::kBF16;  ///< of kPlain

  static constexpr int64_t kGroup = 64;         ///< elements of a head that share a scale
  static constexpr int64_t kMostHeadDim = 256;  ///< of quantised heads

  constexpr KvFormat() = default;
  // A type is a format: most code knows no other.
  constexpr KvFormat(DType plain) : dtype(plain) {}  // NOLINT(google-explicit-constructor)
  constexpr explicit KvFormat(KvEncoding quantised) : encoding(quantised), dtype(DType::kF32) {}

  bool operator==(const KvFormat&) const = default;
  bool is_quantised() const noexcept { return encoding != KvEncoding::kPlain; }
  int64_t levels() const noexcept { return encoding == KvEncoding::kInt8 ? 255 : 15; }
  int64_t groups(int64_t head_dim) const noexcept {
    return is_quantised() ? (head_dim + kGroup - 1) / kGroup : 0;
  }
  /// Bytes of one token's codes (or elements) in one head.
  int64_t code_bytes(int64_t head_dim) const noexcept {
    switch (encoding) {
      case KvEncoding::kInt8: return (head_dim + 15) / 16 * 16;
      case KvEncoding::kInt4: return (head_dim + 31) / 32 * 16;
      case KvEncoding::kPlain: break;
    }
    return head_dim * dtype_bytes(dtype);
  }
  /// Bytes of one token in one head, scales included.
  int64_t row_bytes(int64_t head_dim) const noexcept {
    return code_bytes(head_dim) + groups(head_dim) * 4;
  }
};

/// "bf16", "int8", "int4".
std::string kv_format_name(const KvFormat& format);
/// The inverse.
std::optional<KvFormat> parse_kv_format(std::string_view name) noexcept;

}  // namespace sluice
