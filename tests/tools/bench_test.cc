// sluice bench throughput and bench latency: every request is answered and timed.
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Words = std::vector<std::string>;

Words bench(const std::string& kind, const Words& more) {
  Words out{"bench", kind, "-m", fixture_model("stories260k"), "-c", "128", "--json"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

TEST(BenchOffline, AnswersAllRequestsAtOnce) {
  const auto report =
      succeed(bench("throughput", {"--requests", "9", "--pp", "12", "--tg", "5", "--lengths",
                                   "exponential", "--max-prompt-len", "40", "--max-gen-len", "9"}))
          .json();
  const auto& row = report["results"][0];
  EXPECT_EQ(row["answered"], 9);
  EXPECT_EQ(row["failed"], 0);
  EXPECT_GT(row["passes"], 0);
  EXPECT_GT(row["output_tokens"], 9);
  EXPECT_LE(row["ttft_ms"]["p50"], row["e2e_ms"]["p50"]);
  EXPECT_NEAR(row["requests_per_s"].get<double>() * row["seconds"].get<double>(), 9, 1e-6);
  EXPECT_TRUE(row.contains("policy") && row.contains("stats"));
}

TEST(BenchOffline, TakesBatchesInTurn) {
  const auto row = succeed(bench("latency", {"--requests", "3", "--batch", "2", "--warm-ups", "1",
                                             "--pp", "8", "--tg", "6"}))
                       .json()["results"][0];
  EXPECT_EQ(row["answered"], 6);
  EXPECT_EQ(row["output_tokens"], 36);
  EXPECT_EQ(row["passes"], 3 * 6);
}

TEST(BenchOffline, TakesLengthsFromAFile) {
  const TemporaryFolder folder;
  write_file(folder.path("trace.csv"), "arrived_at,prompt,new\n0,5,3\n1,7,2\n2,4,6\n");
  const auto row = succeed(bench("throughput", {"--lengths-from", folder.path("trace.csv")}))
                       .json()["results"][0];
  EXPECT_EQ(row["answered"], 3);
  EXPECT_EQ(row["output_tokens"], 11);
  EXPECT_EQ(row["prompt_tokens"], 16);
  fail(bench("latency", {"--lengths-from", folder.path("trace.csv"), "--batch", "2"}), 2,
       {"warm-ups"});
  fail(bench("throughput", {"--lengths-from", folder.path("none")}), 3, {"No such file"});
  fail(bench("throughput", {"--pp", "200"}), 2, {"128"});
}

}  // namespace
}  // namespace sluice::testing
