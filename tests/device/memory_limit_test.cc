#include "src/device/memory_limit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "src/base/bytes.h"

namespace sluice {
namespace {

TEST(MemoryLimit, IsPlausibleOnThisMachine) {
  const MemoryLimit limit = memory_limit();
  EXPECT_GT(limit.total_bytes, 16 * kMiB);
  EXPECT_GE(limit.available_bytes, 0);
  EXPECT_LE(limit.available_bytes, limit.total_bytes);
  const std::vector<std::string> sources{"machine", "cgroup v1", "cgroup v2"};
  EXPECT_NE(std::find(sources.begin(), sources.end(), limit.source), sources.end()) << limit.source;
}

TEST(MemoryLimit, ResidentSetSeesMemoryThatIsTouched) {
  const int64_t before = resident_set_bytes();
  ASSERT_GT(before, 0);
  std::vector<char> block(static_cast<size_t>(64 * kMiB), 1);
  EXPECT_GE(resident_set_bytes(), before + 48 * kMiB);
  EXPECT_EQ(std::count(block.begin(), block.end(), 1), static_cast<std::ptrdiff_t>(block.size()));
}

}  // namespace
}  // namespace sluice
