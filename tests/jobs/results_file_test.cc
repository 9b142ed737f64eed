#include "src/jobs/results_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "src/base/error.h"
#include "tests/jobs/temporary_folder.h"

namespace sluice::jobs {
namespace {

Request request(const std::string& custom_id, const std::string& prompt = "x") {
  return std::get<Request>(parse_request(
      R"({"custom_id": ")" + custom_id + R"(", "prompt": ")" + prompt + "\"}", {}, 1));
}

const Completion kAnswer{"text", "length", 3, 4, std::nullopt};

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorKind::kInternal, "no error");
}

TEST(ResultsFile, ResumesWhereItStopped) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.jsonl");
  const RequestError bad = line_error("{", 9, "", "invalid_json", "it breaks");
  {
    ResultsFile results(path, "config", "m");
    EXPECT_EQ(results.progress(request("a")), Progress::kNew);
    EXPECT_FALSE(results.is_finished(bad));
    results.write(request("a"), kAnswer);
    results.write_error(bad);
    results.write_error(request("b"), "prompt_too_long", "it has 9 tokens");
    EXPECT_EQ(results.progress(request("a")), Progress::kFinished);
    results.flush();
    EXPECT_EQ(results.records(), 3);
    EXPECT_EQ(results.resumed_records(), 0);
  }
  const std::string before = read_all(path);
  ResultsFile results(path, "config", "m");
  EXPECT_EQ(results.resumed_records(), 3);
  EXPECT_EQ(results.torn_bytes(), 0);
  EXPECT_EQ(results.progress(request("a")), Progress::kFinished);
  EXPECT_EQ(results.progress(request("b")), Progress::kFinished);
  EXPECT_EQ(results.progress(request("c")), Progress::kNew);
  EXPECT_EQ(results.progress(request("a", "other")), Progress::kOtherPrompt);
  EXPECT_EQ(results.progress(request("b", "other")),
            Progress::kNew);  // only an error record holds that name
  EXPECT_TRUE(results.is_finished(bad));
  results.write(request("c"), kAnswer);
  const std::string after = read_all(path);
  EXPECT_EQ(after.substr(0, before.size()), before);
  EXPECT_EQ(std::count(after.begin(), after.end(), '\n'), 4);
}

TEST(ResultsFile, WrittenRecordsAreWholeLinesAtOnce) {
  const TemporaryFolder folder;
  ResultsFile results(folder.file("out.jsonl"), "config", "m");
  for (int i = 0; i < 5; ++i) {
    results.write(request(std::to_string(i)), kAnswer);
    const std::string text = read_all(results.path());
    EXPECT_EQ(text.back(), '\n');
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), i + 1);
  }
}

TEST(ResultsFile, OnlyOneWriterAtATime) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.jsonl");
  {
    ResultsFile first(path, "config", "m");
    const Error error = error_of([&] { ResultsFile second(path, "config", "m"); });
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    EXPECT_NE(std::string(error.what()).find("another process is writing " + path),
              std::string::npos);
    first.write(request("a"), kAnswer);  // goes on undisturbed
  }
  EXPECT_EQ(ResultsFile(path, "config", "m").records(), 1);
}

TEST(ResultsFile, AnotherJobsRecordsAreRefusedAndKept) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.jsonl");
  ResultsFile(path, "opt-30b int4", "m").write(request("a"), kAnswer);
  const std::string before = read_all(path);
  const Error error = error_of([&] { ResultsFile results(path, "opt-30b bf16", "m"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUser);
  EXPECT_NE(error.text().find("another model or other settings"), std::string::npos);
  EXPECT_NE(error.mend().find("new file"), std::string::npos);
  EXPECT_EQ(read_all(path), before);
}

TEST(ResultsFile, ForeignFilesAreRefusedAndKept) {
  const TemporaryFolder folder;
  const std::string path = folder.file("notes.txt");
  for (const std::string& text :
       {std::string("my notes"), std::string("my notes\n"), std::string("\n"),
        std::string("{\"prompt\": \"x\"}\n"), std::string("{\"id\":\"chatcmpl")}) {
    write_all(path, text);
    const Error error = error_of([&] { ResultsFile results(path, "config", "m"); });
    EXPECT_EQ(error.kind(), ErrorKind::kFile) << text;
    EXPECT_NE(error.text().find("line 1"), std::string::npos) << error.text();
    EXPECT_EQ(read_all(path), text);
  }
}

TEST(ResultsFile, AnotherKindOfLineIsRefusedByItsBeginning) {
  const TemporaryFolder folder;
  const std::string path = folder.file("huge");
  write_all(path, "{");
  std::filesystem::resize_file(path, uintmax_t{1} << 40);  // a hole: takes no room
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  EXPECT_EQ(error_of([&] { ResultsFile results(path, "c", "m"); }).kind(), ErrorKind::kFile);
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 100 << 10);  // KiB
}

TEST(ResultsFile, WhatCannotBeContinuedIsRefused) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_of([&] { ResultsFile results(folder.path(), "c", "m"); }).kind(),
            ErrorKind::kFile);
  EXPECT_EQ(error_of([&] { ResultsFile results("/dev/null", "c", "m"); }).kind(), ErrorKind::kFile);
  const Error error = error_of([&] { ResultsFile results(folder.file("no/such/out"), "c", "m"); });
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_NE(error.text().find("No such file"), std::string::npos);
}

TEST(ResultsFile, ManyRecordsLongerThanTheReadBuffer) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.jsonl");
  Completion answer = kAnswer;
  {
    ResultsFile results(path, "config", "m");
    for (const size_t length : {size_t{3} << 20, size_t{1}, size_t{1} << 20, size_t{700000}}) {
      answer.text.assign(length, 't');
      results.write(request(std::to_string(length)), answer);
    }
  }
  const ResultsFile results(path, "config", "m");
  EXPECT_EQ(results.records(), 4);
  EXPECT_EQ(results.progress(request("700000")), Progress::kFinished);
}

TEST(ResultsFile, AnsweringTwiceIsOurMistake) {
  const TemporaryFolder folder;
  ResultsFile results(folder.file("out.jsonl"), "config", "m");
  results.write(request("a"), kAnswer);
  EXPECT_EQ(error_of([&] { results.write(request("a"), kAnswer); }).kind(), ErrorKind::kInternal);
  EXPECT_EQ(results.records(), 1);
}

}  // namespace
}  // namespace sluice::jobs
