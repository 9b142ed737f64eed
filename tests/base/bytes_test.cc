#include "src/base/bytes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "src/base/error.h"

namespace sluice {
namespace {

TEST(ParseBytes, ReadsWhatPeopleWrite) {
  const std::pair<const char*, int64_t> cases[] = {{"0", 0},
                                                   {"4096", 4096},
                                                   {"17B", 17},
                                                   {"1K", 1024},
                                                   {"1k", 1024},
                                                   {"1KiB", 1024},
                                                   {"1Ki", 1024},
                                                   {"1KB", 1000},
                                                   {"16G", 16 * kGiB},
                                                   {"16GiB", 16 * kGiB},
                                                   {"16 GiB", 16 * kGiB},
                                                   {"512MB", 512000000},
                                                   {"1.5TiB", 1536 * kGiB},
                                                   {"2TB", 2000000000000},
                                                   {"1e3", 1000},
                                                   {"0.5K", 512},
                                                   {"1P", 1024 * 1024 * kGiB},
                                                   {"900KiB", 900 * 1024}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(parse_bytes(text, "--cpu-mem"), bytes) << text;
}

TEST(ParseBytes, RefusesEverythingElseNamingFlagAndText) {
  const std::string with_nul("16\0GiB", 6);
  for (const std::string& text :
       {std::string(""), std::string("G"), std::string("-1G"), std::string("nan"),
        std::string("inf"), std::string("infG"), std::string("1GiBB"), std::string("1Gi B"),
        std::string("12 apples"), std::string("1e400"), std::string("9999P"), std::string("1GG"),
        std::string("1,5G"), std::string("1G "), std::string("--"), with_nul}) {
    try {
      const int64_t bytes = parse_bytes(text, "--cpu-mem");
      ADD_FAILURE() << '"' << text << "\" was read as " << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser);
      EXPECT_NE(error.text().find("--cpu-mem"), std::string::npos) << error.text();
      EXPECT_FALSE(error.mend().empty());
    }
  }
}

TEST(ParseBytes, NeverGivesANegativeSizeWhateverIsTyped) {
  std::mt19937 random(11);
  constexpr std::string_view kLetters = "0123456789.eE+-kKMGTPiB xinfa";
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t length = random() % 8; length > 0; --length)
      text += kLetters[random() % kLetters.size()];
    try {
      ASSERT_GE(parse_bytes(text, "flag"), 0) << text;
      ++accepted;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kUser) << text;
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(FormatBytes, ShowsThreeDigitsAndTheUnit) {
  EXPECT_EQ(format_bytes(0), "0B");
  EXPECT_EQ(format_bytes(1023), "1023B");
  EXPECT_EQ(format_bytes(1024), "1.00KiB");
  EXPECT_EQ(format_bytes(408 * kMiB), "408MiB");
  EXPECT_EQ(format_bytes(20 * kGiB), "20.0GiB");
  EXPECT_EQ(format_bytes(3 * 1024 * kGiB), "3.00TiB");
  EXPECT_EQ(format_bytes(-5 * kKiB), "-5.00KiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::max()), "8192PiB");
}

TEST(FormatBytes, ReadsBackToWithinItsThreeDigits) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 5000; ++round) {
    const auto bytes = static_cast<int64_t>(random() >> (2 + random() % 60));
    const int64_t back = parse_bytes(format_bytes(bytes), "flag");
    ASSERT_LE(std::abs(static_cast<double>(back - bytes)), 0.0051 * static_cast<double>(bytes))
        << format_bytes(bytes);
  }
}

TEST(FormatRate, UsesPowersOfThousand) {
  EXPECT_EQ(format_rate(2.41e9), "2.41GB/s");
  EXPECT_EQ(format_rate(310e6), "310MB/s");
  EXPECT_EQ(format_rate(1500), "2kB/s");
}

TEST(FormatSeconds, ChoosesTheUnitAPersonWould) {
  EXPECT_EQ(format_seconds(0.0008), "0.8ms");
  EXPECT_EQ(format_seconds(3.21), "3.21s");
  EXPECT_EQ(format_seconds(252), "4m12s");
  EXPECT_EQ(format_seconds(59.999), "60.00s");
  EXPECT_EQ(format_seconds(3599.7), "1h00m");
  EXPECT_EQ(format_seconds(7500), "2h05m");
}

TEST(RoundUp, GoesToTheNextMultiple) {
  EXPECT_EQ(round_up(0, 4096), 0);
  EXPECT_EQ(round_up(1, 4096), 4096);
  EXPECT_EQ(round_up(4096, 4096), 4096);
  EXPECT_EQ(round_down(8191, 4096), 4096);
}

}  // namespace
}  // namespace sluice
