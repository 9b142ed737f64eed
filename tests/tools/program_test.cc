// The program as a whole: help, version, doctor, and words it does not know.
#include <gtest/gtest.h>

#include <regex>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

const char* const kCommands[] = {"run",    "batch", "convert", "inspect", "tokenize", "synth",
                                 "logits", "bench", "eval",    "models",  "doctor",   "version"};

TEST(Program, HelpListsEveryCommand) {
  const Outcome outcome = succeed({"--help"});
  for (const std::string command : kCommands)
    EXPECT_NE(outcome.out.find("\n  " + command + " "), std::string::npos) << command;
  EXPECT_EQ(outcome.err, "");
}

TEST(Program, EveryCommandHasHelp) {
  for (const std::string command : kCommands) {
    const Outcome outcome = succeed({command, "--help"});
    EXPECT_NE(outcome.out.find("Usage: sluice " + command), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("--help"), std::string::npos);
  }
  const auto run = succeed({"run", "--help"}).out;
  for (const char* flag : {"--cpu-mem", "--percent", "--policy", "--prompt-ids", "--temperature",
                           "--stop", "--seed", "--logprobs", "--offload-dir"})
    EXPECT_NE(run.find(flag), std::string::npos) << flag;
}

TEST(Program, UnknownWordsAreErrorsOfUse) {
  fail({}, 2, {"subcommand is required", "--help"});
  fail({"rum"}, 2, {"rum", "did you mean run?", "--help"});
  fail({"sevre", "model"}, 2, {"did you mean serve?"});
  EXPECT_EQ(fail({"xylophone"}, 2, {"xylophone"}).err.find("did you mean"), std::string::npos);
  fail({"run", fixture_model("stories260k"), "-p", "a", "--cpu-men", "1GiB"}, 2,
       {"--cpu-men", "did you mean --cpu-mem?"});
  fail({"run", fixture_model("stories260k"), "-p", "a", "--tempreature=1"}, 2,
       {"did you mean --temperature?"});
  fail({"run", fixture_model("stories260k"), "-p", "a", "--bogus"}, 2, {"--bogus", "--help"});
  fail({"run", fixture_model("stories260k"), "-p", "a", "-n"}, 2, {"--help"});
  fail({"inspect", fixture_model("stories260k"), "extra"}, 2, {"extra"});
}

TEST(Program, VersionAndReport) {
  EXPECT_TRUE(
      std::regex_match(succeed({"version"}).out, std::regex("sluice \\d+\\.\\d+\\.\\d+\n")));
  const auto report = succeed({"version", "--report"}).out;
  for (const char* word : {"compiler:", "linear:", "memory:"})
    EXPECT_NE(report.find(word), std::string::npos) << word;
}

TEST(Program, DoctorLooksAtCpuMemoryAndTheFolder) {
  const TemporaryFolder folder;
  const auto json = succeed({"doctor", "--no-speed", "--dir", folder.path(), "--json"}).json();
  for (const char* what : {"CPU", "memory", "memlock", "file engine", "O_DIRECT"}) {
    EXPECT_TRUE(json[what]["ok"].is_boolean()) << what;
    EXPECT_NE(json[what]["text"], "") << what;
  }
  EXPECT_NE(json["O_DIRECT"]["text"].get<std::string>().find(folder.path()), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const auto plain = succeed({"doctor", "--no-speed", "--dir", folder.path()}).out;
  EXPECT_NE(plain.find("CPU"), std::string::npos);
  // What can't be looked at is a finding, not the end.
  const auto missing =
      succeed({"doctor", "--no-speed", "--dir", folder.path("none"), "--json"}).json();
  EXPECT_EQ(missing["O_DIRECT"]["ok"], false);
  EXPECT_EQ(missing["memory"]["ok"], true);
}

TEST(Program, SettingsComeFromTheEnvironmentToo) {
  const std::string model = "SLUICE_MODEL=" + fixture_model("stories260k");
  EXPECT_EQ(succeed({"run", "-p", "Once", "-n", "4"}, {.environment = {model}}).out,
            " upon a time,\n");
  const auto json = succeed({"run", "-p", "Once", "-n", "4", "--json"},
                            {.environment = {model, "SLUICE_CPU_MEM=48MiB"}})
                        .json();
  EXPECT_EQ(json["stats"]["budget_bytes"]["device"], 48 << 20);
  const Outcome bad =
      sluice({"run", "-p", "Once"}, {.environment = {model, "SLUICE_CPU_MEM=banana"}});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.err.find("banana"), std::string::npos);
}

}  // namespace
}  // namespace sluice::testing
