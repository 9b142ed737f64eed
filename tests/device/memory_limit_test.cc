#include "src/device/memory_limit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "src/base/bytes.h"
#include "tests/temporary_folder.h"

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

TEST(MemoryLimit, NamesWhatMovesAMachinesMemory) {
  namespace fs = std::filesystem;
  const TemporaryFolder sysfs;
  EXPECT_EQ(memory_driver(sysfs.path()), "");
  const fs::path drivers = fs::path(sysfs.path()) / "bus/virtio/drivers";
  for (const char* name : {"virtio_balloon", "virtio_mem", "virtio_net"})
    fs::create_directories(drivers / name);
  std::ofstream(drivers / "virtio_balloon/bind") << "";
  fs::create_symlink("../../../module/virtio_balloon", drivers / "virtio_balloon/module");
  fs::create_symlink("../../devices/virtio1", drivers / "virtio_net/virtio1");
  EXPECT_EQ(memory_driver(sysfs.path()), "") << "a driver without a device";
  fs::create_symlink("../../devices/virtio3", drivers / "virtio_mem/virtio3");
  EXPECT_EQ(memory_driver(sysfs.path()), "virtio_mem");
  fs::create_symlink("../../devices/virtio0", drivers / "virtio_balloon/virtio0");
  EXPECT_EQ(memory_driver(sysfs.path()), "virtio_balloon");
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
