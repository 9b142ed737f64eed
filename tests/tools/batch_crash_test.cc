// A batch job that is killed or interrupted in the middle goes on where it was: every answer once,
// and the same as without the interruption.
#include <gtest/gtest.h>

#include <csignal>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Words = std::vector<std::string>;
constexpr int kRequests = 48;

class BatchCrash : public ::testing::Test {
 protected:
  BatchCrash() {
    const char* beginnings[] = {"Once upon a time", "Lily and Tom", "The cat", "One day, a boy"};
    std::string lines;
    for (int i = 0; i < kRequests; ++i)
      lines += nlohmann::json{{"custom_id", "r" + std::to_string(i)},
                              {"prompt", beginnings[i % 4]},
                              {"max_tokens", 40 + i % 7},
                              {"temperature", i % 3 ? 0.9 : 0.0},
                              {"ignore_eos", true}}
                   .dump() +
               "\n";
    write_file(folder_.path("in.jsonl"), lines);
  }

  std::string out() const { return folder_.path("out.jsonl"); }

  Words job(const std::string& output, const Words& more = {}) const {
    Words words{"batch", fixture_model("stories260k"), folder_.path("in.jsonl"), "-o", output};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // Ends a job by `signal` once it has its first answer and before it has the last. One sequence
  // at a time, all weights from disk at every token: there is time.
  Outcome end_in_the_middle(int signal) {
    for (int attempt = 0; attempt < 5; ++attempt) {
      std::filesystem::remove(out());
      Command command(job(out(), {"--percent", "0", "0", "100", "0", "100", "0", "--gpu-batch-size",
                                  "1", "--num-gpu-batches", "1", "-t", "1"}));
      std::error_code none;
      command.wait_until([&] {
        const auto bytes = std::filesystem::file_size(out(), none);
        return !none && bytes > 0;
      });
      command.send(signal);
      const Outcome outcome = command.wait();
      if (outcome.exit_code != 0) return outcome;
    }
    throw std::runtime_error("the job always ends before it can be stopped");
  }

  TemporaryFolder folder_;
};

TEST_F(BatchCrash, Kill9AndRestartGiveEveryAnswerOnce) {
  succeed(job(folder_.path("whole.jsonl")));
  const Texts whole = texts(folder_.path("whole.jsonl"));
  ASSERT_EQ(whole.size(), size_t{kRequests});

  EXPECT_EQ(end_in_the_middle(SIGKILL).signal, SIGKILL);
  const Texts before = texts(out());
  ASSERT_GT(before.size(), 0u);
  ASSERT_LT(before.size(), size_t{kRequests});
  const std::string kept = read_file(out());

  const auto json = succeed(job(out(), {"--json"})).json();
  EXPECT_EQ(json["skipped"], before.size());
  EXPECT_EQ(json["requests"], kRequests - before.size());
  EXPECT_EQ(texts(out()), whole);
  EXPECT_EQ(read_file(out()).compare(0, kept.size(), kept), 0) << "finished records stay";
}

TEST_F(BatchCrash, ARecordTornByACrashIsCutOffAndDoneAgain) {
  succeed(job(out()));
  const Texts whole = texts(out());
  const std::string bytes = read_file(out());
  const size_t fourth = [&] {
    size_t at = 0;
    for (int i = 0; i < 3; ++i) at = bytes.find('\n', at) + 1;
    return at;
  }();
  for (size_t torn : {size_t{1}, size_t{30}, size_t{200}}) {
    write_file(out(), bytes.substr(0, fourth + torn));
    EXPECT_EQ(succeed(job(out(), {"--json"})).json()["skipped"], 3) << torn;
    EXPECT_EQ(texts(out()), whole) << torn;
  }
}

TEST_F(BatchCrash, CtrlCEndsCleanlyAndRestartContinues) {
  const Outcome stopped = end_in_the_middle(SIGINT);
  EXPECT_EQ(stopped.exit_code, 130) << stopped.err;
  EXPECT_NE(stopped.err.find("stopping"), std::string::npos);
  const Texts before = texts(out());
  ASSERT_GT(before.size(), 0u);
  ASSERT_LT(before.size(), size_t{kRequests});
  EXPECT_EQ(succeed(job(out(), {"--json"})).json()["skipped"], before.size());
  succeed(job(folder_.path("whole.jsonl")));
  EXPECT_EQ(texts(out()), texts(folder_.path("whole.jsonl")));
}

TEST_F(BatchCrash, ATerminationSignalEndsCleanlyToo) {
  EXPECT_EQ(end_in_the_middle(SIGTERM).exit_code, 130);
  EXPECT_GT(texts(out()).size(), 0u);
}

TEST_F(BatchCrash, ASecondProcessOnTheSameOutputIsRefused) {
  for (int attempt = 0;; ++attempt) {
    std::filesystem::remove(out());
    Command first(job(out(), {"--percent", "0", "0", "100", "0", "100", "0", "-t", "1",
                              "--gpu-batch-size", "1", "--num-gpu-batches", "1"}));
    std::error_code none;
    first.wait_until([&] {
      const auto bytes = std::filesystem::file_size(out(), none);
      return !none && bytes > 0;
    });
    first.send(SIGSTOP);  // holds the file, and does not end meanwhile
    const bool is_held = first.is_running();
    if (!is_held && attempt < 5) continue;
    ASSERT_TRUE(is_held);
    fail(job(out()), 2, {"another process", "out.jsonl"});
    first.send(SIGKILL);
    EXPECT_EQ(first.wait().signal, SIGKILL);
    return;
  }
}

}  // namespace
}  // namespace sluice::testing
