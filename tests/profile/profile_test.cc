#include "policy/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/profile/measure.h"
#include "src/profile/profile_cache.h"

namespace sluice {
namespace {

class ProfileFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = (std::filesystem::temp_directory_path() / "sluice_profile_XXXXXX").string();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    folder_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

using Measure = ProfileFolder;
using ProfileCache = ProfileFolder;

policy::Profile shipped_cpu() {
  policy::Profile profile = *policy::shipped_profile("t4");
  profile.device.reset();
  profile.device_bytes = 0;
  return profile;
}

TEST_F(Measure, FiguresArePositiveAndNothingStaysBehind) {
  MeasureOptions options;
  options.offload_dir = folder_.string();
  options.threads = 1;
  options.quick = true;
  options.disk_bytes = 64 * kMiB;
  options.memory_bytes = 32 * kMiB;
  options.most_rows = 16;
  std::string told;
  options.progress = [&](std::string_view what) { told += std::string(what) + ";"; };
  policy::Profile profile;
  try {
    profile = measure_profile(options);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kDevice || error.kind() == ErrorKind::kFile)
      GTEST_SKIP() << error.text();  // io_uring or direct I/O refused here
    throw;
  }
  EXPECT_NO_THROW(policy::validate(profile));
  EXPECT_NE(told.find("disk"), std::string::npos);
  EXPECT_EQ(profile.disks.front().read.source, policy::FigureSource::kMeasured);
  EXPECT_LE(profile.disks.front().mixed_read.value, profile.disks.front().read.value);
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "scratch files vanish";
  // A first run of a quantised store is planned with these.
  for (const bool is_eight_bit : {false, true})
    for (const char* name : {"int4-g64", "int8"})
      EXPECT_EQ(std::count_if(profile.host.matmul.begin(), profile.host.matmul.end(),
                              [&](const policy::MatmulRate& rate) {
                                return rate.weights == *parse_weight_format(name) &&
                                       rate.eight_bit_activations == is_eight_bit && rate.m == 16;
                              }),
                1)
          << name;
  options.only_disk_of = &profile;
  const policy::Profile again = measure_profile(options);
  EXPECT_EQ(again.host.matmul.front().flops.value, profile.host.matmul.front().flops.value);
}

TEST_F(Measure, AFolderThatIsNotThereIsAnError) {
  MeasureOptions options;
  options.offload_dir = (folder_ / "missing").string();
  EXPECT_THROW(measure_profile(options), Error);
}

TEST_F(ProfileCache, StoresWholeAndReadsBack) {
  const auto path = folder_ / "deep" / "profile.json";
  EXPECT_FALSE(load_cached_profile(path, {}));
  store_profile(shipped_cpu(), path);
  const auto loaded = load_cached_profile(path, {});
  ASSERT_TRUE(loaded);
  EXPECT_EQ(policy::profile_to_json(*loaded), policy::profile_to_json(shipped_cpu()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path.parent_path()), {}), 1)
      << "no partial file stays";
}

TEST_F(ProfileCache, ABrokenFileIsToldAndIgnored) {
  const auto path = folder_ / "profile.json";
  for (const char* text : {"", "{", "{\"host\": 3}", "[]"}) {
    std::ofstream(path) << text;
    std::string told;
    EXPECT_FALSE(load_cached_profile(path, [&](std::string_view line) { told = line; })) << text;
    EXPECT_NE(told.find("profile.json"), std::string::npos) << told;
  }
}

TEST_F(ProfileCache, AFolderThatCannotBeWrittenIsAnError) {
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THROW(store_profile(shipped_cpu(), folder_ / "file" / "profile.json"), Error);
}

TEST_F(ProfileCache, TheKeyFollowsTheFolderAndTheThreads) {
  setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  const auto one = profile_cache_path(folder_.string(), 1);
  EXPECT_EQ(one.parent_path(), folder_ / "sluice");
  EXPECT_EQ(profile_cache_path(folder_.string(), 1), one);
  EXPECT_NE(profile_cache_path(folder_.string(), 2), one);
  EXPECT_NE(profile_cache_path("/proc", 1), one) << "another device";
  unsetenv("XDG_CACHE_HOME");
}

TEST(Recalibrated, TakesMeasuredRatesButNoWildOnes) {
  const policy::Profile before = *policy::shipped_profile("t4");
  const policy::Profile after =
      recalibrated(before, {{Lane::kDiskRead, 1.5e9}, {Lane::kHostToDevice, 100e9}},
                   {{Lane::kDeviceCompute, 2.0}});
  EXPECT_DOUBLE_EQ(after.disks.front().read.value, 1.5e9);
  EXPECT_EQ(after.disks.front().read.source, policy::FigureSource::kMeasured);
  EXPECT_DOUBLE_EQ(after.disks.front().busy_read.value / after.disks.front().read.value,
                   before.disks.front().busy_read.value / before.disks.front().read.value);
  EXPECT_DOUBLE_EQ(after.link.to_device.value, 4 * before.link.to_device.value) << "cut to four";
  EXPECT_DOUBLE_EQ(after.device->matmul.front().flops.value,
                   before.device->matmul.front().flops.value / 2);
  EXPECT_DOUBLE_EQ(after.host.matmul.front().flops.value, before.host.matmul.front().flops.value);
  EXPECT_NO_THROW(policy::validate(after));
}

TEST(EmulatedProfile, IsTheSameProcessorBehindALink) {
  const policy::Profile cpu = shipped_cpu();
  const policy::Profile emulated = emulated_profile(cpu, kGiB, 2e9, 1e9, 1e-5, 1e11);
  EXPECT_NO_THROW(policy::validate(emulated));
  EXPECT_TRUE(emulated.shares_cores);
  EXPECT_EQ(emulated.device_bytes, kGiB);
  EXPECT_DOUBLE_EQ(emulated.link.to_device.value, 2e9);
  EXPECT_DOUBLE_EQ(emulated.link.to_host.value, 1e9);
  for (const policy::MatmulRate& rate : emulated.device->matmul) EXPECT_LE(rate.flops.value, 1e11);
  EXPECT_NO_THROW(policy::validate(emulated_profile(cpu, kGiB, 0, 0, 0, 0))) << "no limits";
}

}  // namespace
}  // namespace sluice
