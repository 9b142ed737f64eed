#include "src/jobs/content_key.h"

#include <fmt/format.h>

namespace sluice::jobs {

namespace {

using Wide = unsigned __int128;
constexpr Wide kBasis = (static_cast<Wide>(0x6c62272e07bb0142) << 64) | 0x62b821756295c58d;
constexpr Wide kPrime = (static_cast<Wide>(1) << 88) | 0x13b;

Wide hash_on(Wide hash, std::string_view bytes) noexcept {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  return hash;
}

ContentKey key_of(Wide hash) noexcept {
  return {static_cast<uint64_t>(hash >> 64), static_cast<uint64_t>(hash)};
}

}  // namespace

std::string ContentKey::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

std::optional<ContentKey> ContentKey::from_hex(std::string_view text) noexcept {
  if (text.size() != 32) return std::nullopt;
  Wide value = 0;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && !(c >= 'a' && c <= 'f')) return std::nullopt;
    value = (value << 4) | static_cast<unsigned>(is_digit ? c - '0' : c - 'a' + 10);
  }
  return key_of(value);
}

ContentKey hash_bytes(std::string_view bytes) noexcept { return key_of(hash_on(kBasis, bytes)); }

ContentKey hash_parts(std::span<const std::string> parts) noexcept {
  Wide hash = kBasis;
  for (const std::string& part : parts) {
    for (uint64_t length = part.size(), i = 0; i < 8; ++i) {
      const char byte = static_cast<char>(length >> (8 * i));
      hash = hash_on(hash, {&byte, 1});
    }
    hash = hash_on(hash, part);
  }
  return key_of(hash);
}

}  // namespace sluice::jobs
