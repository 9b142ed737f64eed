#include "io/files/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace sluice::io {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Checksum, MatchesPublishedValues) {
  // RFC 3720, appendix B.4, and the check value of the CRC catalogues.
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Checksum, PortableVersionIsTheSameAtEveryLengthAndAddress) {
  std::mt19937 random(7);
  std::vector<std::byte> data(4099);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  for (size_t begin = 0; begin < 9; ++begin)
    for (const size_t size :
         {0u, 1u, 2u, 3u, 7u, 8u, 9u, 15u, 16u, 17u, 63u, 64u, 65u, 1000u, 4090u}) {
      const auto part = std::span(data).subspan(begin, size);
      EXPECT_EQ(crc32c(part, 0x1234u), crc32c_portable(part, 0x1234u)) << begin << " " << size;
    }
}

TEST(Checksum, ContinuesWhereItStopped) {
  const std::string_view text = "The quick brown fox jumps over the lazy dog";
  for (size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(crc32c(bytes_of(text.substr(cut)), crc32c(bytes_of(text.substr(0, cut)))),
              crc32c(bytes_of(text)));
}

}  // namespace
}  // namespace sluice::io
