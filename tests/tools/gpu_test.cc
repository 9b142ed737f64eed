// --device cuda from the command line: the same commands linked with the kernels on the host's
// stand-in, and the program itself where there is no GPU.
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {
using Words = std::vector<std::string>;

Command::Options on_host() {
  Command::Options options;
  options.program = SLUICE_ON_HOST;
  return options;
}

Words run_words(const Words& more) {
  Words words{
      "run",   fixture_model("stories260k"), "-p", "Once upon a time", "-n", "12", "--temp", "0",
      "--json"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Gpu, ResidentAndThreeTiersGiveTheCpusTokens) {
  const auto expected = succeed(run_words({"--kv-dtype", "f16"})).json();
  const auto resident =
      succeed(run_words({"--device", "cuda", "--gpu-mem", "64MiB", "--hardware", "none"}),
              on_host())
          .json();
  EXPECT_EQ(resident["token_ids"], expected["token_ids"]);
  EXPECT_GT(resident["stats"]["peak_bytes"]["device"].get<int64_t>(), 0);
  EXPECT_EQ(resident["stats"]["budget_bytes"]["device"].get<int64_t>(), 64 << 20);
  const auto streamed = succeed(run_words({"--gpu", "0", "--gpu-mem", "8MiB", "--percent", "20",
                                           "40", "0", "60", "30", "30", "--hardware", "none"}),
                                on_host())
                            .json();
  EXPECT_EQ(streamed["token_ids"], expected["token_ids"]);
  for (const char* lane : {"disk read", "host to device", "device to host"})
    EXPECT_GT(streamed["stats"]["lanes"][lane]["bytes"].get<int64_t>(), 0) << lane;
}

TEST(Gpu, APolicyIsSearchedOnAProfileThatHasTheGpu) {
  const TemporaryFolder folder;
  succeed({"profile", "--show", "t4", "-o", folder.path("machine.json")});
  const Outcome ran = succeed(run_words({"--device", "cuda", "--gpu-mem", "2MiB", "--cpu-mem",
                                         "64MiB", "--hardware", folder.path("machine.json")}),
                              on_host());
  EXPECT_EQ(ran.json()["token_ids"], succeed(run_words({"--kv-dtype", "f16"})).json()["token_ids"]);
  EXPECT_NE(ran.err.find("policies looked at"), std::string::npos) << ran.err;
}

TEST(Gpu, ABudgetThatIsTooSmallNamesWhatItLacks) {
  Command::Options options = on_host();
  const Outcome outcome =
      sluice(run_words({"--device", "cuda", "--gpu-mem", "64KiB", "--hardware", "none"}), options);
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_NE(outcome.err.find("device memory"), std::string::npos) << outcome.err;
}

TEST(Gpu, ContradictionsAndMissingGpusAreRefused) {
  const Outcome missing = sluice(run_words({"--gpu", "5"}), on_host());
  EXPECT_EQ(missing.exit_code, 5);
  EXPECT_NE(missing.err.find("no GPU 5"), std::string::npos) << missing.err;
  fail(run_words({"--gpu", "0", "--device", "cpu"}), 2, {"--gpu 0", "--device cpu"});
  const Outcome int8 =
      sluice(run_words({"--device", "cuda", "--kv-dtype", "f32", "--hardware", "none"}), on_host());
  EXPECT_EQ(int8.exit_code, 2);
  EXPECT_NE(int8.err.find("f32 KV"), std::string::npos) << int8.err;
}

}  // namespace
}  // namespace sluice::testing
