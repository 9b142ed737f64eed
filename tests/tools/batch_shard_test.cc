// sluice batch --shard and batch merge: a job in parts gives what it gives in one, also where the
// number of parts changes in the middle, parts are killed, or two are started at once.
#include <gtest/gtest.h>

#include <csignal>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Words = std::vector<std::string>;
constexpr int kShardRows = 40;

class BatchShard : public ::testing::Test {
 protected:
  BatchShard() {
    std::string lines;
    for (int i = 0; i < kShardRows; ++i) {
      nlohmann::json line{{"prompt", "Once upon a time, " + std::to_string(i)},
                          {"max_tokens", 10 + i % 7},
                          {"temperature", i % 3 ? 0.9 : 0.0}};
      if (i % 4) line["custom_id"] = "r" + std::to_string(i);
      lines += line.dump() + (i % 5 ? "\n" : "\n\n");
    }
    lines += "not json\n{\"custom_id\": \"r1\", \"prompt\": \"again\"}\n";
    write_file(in(), lines);
    sluice({"batch", kModel, in(), "-o", whole()});  // with two error records
    sluice({"batch", "merge", whole(), "-i", in()});
  }

  std::string in() const { return folder_.path("in.jsonl"); }
  std::string out() const { return folder_.path("out.jsonl"); }
  std::string whole() const { return folder_.path("whole.jsonl"); }
  std::string shard_file(const std::string& shard) const {
    const size_t slash = shard.find('/');
    return out() + ".shard-" + shard.substr(0, slash) + "-of-" + shard.substr(slash + 1);
  }

  Words job(const std::string& shard, const Words& more = {}) const {
    Words words{"batch", kModel, in(), "-o", out(), "--shard", shard};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // What a shard says with --json; its error records make its exit code 2.
  nlohmann::json run(const std::string& shard, const Words& more = {}) const {
    Words words = job(shard, {"--json"});
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = sluice(words);
    EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 2) << outcome.err;
    return outcome.json();
  }
  nlohmann::json merge(const Words& more = {}) const {
    Words words{"batch", "merge", out(), "-i", in(), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return succeed(words).json();
  }

  // The records less what differs between two runs.
  static std::vector<nlohmann::json> records(const std::string& path) {
    std::vector<nlohmann::json> out;
    for (nlohmann::json record : read_json_lines(path)) {
      if (record["response"].is_object()) record["response"]["body"].erase("created");
      out.push_back(std::move(record));
    }
    return out;
  }

  // Ends a shard by kill -9 once it has an answer and before it has all.
  void kill_in_the_middle(const std::string& shard) const {
    for (int attempt = 0; attempt < 5; ++attempt) {
      std::filesystem::remove(shard_file(shard));
      Command command(job(shard, {"--percent", "0", "0", "100", "0", "100", "0", "--gpu-batch-size",
                                  "1", "--num-gpu-batches", "1"}));
      std::error_code none;
      command.wait_until([&] {
        const auto bytes = std::filesystem::file_size(shard_file(shard), none);
        return !none && bytes > 0;
      });
      command.send(SIGKILL);
      if (command.wait().signal == SIGKILL) return;
    }
    throw std::runtime_error("the shard always ends before it can be killed");
  }

  TemporaryFolder folder_;
};

TEST_F(BatchShard, PartsAndMergeGiveWhatOneRunGives) {
  int64_t requests = 0;
  for (const char* shard : {"0/3", "1/3", "2/3"}) {
    const auto json = run(shard);
    EXPECT_EQ(json["shard"], shard);
    EXPECT_EQ(json["output"], shard_file(shard));
    requests += json["requests"].get<int64_t>();
  }
  EXPECT_EQ(requests, kShardRows + 2);
  const auto report = merge();
  EXPECT_EQ(report["rows"], kShardRows + 2);
  EXPECT_EQ(report["answers"], kShardRows);
  EXPECT_EQ(report["errors"], 2);
  EXPECT_EQ(report["doubled"], 0);
  EXPECT_EQ(records(out()), records(whole()));
}

TEST_F(BatchShard, AnotherCountInTheMiddleMissesAndDoublesNothing) {
  run("1/4");
  kill_in_the_middle("2/4");
  const auto done = static_cast<int64_t>(read_json_lines(shard_file("1/4")).size());
  const auto killed = read_file(shard_file("2/4"));
  const auto kept = std::count(killed.begin(), killed.end(), '\n');
  int64_t requests = 0, skipped = 0;
  for (const char* shard : {"0/3", "1/3", "2/3"}) {
    const auto json = run(shard);
    requests += json["requests"].get<int64_t>();
    skipped += json["skipped"].get<int64_t>();
  }
  EXPECT_EQ(skipped, done + kept);
  EXPECT_EQ(requests, kShardRows + 2 - done - kept);
  EXPECT_EQ(merge()["doubled"], 0);
  EXPECT_EQ(records(out()), records(whole()));
  // Another run, whole or in parts, finds all done.
  EXPECT_EQ(run("0/1")["requests"], 0);
  const auto again = sluice({"batch", kModel, in(), "-o", out(), "--json"}).json();
  EXPECT_EQ(again["requests"], 0);
  EXPECT_EQ(again["skipped"], kShardRows + 2);
}

TEST_F(BatchShard, ARunWithoutShardsGoesOnWithWhatShardsDid) {
  run("0/2");
  const auto json = sluice({"batch", kModel, in(), "-o", out(), "--json"}).json();
  EXPECT_GT(json["skipped"], 0);
  EXPECT_EQ(json["skipped"].get<int64_t>() + json["requests"].get<int64_t>(), kShardRows + 2);
  EXPECT_EQ(merge()["doubled"], 0);
  EXPECT_EQ(records(out()), records(whole()));
}

TEST_F(BatchShard, TwoAtOnceOnOneOutputAreRefused) {
  for (int attempt = 0;; ++attempt) {
    std::filesystem::remove(shard_file("0/2"));
    Command first(job("0/2", {"--percent", "0", "0", "100", "0", "100", "0", "--gpu-batch-size",
                              "1", "--num-gpu-batches", "1"}));
    std::error_code none;
    first.wait_until([&] {
      const auto bytes = std::filesystem::file_size(shard_file("0/2"), none);
      return !none && bytes > 0;
    });
    first.send(SIGSTOP);
    const bool is_held = first.is_running();
    if (!is_held && attempt < 5) continue;
    ASSERT_TRUE(is_held);
    fail(job("0/2"), 2, {"another process", "shard-0-of-2"});
    fail(job("0/3"), 2, {"another process", "shard-0-of-2", "only shards of one n"});
    fail({"batch", kModel, in(), "-o", out()}, 2, {"another process", "shard-0-of-2"});
    fail({"batch", "merge", out(), "-i", in()}, 2, {"still writing"});
    run("1/2");  // its neighbour is no trouble
    first.send(SIGKILL);
    EXPECT_EQ(first.wait().signal, SIGKILL);
    return;
  }
}

TEST_F(BatchShard, MergeNamesWhatIsMissing) {
  run("0/2");
  fail({"batch", "merge", out(), "-i", in()}, 2, {"rows have no record", "line ", "--partial"});
  EXPECT_FALSE(std::filesystem::exists(out()));
  const auto report = merge({"--partial"});
  EXPECT_GT(report["missing"], 0);
  EXPECT_EQ(report["missing"].get<int64_t>() + report["answers"].get<int64_t>() +
                report["errors"].get<int64_t>(),
            kShardRows + 2);
  run("1/2");
  merge();
  EXPECT_EQ(records(out()), records(whole()));
  fail({"batch", "merge", folder_.path("none"), "-i", in()}, 2, {"nothing to merge"});
}

TEST_F(BatchShard, AutoFollowsTheSchedulersVariables) {
  const auto shard_of = [&](const std::vector<std::string>& environment, const char* text) {
    Command::Options options;
    options.environment = environment;
    const Outcome outcome = sluice(job(text, {"--json"}), options);
    EXPECT_NE(outcome.out, "") << outcome.err;
    return outcome.json()["shard"].get<std::string>();
  };
  EXPECT_EQ(shard_of({"JOB_COMPLETION_INDEX=1"}, "auto/3"), "1/3");
  EXPECT_EQ(
      shard_of({"SLURM_ARRAY_TASK_ID=3", "SLURM_ARRAY_TASK_MIN=1", "SLURM_ARRAY_TASK_COUNT=3"},
               "auto"),
      "2/3");
  EXPECT_EQ(shard_of({"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=3"}, "auto"), "0/3");
  fail(job("auto"), 2, {"no scheduler"});
  fail(job("3/3"), 2, {"numbered from 0"});
  merge();
  EXPECT_EQ(records(out()), records(whole()));
}

}  // namespace
}  // namespace sluice::testing
