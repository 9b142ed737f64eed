#include "src/jobs/job.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/base/error.h"
#include "tests/jobs/temporary_folder.h"

namespace sluice::jobs {
namespace {

struct Seen {
  std::vector<Request> requests;
  std::vector<RequestError> errors;
  int64_t lines = 0;
  int64_t skipped = 0;
};

Seen read_job(const std::string& text, const ResultsFile* results = nullptr) {
  std::istringstream input(text);
  JobReader reader(input, "in.jsonl", {}, results);
  Seen seen;
  while (auto parsed = reader.next()) {
    if (auto* request = std::get_if<Request>(&*parsed))
      seen.requests.push_back(std::move(*request));
    else
      seen.errors.push_back(std::get<RequestError>(std::move(*parsed)));
  }
  EXPECT_FALSE(reader.next()) << "the end stays the end";
  seen.lines = reader.lines_read();
  seen.skipped = reader.skipped();
  return seen;
}

TEST(JobReader, BlankLinesByteOrderMarkAndLineEnds) {
  const std::string text =
      "\xEF\xBB\xBF{\"prompt\": \"a\"}\r\n\n  \t\r\n{\"prompt\": \"b\"}  \n{\"prompt\": \"c\"}";
  const Seen seen = read_job(text);
  ASSERT_EQ(seen.requests.size(), 3U);
  EXPECT_EQ(seen.errors.size(), 0U);
  EXPECT_EQ(seen.lines, 5);
  EXPECT_EQ(seen.requests[1].line_number, 4);
  EXPECT_EQ(seen.requests[2].custom_id, "line-5");
  std::istringstream input(text);
  const InputCount count = count_requests(input, "in.jsonl");
  EXPECT_EQ(count.lines, 5);
  EXPECT_EQ(count.requests, 3);
}

TEST(JobReader, EmptyInputs) {
  EXPECT_EQ(read_job("").lines, 0);
  EXPECT_EQ(read_job("\n\n").requests.size(), 0U);
  EXPECT_EQ(read_job("\n\n").lines, 2);
}

TEST(JobReader, LinesAroundTheReadBuffersSize) {
  std::string text;
  for (size_t length = 65530; length < 65545; ++length) {
    text += R"({"prompt": ")" + std::string(length - 14, 'p') + "\"}\n";
  }
  const Seen seen = read_job(text + text.substr(0, text.size() - 1));
  ASSERT_EQ(seen.requests.size(), 30U);
  for (size_t i = 0; i < 30; ++i) EXPECT_EQ(seen.requests[i].prompt.size(), 65530 + i % 15 - 14);
}

TEST(JobReader, ZeroBytesAreNotLineEnds) {
  const Seen seen = read_job(std::string("{\"prompt\": \"a\"}\0\n{\"prompt\": \"b\"}\n", 33));
  EXPECT_EQ(seen.errors.size(), 1U);
  ASSERT_EQ(seen.requests.size(), 1U);
  EXPECT_EQ(seen.requests[0].line_number, 2);
}

TEST(JobReader, ALineThatIsTooLongIsAnErrorAndTheNextIsRead) {
  std::string text = R"({"prompt": ")";
  text.append(static_cast<size_t>(kMaxLineBytes), 'p');
  text += "\"}\n{\"prompt\": \"b\"}\n";
  const Seen seen = read_job(text);
  ASSERT_EQ(seen.errors.size(), 1U);
  EXPECT_EQ(seen.errors[0].code, "line_too_long");
  EXPECT_EQ(seen.errors[0].line_number, 1);
  ASSERT_EQ(seen.requests.size(), 1U);
  EXPECT_EQ(seen.requests[0].custom_id, "line-2");
}

// Gives zeros without end and counts them.
class Zeros : public std::streambuf {
 public:
  int64_t given() const { return given_; }

 private:
  int_type underflow() override {
    given_ += static_cast<int64_t>(block_.size());
    setg(block_.data(), block_.data(), block_.data() + block_.size());
    return traits_type::to_int_type(block_[0]);
  }
  std::vector<char> block_ = std::vector<char>(1 << 20);
  int64_t given_ = 0;
};

TEST(JobReader, ALineWithoutEndIsRefused) {
  Zeros zeros;
  std::istream input(&zeros);
  JobReader reader(input, "/dev/zero", {});
  try {
    reader.next();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_NE(error.text().find("/dev/zero: a line of more than"), std::string::npos);
  }
  EXPECT_LT(zeros.given(), 20 * kMaxLineBytes);
}

TEST(JobReader, ASecondLineWithACustomIdIsAnError) {
  const Seen seen = read_job(
      "{\"custom_id\": \"line-3\", \"prompt\": \"a\"}\n{\"custom_id\": \"line-3\", \"prompt\": "
      "\"a\"}\n{\"prompt\": \"c\"}\n"
      "{\"custom_id\": \"d\", \"prompt\": 4}\n{\"custom_id\": \"d\", \"prompt\": \"d\"}\n");
  ASSERT_EQ(seen.errors.size(), 3U);
  EXPECT_EQ(seen.errors[0].code, "duplicate_custom_id");
  EXPECT_EQ(seen.errors[0].line_number, 2);
  EXPECT_EQ(seen.errors[1].line_number, 3);  // the name it would get is taken
  EXPECT_EQ(seen.errors[2].code, "invalid_request");
  ASSERT_EQ(seen.requests.size(), 2U);  // a line in error takes no name
  EXPECT_EQ(seen.requests[1].custom_id, "d");
}

TEST(JobReader, SkipsWhatTheResultsHold) {
  const TemporaryFolder folder;
  const std::string text =
      "{\"custom_id\": \"a\", \"prompt\": \"a\"}\nbad\n{\"custom_id\": \"a\", \"prompt\": \"a\"}\n"
      "{\"custom_id\": \"b\", \"prompt\": \"b\"}\n";
  {
    ResultsFile results(folder.file("out"), "config", "m");
    const Seen seen = read_job(text, &results);
    ASSERT_EQ(seen.requests.size(), 2U);
    ASSERT_EQ(seen.errors.size(), 2U);
    results.write(seen.requests[0], {"t", "stop", 1, 1, std::nullopt});
    for (const RequestError& error : seen.errors) results.write_error(error);
  }
  ResultsFile results(folder.file("out"), "config", "m");
  Seen seen = read_job(text, &results);
  EXPECT_EQ(seen.errors.size(), 0U);
  EXPECT_EQ(seen.skipped, 3);
  ASSERT_EQ(seen.requests.size(), 1U);
  EXPECT_EQ(seen.requests[0].custom_id, "b");

  // A line that was bad and is mended is run; lines may change their order.
  seen = read_job("{\"custom_id\": \"new\", \"prompt\": \"n\"}\n" + text, &results);
  ASSERT_EQ(seen.requests.size(), 2U);
  EXPECT_EQ(seen.requests[0].custom_id, "new");
}

TEST(JobReader, AnotherPromptUnderAnAnsweredNameIsRefused) {
  const TemporaryFolder folder;
  ResultsFile results(folder.file("out"), "config", "m");
  const Seen seen = read_job(R"({"custom_id": "a", "prompt": "a"})", &results);
  results.write(seen.requests.at(0), {"t", "stop", 1, 1, std::nullopt});
  try {
    read_job("\n{\"custom_id\": \"a\", \"prompt\": \"other\"}", &results);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    EXPECT_NE(error.text().find("in.jsonl line 2"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("\"a\""), std::string::npos);
    EXPECT_FALSE(error.mend().empty());
  }
}

TEST(JobReader, AnInputThatCannotBeReadIsAnError) {
  std::ifstream missing("/no/such/file");
  JobReader reader(missing, "/no/such/file", {});
  EXPECT_THROW(reader.next(), Error);
  std::ifstream folder("/");  // opens, but cannot be read
  JobReader other(folder, "/", {});
  EXPECT_THROW(other.next(), Error);
}

TEST(JobReader, TheFixtureOfBadLines) {
  std::ifstream input(SLUICE_FIXTURES "/prompts/bad_lines.jsonl");
  std::ifstream file(SLUICE_FIXTURES "/prompts/bad_lines_expected.json");
  const auto expected = nlohmann::json::parse(file);
  JobReader reader(input, "bad_lines.jsonl", {}, nullptr, 512);
  std::vector<std::string> found(expected["lines"].size() + 1, "blank");
  while (const auto parsed = reader.next()) {
    const auto* error = std::get_if<RequestError>(&*parsed);
    const auto line = static_cast<size_t>(
        error != nullptr ? error->line_number : std::get<Request>(*parsed).line_number);
    ASSERT_LT(line, found.size());
    found[line] = error != nullptr ? error->code : "ok";
  }
  const std::vector<std::pair<std::string, std::string>> codes = {
      {"ok", "ok"},
      {"blank", "blank"},
      {"invalid JSON", "invalid_json"},
      {"duplicate", "duplicate_custom_id"},
      {"not UTF-8", "invalid_utf8"},
      {"unknown url", "unsupported"},
      {"", "invalid_request"}};
  for (const auto& line : expected["lines"]) {
    const std::string expect = line["expect"];
    const auto code = std::find_if(codes.begin(), codes.end(),
                                   [&](const auto& one) { return expect.starts_with(one.first); });
    EXPECT_EQ(found[line["line"].get<size_t>()], code->second) << line;
  }
}

TEST(JobReader, TheFixturesOfGoodLines) {
  for (const auto& [name, errors] :
       {std::pair{"plain.jsonl", 0}, std::pair{"openai_batch.jsonl", 2}}) {
    const Seen seen = read_job(read_all(std::string(SLUICE_FIXTURES "/prompts/") + name));
    for (const RequestError& error : seen.errors)
      EXPECT_EQ(error.code, "unsupported") << error.message;
    EXPECT_EQ(seen.errors.size(), static_cast<size_t>(errors))
        << name;  // n = 2, and a list of prompts
    EXPECT_GE(seen.requests.size(), 7U) << name;
  }
}

}  // namespace
}  // namespace sluice::jobs
