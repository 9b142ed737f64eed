#include "src/base/patience.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using std::chrono::milliseconds;
using Nanoseconds = Patience::Nanoseconds;

TEST(Patience, ForgivesWhoIsLateNowAndThen) {
  Patience patience(2);
  Nanoseconds worked{};
  for (int i = 0; i < 1000; ++i) {
    worked += milliseconds(100);
    EXPECT_EQ(patience.charge(milliseconds(4), worked), Nanoseconds{0}) << i;
  }
}

TEST(Patience, LosesLittleByWhoIsAlwaysLate) {
  // A helper whose core is another's every other slice: 4 ms it helps, then it is waited for.
  for (const int threads : {2, 3, 16}) {
    Patience patience(threads);
    Nanoseconds worked{}, waited{}, benched{};
    while (worked + waited + benched < std::chrono::seconds(10)) {
      worked += milliseconds(4);
      waited += milliseconds(4);
      const Nanoseconds pause = patience.charge(milliseconds(4), worked);
      benched += pause;
      EXPECT_LE(pause, Patience::kLongest);
      if (pause > Nanoseconds{0}) patience.resume(worked);
    }
    EXPECT_LT(waited, (worked + benched) / 50) << threads << " threads";
  }
}

TEST(Patience, WaitsForNoMoreThanHelpBrings) {
  // However late and however seldom: a quarter of what was worked, what is owned at first, and one
  // wait before each pause.
  for (const int64_t late_ms : {1, 3, 10, 50, 400})
    for (const int64_t between_ms : {1, 5, 20, 100, 1000, 5000}) {
      Patience patience(2);
      Nanoseconds worked{}, waited{};
      int64_t pauses = 0;
      for (int i = 0; i < 300; ++i) {
        worked += milliseconds(between_ms);
        waited += milliseconds(late_ms);
        const Nanoseconds pause = patience.charge(milliseconds(late_ms), worked);
        if (pause == Nanoseconds{0}) continue;
        ++pauses;
        patience.resume(worked);
      }
      EXPECT_LE(waited, Patience::kUsual + worked / 4 + pauses * milliseconds(late_ms))
          << late_ms << " ms late every " << between_ms;
    }
}

TEST(Patience, BenchesTwiceAsLongEachTimeUntilItServes) {
  Patience patience(2, Nanoseconds{0});
  Nanoseconds worked{};
  const auto late = [&] { return patience.charge(milliseconds(1), worked); };
  EXPECT_EQ(late(), Patience::kShortest);
  EXPECT_EQ(late(), 2 * Patience::kShortest);
  EXPECT_EQ(late(), 4 * Patience::kShortest);
  for (int i = 0; i < 10; ++i) late();
  EXPECT_EQ(late(), Patience::kLongest);
  worked += std::chrono::seconds(2);  // its core is its own again
  EXPECT_EQ(late(), Patience::kShortest);
}

TEST(Patience, EarnsNothingOnTheBench) {
  Patience patience(2);
  EXPECT_GT(patience.charge(milliseconds(9), Nanoseconds{0}), Nanoseconds{0});
  patience.resume(std::chrono::seconds(100));
  EXPECT_GT(patience.charge(milliseconds(1), std::chrono::seconds(100)), Nanoseconds{0});
}

TEST(Patience, AsksMoreOfOneAmongMany) {
  // The last of 16 threads brings a fifteenth of what the last of two does.
  Patience of_two(2, milliseconds(8)), of_many(16, milliseconds(8));
  of_two.charge(milliseconds(8), Nanoseconds{0});
  of_many.charge(milliseconds(8), Nanoseconds{0});
  EXPECT_EQ(of_two.charge(milliseconds(4), milliseconds(20)), Nanoseconds{0});
  EXPECT_GT(of_many.charge(milliseconds(4), milliseconds(20)), Nanoseconds{0});
  EXPECT_EQ(Patience(1).charge(Nanoseconds{0}, Nanoseconds{0}), Nanoseconds{0});
}

}  // namespace
}  // namespace sluice
