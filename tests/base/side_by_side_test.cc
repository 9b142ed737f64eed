#include "src/base/side_by_side.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice {
namespace {

TEST(SideBySide, EveryPieceIsDoneOnce) {
  for (const size_t count : {0, 1, 2, 3, 17, 1000}) {
    std::vector<std::atomic<int>> calls(count);
    run_side_by_side(count, [&](size_t i) { ++calls[i]; });
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(calls[i], 1) << i << " of " << count;
  }
}

TEST(SideBySide, PiecesMayHavePieces) {
  std::atomic<int> sum = 0;
  run_side_by_side(5, [&](size_t i) {
    run_side_by_side(7, [&](size_t j) { sum += static_cast<int>(10 * i + j); });
  });
  EXPECT_EQ(sum, 10 * 7 * (0 + 1 + 2 + 3 + 4) + 5 * (0 + 1 + 2 + 3 + 4 + 5 + 6));
}

TEST(SideBySide, ThrowsWhatTheFirstOfThemThrew) {
  std::atomic<int> begun = 0;
  try {
    run_side_by_side(1000, [&](size_t i) {
      ++begun;
      if (i % 10 == 3) throw std::runtime_error(std::to_string(i));
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "3");  // it had begun before any other that throws
  }
  EXPECT_LT(begun, 1000) << "nothing begins behind an error";
}

TEST(SideBySide, ThereIsACore) { EXPECT_GE(usable_processors(), 1); }

}  // namespace
}  // namespace sluice
