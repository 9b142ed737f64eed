// sluice batch: every line of the input gets one record, and what the records hold.
#include <gtest/gtest.h>

#include <set>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Records = std::map<std::string, nlohmann::json>;

Records by_custom_id(const std::vector<nlohmann::json>& lines) {
  Records out;
  for (const auto& line : lines)
    if (line["custom_id"].is_string()) {
      EXPECT_TRUE(out.emplace(line["custom_id"], line).second)
          << line["custom_id"] << " has two records";
    }
  return out;
}

// Runs a batch of which some lines can't be answered.
Outcome half_succeed(const std::vector<std::string>& arguments) {
  Outcome outcome = sluice(arguments);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("error records instead of answers"), std::string::npos) << outcome.err;
  return outcome;
}

std::string text_of(const nlohmann::json& record) {
  return record["response"]["body"]["choices"][0]["text"];
}

TEST(Batch, PlainLinesGetTheTextThatRunGives) {
  const TemporaryFolder folder;
  write_file(folder.path("in.jsonl"),
             "{\"prompt\": \"Once upon a time\", \"max_tokens\": 30}\n"
             "\n"
             "{\"custom_id\": \"mine\", \"prompt\": \"Lily and Tom\", \"stop\": [\".\"]}\n"
             "{\"id\": 17, \"prompt\": [1, 403, 407], \"max_tokens\": 5}");
  const auto json = succeed({"batch", kModel, folder.path("in.jsonl"), "-o",
                             folder.path("out.jsonl"), "-n", "12", "--json"})
                        .json();
  EXPECT_EQ(json["requests"], 3);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["skipped"], 0);
  EXPECT_EQ(json["output"], folder.path("out.jsonl"));
  EXPECT_GT(json["stats"]["decode_tokens"].get<int64_t>(), 30);
  const Records records = by_custom_id(read_json_lines(folder.path("out.jsonl")));
  ASSERT_EQ(records.size(), 3u);
  const auto expect_as_run = [](const nlohmann::json& record, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"run", kModel, "--json"});
    const auto run = succeed(flags).json();
    EXPECT_EQ(text_of(record), run["text"]);
    const auto& body = record["response"]["body"];
    EXPECT_EQ(body["choices"][0]["finish_reason"], run["finish_reason"]);
    EXPECT_EQ(body["usage"]["completion_tokens"], run["token_ids"].size());
    EXPECT_EQ(body["usage"]["prompt_tokens"], run["prompt_token_ids"].size());
    EXPECT_EQ(body["model"], "stories260k");
  };
  expect_as_run(records.at("line-1"), {"-p", "Once upon a time", "-n", "30"});
  expect_as_run(records.at("mine"), {"-p", "Lily and Tom", "-n", "12", "--stop", "."});
  expect_as_run(records.at("17"), {"--prompt-ids", "1,403,407", "-n", "5"});
}

TEST(Batch, OpenAiLinesGetOpenAiRecords) {
  const TemporaryFolder folder;
  half_succeed(
      {"batch", kModel, fixture("prompts/openai_batch.jsonl"), "-o", folder.path("out.jsonl")});
  const auto input = read_json_lines(fixture("prompts/openai_batch.jsonl"));
  const Records records = by_custom_id(read_json_lines(folder.path("out.jsonl")));
  ASSERT_EQ(records.size(), input.size());
  for (const auto& line : input) {
    const auto& record = records.at(line["custom_id"]);
    const auto& body = line["body"];
    const bool is_unsupported =
        body.contains("n") || (body["prompt"].is_array() && body["prompt"][0].is_string());
    EXPECT_EQ(record["error"].is_null(), !is_unsupported) << record;
    EXPECT_EQ(record["response"].is_null(), is_unsupported);
    if (is_unsupported) {
      EXPECT_EQ(record["error"]["code"], "unsupported");
      continue;
    }
    EXPECT_EQ(record["response"]["status_code"], 200);
    EXPECT_EQ(record["response"]["body"]["object"], "text_completion");
    EXPECT_LE(record["response"]["body"]["usage"]["completion_tokens"].get<int>(),
              body.value("max_tokens", 128));
  }
  const Golden golden = goldens("stories260k").front();
  const std::string story = golden.text.substr(golden.prompt.size());
  EXPECT_EQ(story.rfind(text_of(records.at("story-1")), 0), 0u) << "24 of the 64 tokens";
  EXPECT_EQ(story.rfind(text_of(records.at("ids-6")), 0), 0u);
}

TEST(Batch, ChatLinesGoThroughTheTemplate) {
  const TemporaryFolder folder;
  write_file(folder.path("t.jinja"),
             "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') "
             "}}{% endif %}"
             "{{ bos_token if loop.first }}{{ m.content }}{% endfor %}");
  write_file(
      folder.path("in.jsonl"),
      R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": )"
      R"([{"role": "user", "content": "Once upon a time"}], "max_tokens": 9, "logprobs": true}})"
      "\n"
      R"({"custom_id": "b", "messages": [{"role": "system", "content": "x"}]})"
      "\n");
  const std::vector<std::string> job{"batch",
                                     kModel,
                                     folder.path("in.jsonl"),
                                     "-o",
                                     folder.path("out.jsonl"),
                                     "--chat-template",
                                     folder.path("t.jinja"),
                                     "--json"};
  const auto json = half_succeed(job).json();
  EXPECT_EQ(json["requests"], 2);
  EXPECT_EQ(json["answered"], 1);
  EXPECT_EQ(json["failed"], 1);
  const Records records = by_custom_id(read_json_lines(folder.path("out.jsonl")));
  const auto& body = records.at("a")["response"]["body"];
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"]["content"],
            succeed({"run", kModel, "--json", "-p", "Once upon a time", "-n", "9"}).json()["text"]);
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"].size(), 9u);
  EXPECT_NE(records.at("b")["error"]["message"].get<std::string>().find("no system"),
            std::string::npos);
  EXPECT_EQ(half_succeed(job).json()["skipped"], 2) << "started again, it has nothing to do";
  // Another template makes other prompts of the same lines: other answers, not these.
  write_file(folder.path("t.jinja"), "{{ messages[0].content }}");
  EXPECT_EQ(sluice(job).exit_code, 2);
  std::filesystem::remove(folder.path("out.jsonl"));
  const std::vector<std::string> without(job.begin(), job.begin() + 5);
  half_succeed(without);
  const Records refused = by_custom_id(read_json_lines(folder.path("out.jsonl")));
  EXPECT_NE(refused.at("a")["error"]["message"].get<std::string>().find(
                "give one when the run is started"),
            std::string::npos);
}

TEST(Batch, ChatLinesCallTools) {
  const TemporaryFolder folder;
  write_file(folder.path("t.jinja"),
             "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %} {{ tools | length "
             "}}{% endif %}");
  const std::string head =
      R"(, "method": "POST", "url": "/v1/chat/completions", "body": {"max_tokens": 150, "temperature": 1.1, "seed": 3, "parallel_tool_calls": false,)"
      R"( "messages": [{"role": "user", "content": "Once upon a time"}],)"
      R"( "tools": [{"type": "function", "function": {"name": "count", "parameters": {"type": "object",)"
      R"( "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"]}}}])";
  write_file(folder.path("in.jsonl"),
             R"({"custom_id": "must")" + head + R"(, "tool_choice": "required"}})" + "\n" +
                 R"({"custom_id": "none")" + head + R"(, "tool_choice": "none"}})" + "\n" +
                 R"({"custom_id": "wrong")" + head + R"(, "tool_choice": "sometimes"}})" + "\n");
  for (const char* format : {"hermes", "mistral"}) {
    SCOPED_TRACE(format);
    const std::string out = folder.path(std::string(format) + ".jsonl");
    const auto json =
        half_succeed({"batch", kModel, folder.path("in.jsonl"), "-o", out, "--chat-template",
                      folder.path("t.jinja"), "--tool-call-parser", format, "--json"})
            .json();
    EXPECT_EQ(json["failed"], 1);
    const Records records = by_custom_id(read_json_lines(out));
    const auto& must = records.at("must")["response"]["body"]["choices"][0];
    EXPECT_EQ(must["finish_reason"], "tool_calls") << must;
    EXPECT_TRUE(must["message"]["content"].is_null());
    const auto& call = must["message"]["tool_calls"].at(0)["function"];
    EXPECT_EQ(call["name"], "count");
    const int n = nlohmann::json::parse(call["arguments"].get<std::string>()).at("n").get<int>();
    EXPECT_TRUE(n >= 1 && n <= 9) << n;
    const auto& none = records.at("none")["response"]["body"]["choices"][0];
    EXPECT_FALSE(none["message"].contains("tool_calls"));
    EXPECT_FALSE(none["message"]["content"].get<std::string>().empty());
    EXPECT_NE(records.at("wrong")["error"]["message"].get<std::string>().find("tool_choice"),
              std::string::npos);
  }
  const Outcome outcome =
      sluice({"batch", kModel, folder.path("in.jsonl"), "-o", folder.path("no.jsonl"),
              "--chat-template", folder.path("t.jinja")});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(by_custom_id(read_json_lines(folder.path("no.jsonl")))
                .at("must")["error"]["message"]
                .get<std::string>()
                .find("name the form"),
            std::string::npos);
}

TEST(Batch, BadLinesBecomeErrorRecordsAndTheOthersRun) {
  const TemporaryFolder folder;
  const auto outcome = half_succeed(
      {"batch", kModel, fixture("prompts/bad_lines.jsonl"), "-o", folder.path("out.jsonl")});
  EXPECT_NE(outcome.err.find("22 error records"), std::string::npos) << outcome.err;
  std::set<int> bad_lines;
  std::map<std::string, std::string> answers;
  for (const auto& record : read_json_lines(folder.path("out.jsonl")))
    if (record["error"].is_null())
      answers[record["custom_id"]] = text_of(record);
    else
      EXPECT_TRUE(bad_lines.insert(record["error"]["line"].get<int>()).second) << record;
  std::set<int> expected;
  const auto listed = nlohmann::json::parse(read_file(fixture("prompts/bad_lines_expected.json")));
  for (const auto& line : listed["lines"]) {
    const std::string expect = line["expect"];
    if (expect.rfind("ok", 0) != 0 && expect != "blank line")
      expected.insert(line["line"].get<int>());
  }
  EXPECT_EQ(bad_lines, expected);
  EXPECT_EQ(answers,
            (std::map<std::string, std::string>{{"a", ", there was a"}, {"z", " were playing"}}));
}

TEST(Batch, ARequestThatCannotRunIsRefusedAlone) {
  const TemporaryFolder folder;
  std::string prompt;
  for (int i = 0; i < 600; ++i) prompt += "time ";
  write_file(folder.path("in.jsonl"), "{\"custom_id\": \"long\", \"prompt\": \"" + prompt +
                                          "\"}\n" +
                                          "{\"custom_id\": \"short\", \"prompt\": \"Once\"}\n");
  half_succeed(
      {"batch", kModel, folder.path("in.jsonl"), "-o", folder.path("out.jsonl"), "-n", "4"});
  const Records records = by_custom_id(read_json_lines(folder.path("out.jsonl")));
  EXPECT_EQ(records.at("long")["error"]["code"], "refused");
  EXPECT_NE(records.at("long")["error"]["message"].get<std::string>().find("512"),
            std::string::npos);
  EXPECT_EQ(text_of(records.at("short")), " upon a time,");
}

TEST(Batch, WithoutATokenizerPromptsOfTextAreErrorsAndIdsRun) {
  const TemporaryFolder folder;
  const Golden golden = goldens("opt-tiny-bin").at(1);
  write_file(
      folder.path("in.jsonl"),
      "{\"custom_id\": \"text\", \"prompt\": \"hello\"}\n{\"custom_id\": \"ids\", \"prompt\": [" +
          id_list(golden.prompt_ids) + "], \"max_tokens\": 24, \"ignore_eos\": true}\n");
  half_succeed({"batch", fixture_model("opt-tiny-bin"), folder.path("in.jsonl"), "-o",
                folder.path("out.jsonl")});
  const Records records = by_custom_id(read_json_lines(folder.path("out.jsonl")));
  EXPECT_EQ(records.at("text")["error"]["code"], "no_tokenizer");
  EXPECT_EQ(text_of(records.at("ids")), id_list(golden.greedy_ids));
}

TEST(Batch, LogprobsAreInTheRecords) {
  const TemporaryFolder folder;
  write_file(folder.path("in.jsonl"),
             "{\"prompt\": \"Once\", \"max_tokens\": 3, \"logprobs\": 2}\n");
  succeed({"batch", kModel, folder.path("in.jsonl"), "-o", folder.path("out.jsonl")});
  const auto record = read_json_lines(folder.path("out.jsonl")).at(0);
  const auto& logprobs = record["response"]["body"]["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], nlohmann::json({" upon", " a", " time"}));
  EXPECT_EQ(logprobs["top_logprobs"].at(0).size(), 2u);
  EXPECT_LT(logprobs["token_logprobs"].at(0).get<double>(), 0);
}

TEST(Batch, AFinishedJobIsLeftAsItIsAndReadsNoWeights) {
  const TemporaryFolder folder;
  const std::vector<std::string> job{
      "batch", kModel, fixture("prompts/bad_lines.jsonl"), "-o", folder.path("out.jsonl"),
      "--json"};
  half_succeed(job);
  const std::string before = read_file(folder.path("out.jsonl"));
  const auto again = half_succeed(job).json();
  EXPECT_EQ(again["requests"], 0);
  EXPECT_EQ(again["skipped"], 24);
  EXPECT_EQ(again["stats"]["loaded_bytes"], 0);
  EXPECT_EQ(read_file(folder.path("out.jsonl")), before);
  // The same folder, written otherwise, is the same job.
  auto slash = job;
  slash[1] += "/";
  EXPECT_EQ(half_succeed(slash).json()["skipped"], 24);
}

TEST(Batch, ALineForAnotherModelIsAnErrorLine) {
  const TemporaryFolder folder;
  write_file(folder.path("in.jsonl"),
             "{\"custom_id\": \"other\", \"model\": \"gpt-4\", \"prompt\": \"Once\"}\n"
             "{\"custom_id\": \"ours\", \"model\": \"stories260k\", \"prompt\": \"Once\"}\n");
  half_succeed(
      {"batch", kModel, folder.path("in.jsonl"), "-o", folder.path("out.jsonl"), "-n", "4"});
  const Records records = by_custom_id(read_json_lines(folder.path("out.jsonl")));
  EXPECT_EQ(records.at("other")["error"]["code"], "model_not_found");
  EXPECT_EQ(text_of(records.at("ours")), " upon a time,");
}

TEST(Batch, ReadsAndWritesPipes) {
  const TemporaryFolder folder;
  write_file(folder.path("in.jsonl"), "{\"prompt\": \"Once\"}\n{\"prompt\": \"Lily\"}\n");
  Command::Options options;
  options.program = "/bin/sh";
  Command command({"-c", "\"$0\" batch \"$1\" - -o - -n 4 <\"$2\" >\"$3\"", SLUICE_PROGRAM, kModel,
                   folder.path("in.jsonl"), folder.path("piped.jsonl")},
                  options);
  const Outcome outcome = command.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  succeed({"batch", kModel, folder.path("in.jsonl"), "-o", folder.path("out.jsonl"), "-n", "4"});
  const Records piped = by_custom_id(read_json_lines(folder.path("piped.jsonl")));
  const Records kept = by_custom_id(read_json_lines(folder.path("out.jsonl")));
  ASSERT_EQ(piped.size(), 2u);
  for (const auto& [id, record] : kept) EXPECT_EQ(text_of(piped.at(id)), text_of(record));
  EXPECT_FALSE(std::filesystem::exists("-"));
  fail({"batch", kModel, folder.path("in.jsonl"), "-o", "-", "--json"}, 2, {"standard output"});
}

TEST(Batch, ADryRunWritesNothing) {
  const TemporaryFolder folder;
  const auto outcome = succeed({"batch", kModel, fixture("prompts/plain.jsonl"), "-o",
                                folder.path("out.jsonl"), "--dry-run"});
  EXPECT_NE(outcome.out.find("weights 100% memory"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder.path("out.jsonl")));
}

TEST(BatchErrors, AMissingInputLeavesTheOutputAlone) {
  const TemporaryFolder folder;
  fail({"batch", kModel, folder.path("none.jsonl"), "-o", folder.path("out.jsonl")}, 3,
       {"none.jsonl", "can't be read", "check the path"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("out.jsonl")));
  write_file(folder.path("out.jsonl"), "precious\n");
  fail({"batch", kModel, folder.path("none.jsonl"), "-o", folder.path("out.jsonl")}, 3, {});
  fail({"batch", kModel, folder.path(), "-o", folder.path("out.jsonl")}, 3, {"can't be read"});
  EXPECT_EQ(read_file(folder.path("out.jsonl")), "precious\n");
}

TEST(BatchErrors, AFileThatIsNoResultsFileIsNotTouched) {
  const TemporaryFolder folder;
  const std::string input = read_file(fixture("prompts/plain.jsonl"));
  write_file(folder.path("same.jsonl"), input);
  fail({"batch", kModel, folder.path("same.jsonl"), "-o", folder.path("same.jsonl")}, 3,
       {"same.jsonl line 1", "no record", "new file"});
  EXPECT_EQ(read_file(folder.path("same.jsonl")), input);
  fail({"batch", kModel, folder.path("same.jsonl"), "-o", folder.path("no/out.jsonl")}, 3,
       {"no/out.jsonl"});
}

TEST(BatchErrors, AnotherModelsAnswersAreNotMixedIn) {
  const TemporaryFolder folder;
  write_file(folder.path("in.jsonl"), "{\"prompt\": [2, 5], \"max_tokens\": 3}\n");
  succeed({"batch", kModel, folder.path("in.jsonl"), "-o", folder.path("out.jsonl")});
  const std::string before = read_file(folder.path("out.jsonl"));
  fail(
      {"batch", fixture_model("opt-tiny"), folder.path("in.jsonl"), "-o", folder.path("out.jsonl")},
      2, {"out.jsonl", "another model", "new file"});
  fail({"batch", kModel, folder.path("in.jsonl"), "-o", folder.path("out.jsonl"),
        "--batch-invariant"},
       2, {"out.jsonl", "other settings", "new file"});
  EXPECT_EQ(read_file(folder.path("out.jsonl")), before);
}

}  // namespace
}  // namespace sluice::testing
