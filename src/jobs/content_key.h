#pragma once
// A 128-bit hash of content (FNV-1a) by which a batch job recognises requests, records and
// configurations when it is resumed. Written into result files: the function must never change.
// Guards against accidents, not against attackers.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace sluice::jobs {

struct ContentKey {
  uint64_t high = 0;
  uint64_t low = 0;

  bool operator==(const ContentKey&) const = default;
  /// 32 lower-case hex digits.
  std::string hex() const;
  /// The key that hex() wrote; nothing if `text` is not 32 lower-case hex digits.
  static std::optional<ContentKey> from_hex(std::string_view text) noexcept;
};

/// FNV-1a, 128 bits, of the bytes.
ContentKey hash_bytes(std::string_view bytes) noexcept;

/// Of several parts, each preceded by its length: ("ab", "c") and ("a", "bc") differ.
ContentKey hash_parts(std::span<const std::string> parts) noexcept;

}  // namespace sluice::jobs

/// Keys are hashes already.
template <>
struct std::hash<sluice::jobs::ContentKey> {
  size_t operator()(const sluice::jobs::ContentKey& key) const noexcept {
    return key.low ^ key.high;
  }
};
