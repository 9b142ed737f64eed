// Rows an hour of several machines together, and which of them is slow.
#include "src/app/node_rates.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace sluice::app {
namespace {

TEST(NodeRates, RowsAddUpAndTimeFollows) {
  const std::vector<NodeRate> nodes{{"a", 2, 200, "disk read"}, {"b", 3, 300, "cores"}};
  const NodesTogether all = together(nodes, 1000);
  EXPECT_DOUBLE_EQ(all.rows_per_hour, 5 * 3600);
  EXPECT_DOUBLE_EQ(all.seconds, 200);
  EXPECT_EQ(all.slowest, 0u);
  EXPECT_DOUBLE_EQ(all.slowness, 1.25);
  EXPECT_FALSE(all.is_slow);
  EXPECT_EQ(together(nodes, 0).seconds, 0);
}

TEST(NodeRates, OneThatIsFarBelowTheMedianIsNamedWithItsLane) {
  const std::vector<NodeRate> nodes{
      {"a", 3, 30, "cores"}, {"b", 0.5, 5, "disk read"}, {"c", 2, 20, "cores"}};
  const NodesTogether all = together(nodes, 0);
  EXPECT_EQ(all.slowest, 1u);
  EXPECT_TRUE(all.is_slow);
  EXPECT_DOUBLE_EQ(all.slowness, 4);
  const std::string text = nodes_text(nodes, 11);
  EXPECT_NE(text.find("disk read  <- slow: the median is 4.0 times as fast"), std::string::npos)
      << text;
  EXPECT_NE(text.find("11 rows take"), std::string::npos) << text;
  const auto json = nodes_json(nodes, 11);
  EXPECT_EQ(json["slowest"], "b");
  EXPECT_EQ(json["seconds"], 2);
  EXPECT_EQ(json["nodes"].size(), 3u);
  const std::vector<NodeRate> one{{"only", 1, 1, ""}};
  EXPECT_FALSE(together(one, 1).is_slow);
}

TEST(NodeRates, ReadsWhatBenchThroughputWrites) {
  const NodeRate node =
      measured_node("n.json", R"({"model": "m", "results": [{"requests_per_s": 2.5,
    "output_tokens_per_s": 160, "stats": {"lanes": {"disk read": {"busy_s": 1}, "device compute": {"busy_s": 3}}}}]})");
  EXPECT_EQ(node.name, "n.json");
  EXPECT_EQ(node.rows_per_second, 2.5);
  EXPECT_EQ(node.tokens_per_second, 160);
  EXPECT_EQ(node.bottleneck, "device compute");
  for (
      const char* wrong :
      {"", "not json", "{}", "[]", R"({"results": []})",
       R"({"results": [{"requests_per_s": "x"}]})",
       R"({"results": [{"requests_per_s": 0, "output_tokens_per_s": 0, "stats": {"lanes": {}}}]})"}) {
    try {
      measured_node("n.json", wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile);
      EXPECT_NE(error.text().find("n.json"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace sluice::app
