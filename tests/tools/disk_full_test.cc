// Disks that are full, on small file systems of the test's own: a clear error, nothing half left
// that another command would take for whole.
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

class DiskFull : public ::testing::Test {
 protected:
  void SetUp() override {
    disk_ = SmallFileSystem::mount("size=8m,mode=0777");
    if (!disk_) GTEST_SKIP() << "needs the right to mount a small file system (root)";
  }
  std::unique_ptr<SmallFileSystem> disk_;
};

TEST_F(DiskFull, ConvertSaysHowMuchIsShortBeforeItWrites) {
  disk_->fill(256 << 10);
  fail({"convert", kModel, disk_->path("store")}, 4,
       {disk_->path("store"), "needed", "free", "short", "another disk"});
  fail({"run", disk_->path("store"), "--prompt-ids", "1,5"}, 3, {disk_->path("store")});
  std::filesystem::remove(disk_->path("filling"));
  succeed({"convert", kModel, disk_->path("store"), "--verify"});
  EXPECT_EQ(succeed({"run", disk_->path("store"), "-p", "Once", "-n", "4"}).out, " upon a time,\n");
}

TEST_F(DiskFull, SynthSaysHowMuchIsShortBeforeItWrites) {
  disk_->fill(256 << 10);
  fail({"synth", kModel, disk_->path("model"), "--dtype", "f32"}, 4,
       {disk_->path("model"), "needed", "free", "short"});
  fail({"synth", "opt-175b", disk_->path("large")}, 4, {disk_->path("large"), "GiB", "short"});
  // A store, and what it is made of while it is: 325 GiB of bf16 and more.
  fail({"synth", "opt-175b", disk_->path("store"), "--weights", "int4"}, 4, {"92.4GiB", "short"});
  fail({"run", disk_->path("model"), "--prompt-ids", "1,5"}, 3, {disk_->path("model")});
}

TEST_F(DiskFull, AnOffloadFolderWithoutSpaceIsSaidAtTheStart) {
  disk_->fill();
  fail({"run", kModel, "-p", "Once", "-n", "4", "--percent", "0", "0", "0", "0", "0", "0",
        "--offload-dir", disk_->path()},
       4, {disk_->path(), "No space left", "offload", "--offload-dir"});
}

TEST_F(DiskFull, BatchKeepsItsRecordsAndGoesOnWhenThereIsRoom) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += "{\"custom_id\": \"r" + std::to_string(i) + "\", \"prompt\": \"Once\"}\n";
  write_file(folder.path("in.jsonl"), lines);
  const std::vector<std::string> job{
      "batch", kModel, folder.path("in.jsonl"), "-o", disk_->path("out.jsonl"), "-n", "20"};
  disk_->fill(4096);
  const Outcome outcome = sluice(job);
  EXPECT_TRUE(outcome.exit_code == 3 || outcome.exit_code == 4) << outcome.exit_code;
  EXPECT_NE(outcome.err.find("No space left"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("finished records are safe"), std::string::npos) << outcome.err;
  const size_t kept = read_json_lines(disk_->path("out.jsonl")).size();
  EXPECT_GT(kept, 0u);
  EXPECT_LT(kept, 40u);
  std::filesystem::remove(disk_->path("filling"));
  succeed(job);
  EXPECT_EQ(read_json_lines(disk_->path("out.jsonl")).size(), 40u);
}

TEST_F(DiskFull, LogitsLeaveNoHalfFile) {
  disk_->fill(4096);
  const Outcome outcome = sluice(
      {"logits", kModel, "--prompt-ids", "1,2,3,4,5,6,7,8", "-o", disk_->path("logits.npy")});
  EXPECT_TRUE(outcome.exit_code == 3 || outcome.exit_code == 4) << outcome.exit_code;
  EXPECT_NE(outcome.err.find("No space left"), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(disk_->path("logits.npy")));
}

// Room enough, but no more files: the check of free space passes and a write fails half-way.
TEST(DiskFullHalfWay, ConvertLeavesNothingThatRunAccepts) {
  const auto disk = SmallFileSystem::mount("size=64m,nr_inodes=6,mode=0777");
  if (!disk) GTEST_SKIP() << "needs the right to mount a small file system (root)";
  const Outcome outcome = sluice({"convert", kModel, disk->path("store")});
  EXPECT_TRUE(outcome.exit_code == 3 || outcome.exit_code == 4) << outcome.exit_code;
  EXPECT_NE(outcome.err.find("No space left"), std::string::npos) << outcome.err;
  fail({"run", disk->path("store"), "--prompt-ids", "1,5"}, 3, {disk->path("store")});
}

TEST(StandardOutput, AFullOneIsAnError) {
  const Outcome outcome =
      sluice({"run", kModel, "-p", "Once", "-n", "4"}, {.output_path = "/dev/full"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.err.find("standard output: No space left"), std::string::npos) << outcome.err;
  EXPECT_EQ(sluice({"inspect", kModel, "--json"}, {.output_path = "/dev/full"}).exit_code, 3);
}

}  // namespace
}  // namespace sluice::testing
