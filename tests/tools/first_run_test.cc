// The first run on a machine measures it: within the memory that there is, so that it may be
// stopped, and once. And what later runs find mends what it got wrong.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr bool kIsSanitized = !std::string_view(SLUICE_PROGRAM_SANITIZER).empty();

// A memory cgroup of its own for what is started in it.
class MemoryGroup {
 public:
  /// Nothing where that is not allowed.
  static std::unique_ptr<MemoryGroup> make(int64_t limit_bytes) {
    struct Mount {
      const char* folder;
      const char* limit;
    };
    for (const Mount& mount : {Mount{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
                               {"/sys/fs/cgroup", "memory.max"}}) {
      const std::string path =
          std::string(mount.folder) + "/sluice-test-" + std::to_string(getpid());
      if (mkdir(path.c_str(), 0755) != 0) continue;
      auto group = std::unique_ptr<MemoryGroup>(new MemoryGroup(path));
      std::ofstream limit(path + "/" + mount.limit);
      if (limit && limit << limit_bytes << std::flush) return group;
    }
    return nullptr;
  }
  ~MemoryGroup() { rmdir(path_.c_str()); }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  /// sluice with `arguments` in the group.
  Outcome run(const std::string& arguments, Command::Options options) const {
    options.program = "/bin/sh";
    const std::string line =
        "echo $$ > " + path_ + "/cgroup.procs && exec " SLUICE_PROGRAM " " + arguments;
    return Command({"-c", line}, options).wait();
  }

 private:
  explicit MemoryGroup(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

class FirstRun : public ::testing::Test {
 protected:
  FirstRun() {
    mkdir(folder_.path("tmp").c_str(), 0755);
    options_.environment = {"XDG_CACHE_HOME=" + folder_.path("cache"),
                            "TMPDIR=" + folder_.path("tmp")};
  }
  std::vector<std::filesystem::path> profiles() const {
    std::vector<std::filesystem::path> out;
    std::error_code none;
    for (const auto& entry :
         std::filesystem::directory_iterator(folder_.path("cache/sluice"), none))
      out.push_back(entry.path());
    return out;
  }
  TemporaryFolder folder_;
  Command::Options options_;
  // Less than its weights take: what goes where has to be decided.
  const std::string run_ = "run -m " + kModel + " -p Once -n 4 --cpu-mem 900KiB --hardware this";
};

TEST_F(FirstRun, MeasuresWithinTheMemoryThatThereIsAndForEveryLimitOnce) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer's own memory fills the group";
  {
    const auto group = MemoryGroup::make(200 * kMiB);
    if (!group) GTEST_SKIP() << "no right to make a memory cgroup";
    const Outcome first = group->run(run_, options_);
    ASSERT_EQ(first.signal, 0) << "killed: " << first.err;
    ASSERT_EQ(first.exit_code, 0) << first.err;
    EXPECT_NE(first.err.find("measuring"), std::string::npos) << first.err;
    EXPECT_EQ(profiles().size(), 1u);
  }
  const auto group = MemoryGroup::make(500 * kMiB);
  ASSERT_NE(group, nullptr);
  const Outcome second = group->run(run_, options_);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.err.find("measuring"), std::string::npos) << second.err;
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path("tmp")));
}

TEST_F(FirstRun, ReadsThroughThePageCacheWithinTheGroupToo) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer's own memory fills the group";
  const auto group = MemoryGroup::make(160 * kMiB);
  if (!group) GTEST_SKIP() << "no right to make a memory cgroup";
  const std::string model = folder_.path("opt-125m");
  ASSERT_EQ(Command({"synth", "opt-125m", model, "--dtype", "bf16"}, options_).wait().exit_code, 0);
  const Outcome run = group->run("run -m " + model +
                                     " --prompt-ids 1,2,3 -n 2 --ignore-eos --io buffered"
                                     " --cpu-mem 126MiB --hardware none",
                                 options_);
  EXPECT_EQ(run.signal, 0) << "killed: " << run.err;
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST_F(FirstRun, StopsWhenItIsAskedToWhileItMeasures) {
  Command command(
      {"run", "-m", kModel, "-p", "Once", "-n", "4", "--cpu-mem", "900KiB", "--hardware", "this"},
      options_);
  // The folder is made before the measurement begins.
  ASSERT_TRUE(
      command.wait_until([&] { return std::filesystem::exists(folder_.path("cache/sluice")); }));
  command.send(SIGINT);
  const Outcome outcome = command.wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_TRUE(profiles().empty()) << "half a measurement is none";
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path("tmp")));
}

TEST_F(FirstRun, RunsMendAPoisonedProfile) {
  const Outcome measured = Command({"profile", "--quick"}, options_).wait();
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  ASSERT_EQ(profiles().size(), 1u);
  const auto path = profiles().front();
  // As if it had been made beside much else.
  auto poisoned = nlohmann::json::parse(read_file(path));
  for (auto& row : poisoned["host"]["matmul"])
    row["flops"]["value"] = 1e-2 * row["flops"]["value"].get<double>();
  poisoned["host"]["memory_read_bytes_per_second"]["value"] =
      1e-2 * poisoned["host"]["memory_read_bytes_per_second"]["value"].get<double>();
  write_file(path, poisoned.dump());
  const auto best_single = [&] {  // of the kind that the model is multiplied with
    double best = 0;
    const auto profile = nlohmann::json::parse(read_file(path));
    for (const auto& row : profile["host"]["matmul"])
      if (row["weights"] == "f32" && row["m"] == 1)
        best = std::max(best, row["flops"]["value"].get<double>());
    return best;
  };
  const double before = best_single();
  const Outcome run = Command({"run", "-m", kModel, "-p", "Once", "-n", "200", "--cpu-mem",
                               "900KiB", "--hardware", "this"},
                              options_)
                          .wait();
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_GT(best_single(), 1.05 * before) << run.err;
  EXPECT_EQ(profiles().size(), 1u);
  // A profile that was given stays as it is.
  const std::string given = folder_.path("given.json");
  write_file(given, poisoned.dump());
  EXPECT_EQ(Command({"run", "-m", kModel, "-p", "Once", "-n", "200", "--cpu-mem", "900KiB",
                     "--hardware", given},
                    options_)
                .wait()
                .exit_code,
            0);
  EXPECT_EQ(read_file(given), poisoned.dump());
}

}  // namespace
}  // namespace sluice::testing
