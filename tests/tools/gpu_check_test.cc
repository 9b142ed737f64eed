// scripts/gpu-check.sh (and the tables it writes) with programs of the test's own in a GPU
// program's place: what it leaves when it is ended, where something is missing, and when it runs
// twice.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {
namespace fs = std::filesystem;

// Says its process number in a file that is whole once it is there.
const char* const kEndless =
    "echo begun; echo $$ >$TMPDIR/number; mv $TMPDIR/number $TMPDIR/step; exec sleep 1000";

// A GoogleTest program of two tests.
const char* const kTests =
    "case $* in *list_tests*) printf 'Suite.\\n  One\\n  Two\\n' ;;\n"
    "*) for test in One Two; do\n"
    "printf '[ RUN      ] Suite.%s\\n[       OK ] Suite.%s (1 ms)\\n' $test $test; done ;; esac";

const char* const kListed = "case $* in *list_tests*) printf 'Suite.\\n  One\\n'; exit ;; esac\n";

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
    for (const char* name : {"gpu-check.sh", "gpu_steps.sh", "gpu_parts.sh", "gpu_lent_parts.sh",
                             "gpu_table.py", "gpu_shards.py"}) {
      fs::create_directories(folder_.path("scripts"));
      fs::copy(std::string(SLUICE_SCRIPTS) + "/" + name, folder_.path("scripts"));
    }
    for (const char* name : {"cuda_kernels_gpu_test", "cuda_engine_gpu_test"})
      program(name, kTests);
    program("sluice_cuda_bench", "echo done");
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
  for (const char* log : {"doctor.log", "kernels-test-vocabulary.log", "kernels-test-rest.log",
                          "engine-test-rest.log"})
    EXPECT_TRUE(is_in(packed(), log)) << packed();
  EXPECT_TRUE(is_in(summary(), "kernels-test-rest: passed")) << summary();
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

// What fails in one process of a program's tests is named; the steps after it go on.
TEST_F(GpuCheck, AFailureIsShownAndTheRestGoesOn) {
  program("cuda_kernels_gpu_test",
          "echo \"$*\" >>$TMPDIR/asked\n"
          "case $* in *list_tests*) printf 'Suite.\\n  One\\n' ;;\n"
          "*=-*) printf '[ RUN      ] Suite.One\\na wrong sum\\n[  FAILED  ] Suite.One (1 ms)\\n'\n"
          "exit 7 ;; esac");
  program("cuda_engine_gpu_test", "echo \"$*\" >>$TMPDIR/asked-engine\n" + std::string(kTests));
  const Outcome outcome = Command(words({"--part", "tests"}), options()).wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(is_in(summary(), "kernels-test-rest: FAILED (1)")) << summary();
  EXPECT_TRUE(is_in(summary(), "failed: Suite.One (by itself: not run)")) << summary();
  EXPECT_TRUE(is_in(summary(), "a wrong sum"));
  for (const char* step : {"kernels-test-vocabulary", "engine-test-logits", "engine-test-rest"})
    EXPECT_TRUE(is_in(summary(), std::string(step) + ": passed")) << summary();
  // What a step before had is left out.
  EXPECT_TRUE(is_in(read_file(folder_.path("tmp/asked")), "--gtest_filter=-CudaVocabulary*"));
  std::istringstream asked(read_file(folder_.path("tmp/asked-engine")));
  const std::string before = "--gtest_filter=";
  std::string logits, rest;
  for (std::string line; std::getline(asked, line);)
    for (std::istringstream words_of(line); words_of >> line;)
      if (line.starts_with(before)) (logits.empty() ? logits : rest) = line.substr(before.size());
  EXPECT_EQ(rest, "-" + logits);
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

TEST_F(GpuCheck, CountersAreReadOfBoundedLaunches) {
  program("ncu", "echo \"$*\" >>$TMPDIR/counted; echo '  Memory Throughput  %  81.2'");
  program("sluice", "case $* in *-o*) touch $(echo \"$*\" | sed 's/.*-o //') ;; esac; echo CUDA");
  const Outcome outcome =
      Command(words({"--part", "ncu"}),
              options({"PATH=" + folder_.path("bin") + ":" + std::getenv("PATH")}))
          .wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const std::string counted = read_file(folder_.path("tmp/counted"));
  EXPECT_TRUE(is_in(counted, "few_rows/0/1/28672/8192")) << counted;
  EXPECT_TRUE(is_in(counted, "profile --show /")) << counted;
  EXPECT_TRUE(is_in(summary(), "Memory Throughput  %  81.2")) << summary();
}

TEST_F(GpuCheck, ProgramsSeeOnlyTheGpuThatIsAskedFor) {
  program("cuda_engine_gpu_test", "echo sees $CUDA_VISIBLE_DEVICES; exit 1");
  const std::vector<std::string> second = words({"--part", "tests", "--gpu", "1"});
  Command(second, options()).wait();
  EXPECT_TRUE(is_in(summary(), "sees 1\n")) << summary();
  Command(second, options({"CUDA_VISIBLE_DEVICES=4,GPU-77"})).wait();
  EXPECT_TRUE(is_in(summary(), "sees GPU-77\n")) << summary();
  const Outcome none = Command(second, options({"CUDA_VISIBLE_DEVICES=4"})).wait();
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_TRUE(is_in(none.err, "no GPU 1")) << none.err;
}

TEST_F(GpuCheck, GoesOnWhenNobodyReadsWhatItSays) {
  Command::Options shell = options();
  const std::string script = shell.program;
  shell.program = "/bin/sh";
  // The reader leaves after the first line.
  Command({"-c", "'" + script + "' --part tests --out '" + folder_.path("out") + "' | head -n 1"},
          shell)
      .wait();
  EXPECT_TRUE(is_in(summary(), "engine-test-rest: passed")) << summary();
  EXPECT_TRUE(is_in(packed(), "engine-test-logits.log"));
}

TEST_F(GpuCheck, EndedInAStepItLeavesWhatWasDoneAndEndsTheStep) {
  program("cuda_engine_gpu_test", kListed + std::string(kEndless));
  Command command(words({"--part", "tests"}), options());
  ASSERT_TRUE(command.wait_until([&] { return fs::exists(folder_.path("tmp/step")); }));
  command.send(SIGTERM);
  const Outcome outcome = command.wait();
  EXPECT_EQ(outcome.exit_code, 143) << outcome.out << outcome.err;
  EXPECT_TRUE(is_in(summary(), "ended by SIGTERM in engine-test-logits")) << summary();
  EXPECT_TRUE(is_in(packed(), "engine-test-logits.log")) << packed();
  EXPECT_LE(results().size(), 3u);
  wait_for_end_of(std::stoi(read_file(folder_.path("tmp/step"))));
}

TEST_F(GpuCheck, KilledItLeavesTheStepsBeforeAndTheRunningLog) {
  program("cuda_engine_gpu_test", kListed + std::string(kEndless));
  Command command(words({"--part", "tests"}), options());
  ASSERT_TRUE(command.wait_until([&] { return fs::exists(folder_.path("tmp/step")); }));
  const pid_t step = std::stoi(read_file(folder_.path("tmp/step")));
  command.send(SIGKILL);
  EXPECT_EQ(command.wait().signal, SIGKILL);
  EXPECT_TRUE(is_in(packed(), "kernels-test-rest.log")) << packed();
  EXPECT_EQ(read_file(folder_.path("out/running.log")), "begins: 1 tests\n");
  EXPECT_LE(results().size(), 6u);
  // Its step still has the GPU: another call says so.
  const Outcome second = Command(words({"--part", "tests"}), options()).wait();
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_TRUE(is_in(second.err, "another call uses GPU 0")) << second.err;
  ::kill(-::getpgid(step), SIGKILL);
}

TEST_F(GpuCheck, WhatAKilledCallLeftInMemoryIsRemoved) {
  fs::create_directories(folder_.path("tmp/sluice-models-0.abcdef/opt"));
  fs::create_directories(folder_.path("tmp/sluice-models-1.abcdef"));  // another GPU's
  Command(words({"--part", "tests"}), options()).wait();
  EXPECT_FALSE(fs::exists(folder_.path("tmp/sluice-models-0.abcdef")));
  EXPECT_TRUE(fs::exists(folder_.path("tmp/sluice-models-1.abcdef")));
}

TEST_F(GpuCheck, WithoutTimeStepsAreNotBegun) {
  const Outcome outcome = Command(words({"--part", "tests", "--seconds", "18"}), options()).wait();
  EXPECT_TRUE(is_in(summary(), "kernels-test-rest: not begun")) << summary();
  EXPECT_FALSE(is_in(packed(), "kernels-test-rest.log"));
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
      EXPECT_TRUE(is_in(Command({"-tzf", entry.path()}, tar).wait().out, "kernels-test-rest.log"));
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

Outcome table(const std::vector<std::string>& arguments) {
  Command::Options python;
  python.program = "/usr/bin/env";
  std::vector<std::string> words{"python3", std::string(SLUICE_SCRIPTS) + "/gpu_table.py"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return Command(words, python).wait();
}

TEST(GpuTable, SaysRatesAndSharesOfAProfile) {
  const TemporaryFolder folder;
  succeed({"profile", "--show", "t4", "-o", folder.path("t4.json")});
  const Outcome rates = table({folder.path("t4.json")});
  EXPECT_EQ(rates.exit_code, 0) << rates.err;
  for (const char* word :
       {"clocks not known", "| f16, 12288 x 12288 |", "| decode, f16 KV |", " %"})
    EXPECT_NE(rates.out.find(word), std::string::npos) << word << "\n" << rates.out;
  auto machine = nlohmann::json::parse(read_file(folder.path("t4.json")));
  machine["device"]["conditions"] = "SM 1590 MHz, 70 C";
  write_file(folder.path("hot.json"), machine.dump());
  EXPECT_NE(table({folder.path("hot.json")}).out.find("at SM 1590 MHz, 70 C"), std::string::npos);
  machine.erase("device");
  write_file(folder.path("host.json"), machine.dump());
  const Outcome none = table({folder.path("host.json")});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find("without a GPU"), std::string::npos) << none.err;
}

TEST(GpuTable, SaysWhatRunsReachedAndWhichFailed) {
  const TemporaryFolder folder;
  const Outcome bench = succeed(
      {"bench", kModel, "--batch", "1,2", "--pp", "4", "--tg", "3", "--no-disk-probe", "--json"});
  write_file(folder.path("good.json"),
             "sluice: expected 12 tokens/s\nsluice: expected 34 tokens/s\n" + bench.out);
  const Outcome rows = table({"--runs", folder.path("good.json"), folder.path("missing.json")});
  EXPECT_EQ(rows.exit_code, 0) << rows.err;
  EXPECT_NE(rows.out.find("| good | 1 |"), std::string::npos) << rows.out;
  EXPECT_NE(rows.out.find("| 34 |"), std::string::npos) << rows.out;
  EXPECT_NE(rows.out.find("| missing | failed |"), std::string::npos) << rows.out;
}

}  // namespace
}  // namespace sluice::testing
