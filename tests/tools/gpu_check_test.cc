// scripts/gpu-check.sh with programs of the test's own in a GPU program's place: what it leaves
// when it is ended, where something is missing, and when it runs twice.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {
namespace fs = std::filesystem;

// Says its process number in a file that is whole once it is there.
const char* const kEndless =
    "echo begun; echo $$ >$TMPDIR/number; mv $TMPDIR/number $TMPDIR/step; exec sleep 1000";

// Returns once the process has ended, which ctest's limit bounds; who reaps it may be late.
void wait_for_end_of(pid_t process) {
  const std::string status = "/proc/" + std::to_string(process) + "/stat";
  std::string line;
  do {
    line.clear();
    std::getline(std::ifstream(status), line);
  } while (!line.empty() && line.find(") Z ") == std::string::npos);
}

// A bundle as scripts/gpu_bundle.sh makes it, of shell scripts.
class GpuCheck : public ::testing::Test {
 protected:
  GpuCheck() {
    for (const char* name : {"gpu-check.sh", "gpu_steps.sh", "gpu_parts.sh", "gpu_table.py"}) {
      fs::create_directories(folder_.path("scripts"));
      fs::copy(std::string(SLUICE_SCRIPTS) + "/" + name, folder_.path("scripts"));
    }
    for (const char* name :
         {"sluice", "cuda_kernels_gpu_test", "cuda_engine_gpu_test", "sluice_cuda_bench"})
      program(name, "echo done");
    program("sluice", "echo 'ok   CUDA  1 GPUs'");
    write_file(folder_.path("VERSION"), "abc123\n");
    fs::create_directories(folder_.path("tmp"));
  }

  void program(const std::string& name, const std::string& body) {
    fs::create_directories(folder_.path("bin"));
    const std::string path = folder_.path("bin/" + name);
    write_file(path, "#!/bin/sh\n" + body + "\n");
    fs::permissions(path, fs::perms::owner_all);
  }
  Command::Options options(std::vector<std::string> environment = {}) const {
    Command::Options out;
    out.program = folder_.path("scripts/gpu-check.sh");
    out.environment = std::move(environment);
    out.environment.push_back("TMPDIR=" + folder_.path("tmp"));
    return out;
  }
  std::vector<std::string> words(const std::vector<std::string>& more) const {
    std::vector<std::string> out{"--out", folder_.path("out")};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  std::string summary() const {
    return fs::exists(folder_.path("out/summary.md")) ? read_file(folder_.path("out/summary.md"))
                                                      : "";
  }
  std::vector<std::string> results() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path("out")))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  // The logs in the only archive.
  std::string packed() const {
    for (const std::string& name : results())
      if (name.ends_with(".tar.gz")) {
        Command::Options tar;
        tar.program = "/bin/tar";
        return Command({"-tzf", folder_.path("out/" + name)}, tar).wait().out;
      }
    return "no archive";
  }
  bool is_in(const std::string& text, const std::string& word) const {
    return text.find(word) != std::string::npos;
  }

  TemporaryFolder folder_;
};

TEST_F(GpuCheck, LeavesTwoFilesWithEveryLog) {
  const Outcome outcome = Command(words({"--part", "tests"}), options()).wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  ASSERT_EQ(results().size(), 2u);
  EXPECT_EQ(results()[1], "summary.md");
  for (const char* log : {"doctor.log", "vocabulary.log", "kernels-test.log", "engine-test.log"})
    EXPECT_TRUE(is_in(packed(), log)) << packed();
  EXPECT_TRUE(is_in(summary(), "kernels-test: passed")) << summary();
  for (const auto& left : fs::directory_iterator(folder_.path("tmp")))
    EXPECT_EQ(left.path().filename(), "sluice-gpu-check-0.lock");
}

TEST_F(GpuCheck, AFolderIsAsSeenFromWhereItIsCalled) {
  Command::Options shell = options();
  const std::string script = shell.program;
  shell.program = "/bin/sh";
  const Outcome outcome = Command({"-c", "cd '" + folder_.path("tmp") + "' && exec '" + script +
                                             "' --out here --part tests --seconds 9"},
                                  shell)
                              .wait();
  EXPECT_TRUE(fs::exists(folder_.path("tmp/here/summary.md"))) << outcome.err;
}

TEST_F(GpuCheck, AFailureIsShownAndTheRestGoesOn) {
  program("cuda_kernels_gpu_test", "echo 'a wrong sum'; exit 7");
  const Outcome outcome = Command(words({"--part", "tests"}), options()).wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(is_in(summary(), "kernels-test: FAILED (7)")) << summary();
  EXPECT_TRUE(is_in(summary(), "a wrong sum"));
  EXPECT_TRUE(is_in(summary(), "engine-test: passed"));
}

TEST_F(GpuCheck, EverySanitizerRunsAndAPatternWithoutTestsIsNamed) {
  program("compute-sanitizer", "echo \"$*\" >>$TMPDIR/tools; exit 0");
  program("cuda_kernels_gpu_test",
          "case $* in *list_tests*CudaNorm* | *CudaNorm*list_tests*) ;; "
          "*) echo '  ATest' ;; esac");
  const Outcome outcome =
      Command(words({"--part", "sanitizer"}),
              options({"PATH=" + folder_.path("bin") + ":" + std::getenv("PATH")}))
          .wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const std::string tools = read_file(folder_.path("tmp/tools"));
  for (const char* tool : {"memcheck", "racecheck", "synccheck", "initcheck"})
    EXPECT_TRUE(is_in(tools, "--tool " + std::string(tool))) << tools;
  EXPECT_TRUE(is_in(tools, folder_.path("bin/cuda_kernels_gpu_test"))) << tools;
  EXPECT_TRUE(is_in(summary(), "no test CudaNorm.A* any more")) << summary();
  EXPECT_FALSE(is_in(summary(), "no test CudaRows")) << summary();
}

TEST_F(GpuCheck, EndedInAStepItLeavesWhatWasDoneAndEndsTheStep) {
  program("cuda_engine_gpu_test", kEndless);
  Command command(words({"--part", "tests"}), options());
  ASSERT_TRUE(command.wait_until([&] { return fs::exists(folder_.path("tmp/step")); }));
  command.send(SIGTERM);
  const Outcome outcome = command.wait();
  EXPECT_EQ(outcome.exit_code, 143) << outcome.out << outcome.err;
  EXPECT_TRUE(is_in(summary(), "ended by SIGTERM in engine-test")) << summary();
  EXPECT_TRUE(is_in(packed(), "engine-test.log")) << packed();
  EXPECT_LE(results().size(), 3u);
  wait_for_end_of(std::stoi(read_file(folder_.path("tmp/step"))));
}

TEST_F(GpuCheck, KilledItLeavesTheStepsBeforeAndTheRunningLog) {
  program("cuda_engine_gpu_test", kEndless);
  Command command(words({"--part", "tests"}), options());
  ASSERT_TRUE(command.wait_until([&] { return fs::exists(folder_.path("tmp/step")); }));
  const pid_t step = std::stoi(read_file(folder_.path("tmp/step")));
  command.send(SIGKILL);
  EXPECT_EQ(command.wait().signal, SIGKILL);
  EXPECT_TRUE(is_in(packed(), "kernels-test.log")) << packed();
  EXPECT_EQ(read_file(folder_.path("out/running.log")), "begun\n");
  EXPECT_LE(results().size(), 6u);
  // Its step still has the GPU: another call says so.
  const Outcome second = Command(words({"--part", "tests"}), options()).wait();
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_TRUE(is_in(second.err, "another call uses GPU 0")) << second.err;
  ::kill(step, SIGKILL);
}

TEST_F(GpuCheck, WhatAKilledCallLeftInMemoryIsRemoved) {
  fs::create_directories(folder_.path("tmp/sluice-models-0.abcdef/opt"));
  fs::create_directories(folder_.path("tmp/sluice-models-1.abcdef"));  // another GPU's
  Command(words({"--part", "tests"}), options()).wait();
  EXPECT_FALSE(fs::exists(folder_.path("tmp/sluice-models-0.abcdef")));
  EXPECT_TRUE(fs::exists(folder_.path("tmp/sluice-models-1.abcdef")));
}

TEST_F(GpuCheck, WithoutTimeStepsAreNotBegun) {
  const Outcome outcome = Command(words({"--part", "tests", "--seconds", "20"}), options()).wait();
  EXPECT_TRUE(is_in(summary(), "kernels-test: not begun")) << summary();
  EXPECT_FALSE(is_in(packed(), "kernels-test.log"));
  EXPECT_EQ(outcome.exit_code, 1) << "what was not begun did not pass";
}

TEST_F(GpuCheck, WithoutAGpuOrProgramsItSaysSoAtOnce) {
  program("sluice", "echo 'ok   CUDA   built with CUDA 13.0; no GPU in use: no device'");
  const Outcome no_gpu = Command(words({"--part", "tests"}), options()).wait();
  EXPECT_EQ(no_gpu.exit_code, 1);
  EXPECT_TRUE(is_in(no_gpu.out, "no GPU that CUDA can use")) << no_gpu.out;
  EXPECT_FALSE(is_in(no_gpu.out, "kernels-test"));
  fs::remove_all(folder_.path("bin"));
  const Outcome no_programs = Command(words({"--part", "tests"}), options()).wait();
  EXPECT_EQ(no_programs.exit_code, 1);
  EXPECT_TRUE(is_in(no_programs.out, "no programs")) << no_programs.out;
}

TEST_F(GpuCheck, ProgramsThatDoNotStartAreShownWithTheReason) {
  program("sluice", "echo 'libstdc++.so.6: file too short' >&2; exit 127");
  const Outcome outcome = Command(words({"--part", "tests"}), options()).wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(is_in(outcome.out, "don't start here: libstdc++.so.6: file too short"))
      << outcome.out;
}

TEST_F(GpuCheck, ADiskThatFillsUpKeepsWhatWasPackedBefore) {
  const auto small = SmallFileSystem::mount("size=64m");
  if (!small) GTEST_SKIP() << "mounting is not allowed here";
  program("cuda_engine_gpu_test",
          "cat /dev/zero >'" + small->path("out/fill") + "' 2>/dev/null; echo went on");
  const Outcome outcome =
      Command({"--out", small->path("out"), "--part", "tests,kernels"}, options()).wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(is_in(outcome.err, "can't write")) << outcome.err;
  EXPECT_TRUE(is_in(outcome.err, "logs stay in")) << outcome.err;
  EXPECT_TRUE(is_in(outcome.out, "kernel-bench: passed")) << outcome.out;
  for (const auto& entry : fs::directory_iterator(small->path("out")))
    if (entry.path().extension() == ".gz") {
      Command::Options tar;
      tar.program = "/bin/tar";
      EXPECT_TRUE(is_in(Command({"-tzf", entry.path()}, tar).wait().out, "kernels-test.log"));
    }
}

TEST_F(GpuCheck, AFullDiskIsRefusedBeforeAnythingRuns) {
  const auto full = SmallFileSystem::mount("size=1m");
  if (!full) GTEST_SKIP() << "mounting is not allowed here";
  const Outcome outcome =
      Command({"--out", full->path("out"), "--part", "tests"}, options()).wait();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(is_in(outcome.err, "MiB free, 50 are needed")) << outcome.err;
}

TEST_F(GpuCheck, WhatIsNotUnderstoodIsRefusedByName) {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--part", "test"},
                                                {"--parts"},
                                                {"--gpu", "x"},
                                                {"--seconds", "0"},
                                                {"--out"}}) {
    const Outcome outcome = Command(wrong, options()).wait();
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_TRUE(is_in(outcome.err, wrong.back())) << outcome.err;
  }
}

}  // namespace
}  // namespace sluice::testing
