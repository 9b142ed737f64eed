#include "src/jobs/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice::jobs {
namespace {

std::string encode(uint32_t code) {
  std::string text;
  const auto rest = [&](int shift) { text += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | (code >> 6));
    rest(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | (code >> 12));
    rest(6), rest(0);
  } else {
    text += static_cast<char>(0xF0 | (code >> 18));
    rest(12), rest(6), rest(0);
  }
  return text;
}

TEST(Utf8, EveryCodePointIsValidExceptSurrogatesAndBeyond) {
  for (uint32_t code = 0; code < 0x120000; ++code) {
    const bool is_valid = code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF);
    ASSERT_EQ(first_invalid_utf8("x" + encode(code) + "y"), is_valid ? -1 : 1) << code;
    if (!is_valid) continue;
    ASSERT_EQ(count_characters(encode(code)), 1) << code;
  }
}

TEST(Utf8, CutShortOverlongAndStrayBytesAreFound) {
  EXPECT_EQ(first_invalid_utf8(""), -1);
  EXPECT_EQ(first_invalid_utf8("ab\xC3"), 2);
  EXPECT_EQ(first_invalid_utf8("\xE2\x82"), 0);
  EXPECT_EQ(first_invalid_utf8("\xF0\x9F\x9B"), 0);
  EXPECT_EQ(first_invalid_utf8("a\x80"), 1);
  EXPECT_EQ(first_invalid_utf8("\xC0\x80"), 0);          // overlong NUL
  EXPECT_EQ(first_invalid_utf8("\xE0\x9F\xBF"), 0);      // overlong
  EXPECT_EQ(first_invalid_utf8("\xF0\x8F\xBF\xBF"), 0);  // overlong
  EXPECT_EQ(first_invalid_utf8("\xFF"), 0);
  EXPECT_EQ(first_invalid_utf8("\xE2\x28\xA1"), 0);
}

}  // namespace
}  // namespace sluice::jobs
