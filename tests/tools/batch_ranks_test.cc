// sluice batch under mpirun: every row once and as one process answers it, whatever becomes of the
// ranks. Processes on this machine stand for nodes.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Words = std::vector<std::string>;
constexpr int kRankRows = 36;

class BatchRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(SLUICE_MPIRUN).empty()) GTEST_SKIP() << "this build has no MPI";
    std::string lines;
    for (int i = 0; i < kRankRows; ++i)
      lines += nlohmann::json{{"custom_id", "r" + std::to_string(i)},
                              {"prompt", "Once upon a time, " + std::to_string(i)},
                              {"max_tokens", 30 + i % 7},
                              {"temperature", i % 3 ? 0.9 : 0.0},
                              {"ignore_eos", true}}
                   .dump() +
               "\n";
    write_file(in(), lines);
    succeed({"batch", kModel, in(), "-o", folder_.path("whole.jsonl")});
    whole_ = texts(folder_.path("whole.jsonl"));
    ASSERT_EQ(whole_.size(), size_t{kRankRows});
  }

  std::string in() const { return folder_.path("in.jsonl"); }
  std::string out() const { return folder_.path("out.jsonl"); }
  const Words slow_{"--percent",         "0", "0", "100", "0", "100", "0", "--gpu-batch-size", "1",
                    "--num-gpu-batches", "1"};

  Words job(int ranks, const Words& of_mpi = {}, const Words& more = {}) const {
    Words words{"--oversubscribe", "--bind-to", "none", "-n", std::to_string(ranks)};
    words.insert(words.end(), of_mpi.begin(), of_mpi.end());
    words.insert(words.end(), {SLUICE_PROGRAM, "batch", kModel, in(), "-o", out(), "--cpu-mem",
                               "64MiB", "--rank-deadline", "3"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Command::Options options() const {
    Command::Options out;
    out.program = SLUICE_MPIRUN;
    // Leaks of the MPI library are none of ours.
    out.environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                       "LSAN_OPTIONS=detect_leaks=0", "TEST_JOB=" + folder_.path()};
    return out;
  }

  int64_t records() const {
    std::ifstream file(out());
    return std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n');
  }

  // The process of a rank of this test's job; 0: there is none.
  pid_t process_of(int rank) const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "environ", std::ios::binary);
      std::ostringstream text;
      text << '\0' << file.rdbuf() << '\0';
      const auto has = [&](const std::string& variable) {
        return text.str().find('\0' + variable + '\0') != std::string::npos;
      };
      if (has("TEST_JOB=" + folder_.path()) && has("OMPI_COMM_WORLD_RANK=" + std::to_string(rank)))
        return std::stoi(entry.path().filename().string());
    }
    return 0;
  }

  // Sends `signal` to a rank once a few rows are done.
  void send_in_the_middle(Command& command, int rank, int signal) const {
    command.wait_until([this] { return records() >= 3; });
    ASSERT_LT(records(), kRankRows) << "the job was too fast";
    const pid_t process = process_of(rank);
    ASSERT_GT(process, 0);
    ASSERT_EQ(::kill(process, signal), 0);
  }

  // The job's own object among what mpirun says.
  static nlohmann::json json_of(const Outcome& outcome) {
    const size_t begin = outcome.out.find('{'), end = outcome.out.rfind('}');
    if (begin == std::string::npos || end == std::string::npos) {
      ADD_FAILURE() << outcome.out << outcome.err;
      return nullptr;
    }
    return nlohmann::json::parse(outcome.out.substr(begin, end + 1 - begin));
  }

  TemporaryFolder folder_;
  Texts whole_;
};

TEST_F(BatchRanks, GiveTheAnswersOfOneProcess) {
  for (int ranks : {2, 4}) {
    std::filesystem::remove(out());
    const Outcome outcome = sluice(job(ranks, {}, {"--json"}), options());
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(texts(out()), whole_);
    const auto json = json_of(outcome);
    EXPECT_EQ(json["requests"], kRankRows);
    EXPECT_EQ(json["ranks"].size(), static_cast<size_t>(ranks));
    int64_t rows = 0;
    for (const auto& rank : json["ranks"]) {
      EXPECT_EQ(rank["state"], "ended");
      EXPECT_EQ(rank["error"], "");
      rows += rank["rows"].get<int64_t>();
    }
    EXPECT_EQ(rows, kRankRows);
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_FALSE(std::filesystem::exists(out() + ".rank-" + std::to_string(rank)));
  }
  // Nothing is left to do.
  const Outcome again = sluice(job(2, {}, {"--json"}), options());
  EXPECT_EQ(json_of(again)["skipped"], kRankRows);
  EXPECT_EQ(json_of(again)["requests"], 0);
}

// Lines that are no requests are rank 0's to tell, when all ranks have left.
TEST_F(BatchRanks, LinesThatAreNoRequestsAreToldAtTheEnd) {
  write_file(in(), read_file(in()) + "{\"prompt\": 7.5}\n{\"prompt\": [99999]}\n");
  const Outcome outcome = sluice(job(2), options());
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("2 of 38 lines have error records"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("36 of 36 rows have their record"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("MPI_FINALIZE"), std::string::npos) << outcome.err;
  EXPECT_EQ(records(), 38);
}

TEST_F(BatchRanks, OneThatIsKilledLosesItsRowsToTheOthers) {
  Words more = slow_;
  more.emplace_back("--json");
  Command command(job(3, {"--enable-recovery"}, more), options());
  send_in_the_middle(command, 2, SIGKILL);
  const Outcome outcome = command.wait();
  EXPECT_EQ(texts(out()), whole_) << outcome.err;
  const auto json = json_of(outcome);
  EXPECT_EQ(json["ranks"][2]["state"], "lost");
  EXPECT_GE(json["dealt_again"], 1);
  EXPECT_EQ(json["missing"], 0);
}

TEST_F(BatchRanks, OneThatIsStoppedLosesItsRowsToTheOthers) {
  Words more = slow_;
  more.emplace_back("--json");
  Command command(job(3, {"--enable-recovery"}, more), options());
  send_in_the_middle(command, 1, SIGSTOP);
  const Outcome outcome = command.wait();
  EXPECT_EQ(texts(out()), whole_) << outcome.err;
  const auto json = json_of(outcome);
  EXPECT_EQ(json["ranks"][1]["state"], "lost");
  EXPECT_GE(json["ranks"][1]["times_lost"], 1);
  EXPECT_EQ(process_of(1), 0) << "nobody is left behind";
}

TEST_F(BatchRanks, KilledAsAWholeAndStartedAgainTheyGoOn) {
  for (const int killed : {0, 1}) {  // without recovery mpirun ends all with one
    std::filesystem::remove(out());
    Command command(job(3, {}, slow_), options());
    send_in_the_middle(command, killed, SIGKILL);
    EXPECT_NE(command.wait().exit_code, 0);
    const int64_t before = records();
    EXPECT_LT(before, kRankRows);
    const Outcome outcome = sluice(job(2, {}, {"--json"}), options());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_GE(json_of(outcome)["skipped"], before);
    EXPECT_EQ(texts(out()), whole_);
  }
}

TEST_F(BatchRanks, UnlikeOnesShareTheWorkAndSayHowItWent) {
  // One streams all weights from disk for one sequence at a time, the other has them in memory.
  Words words{"--oversubscribe", "--bind-to", "none"};
  const auto add_rank = [&](const Words& more) {
    words.insert(words.end(), {"-n", "1", SLUICE_PROGRAM, "batch", kModel, in(), "-o", out(),
                               "--cpu-mem", "64MiB", "--json"});
    words.insert(words.end(), more.begin(), more.end());
  };
  add_rank(slow_);
  words.emplace_back(":");
  add_rank({"--gpu-batch-size", "4", "--num-gpu-batches", "1"});
  const Outcome outcome = sluice(words, options());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(texts(out()), whole_);
  const auto json = json_of(outcome);
  EXPECT_GT(json["ranks"][1]["rows"].get<int64_t>(), json["ranks"][0]["rows"].get<int64_t>());
  EXPECT_NE(json["ranks"][0]["busiest_lane"], "");
}

TEST_F(BatchRanks, OneThatCantBeginIsNamedAndTheOthersGoOn) {
  Words words{"--oversubscribe", "--bind-to", "none"};
  const auto add_rank = [&](const std::string& memory) {
    words.insert(words.end(), {"-n", "1", SLUICE_PROGRAM, "batch", kModel, in(), "-o", out(),
                               "--cpu-mem", memory, "--json"});
  };
  add_rank("64MiB");
  words.emplace_back(":");
  add_rank("1KiB");
  const Outcome outcome = sluice(words, options());
  EXPECT_EQ(texts(out()), whole_);
  const auto json = json_of(outcome);
  EXPECT_EQ(json["ranks"][1]["state"], "failed");
  EXPECT_NE(json["ranks"][1]["error"], "");
}

TEST_F(BatchRanks, SharingAHostWithoutABudgetIsRefused) {
  Words words{"--oversubscribe", "-n", "2", SLUICE_PROGRAM, "batch", kModel, in(), "-o", out()};
  const Outcome outcome = sluice(words, options());
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("2 ranks on this host, and no --cpu-mem"), std::string::npos)
      << outcome.err;
}

}  // namespace
}  // namespace sluice::testing
