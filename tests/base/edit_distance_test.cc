#include "src/base/edit_distance.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(EditDistance, CountsWhatIsAddedTakenAwayAndChanged) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("qwen2", "qwen3"), 1u);
  EXPECT_EQ(edit_distance("ab", "ba"), 2u);
}

}  // namespace
}  // namespace sluice
