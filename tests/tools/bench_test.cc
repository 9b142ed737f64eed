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

TEST(BenchOffline, MeasurementsOfSeveralNodesAddUp) {
  const TemporaryFolder folder;
  const auto measure = [&](const std::string& name) {
    const Outcome outcome =
        succeed(bench("throughput", {"--requests", "4", "--pp", "8", "--tg", "4"}));
    write_file(folder.path(name), outcome.out);
    return outcome.json()["results"][0]["requests_per_s"].get<double>();
  };
  const double sum = measure("a.json") + measure("b.json");
  const std::string both = folder.path("a.json") + "," + folder.path("b.json");
  const auto json =
      succeed({"bench", "throughput", "--nodes", both, "--rows", "1000", "--json"}).json();
  EXPECT_NEAR(json["rows_per_hour"].get<double>(), 3600 * sum, 1e-6 * 3600 * sum);
  EXPECT_NEAR(json["seconds"].get<double>(), 1000 / sum, 1e-6 * 1000 / sum);
  EXPECT_NE(json["nodes"][1]["bottleneck"], "");
  const auto text = succeed({"bench", "throughput", "--nodes", both, "--rows", "1000"}).out;
  EXPECT_NE(text.find("1000 rows take"), std::string::npos) << text;
  fail({"bench", "throughput", "--nodes", folder.path("none.json")}, 3, {"none.json"});
  write_file(folder.path("other.json"), "{}");
  fail({"bench", "throughput", "--nodes", folder.path("other.json")}, 3,
       {"no result of bench throughput"});
  fail({"bench", "throughput"}, 2, {"no model given"});
  fail({"bench", "throughput", fixture_model("stories260k"), "--rows", "5"}, 2,
       {"--rows", "--nodes"});
}

}  // namespace
}  // namespace sluice::testing
