#include "src/text/utf8.h"

#include <gtest/gtest.h>

namespace sluice::text {
namespace {

TEST(Utf8, EveryCodePointIsValidAndItsBeginningsAreCut) {
  for (uint32_t code = 1; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string text;
    append_utf8(text, code);
    ASSERT_FALSE(first_invalid_utf8(text)) << code;
    ASSERT_EQ(character_bytes(text), text.size());
    for (size_t cut = 1; cut < text.size(); ++cut)
      ASSERT_EQ(complete_prefix("a" + text.substr(0, cut)), 1u);
  }
}

TEST(Utf8, IllFormedBytesAreFoundAndMended) {
  EXPECT_EQ(first_invalid_utf8("ab\xc0\x80"), 2u);        // overlong
  EXPECT_EQ(first_invalid_utf8("\xed\xa0\x80"), 0u);      // surrogate
  EXPECT_EQ(first_invalid_utf8("\xf4\x90\x80\x80"), 0u);  // beyond U+10FFFF
  EXPECT_EQ(mend_utf8("a\xe2\x82z"), "a\xef\xbf\xbdz");   // a cut character counts once
  EXPECT_EQ(complete_prefix("a\xff"), 2u);                // ill-formed is not unfinished
}

}  // namespace
}  // namespace sluice::text
