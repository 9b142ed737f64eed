#include "src/cache/routing_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/base/error.h"
#include "tests/cache/routing_files.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const char kHead[] =
    "# route_trace v1\n"
    "# model=m arch=a n_layer=3 n_expert=8 n_expert_used=2\n"
    "# layer=1 expert_bytes=100 dense_bytes=7\n"
    "turn,phase,step,layer,slot,expert\n";

// The error of a file whose lines after kHead these are.
std::string refusal(const std::string& lines, const std::string& head = kHead) {
  try {
    parse_routing_trace(head + lines, "t.csv");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    return error.text();
  }
  return "taken";
}

TEST(RoutingTrace, ReadsTokensByLayer) {
  const RoutingTrace trace = parse_routing_trace(
      std::string(kHead) + "4,0,0,1,0,7\n4,0,0,1,1,2\n4,0,1,1,0,3\n4,1,2,1,0,5\n4,1,2,2,0,0\n", "");
  EXPECT_EQ(trace.model, "m");
  EXPECT_EQ(trace.family, "a");
  EXPECT_EQ(trace.experts, 8);
  EXPECT_EQ(trace.chosen, 2);
  ASSERT_EQ(trace.layers.size(), 3u);
  EXPECT_TRUE(trace.layers[0].tokens.empty());
  const RoutingTrace::Layer& layer = trace.layers[1];
  EXPECT_EQ(layer.expert_bytes, 100);
  EXPECT_THAT(layer.experts, ElementsAre(7, 2, 3, 5));
  ASSERT_EQ(layer.tokens.size(), 3u);
  EXPECT_EQ(layer.tokens[0].sequence, 4);
  EXPECT_EQ(layer.tokens[0].chosen, 2);
  EXPECT_TRUE(layer.tokens[1].is_prompt);
  EXPECT_EQ(layer.tokens[1].first, 2u);
  EXPECT_FALSE(layer.tokens[2].is_prompt);
  EXPECT_EQ(layer.tokens[2].position, 2);
  EXPECT_EQ(trace.layers[2].tokens.size(), 1u);
}

// Without that column: a prompt is a pass, so is each token behind it.
TEST(RoutingTrace, KnowsPassesWhereTheFileDoesNotSayThem) {
  const RoutingTrace trace = parse_routing_trace(
      std::string(kHead) +
          "0,0,0,0,0,1\n0,0,1,0,0,1\n0,1,2,0,0,1\n0,1,3,0,0,1\n1,0,0,0,0,1\n2,0,0,0,0,1\n",
      "");
  std::vector<int64_t> passes;
  for (const auto& token : trace.layers[0].tokens) passes.push_back(token.pass);
  EXPECT_THAT(passes, ElementsAre(0, 0, 1, 2, 3, 4));
}

TEST(RoutingTrace, ColumnsMayComeInAnyOrderWithOthersBetween) {
  const RoutingTrace trace = parse_routing_trace(
      "# route_trace v1\r\n# n_layer=1 n_expert=4 arch=x\r\n# a note\r\n"
      "pass,expert,why,slot,layer,step,phase,turn\r\n9,3,,0,0,5,1,2\r\n",
      "");
  const RoutingTrace::Token& token = trace.layers[0].tokens.at(0);
  EXPECT_EQ(token.pass, 9);
  EXPECT_EQ(token.sequence, 2);
  EXPECT_EQ(token.position, 5);
  EXPECT_THAT(trace.layers[0].experts, ElementsAre(3));
  EXPECT_EQ(trace.chosen, 1) << "what tokens have, where nothing says it";
}

TEST(RoutingTrace, ReadsWhatItWrites) {
  RoutingTrace trace;
  trace.model = "a model";
  trace.family = "mixtral";
  trace.experts = 8;
  trace.chosen = 2;
  trace.layers.resize(3);
  trace.layers[1].expert_bytes = 300;
  std::string text = routing_trace_head(trace, {0, 40, 0});
  EXPECT_THAT(text, HasSubstr("# layer=1 expert_bytes=300 dense_bytes=40\n"));
  RoutingLine line;
  line.token = {6, 11, 3, false, 0, 0};
  line.layer = 1;
  line.expert = 7;
  line.weight = 0.625f;
  append_line(text, line);
  line.slot = 1;
  line.expert = 0;
  line.weight = std::numeric_limits<float>::quiet_NaN();
  append_line(text, line);
  EXPECT_THAT(text, HasSubstr("\n6,1,11,1,0,7,0.625,3\n6,1,11,1,1,0,nan,3\n"));
  const RoutingTrace read = parse_routing_trace(text, "");
  EXPECT_EQ(read.model, "a_model");
  EXPECT_EQ(read.layers.size(), 3u);
  EXPECT_EQ(read.layers[1].expert_bytes, 300);
  ASSERT_EQ(read.layers[1].tokens.size(), 1u);
  EXPECT_EQ(read.layers[1].tokens[0].pass, 3);
  EXPECT_EQ(read.layers[1].tokens[0].position, 11);
  EXPECT_THAT(read.layers[1].experts, ElementsAre(7, 0));
}

TEST(RoutingTrace, RefusesWhatIsNoneWithTheLine) {
  EXPECT_THAT(refusal("", ""), HasSubstr("line 1 is cut off"));
  EXPECT_THAT(refusal("", "step,layer\n"), HasSubstr("t.csv: line 1 does not begin with"));
  EXPECT_THAT(refusal("", "# route_trace v2\n"), HasSubstr("line 1 does not begin"));
  EXPECT_THAT(refusal("", "# route_trace v1\nturn\n"), HasSubstr("line 1 no line before here"));
  const std::string model = "# route_trace v1\n# n_layer=2 n_expert=4\n";
  EXPECT_THAT(refusal("", model), HasSubstr("line 2 ends before the names"));
  EXPECT_THAT(refusal("turn,phase,step,layer,slot\n", model),
              HasSubstr("line 3 has no column expert"));
  EXPECT_THAT(refusal("turn,phase,turn,step\n", model), HasSubstr("names the column turn twice"));
  EXPECT_THAT(refusal("# layer=2 expert_bytes=1\n", model), HasSubstr("line 3 has layer=2"));
  EXPECT_THAT(refusal("# layer=0 expert_bytes=-1\n", model), HasSubstr("has expert_bytes=-1"));
  EXPECT_THAT(refusal("", "# route_trace v1\n# n_layer=99999\n"), HasSubstr("n_layer=99999"));
  EXPECT_THAT(refusal("", "# route_trace v1\n# n_layer=1 n_expert=0\n"), HasSubstr("n_expert=0"));
  EXPECT_THAT(refusal("", "# route_trace v1\n# n_layer=1 n_expert=4097\n"),
              HasSubstr("from 1 to 4096"));
}

TEST(RoutingTrace, RefusesLinesThatSayNoToken) {
  EXPECT_THAT(refusal(""), HasSubstr("line 4 ends without a token"));
  EXPECT_THAT(refusal("0,0,0,0,0,1\n0,0,0,0,1,1"), HasSubstr("line 6 is cut off"));
  EXPECT_THAT(refusal("0,0,0,0,0\n"), HasSubstr("line 5 has not 6 fields"));
  EXPECT_THAT(refusal("0,0,0,0,0,1,1\n"), HasSubstr("line 5 has not 6 fields"));
  EXPECT_THAT(refusal("0,0,0,0,0,1\n\n"), HasSubstr("line 6 has not 6 fields"));
  EXPECT_THAT(refusal("0,0,0,0,0,x\n"), HasSubstr("line 5 has \"x\" as expert"));
  EXPECT_THAT(refusal("0,0,-1,0,0,1\n"), HasSubstr("has \"-1\" as step"));
  EXPECT_THAT(refusal("99999999999999999999,0,0,0,0,1\n"), HasSubstr("as turn"));
  EXPECT_THAT(refusal("0,0,0,3,0,1\n"), HasSubstr("speaks of layer 3 of 3"));
  EXPECT_THAT(refusal("0,0,0,0,0,8\n"), HasSubstr("speaks of expert 8 of 8"));
  EXPECT_THAT(refusal("0,2,0,0,0,1\n"), HasSubstr("has phase 2"));
}

TEST(RoutingTrace, RefusesTokensThatAreInPieces) {
  EXPECT_THAT(refusal("0,0,0,0,1,1\n"), HasSubstr("line 5 is choice 1 of a token whose"));
  EXPECT_THAT(refusal("0,0,0,0,0,1\n0,0,0,0,2,2\n"), HasSubstr("line 6 is choice 2"));
  EXPECT_THAT(refusal("0,0,0,0,0,1\n0,0,1,0,1,2\n"), HasSubstr("line 6 is choice 1"));
  EXPECT_THAT(refusal("0,0,0,0,0,1\n0,0,0,1,1,2\n"), HasSubstr("line 6 is choice 1"));
  EXPECT_THAT(refusal("0,0,0,0,0,1\n0,0,0,0,1,1\n"), HasSubstr("chooses expert 1 once more"));
  const std::string head =
      "# route_trace v1\n# n_layer=1 n_expert=4\npass,turn,phase,step,layer,slot,expert\n";
  EXPECT_THAT(refusal("5,0,0,0,0,0,1\n4,0,0,1,0,0,1\n", head),
              HasSubstr("line 5 is of pass 4, after pass 5"));
}

TEST(RoutingTrace, ReadsRecordedRuns) {
  struct Expected {
    const char* name;
    size_t layers;
    int64_t chosen;
    size_t tokens;
  };
  for (const Expected& expected :
       {Expected{"qwen", 48, 6, 156}, {"gemma", 30, 6, 157}, {"gptoss", 36, 2, 149}}) {
    const RoutingTrace trace = routing_file(expected.name);
    EXPECT_EQ(trace.layers.size(), expected.layers);
    EXPECT_EQ(trace.experts, 128);
    EXPECT_EQ(trace.chosen, expected.chosen);
    EXPECT_EQ(trace.layers[0].tokens.size(), expected.tokens) << expected.name;
    EXPECT_GT(trace.layers[0].expert_bytes, 0);
    for (const auto& layer : trace.layers)
      for (const auto& token : layer.tokens) EXPECT_EQ(token.chosen, expected.chosen);
  }
}

// Any byte of a small file may be another: it is refused, or what it says is within its bounds.
TEST(RoutingTrace, AnyByteMayBeWrong) {
  const std::string whole = std::string(kHead) + "0,0,0,0,0,1\n0,0,0,0,1,2\n0,1,1,2,0,7\n";
  int taken = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char put : {'\0', '0', '9', ',', '\n', '#', '=', ' ', '\xff'}) {
      std::string text = whole;
      text[at] = put;
      try {
        const RoutingTrace trace = parse_routing_trace(text, "");
        ++taken;
        for (const auto& layer : trace.layers)
          for (const int32_t expert : layer.experts) ASSERT_LT(expert, trace.experts);
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kFile);
      }
    }
    try {
      parse_routing_trace(std::string_view(whole).substr(0, at), "");
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kFile);
    }
  }
  EXPECT_GT(taken, 0);
}

}  // namespace
}  // namespace sluice
