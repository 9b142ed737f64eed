// One file of all shards': complete, in the input's order, and nothing that contradicts.
#include "src/jobs/merge.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "src/base/error.h"
#include "src/jobs/job.h"
#include "src/jobs/results_file.h"
#include "src/jobs/shard.h"
#include "tests/jobs/temporary_folder.h"

namespace sluice::jobs {
namespace {

Completion said(const std::string& text) { return {text, "length", 3, 4, std::nullopt, {}}; }

class Merge : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.file(name); }

  // Answers the rows of `lines` that `has` says, in any order.
  void run(const std::string& file, const std::function<bool(const std::string& key)>& has,
           unsigned seed = 0, const std::string& text = "it", const std::string& config = "c") {
    std::istringstream input(lines_);
    JobReader reader(input, "in", {});
    std::vector<ParsedLine> rows;
    while (auto row = reader.next())
      if (has(row_key(*row))) rows.push_back(std::move(*row));
    std::shuffle(rows.begin(), rows.end(), std::mt19937(seed));
    ResultsFile results(path(file), config, "m");
    for (const ParsedLine& row : rows)
      if (const auto* error = std::get_if<RequestError>(&row))
        results.write_error(*error);
      else if (std::get<Request>(row).custom_id.starts_with("refused"))
        results.write_error(std::get<Request>(row), "refused", "too long");
      else
        results.write(std::get<Request>(row), said(text + std::get<Request>(row).prompt));
  }
  static bool all(const std::string&) { return true; }

  MergeReport merge(const std::vector<std::string>& files, Missing missing = Missing::kRefuse) {
    std::istringstream input(lines_);
    std::vector<std::string> paths;
    for (const std::string& file : files) paths.push_back(path(file));
    return merge_results(input, "in.jsonl", paths, path("out"), missing);
  }

  std::string refusal(const std::vector<std::string>& files) {
    const auto output = [this] {
      return std::filesystem::exists(path("out")) ? read_all(path("out")) : "none";
    };
    const std::string before = output();
    try {
      merge(files);
      ADD_FAILURE() << "merged";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser);
      EXPECT_EQ(output(), before) << "the output stays";
      EXPECT_FALSE(std::filesystem::exists(path("out.merging")));
      return error.text();
    }
    return {};
  }

  // Per record: custom_id, or "-", with what it is.
  std::string order() const {
    std::string out;
    std::istringstream lines(read_all(path("out")));
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      out += record["custom_id"].is_null() ? "-" : record["custom_id"].get<std::string>();
      out += record["error"].is_null() ? " " : "! ";
    }
    return out;
  }

  std::string lines_ =
      "{\"prompt\": \"0\", \"custom_id\": \"a\"}\n{\"prompt\": \"1\"}\n\nnot json\n"
      "{\"prompt\": \"4\", \"custom_id\": \"a\"}\n{\"prompt\": \"5\", \"custom_id\": "
      "\"refused-5\"}\n"
      "{\"prompt\": 6, \"custom_id\": \"wrong\"}\n{\"prompt\": \"7\", \"custom_id\": \"z\"}\n";
  const std::string whole_ = "a line-2 -! a! refused-5! wrong! z ";
  TemporaryFolder folder_;
};

TEST_F(Merge, GivesEveryRowOnceInTheInputsOrder) {
  for (int64_t count : {1, 2, 3, 9}) {
    std::vector<std::string> files;
    for (int64_t index = 0; index < count; ++index) {
      files.push_back("s" + std::to_string(count) + "." + std::to_string(index));
      run(
          files.back(),
          [&](const std::string& key) {
            return Shard{index, count}.has(key);
          },
          static_cast<unsigned>(index));
    }
    std::filesystem::remove(path("out"));
    const MergeReport report = merge(files);
    EXPECT_EQ(order(), whole_);
    EXPECT_EQ(report.rows, 7);
    EXPECT_EQ(report.answers, 3);
    EXPECT_EQ(report.errors, 4);
    EXPECT_EQ(report.doubled, 0);
  }
}

TEST_F(Merge, NamesWhatIsMissingAndWritesItOnlyWhenAsked) {
  run("s0", [](const std::string& key) { return key != "line-4" && key != "z"; });
  const std::string why = refusal({"s0"});
  EXPECT_NE(why.find("2 of 7 rows"), std::string::npos) << why;
  EXPECT_NE(why.find("line 4 (line-4), line 8 (z)"), std::string::npos) << why;
  const MergeReport report = merge({"s0"}, Missing::kAllow);
  EXPECT_EQ(report.missing, 2);
  EXPECT_EQ(order(), "a line-2 a! refused-5! wrong! ");
  run("s1", [](const std::string& key) { return key == "line-4" || key == "z"; });
  merge({"out", "s1"});  // the output is a source like another
  EXPECT_EQ(order(), whole_);
}

TEST_F(Merge, TakesRowsThatAreThereTwiceAndAlikeOnce) {
  run("s0", all);
  run(
      "s1", [](const std::string& key) { return key != "z"; }, 5);
  const MergeReport report = merge({"s0", "s1"});
  EXPECT_EQ(order(), whole_);
  EXPECT_EQ(report.doubled, 6);
}

TEST_F(Merge, ComparesAnswersButForTimesAndRandomIds) {
  lines_ = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"custom_id\": \"a\"}\n";
  const auto write = [&](const std::string& file, const std::string& id, const std::string& name) {
    std::istringstream input(lines_);
    JobReader reader(input, "in", {});
    ResultsFile results(path(file), "c", "m");
    Completion completion = said("");
    completion.message = R"({"role": "assistant", "content": null, "tool_calls": [{"id": ")" + id +
                         R"(", "type": "function", "function": {"name": ")" + name + "\"}}]}";
    results.write(std::get<Request>(*reader.next()), completion);
  };
  write("s0", "call_1", "f");
  write("s1", "call_2", "f");
  write("s2", "call_2", "g");
  EXPECT_EQ(merge({"s0", "s1"}).doubled, 1);
  std::filesystem::remove(path("out"));
  EXPECT_NE(refusal({"s0", "s2"}).find("different answers"), std::string::npos);
}

TEST_F(Merge, ASecondThatPassedMakesNoOtherAnswer) {
  run("s0", all);
  run("s1", all);
  std::string text = read_all(path("s1"));
  constexpr std::string_view kKey = "\"created\":";
  size_t changed = 0;
  for (size_t at = 0; (at = text.find(kKey, at)) != std::string::npos; ++changed)
    text.replace(at += kKey.size(), 1, "9");
  ASSERT_GT(changed, 0u);
  std::ofstream(path("s1")) << text;
  EXPECT_EQ(merge({"s0", "s1"}).doubled, 7);
}

TEST_F(Merge, AnErrorOfAnotherRowInItsLineIsNotTaken) {
  run("s0", [](const std::string& key) { return key != "wrong"; });
  const std::string mine = lines_;
  lines_.replace(lines_.find("wrong"), 5, "other");
  run("s1", [](const std::string& key) { return key == "other"; });
  lines_ = mine;
  EXPECT_NE(refusal({"s0", "s1"}).find("are of no row"), std::string::npos);
}

TEST_F(Merge, RefusesAnswersThatDiffer) {
  run("s0", all);
  run(
      "s1", [](const std::string& key) { return key == "z"; }, 0, "something else ");
  const std::string why = refusal({"s0", "s1"});
  EXPECT_NE(why.find("different answers under custom_id \"z\""), std::string::npos) << why;
  EXPECT_NE(why.find("s0"), std::string::npos) << why;
  EXPECT_NE(why.find("s1"), std::string::npos) << why;
}

TEST_F(Merge, RefusesFilesOfOtherJobsInputsAndKinds) {
  run("s0", all);
  run(
      "s1", [](const std::string& key) { return key == "z"; }, 0, "it", "other settings");
  EXPECT_NE(refusal({"s0", "s1"}).find("different jobs"), std::string::npos);
  const std::string kept = lines_;
  lines_ = kept.substr(0, kept.find("{\"prompt\": \"7\""));
  EXPECT_NE(refusal({"s0"}).find("1 records are of no row of in.jsonl"), std::string::npos);
  lines_ = "\n" + kept;  // line numbers have moved
  EXPECT_NE(refusal({"s0"}), "");
  lines_ = kept;
  write_all(path("other"), "{\"a\": 1}\n");
  try {
    merge({"other"});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_NE(error.text().find("no record"), std::string::npos);
  }
  const ResultsFile busy(path("s0"), "c", "m");
  EXPECT_NE(refusal({"s0"}).find("still writing"), std::string::npos);
}

TEST_F(Merge, TakesAFileWhoseLastLineIsTornOrLacksItsEnd) {
  run("s0", all);
  const std::string bytes = read_all(path("s0"));
  write_all(path("s0"), bytes.substr(0, bytes.size() - 1));
  EXPECT_EQ(merge({"s0"}).rows, 7);
  EXPECT_EQ(order(), whole_);
  write_all(path("s0"), bytes + R"({"id":"batch_req_0123)");
  EXPECT_EQ(merge({"s0"}).missing, 0);
  EXPECT_EQ(order(), whole_);
}

}  // namespace
}  // namespace sluice::jobs
