#include "src/jobs/content_key.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::jobs {
namespace {

// Test vectors that the hash's authors publish (FNV-1a, 128 bits).
TEST(ContentKey, IsFnv1a) {
  EXPECT_EQ(hash_bytes("").hex(), "6c62272e07bb014262b821756295c58d");
  EXPECT_EQ(hash_bytes("a").hex(), "d228cb696f1a8caf78912b704e4a8964");
  EXPECT_EQ(hash_bytes("foobar").hex(), "343e1662793c64bf6f0d3597ba446f18");
}

TEST(ContentKey, HexGoesThereAndBack) {
  const ContentKey key{0x0123456789abcdefU, 0x00000000000000ffU};
  EXPECT_EQ(key.hex(), "0123456789abcdef00000000000000ff");
  EXPECT_EQ(ContentKey::from_hex(key.hex()), key);
  for (const char* bad :
       {"", "0123", "0123456789abcdef00000000000000f", "0123456789ABCDEF00000000000000ff",
        "0123456789abcdef00000000000000fg", "0123456789abcdef00000000000000ff0"}) {
    EXPECT_FALSE(ContentKey::from_hex(bad)) << bad;
  }
}

TEST(ContentKey, WherePartsEndMatters) {
  const auto of = [](const std::vector<std::string>& parts) { return hash_parts(parts).hex(); };
  EXPECT_NE(of({"ab", "c"}), of({"a", "bc"}));
  EXPECT_NE(of({"a"}), of({"a", ""}));
  EXPECT_EQ(of({"a", "b"}), of({"a", "b"}));
}

}  // namespace
}  // namespace sluice::jobs
