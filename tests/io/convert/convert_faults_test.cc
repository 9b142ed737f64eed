// Conversions that are killed, stopped, or run out of disk, and what the next run makes of what
// they left.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "io/checkpoint/convert_journal.h"
#include "io/files/durable_file.h"
#include "src/base/bytes.h"
#include "tests/io/checkpoint/store_source.h"

namespace sluice::io {
namespace {

namespace fs = std::filesystem;

constexpr int kFaultyLayers = 3;

// Runs `work` in a child process and returns its wait status; the child ends with work's result as
// its exit code.
template <typename Work>
int in_child(Work&& work) {
  const pid_t child = fork();
  if (child == 0) {
    int code = 99;
    try {
      code = work();
    } catch (...) {
    }
    _exit(code);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

class ConvertFaults : public testing::Test {
 protected:
  void SetUp() override {
    write_source(folder_ / "source", kFaultyLayers, 5000);
    convert_checkpoint(source(), groups_, {.destination = folder_ / "whole"});
  }
  Checkpoint source() const { return Checkpoint::open(folder_ / "source"); }
  fs::path store() const { return folder_ / "store"; }
  fs::path journal() const { return store() / std::string(kJournalName); }
  ConvertReport run(ConvertOptions options = {}) const {
    options.destination = store();
    return convert_checkpoint(source(), groups_, options);
  }
  // A conversion stopped when it begins to write `group`.
  void stop_at(const std::string& group) const {
    std::atomic<bool> stop = false;
    const auto progress = [&](const ConvertProgress& now) { stop = now.group == group; };
    expect_refusal([&] { run({.progress = progress, .stop = &stop}); }, ErrorKind::kCancelled,
                   {"again to continue"});
  }

  TemporaryFolder folder_;
  const std::vector<StoreGroup> groups_ = make_groups(kFaultyLayers, DType::kBF16);
};

TEST_F(ConvertFaults, KilledAnywhereItContinuesToTheSameBytes) {
  int calls = 0;
  run({.progress = [&](const ConvertProgress&) { ++calls; }});
  ASSERT_GT(calls, 10);
  int64_t resumed = 0;
  for (int kill_at = 1; kill_at <= calls; ++kill_at) {
    fs::remove_all(store());
    const int status = in_child([&] {
      int call = 0;
      run({.progress = [&](const ConvertProgress&) {
        if (++call == kill_at) raise(SIGKILL);
      }});
      return 0;
    });
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << kill_at;
    EXPECT_FALSE(is_packed_store(store()));
    const ConvertReport report = run();
    resumed += report.resumed_groups;
    EXPECT_EQ(report.groups, kFaultyLayers + 2);
    expect_same_folders(folder_ / "whole", store());
  }
  EXPECT_GT(resumed, 0);
}

TEST_F(ConvertFaults, KilledAgainAndAgainItStillEnds) {
  int runs = 0;
  int status = 0;
  do {
    status = in_child([&] {
      std::string first;
      run({.progress = [&](const ConvertProgress& now) {
        if (first.empty()) first = now.group;
        if (now.group != first) raise(SIGKILL);  // one group a run
      }});
      return 0;
    });
    ++runs;
  } while (WIFSIGNALED(status) && runs < 100);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(runs, kFaultyLayers + 2);
  expect_same_folders(folder_ / "whole", store());
}

TEST_F(ConvertFaults, AStopKeepsFinishedGroups) {
  stop_at("layer-1");
  const ConvertReport report = run();
  EXPECT_EQ(report.resumed_groups, 2);
  EXPECT_LT(report.written_bytes, report.total_bytes);
  expect_same_folders(folder_ / "whole", store());
}

TEST_F(ConvertFaults, ATornJournalCostsOneGroup) {
  stop_at("layer-1");
  const std::string whole = read_all(journal());
  const size_t first_line = whole.find('\n') + 1;
  for (size_t size = 0; size < whole.size(); size += 23) {
    write_all(journal(), std::string_view(whole).substr(0, size));
    const ConvertReport report = run({.overwrite = false});
    EXPECT_EQ(report.resumed_groups, size < first_line                                ? 0
                                     : size < whole.rfind('\n', whole.size() - 2) + 1 ? 0
                                                                                      : 1)
        << size;
    expect_same_folders(folder_ / "whole", store());
    fs::remove_all(store());
    stop_at("layer-1");
  }
}

TEST_F(ConvertFaults, AFinishedGroupOfTheWrongSizeIsWrittenAgain) {
  stop_at("layer-1");
  fs::resize_file(store() / "layer-0.safetensors", 100);
  EXPECT_EQ(run().resumed_groups, 1);
  expect_same_folders(folder_ / "whole", store());
}

TEST_F(ConvertFaults, VerifyingWhatIsFinishedFindsChangedBytes) {
  stop_at("layer-1");
  std::string bytes = read_all(store() / "layer-0.safetensors");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_all(store() / "layer-0.safetensors", bytes);
  EXPECT_EQ(run({.verify_finished = true}).resumed_groups, 1);
  expect_same_folders(folder_ / "whole", store());
}

TEST_F(ConvertFaults, ASourceThatChangedIsNotContinued) {
  stop_at("layer-1");
  const fs::path changed = source().files()[0].path;
  fs::last_write_time(changed, fs::last_write_time(changed) + std::chrono::hours(1));
  expect_refusal([&] { run(); }, ErrorKind::kUser, {"unfinished conversion", "`overwrite`"});
  EXPECT_EQ(run({.overwrite = true}).resumed_groups, 0);
  expect_same_folders(folder_ / "whole", store());
}

TEST_F(ConvertFaults, OtherSettingsAreNotContinued) {
  stop_at("layer-1");
  expect_refusal(
      [&] { convert_checkpoint(source(), make_groups(kFaultyLayers), {.destination = store()}); },
      ErrorKind::kUser, {"unfinished conversion"});
  EXPECT_EQ(run().resumed_groups, 2);
}

TEST_F(ConvertFaults, AFinishedStoreWithItsJournalLeftIsOnlyTidied) {
  stop_at("head");
  const std::string left = read_all(journal());
  run();
  // Killed between writing the index and removing the journal: the journal lacks nothing but the
  // last group.
  write_all(journal(), left);
  EXPECT_EQ(run().resumed_groups, kFaultyLayers + 1);
  expect_same_folders(folder_ / "whole", store());
}

TEST_F(ConvertFaults, AFileSizeLimitIsADiskThatIsFull) {
  write_source(folder_ / "big", 1, 600000);
  const Checkpoint big = Checkpoint::open(folder_ / "big");
  const auto groups = make_groups(1);
  const int status = in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{500000, 500000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 98;
    try {
      convert_checkpoint(big, groups, {.destination = store()});
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kResource &&
                     std::string(error.what()).find("layer-0") != std::string::npos
                 ? 0
                 : 1;
    }
    return 2;
  });
  EXPECT_EQ(status, 0);
  const ConvertReport report = convert_checkpoint(big, groups, {.destination = store()});
  EXPECT_EQ(report.resumed_groups, 1);
  expect_store_holds(store(), big, groups);
}

TEST_F(ConvertFaults, ADiskThatCannotHoldItIsRefusedBeforeTheFirstByte) {
  // A source with a hole: large to read, nothing on the disk.
  const int64_t bytes = round_up(2 * free_disk_bytes(folder_.path()) + (int64_t{1} << 30), 4096);
  const std::string size = std::to_string(bytes);
  const fs::path path = folder_ / "hole" / "model.safetensors";
  const std::string header =
      R"({"t":{"dtype":"U8","shape":[)" + size + R"(],"data_offsets":[0,)" + size + "]}}";
  write_all(path, safetensors_bytes(header, 0));
  if (truncate(path.c_str(), static_cast<off_t>(8 + header.size()) + bytes) != 0)
    GTEST_SKIP() << "this file system has no sparse files of " << size << " bytes";
  const Checkpoint hole = Checkpoint::open(folder_ / "hole");
  expect_refusal(
      [&] {
        convert_checkpoint(hole, std::vector<StoreGroup>{{"g", {{"t", "t", {}}}}},
                           {.destination = store()});
      },
      ErrorKind::kResource, {"needed", "free", "short"});
  EXPECT_TRUE(fs::is_empty(store()));
}

// Mounts a small memory file system on `folder` in a mount namespace of its own; false where that
// is not allowed.
bool mount_small_disk(const fs::path& folder, const char* options) {
  fs::create_directories(folder);
  return unshare(CLONE_NEWNS) == 0 &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("sluice_test", folder.c_str(), "tmpfs", 0, options) == 0;
}

TEST_F(ConvertFaults, ADiskThatFillsUpKeepsFinishedGroups) {
  constexpr int kNotAllowed = 77;
  write_source(folder_ / "big", 4, 1 << 20);
  const Checkpoint big = Checkpoint::open(folder_ / "big");
  const auto groups = make_groups(4);
  const int status = in_child([&] {
    if (!mount_small_disk(store(), "size=20m")) return kNotAllowed;
    // Someone else fills the disk while the second layer is being written.
    const auto fill = [&](const ConvertProgress& now) {
      if (now.group != "layer-1" || fs::exists(store() / "filler")) return;
      const OwnedFd file(open((store() / "filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
      const std::string block(1 << 20, 'x');
      while (write(file.get(), block.data(), block.size()) > 0) {
      }
    };
    bool was_full = false;
    try {
      convert_checkpoint(big, groups, {.destination = store(), .progress = fill});
    } catch (const Error& error) {
      was_full = error.kind() == ErrorKind::kResource &&
                 std::string(error.what()).find("layer-2") != std::string::npos;
    }
    if (!was_full) return 1;
    fs::remove(store() / "filler");
    if (convert_checkpoint(big, groups, {.destination = store()}).resumed_groups < 2) return 2;
    expect_store_holds(store(), big, groups);
    return testing::Test::HasFailure() ? 3 : 0;
  });
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed)
    GTEST_SKIP() << "needs the right to mount a tmpfs";
  EXPECT_EQ(status, 0);
}

TEST_F(ConvertFaults, ASourceCutShortMeanwhileIsAnError) {
  const Checkpoint opened = source();
  for (const CheckpointFile& file : opened.files())
    fs::resize_file(file.path, static_cast<uintmax_t>(file.bytes) - 1);
  expect_refusal([&] { convert_checkpoint(opened, groups_, {.destination = store()}); },
                 ErrorKind::kFile, {"source", "ends before"});
}

}  // namespace
}  // namespace sluice::io
