#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "src/base/error.h"
#include "src/jobs/record.h"
#include "src/jobs/results_file.h"
#include "tests/jobs/temporary_folder.h"

// What a crash, a full disk or a damaged byte leaves of a results file.
namespace sluice::jobs {
namespace {

Request request(int number) {
  return std::get<Request>(parse_request(
      R"({"custom_id": "r)" + std::to_string(number) + R"(", "prompt": "x"})", {}, number));
}

Completion answer(int number) {
  return {std::string(static_cast<size_t>(10 + number * 37 % 900), 't'), "length", 3, 4,
          std::nullopt};
}

std::string three_records(const std::string& path) {
  ResultsFile results(path, "config", "m");
  results.write(request(1), answer(1));
  results.write_error(line_error("{", 2, "", "invalid_json", "it breaks"));
  results.write(request(3), answer(3));
  return read_all(path);
}

// The child answers requests until it is killed at a moment of its own; each acknowledged record
// must be there.
void run_until_killed(const std::string& path, int kill_after) {
  int channel[2];
  ASSERT_EQ(pipe(channel), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ResultsFile results(path, "config", "m");
    for (int number = 1;; ++number) {
      if (results.progress(request(number)) == Progress::kFinished) continue;
      results.write(request(number), answer(number));
      if (write(channel[1], "x", 1) != 1) _exit(1);
    }
  }
  close(channel[1]);
  int acknowledged = 0;
  char byte = 0;
  while (acknowledged < kill_after && read(channel[0], &byte, 1) == 1) ++acknowledged;
  ASSERT_EQ(kill(child, SIGKILL), 0);
  while (read(channel[0], &byte, 1) == 1) ++acknowledged;
  close(channel[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  ASSERT_GE(acknowledged, kill_after);
}

TEST(ResultsFaults, KilledWritersLoseNothingAndRepeatNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.jsonl");
  int64_t acknowledged = 0;
  for (int round = 0; round < 8; ++round) {
    run_until_killed(path, 5 + round * 3);
    if (HasFatalFailure()) return;
    acknowledged += 5 + round * 3;
    const ResultsFile results(path, "config", "m");
    EXPECT_GE(results.records(), acknowledged) << round;
    acknowledged = results.records();
    // Requests were answered in order, so the finished ones are the first, without a gap.
    for (int number = 1; number <= acknowledged; ++number) {
      ASSERT_EQ(results.progress(request(number)), Progress::kFinished) << number;
    }
  }
  std::istringstream lines(read_all(path));
  std::set<std::string> names;
  int64_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto record = read_record(line);
    ASSERT_TRUE(record) << line;
    names.insert(record->custom_id);
  }
  EXPECT_EQ(count, acknowledged);
  EXPECT_EQ(static_cast<int64_t>(names.size()), acknowledged);
}

TEST(ResultsFaults, TornAtEveryByteKeepsTheWholeRecords) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.jsonl");
  const std::string whole = three_records(path);
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    write_all(path, whole.substr(0, cut));
    ResultsFile results(path, "config", "m");
    // A record is whole with its last brace; the line end after it is put back.
    size_t kept = cut == 0 ? 0 : whole.rfind('\n', cut - 1) + 1;
    if (cut < whole.size() && whole[cut] == '\n') kept = cut + 1;
    ASSERT_EQ(read_all(path), whole.substr(0, kept)) << cut;
    ASSERT_EQ(results.records(),
              std::count(whole.begin(), whole.begin() + static_cast<int64_t>(kept), '\n'));
    ASSERT_EQ(results.torn_bytes(), kept > cut ? 0 : static_cast<int64_t>(cut - kept));
    if (cut % 16 != 0) continue;
    results.write(request(77), answer(7));
    ASSERT_EQ(read_all(path).substr(0, kept), whole.substr(0, kept));
  }
}

TEST(ResultsFaults, ZerosThatAPowerCutLeavesAreTorn) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.jsonl");
  const std::string whole = three_records(path);
  for (const std::string& tail :
       {std::string(4096, '\0'), std::string("{\"id\":\"batch_req_12") + std::string(100, '\0')}) {
    write_all(path, whole + tail);
    const ResultsFile results(path, "config", "m");
    EXPECT_EQ(results.records(), 3);
    EXPECT_EQ(results.torn_bytes(), static_cast<int64_t>(tail.size()));
    EXPECT_EQ(read_all(path), whole);
  }
}

TEST(ResultsFaults, DamageInTheMiddleIsRefusedByLineAndLeftAlone) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.jsonl");
  std::string text = three_records(path);
  const size_t second = text.find('\n') + 1;
  text[second] = '[';
  text.resize(text.size() -
              5);  // a torn tail besides: nothing may be cut while the rest is in doubt
  write_all(path, text);
  try {
    const ResultsFile results(path, "config", "m");
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_NE(error.text().find("line 2"), std::string::npos) << error.text();
  }
  EXPECT_EQ(read_all(path), text);
}

// Any one changed byte: opened, with only a torn tail cut off, or refused with the file as it was.
TEST(ResultsFaults, ByteFlipSweep) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.jsonl");
  const std::string whole = three_records(path);
  int opened = 0, refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
    write_all(path, changed);
    try {
      const ResultsFile results(path, "config", "m");
      ++opened;
      const std::string left = read_all(path);
      EXPECT_EQ(left, changed.substr(0, left.size())) << at;
      EXPECT_GE(results.records(), 2) << at;
      EXPECT_EQ(static_cast<int64_t>(changed.size() - left.size()), results.torn_bytes()) << at;
    } catch (const Error& error) {
      ++refused;
      EXPECT_TRUE(error.kind() == ErrorKind::kFile || error.kind() == ErrorKind::kUser) << at;
      EXPECT_EQ(read_all(path), changed) << at;
    }
  }
  EXPECT_GT(opened, 100);  // in the answers' text
  EXPECT_GT(refused, 100);
}

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = SIG_DFL;
};

TEST(ResultsFaults, AFullDiskSaysSoAndKeepsTheRecords) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.jsonl");
  const std::string before = three_records(path);
  {
    ResultsFile results(path, "config", "m");
    std::string text, mend;
    {
      const FileSizeLimit limit(before.size() + 100);  // room for a part of the next record
      try {
        results.write(request(4), answer(4));
      } catch (const Error& error) {
        text = error.text();
        mend = error.mend();
      }
    }
    EXPECT_NE(text.find(path), std::string::npos);
    EXPECT_NE(text.find("File too large"), std::string::npos) << text;
    EXPECT_NE(text.find("3 finished records are safe"), std::string::npos) << text;
    EXPECT_NE(mend.find("make room"), std::string::npos);
    EXPECT_EQ(read_all(path), before);
    EXPECT_EQ(results.progress(request(4)), Progress::kNew);
    results.write(request(4), answer(4));  // with room again, the same object goes on
  }
  EXPECT_EQ(read_all(path).substr(0, before.size()), before);
  EXPECT_EQ(ResultsFile(path, "config", "m").records(), 4);
}

// Error records are written together; an answer never overtakes them, and a file system that loses
// a block of such a group costs records that are made again.
TEST(ResultsFaults, ErrorRecordsAreWrittenInGroups) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out");
  {
    ResultsFile results(path, "config", "m");
    results.write_error(request(1), "refused", "no");
    results.write_error(request(2), "refused", "no");
    EXPECT_EQ(results.records(), 0) << "not on disk yet";
    EXPECT_EQ(results.progress(request(1)), Progress::kFinished);
    results.write(request(3), answer(3));
    EXPECT_EQ(results.records(), 3);
    EXPECT_EQ(results.answers(), 1);
    const std::string lines = read_all(path);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
    EXPECT_NE(lines.find("\"r1\""), std::string::npos);
    for (int number = 4; number < 3000; ++number)
      results.write_error(request(number), "refused", "no");
    EXPECT_GT(results.records(), 2000) << "groups are bounded";
    EXPECT_LT(results.records(), 2999);
  }
  const std::string whole = read_all(path);
  EXPECT_EQ(ResultsFile(path, "config", "m").records(), 2999);
  // Blocks of the last group are lost: its records go, up to all that came after the answer.
  std::string holed = whole;
  holed.replace(holed.size() - 8192, 4096, std::string(4096, '\0'));
  std::ofstream(path, std::ios::binary) << holed;
  {
    ResultsFile results(path, "config", "m");
    EXPECT_LT(results.records(), 2999);
    EXPECT_GT(results.records(), 2900);
    EXPECT_GT(results.torn_bytes(), 8000);
    EXPECT_EQ(results.progress(request(3)), Progress::kFinished);
    EXPECT_EQ(results.progress(request(2999)), Progress::kNew);
    results.write_error(request(2999), "refused", "no");
  }
  // Zeros in front of an answer are no crash's.
  holed = whole;
  holed.replace(0, 10, std::string(10, '\0'));
  std::ofstream(path, std::ios::binary) << holed;
  EXPECT_THROW(ResultsFile(path, "config", "m"), Error);
  EXPECT_EQ(read_all(path), holed) << "it stays as it is";
}

// Whoever deals rows to others waits for the record of each: errors don't wait for company.
TEST(ResultsFaults, WhoListensHearsErrorsAtOnce) {
  const TemporaryFolder folder;
  std::vector<std::string> told;
  ResultsFile results(folder.file("out"), "config", "m");
  results.on_record = [&](std::string_view line) { told.emplace_back(line); };
  for (int number = 1; number <= 3; ++number) {
    results.write_error(request(number), "refused", "no");
    EXPECT_EQ(told.size(), static_cast<size_t>(number));
    EXPECT_EQ(results.records(), number) << "it is on disk";
  }
}

}  // namespace
}  // namespace sluice::jobs
