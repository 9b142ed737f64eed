#include "io/files/checksum.h"

#include <array>
#include <cstring>

namespace sluice::io {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[0] advances a byte; tables[k] advances a byte followed by k zero bytes, so eight look-ups
// advance eight bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xffu];
    }
  return tables;
}

constexpr Tables kTables = make_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const std::byte* data, size_t size,
                                                        uint32_t crc) noexcept {
  uint64_t state = ~crc;
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, 8);
    state = __builtin_ia32_crc32di(state, word);
  }
  auto narrow = static_cast<uint32_t>(state);
  for (; size > 0; ++data, --size)
    narrow = __builtin_ia32_crc32qi(narrow, static_cast<unsigned char>(*data));
  return ~narrow;
}
#endif

}  // namespace

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t crc) noexcept {
  uint32_t state = ~crc;
  const std::byte* data = bytes.data();
  size_t size = bytes.size();
  for (; size >= 8; data += 8, size -= 8) {
    std::array<uint8_t, 8> b{};
    std::memcpy(b.data(), data, 8);
    state = kTables[7][b[0] ^ (state & 0xffu)] ^ kTables[6][b[1] ^ ((state >> 8) & 0xffu)] ^
            kTables[5][b[2] ^ ((state >> 16) & 0xffu)] ^ kTables[4][b[3] ^ (state >> 24)] ^
            kTables[3][b[4]] ^ kTables[2][b[5]] ^ kTables[1][b[6]] ^ kTables[0][b[7]];
  }
  for (; size > 0; ++data, --size)
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<uint32_t>(*data)) & 0xffu];
  return ~state;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) noexcept {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc32c_sse42(bytes.data(), bytes.size(), crc);
#endif
  return crc32c_portable(bytes, crc);
}

}  // namespace sluice::io
