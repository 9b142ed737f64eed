#pragma once
// How K and V are stored in pages: elements of one type, or quantised. A page of one layer is
// [KV heads][K, V]: a head's keys and then its values, of as many bytes or, of int8 keys beside
// int4 values, of fewer. Plain ones are [page_tokens][head_dim] elements. Quantised ones are the
// codes, page_tokens * code_bytes(), and then f16 scales and minima,
// [groups][scale, minimum][page_tokens]: value = scale * code + minimum. A row of 8-bit codes is
// head_dim bytes (a multiple of 16); one of 4-bit codes is pieces of 16 bytes, byte i holding
// elements i (low) and i + 16. Rows do not lie one behind the other but turned, as products of
// bytes take them: keys word by word, [16 positions][word of 4 bytes][position], values byte by
// byte, [4 positions][byte][position]. Where page_tokens ends inside 16 (or 4) positions, the last
// are as many as there are. Plain values; thread safe.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/dtype.h"

namespace sluice {

/// How an element of K or V is stored.
enum class KvEncoding : uint8_t { kPlain, kInt8, kInt4 };

/// How the keys of a head, or its values, are stored: a row for each token.
struct KvRows {
  KvEncoding encoding = KvEncoding::kPlain;
  DType dtype = DType::kBF16;  ///< of kPlain

  static constexpr int64_t kGroup = 64;  ///< elements of a row that share a scale

  bool operator==(const KvRows&) const = default;
  bool is_quantised() const noexcept { return encoding != KvEncoding::kPlain; }
  int64_t levels() const noexcept { return encoding == KvEncoding::kInt8 ? 255 : 15; }
  int64_t groups(int64_t head_dim) const noexcept {
    return is_quantised() ? (head_dim + kGroup - 1) / kGroup : 0;
  }
  /// Bytes of one token's codes (or elements).
  int64_t code_bytes(int64_t head_dim) const noexcept {
    switch (encoding) {
      case KvEncoding::kInt8: return (head_dim + 15) / 16 * 16;
      case KvEncoding::kInt4: return (head_dim + 31) / 32 * 16;
      case KvEncoding::kPlain: break;
    }
    return head_dim * dtype_bytes(dtype);
  }
  /// Bytes of one token, scales included.
  int64_t row_bytes(int64_t head_dim) const noexcept {
    return code_bytes(head_dim) + groups(head_dim) * 4;
  }
};

/// Keys and values are both plain, both int8, both int4, or int8 keys beside int4 values ("k8v4").
struct KvFormat {
  DType dtype = DType::kBF16;  ///< of plain ones
  KvEncoding key_encoding = KvEncoding::kPlain;
  KvEncoding value_encoding = KvEncoding::kPlain;

  static constexpr int64_t kGroup = KvRows::kGroup;
  static constexpr int64_t kMostHeadDim = 256;  ///< of quantised heads
  static constexpr int64_t kKeyBlock = 16;      ///< positions whose keys are turned together
  static constexpr int64_t kValueBlock = 4;     ///< positions whose values are

  constexpr KvFormat() = default;
  // A type is a format: most code knows no other.
  constexpr KvFormat(DType plain) : dtype(plain) {}  // NOLINT(google-explicit-constructor)
  constexpr explicit KvFormat(KvEncoding quantised) : KvFormat(quantised, quantised) {}
  constexpr KvFormat(KvEncoding keys, KvEncoding values)
      : dtype(DType::kF32), key_encoding(keys), value_encoding(values) {}

  bool operator==(const KvFormat&) const = default;
  bool is_quantised() const noexcept { return key_encoding != KvEncoding::kPlain; }
  KvRows keys() const noexcept { return {key_encoding, dtype}; }
  KvRows values() const noexcept { return {value_encoding, dtype}; }
  /// Tokens of a page where no policy says otherwise. A head's K and V of a page are one run of
  /// memory: 16 tokens of 128 elements are 8 KiB of bf16, but 2 KiB of int4, and runs so short are
  /// read at two thirds of the memory's rate (docs/perf-notes.md, longer pages).
  int64_t page_tokens() const noexcept { return is_quantised() ? 64 : 16; }
  /// Bytes of one token's key and value in one head, scales included.
  int64_t pair_bytes(int64_t head_dim) const noexcept {
    return keys().row_bytes(head_dim) + values().row_bytes(head_dim);
  }
};

/// int8 keys beside int4 values: what int4 costs, it costs in the keys.
constexpr KvFormat kInt8KeysInt4Values(KvEncoding::kInt8, KvEncoding::kInt4);
/// All that are quantised.
constexpr std::array<KvFormat, 3> kQuantisedKv{KvFormat(KvEncoding::kInt8), kInt8KeysInt4Values,
                                               KvFormat(KvEncoding::kInt4)};

/// Where byte `byte` of the codes of a key lies in its head's page; `in_page` counts positions. The
/// 4 bytes of a word lie together.
constexpr int64_t key_code_offset(int64_t code_bytes, int64_t page_tokens, int64_t in_page,
                                  int64_t byte) noexcept {
  const int64_t first = in_page / KvFormat::kKeyBlock * KvFormat::kKeyBlock;
  const int64_t left = page_tokens - first;
  const int64_t together = left < KvFormat::kKeyBlock ? left : KvFormat::kKeyBlock;
  return first * code_bytes + (byte / 4 * together + in_page - first) * 4 + byte % 4;
}

/// The same of a value.
constexpr int64_t value_code_offset(int64_t code_bytes, int64_t page_tokens, int64_t in_page,
                                    int64_t byte) noexcept {
  const int64_t first = in_page / KvFormat::kValueBlock * KvFormat::kValueBlock;
  const int64_t left = page_tokens - first;
  const int64_t together = left < KvFormat::kValueBlock ? left : KvFormat::kValueBlock;
  return first * code_bytes + byte * together + in_page - first;
}

/// "bf16", "int8", "int4", "k8v4".
std::string kv_format_name(const KvFormat& format);
/// The inverse.
std::optional<KvFormat> parse_kv_format(std::string_view name) noexcept;

}  // namespace sluice
