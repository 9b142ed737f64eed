#include "src/text/byte_level.h"

#include <array>
#include <cstdint>

#include "src/text/utf8.h"

namespace sluice::text {

namespace {
struct Tables {
  std::array<uint16_t, 256> character{};
  std::array<int16_t, 0x144> byte{};
};

const Tables& tables() {
  static const Tables built = [] {
    Tables t;
    t.byte.fill(-1);
    uint16_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool stands_for_itself =
          (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
      t.character[static_cast<size_t>(b)] = stands_for_itself ? static_cast<uint16_t>(b) : next++;
      t.byte[t.character[static_cast<size_t>(b)]] = static_cast<int16_t>(b);
    }
    return t;
  }();
  return built;
}
}  // namespace

std::string bytes_to_characters(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (char c : bytes) append_utf8(out, tables().character[static_cast<unsigned char>(c)]);
  return out;
}

std::optional<std::string> characters_to_bytes(std::string_view characters) {
  std::string out;
  for (size_t at = 0; at < characters.size();) {
    const auto lead = static_cast<unsigned char>(characters[at]);
    uint32_t code = lead;
    size_t length = 1;
    if (lead >= 0xc0 && lead < 0xe0 && at + 1 < characters.size()) {
      code = (lead & 0x1fu) << 6 | (static_cast<unsigned char>(characters[at + 1]) & 0x3fu);
      length = 2;
    }
    if (code >= tables().byte.size() || tables().byte[code] < 0 || (lead >= 0x80 && length == 1))
      return std::nullopt;
    out += static_cast<char>(tables().byte[code]);
    at += length;
  }
  return out;
}

}  // namespace sluice::text
