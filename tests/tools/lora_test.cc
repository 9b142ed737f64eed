// --lora: adapters from the command line, by request, by line and in turn.
#include <gtest/gtest.h>

#include <map>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

const std::string kFirstLora = std::string(SLUICE_FIXTURES) + "/lora/stories-a";
const std::string kSecondLora = std::string(SLUICE_FIXTURES) + "/lora/stories-b";

std::string story_with(std::vector<std::string> flags) {
  flags.insert(flags.begin(),
               {"run", kModel, "-p", "Once upon a time", "-n", "12", "--compute", "f32"});
  return succeed(flags).out;
}

TEST(LoraFlag, OneIsUsedAndOfSeveralTheOneThatIsNamed) {
  const std::string plain = story_with({}), first = story_with({"--lora", kFirstLora});
  const std::string second = story_with({"--lora", "poet=" + kSecondLora});
  EXPECT_NE(plain, first);
  EXPECT_NE(first, second);
  EXPECT_EQ(
      story_with({"--lora", kFirstLora, "--lora", "poet=" + kSecondLora, "--adapter", "poet"}),
      second);
  EXPECT_EQ(story_with({"--lora", kFirstLora, "--lora", "poet=" + kSecondLora, "--adapter",
                        "stories-a", "--percent", "30", "0", "50", "0", "100", "0"}),
            first);
  const Outcome several =
      sluice({"run", kModel, "-p", "a", "--lora", kFirstLora, "--lora", kSecondLora});
  EXPECT_EQ(several.exit_code, 2);
  EXPECT_NE(several.err.find("--adapter"), std::string::npos) << several.err;
  const Outcome twice =
      sluice({"run", kModel, "-p", "a", "--lora", "x=" + kFirstLora, "--lora", "x=" + kSecondLora});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_NE(twice.err.find("--lora: x names two things"), std::string::npos) << twice.err;
  EXPECT_EQ(sluice({"run", kModel, "-p", "a", "--lora", "/nowhere"}).exit_code, 3);
  EXPECT_EQ(sluice({"run", kModel, "-p", "a", "--adapter", "x"}).exit_code, 2);
  const Outcome other =
      sluice({"run", kModel, "-p", "a", "--lora", std::string(SLUICE_FIXTURES) + "/lora/fused"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("own base model"), std::string::npos) << other.err;
}

TEST(LoraFlag, LinesOfABatchNameAdapters) {
  const TemporaryFolder folder;
  std::string lines;
  for (const char* model : {"stories260k", "a", "b", "c"})
    lines += nlohmann::json{{"custom_id", model},
                            {"method", "POST"},
                            {"url", "/v1/completions"},
                            {"body",
                             {{"model", model},
                              {"prompt", "Once upon a time"},
                              {"max_tokens", 12},
                              {"temperature", 0}}}}
                 .dump() +
             "\n";
  write_file(folder.path("in.jsonl"), lines);
  const Outcome outcome =
      sluice({"batch", kModel, folder.path("in.jsonl"), "-o", folder.path("out.jsonl"), "--compute",
              "f32", "--lora", "a=" + kFirstLora, "--lora", "b=" + kSecondLora});
  EXPECT_EQ(outcome.exit_code, 2) << "c is none";
  std::map<std::string, std::string> texts;
  for (const auto& record : read_json_lines(folder.path("out.jsonl"))) {
    if (!record["response"].contains("body") || !record["response"]["body"].contains("choices"))
      continue;
    texts[record["custom_id"]] =
        record["response"]["body"]["choices"][0]["text"].get<std::string>() + "\n";
    EXPECT_EQ(record["response"]["body"]["model"], record["custom_id"]);
  }
  EXPECT_EQ(texts,
            (std::map<std::string, std::string>{{"stories260k", story_with({})},
                                                {"a", story_with({"--lora", kFirstLora})},
                                                {"b", story_with({"--lora", kSecondLora})}}));
}

TEST(LoraFlag, BenchHasThemInTurn) {
  const auto json =
      succeed({"bench", kModel, "--batch", "3", "--pp", "4", "--tg", "2", "--json",
               "--no-disk-probe", "--lora", "a=" + kFirstLora, "--lora", "b=" + kSecondLora})
          .json();
  EXPECT_EQ(json["results"][0]["batch"], 3);
}

}  // namespace
}  // namespace sluice::testing
