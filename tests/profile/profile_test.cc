#include "policy/profile.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/side_by_side.h"
#include "src/device/memory_limit.h"
#include "src/profile/measure.h"
#include "src/profile/other_load.h"
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
  const policy::Profile profile = measure_profile(options);
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

TEST_F(Measure, TakesNoMoreMemoryThanItMay) {
  // What has been touched stays counted: each size in a process of its own.
  const auto peak_of = [&](int64_t memory_bytes) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        MeasureOptions options;
        options.offload_dir = folder_.string();
        options.threads = 1;
        options.quick = true;
        options.memory_bytes = memory_bytes;
        options.disk_bytes = 16 * kMiB;
        options.most_rows = 1;
        measure_profile(options);
        _exit(0);
      } catch (...) {
        _exit(1);
      }
    }
    int status = 0;
    rusage usage{};
    wait4(child, &status, 0, &usage);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return int64_t{usage.ru_maxrss} * 1024;
  };
  const int64_t little = peak_of(8 * kMiB);
  const int64_t more = peak_of(72 * kMiB);
  EXPECT_GT(more - little, 24 * kMiB) << "what it may use it uses";
  EXPECT_LT(more - little, 128 * kMiB);
}

TEST_F(Measure, StopsWhenAsked) {
  MeasureOptions options;
  options.offload_dir = folder_.string();
  options.threads = 1;
  options.quick = true;
  options.memory_bytes = 16 * kMiB;
  options.disk_bytes = 16 * kMiB;
  // At each part in turn.
  for (const char* part : {"the disk", "memory", "products and attention"}) {
    std::stop_source stop;
    options.cancel = stop.get_token();
    options.progress = [&](std::string_view what) {
      if (what == part) stop.request_stop();
    };
    try {
      measure_profile(options);
      ADD_FAILURE() << part << ": it went on";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCancelled) << error.text();
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
  }
}

TEST_F(Measure, KilledItLeavesNothingBehind) {
  const pid_t child = fork();
  if (child == 0) {
    MeasureOptions options;
    options.offload_dir = folder_.string();
    options.threads = 1;
    options.quick = true;
    options.memory_bytes = 16 * kMiB;
    options.disk_bytes = 32 * kMiB;
    options.progress = [](std::string_view what) {
      if (what == "memory") raise(SIGKILL);  // the disk's file is there
    };
    measure_profile(options);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
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

TEST_F(ProfileCache, IsChangedByOneAtATime) {
  const auto path = folder_ / "profile.json";
  change_cached_profile(path, [](const policy::Profile& kept) { return kept; }, {});
  EXPECT_FALSE(std::filesystem::exists(path)) << "there was none to change";
  policy::Profile first = shipped_cpu();
  first.host.memory_read.value = 1e9;
  store_profile(first, path);
  constexpr int kThreads = 4, kTimes = 8;
  {
    std::vector<std::jthread> changing;
    for (int i = 0; i < kThreads; ++i)
      changing.emplace_back([&] {
        for (int k = 0; k < kTimes; ++k)
          change_cached_profile(path,
                                [](policy::Profile kept) {
                                  kept.host.memory_read.value += 1e6;
                                  return kept;
                                },
                                {});
      });
  }
  const auto last = load_cached_profile(path, {});
  ASSERT_TRUE(last);
  EXPECT_DOUBLE_EQ(last->host.memory_read.value, 1e9 + kThreads * kTimes * 1e6)
      << "no change was lost";
}

TEST_F(ProfileCache, AKeptProfileHasTheMemoryOfThisProcess) {
  setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  policy::Profile other_limit = shipped_cpu();
  other_limit.host_bytes = 12345;
  store_profile(other_limit, profile_cache_path(folder_.string(), 1));
  MeasureOptions options;
  options.offload_dir = folder_.string();
  options.threads = 1;
  EXPECT_EQ(load_or_measure(options, {}).host_bytes, memory_limit().total_bytes);
  unsetenv("XDG_CACHE_HOME");
}

TEST_F(ProfileCache, TheKeyFollowsTheFolderAndTheThreads) {
  setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  const auto one = profile_cache_path(folder_.string(), 1);
  EXPECT_EQ(one.parent_path(), folder_ / "sluice");
  EXPECT_EQ(profile_cache_path(folder_.string(), 1), one);
  EXPECT_NE(profile_cache_path(folder_.string(), 2), one);
  EXPECT_NE(profile_cache_path("/proc", 1), one) << "another device";
  EXPECT_EQ(profile_cache_path(folder_.string(), 0),
            profile_cache_path(folder_.string(), usable_processors()))
      << "all threads are so many";
  unsetenv("XDG_CACHE_HOME");
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
  policy::Profile measured = cpu;
  measured.copy_rate.value = 3e9;
  EXPECT_DOUBLE_EQ(emulated_profile(measured, kGiB, 12e9, 1e9, 0, 0).link.to_device.value, 3e9)
      << "a core copies no faster";
  EXPECT_DOUBLE_EQ(emulated_profile(measured, kGiB, 12e9, 1e9, 0, 0).link.to_host.value, 1e9);
  EXPECT_DOUBLE_EQ(emulated_profile(measured, kGiB, 0, 0, 0, 0).link.to_host.value, 3e9);
  const policy::Profile slow_host = emulated_profile(cpu, kGiB, 0, 0, 0, 0, 1e9);
  for (const policy::MatmulRate& rate : slow_host.host.matmul) EXPECT_LE(rate.flops.value, 1e9);
  EXPECT_EQ(slow_host.device->matmul.front().flops.value, cpu.host.matmul.front().flops.value);
}

}  // namespace
}  // namespace sluice
