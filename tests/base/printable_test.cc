#include "src/base/printable.h"

#include <gtest/gtest.h>

#include "src/base/error.h"

namespace sluice {
namespace {

TEST(Printable, LeavesTextAsItIs) {
  for (const std::string text :
       {"", "a\n\tb", "caf\u00e9 \u4f60 \U0001f600", "\u00a0", "\U0010ffff", "50 % of \\x1b"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, ControlCharactersAreSpelledOut) {
  EXPECT_EQ(printable("\x1b[2Ja\rb\x7f"), "\\x1b[2Ja\\x0db\\x7f");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\u009b31m"), "\\xc2\\x9b31m");  // the same as ESC [ to some terminals
  EXPECT_EQ(printable("\u202egpj.exe"), "\\xe2\\x80\\xaegpj.exe");  // shown as exe.jpg
}

TEST(Printable, BytesThatAreNotUtf8AreSpelledOut) {
  EXPECT_EQ(printable("caf\xe9"), "caf\\xe9");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // half of a pair
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // past the last character
  EXPECT_EQ(printable("\xe4\xbd"), "\\xe4\\xbd");                    // cut short
}

TEST(Printable, WhatIsVeryLongIsCut) {
  const std::string out = printable(std::string(100000, 'x'));
  EXPECT_LT(out.size(), 9000u);
  EXPECT_NE(out.find("more bytes"), std::string::npos);
}

TEST(Printable, ErrorsAre) {
  const Error error(ErrorKind::kFile, "tensor \x1b[31m", "see \xff");
  EXPECT_EQ(error.text(), "tensor \\x1b[31m");
  EXPECT_STREQ(error.what(), "tensor \\x1b[31m; see \\xff");
}

}  // namespace
}  // namespace sluice
