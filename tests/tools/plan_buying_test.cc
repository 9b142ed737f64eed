// sluice plan before somebody buys: --fits, --target, --price.
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

TEST(PlanBuying, FitsListsWhatRunsTheLargestFirst) {
  const auto all = succeed({"plan", "--fits", "--hardware", "rtx-3060", "smollm3", "--json",
                            "--weights", "int4,own", "--sequences", "2"})
                       .json();
  EXPECT_EQ(all["hardware"], "rtx-3060");
  ASSERT_EQ(all["fits"].size(), 2u);
  EXPECT_EQ(all["fits"][0]["weights"], "int4-g64");
  EXPECT_EQ(all["fits"][1]["weights"], "bf16");
  const auto one = succeed({"plan", "smollm3-3b", "--hardware", "rtx-3060", "--weights", "int4",
                            "--objective", "latency", "--no-lifts", "--json"})
                       .json();
  EXPECT_EQ(all["fits"][0]["one_user_tokens_per_s"], one["predicted"]["tokens_per_s"]);
  EXPECT_GT(all["fits"][0]["together_tokens_per_s"], all["fits"][0]["one_user_tokens_per_s"]);
  const std::string text =
      succeed({"plan", "--fits", "--hardware", "rtx-3060", "qwen3-0.6b", "--sequences", "1"}).out;
  for (const char* word : {"qwen3-0.6b", "int4-g64", "one user", "holds whole"})
    EXPECT_NE(text.find(word), std::string::npos) << text;
  EXPECT_NE(succeed({"plan", "--fits", "--hardware", "rtx-3060", "gpt2-xl", "--at-least", "1e6"})
                .out.find("none"),
            std::string::npos);
}

TEST(PlanBuying, TargetSaysWhatToChange) {
  const auto answer = succeed({"plan", "llama-3.1-8b", "--hardware", "rtx-3060", "--target",
                               "20tok/s", "--part-prices", "rtx-3090=700", "--json"})
                          .json();
  EXPECT_LT(answer["tokens_per_s"].get<double>(), 20);
  ASSERT_FALSE(answer["changes"].empty());
  for (const auto& change : answer["changes"])
    EXPECT_GE(change["tokens_per_s"].get<double>(), 20) << change;
  EXPECT_EQ(answer["changes"][0]["parts"][0].get<std::string>().rfind("weights in", 0), 0u);
  EXPECT_NE(succeed({"plan", "gpt2", "--hardware", "rtx-3060", "--target", "1"})
                .out.find("nothing needs to change"),
            std::string::npos);
}

TEST(PlanBuying, PriceSaysWhatAMillionTokensCost) {
  const auto answer = succeed({"plan", "gpt2", "--hardware", "rtx-3060", "--no-lifts", "--json",
                               "--sequences", "4", "--price", "0.36/h"})
                          .json();
  EXPECT_NEAR(answer["million_tokens_cost"].get<double>(),
              100 / answer["predicted"]["tokens_per_s"].get<double>(), 1e-6);
}

TEST(PlanBuying, WrongWordsAreErrorsBeforeAnythingIsMeasured) {
  fail({"plan", "--fits", "zzz"}, 2, {"--fits", "zzz"});
  fail({"plan", "gpt2", "--target", "fast"}, 2, {"--target fast", "10tok/s"});
  fail({"plan", "gpt2", "--target", "0"}, 2, {"--target 0"});
  fail({"plan", "gpt2", "--price", "3"}, 2, {"\"3\"", "0.60/h"});
  fail({"plan", "gpt2", "--target", "3", "--part-prices", "gpu=4"}, 2, {"gpu=4", "memory=4"});
  fail({"plan", "gpt2", "--part-prices", "memory=4"}, 2, {"--part-prices"});
  fail({"plan", "gpt2", "--at-least", "4"}, 2, {"--at-least"});
  fail({"plan", "--fits", "--target", "3"}, 2, {"--target", "--fits"});
  fail({"plan", "--fits", "--html", "x.html"}, 2, {"--html", "--fits"});
}

}  // namespace
}  // namespace sluice::testing
