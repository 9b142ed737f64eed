// Rows dealt by the hash of their keys, and the files of a job beside each other.
#include "src/jobs/shard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "src/base/error.h"
#include "src/jobs/job.h"
#include "src/jobs/results_file.h"
#include "tests/jobs/temporary_folder.h"

namespace sluice::jobs {
namespace {

using Environment = std::map<std::string, std::string>;

Variables variables(const Environment& environment) {
  return [environment](const char* name) -> std::optional<std::string> {
    const auto it = environment.find(name);
    return it == environment.end() ? std::nullopt : std::optional<std::string>(it->second);
  };
}

std::string refusal(const std::string& text, const Environment& environment = {}) {
  try {
    const Shard shard = parse_shard(text, variables(environment));
    ADD_FAILURE() << text << " is taken for " << shard.name();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    EXPECT_FALSE(error.mend().empty());
    return error.text();
  }
  return {};
}

TEST(Shard, EveryRowIsInExactlyOneShardOfEveryCount) {
  for (int64_t count : {1, 2, 3, 7, 64, 1000}) {
    for (int row = 0; row < 300; ++row) {
      int64_t owners = 0;
      for (int64_t index = 0; index < count; ++index)
        owners += Shard{index, count}.has("row-" + std::to_string(row));
      EXPECT_EQ(owners, 1) << row << " of " << count;
    }
  }
}

// Ids that differ in their last characters alone, even numbers only, hashes as ids: each shard gets
// its share within five deviations of a binomial draw.
TEST(Shard, SharesAreEvenWhateverTheKeysLookLike) {
  const std::function<std::string(int)> keys[] = {
      [](int i) { return "line-" + std::to_string(i); },
      [](int i) { return "request-" + std::to_string(2 * i); },
      [](int i) { return std::string(static_cast<size_t>(i % 50), 'x') + std::to_string(i); },
      [](int i) { return "a/very/long/path/of/a/document/" + std::to_string(1000000 + i * 10); }};
  constexpr int kRows = 20000;
  for (const auto& key : keys)
    for (int64_t count : {2, 3, 8, 10}) {
      const double expected = static_cast<double>(kRows) / static_cast<double>(count);
      for (int64_t index = 0; index < count; ++index) {
        int rows = 0;
        for (int i = 0; i < kRows; ++i) rows += Shard{index, count}.has(key(i));
        EXPECT_NEAR(rows, expected, 5 * std::sqrt(expected))
            << key(7) << " " << index << "/" << count;
      }
    }
}

// Who answers what in a job that has begun must stay: figures of the first version.
TEST(Shard, TheHashNeverChanges) {
  std::string owners;
  for (int i = 0; i < 24; ++i)
    for (int64_t index = 0; index < 7; ++index)
      if (Shard{index, 7}.has("row-" + std::to_string(i))) owners += std::to_string(index);
  EXPECT_EQ(owners, "621041463122062366056024");
}

TEST(Shard, KeysAreIdsElseLineNumbers) {
  const auto key = [](const std::string& line) { return row_key(parse_request(line, {}, 9)); };
  EXPECT_EQ(key(R"({"prompt": "x"})"), "line-9");
  EXPECT_EQ(key(R"({"prompt": "x", "custom_id": "a"})"), "a");
  EXPECT_EQ(key(R"({"prompt": 7, "custom_id": "a"})"), "a") << "an error's too";
  EXPECT_EQ(key("{"), "line-9");
}

TEST(Shard, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_shard("0/1", variables({})), (Shard{0, 1}));
  EXPECT_EQ(parse_shard("6/7", variables({})), (Shard{6, 7}));
  for (const char* wrong : {"", "/", "1", "1/", "/3", "-1/3", "a/3", "1/b", "1/3/4", "0x1/3",
                            "1 /3", "autos", "auto/", "auto/x"})
    EXPECT_NE(refusal(wrong).find("no shard"), std::string::npos) << wrong;
  for (const char* outside : {"3/3", "4/3", "0/0", "0/99999999999"})
    EXPECT_NE(refusal(outside).find("is none"), std::string::npos) << outside;
}

TEST(Shard, AutoIsWhatTheSchedulerSays) {
  const auto read = [](const Environment& environment, const char* text = "auto") {
    return parse_shard(text, variables(environment));
  };
  Environment array{{"SLURM_ARRAY_TASK_ID", "5"},
                    {"SLURM_ARRAY_TASK_MIN", "2"},
                    {"SLURM_ARRAY_TASK_MAX", "9"},
                    {"SLURM_ARRAY_TASK_COUNT", "8"},
                    {"SLURM_ARRAY_TASK_STEP", "1"}};
  EXPECT_EQ(read(array), (Shard{3, 8}));
  Environment stepped = array;
  stepped["SLURM_ARRAY_TASK_ID"] = "8";
  stepped["SLURM_ARRAY_TASK_STEP"] = "3";
  stepped["SLURM_ARRAY_TASK_MAX"] = "8";
  stepped["SLURM_ARRAY_TASK_COUNT"] = "3";
  EXPECT_EQ(read(stepped), (Shard{2, 3})) << "--array=2-8:3";
  array["SLURM_ARRAY_TASK_COUNT"] = "3";
  EXPECT_NE(refusal("auto", array).find("gaps"), std::string::npos) << "--array=2,5,9";
  EXPECT_EQ(read({{"JOB_COMPLETION_INDEX", "2"}, {"JOB_COMPLETIONS", "5"}}), (Shard{2, 5}));
  EXPECT_EQ(read({{"JOB_COMPLETION_INDEX", "2"}}, "auto/4"), (Shard{2, 4}));
  EXPECT_NE(refusal("auto", {{"JOB_COMPLETION_INDEX", "2"}}).find("of how many"),
            std::string::npos);
  EXPECT_NE(refusal("auto/2", {{"JOB_COMPLETION_INDEX", "2"}}).find("is none"), std::string::npos);
  EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}}), (Shard{1, 4}));
  EXPECT_EQ(read({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}}),
            (Shard{3, 4}));
  EXPECT_EQ(read({{"SLURM_STEP_ID", "0"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_NTASKS", "2"},
                  {"OMPI_COMM_WORLD_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "4"}}),
            (Shard{1, 4}));
  EXPECT_NE(refusal("auto").find("no scheduler"), std::string::npos);
  EXPECT_NE(refusal("auto", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).find("no scheduler"),
            std::string::npos)
      << "outside a step every process would be task 0";
  array["SLURM_ARRAY_TASK_COUNT"] = "8";
  array["OMPI_COMM_WORLD_RANK"] = "0";
  array["OMPI_COMM_WORLD_SIZE"] = "1";
  EXPECT_EQ(read(array), (Shard{3, 8})) << "a rank of one is no division";
  array["OMPI_COMM_WORLD_SIZE"] = "2";
  EXPECT_NE(refusal("auto", array).find("both"), std::string::npos);
  EXPECT_NE(refusal("auto", {{"JOB_COMPLETION_INDEX", "x"}}).find("JOB_COMPLETION_INDEX"),
            std::string::npos);
}

// An input with everything that is wrong with lines, read by the shards of several counts: each
// line comes once, as the unsharded reader gives it.
TEST(Shard, ReadersOfAllShardsTogetherGiveEveryLineOnce) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += R"({"prompt": "p)" + std::to_string(i) + "\"}\n\n";
  for (int i = 0; i < 40; ++i)
    text += R"({"prompt": "p", "custom_id": "c)" + std::to_string(i % 30) + "\"}\n";
  text += "{\nnot json\n{\"prompt\": 5, \"id\": 3}\r\n{\"prompt\": \"end\"}";
  const auto read = [&text](Shard shard) {
    std::istringstream input(text);
    JobReader reader(input, "in", {}, nullptr, 0, shard);
    std::multimap<std::string, std::string> out;
    while (const auto line = reader.next()) {
      const auto* error = std::get_if<RequestError>(&*line);
      out.emplace(row_key(*line), error ? error->code + error->key : std::get<Request>(*line).key);
      const std::string raw = text.substr(static_cast<size_t>(reader.line_offset()),
                                          static_cast<size_t>(reader.line_bytes()));
      const ParsedLine again =
          parse_request(raw.substr(0, raw.find('\r')), {}, reader.lines_read());
      if (error) continue;
      EXPECT_EQ(std::get<Request>(again).key, std::get<Request>(*line).key) << raw;
    }
    return out;
  };
  const auto whole = read({});
  EXPECT_EQ(whole.size(), 84u);
  for (int64_t count : {1, 2, 5, 100}) {
    std::multimap<std::string, std::string> all;
    for (int64_t index = 0; index < count; ++index) all.merge(read({index, count}));
    EXPECT_EQ(all, whole) << count;
  }
}

void answer(ResultsFile& results, const std::string& id) {
  results.write(
      std::get<Request>(parse_request(R"({"custom_id": ")" + id + R"(", "prompt": "x"})", {}, 1)),
      {"text", "length", 3, 4, std::nullopt, {}});
}

TEST(JobFiles, AreFoundByNameAndNothingElseIs) {
  const TemporaryFolder folder;
  for (const char* name :
       {"out", "out.shard-0-of-2", "out.shard-1-of-2", "out.rank-12", "out.shard-2-of-2",
        "out.shard-x-of-2", "out.shard-0-of-2.bak", "out.rank-", "other.rank-1", "out2"})
    write_all(folder.file(name), "");
  std::string found;
  for (const JobFile& file : job_files(folder.file("out")))
    found += file.path.substr(folder.path().size() + 1) +
             (file.shard ? "[" + file.shard->name() + "]" : "") + (file.is_rank ? "!" : "") + " ";
  EXPECT_EQ(found, "out out.rank-12! out.shard-0-of-2[0/2] out.shard-1-of-2[1/2] ");
  EXPECT_TRUE(job_files(folder.file("none")).empty());
  EXPECT_TRUE(job_files(folder.file("no/folder/out")).empty());
}

TEST(JobFiles, WhatOthersFinishedIsFinished) {
  const TemporaryFolder folder;
  const std::string out = folder.file("out");
  {
    ResultsFile one(shard_path(out, {0, 2}), "config", "m");
    answer(one, "a");
    ResultsFile two(shard_path(out, {1, 2}), "config", "m");
    answer(two, "b");
  }
  write_all(rank_path(out, 3), read_all(shard_path(out, {1, 2})) + R"({"id":"batch_req_torn)");
  ResultsFile results(shard_path(out, {0, 3}), "config", "m");
  take_others(results, out, Shard{0, 3});
  const auto progress = [&](const std::string& id, const std::string& prompt) {
    return results.progress(std::get<Request>(
        parse_request(R"({"custom_id": ")" + id + R"(", "prompt": ")" + prompt + "\"}", {}, 1)));
  };
  EXPECT_EQ(progress("a", "x"), Progress::kFinished);
  EXPECT_EQ(progress("b", "x"), Progress::kFinished);
  EXPECT_EQ(progress("b", "y"), Progress::kOtherPrompt);
  EXPECT_EQ(progress("c", "x"), Progress::kNew);
  EXPECT_EQ(results.records(), 0);
  EXPECT_EQ(results.answers(), 0);
  EXPECT_TRUE(read_all(rank_path(out, 3)).ends_with("torn")) << "another's file is not changed";
}

TEST(JobFiles, ProcessesOfAnotherCountAreRefusedWhileTheyRun) {
  const TemporaryFolder folder;
  const std::string out = folder.file("out");
  const auto start = [&](std::optional<Shard> shard) {
    auto results =
        std::make_unique<ResultsFile>(shard ? shard_path(out, *shard) : out, "config", "m");
    take_others(*results, out, shard);
    return results;
  };
  const auto refused = [&](std::optional<Shard> shard) {
    try {
      start(shard);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser);
      return error.text().find("another process") != std::string::npos;
    }
    return false;
  };
  {
    const auto first = start(Shard{0, 2});
    const auto second = start(Shard{1, 2});
    EXPECT_TRUE(refused(Shard{0, 2})) << "the same shard twice";
    EXPECT_TRUE(refused(Shard{0, 3}));
    EXPECT_TRUE(refused(std::nullopt));
  }
  {
    const auto whole = start(std::nullopt);
    EXPECT_TRUE(refused(Shard{0, 2}));
  }
  EXPECT_FALSE(refused(Shard{0, 3}));
}

TEST(JobFiles, AnotherJobsFileIsRefusedByName) {
  const TemporaryFolder folder;
  const std::string out = folder.file("out");
  {
    ResultsFile one(shard_path(out, {0, 2}), "another model", "m");
    answer(one, "a");
  }
  ResultsFile results(shard_path(out, {1, 2}), "config", "m");
  try {
    take_others(results, out, Shard{1, 2});
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("out.shard-0-of-2"), std::string::npos);
    EXPECT_NE(error.text().find("another model"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::jobs
