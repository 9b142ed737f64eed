#include "src/cache/routing_figures.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/cache/routing_files.h"

namespace sluice {
namespace {

// Means over decoded tokens, published of these runs (to three digits) or counted by another
// program (distinct experts, entropy).
TEST(RoutingFigures, TellOfRecordedRunsWhatOthersTold) {
  struct Published {
    const char* name;
    std::array<double, 4> overlap, seen;
    double distinct_in_8, distinct_in_32, entropy;
  };
  for (const Published& published :
       {Published{"qwen", {.380, .289, .267, .236}, {.61, .74, .86, .93}, 23.56, 42.47, .743},
        {"gemma", {.357, .293, .261, .219}, {.61, .72, .83, .91}, 23.92, 46.93, .745},
        {"gptoss", {.179, .210, .131, .118}, {.46, .58, .69, .83}, 9.98, 23.80, .640}}) {
    const RoutingFigures figures =
        routing_figures(routing_file(published.name), RoutedTokens::kDecoded);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(figures.overlap[i], published.overlap[i], 0.0005) << published.name << i;
      EXPECT_NEAR(figures.seen[i], published.seen[i], 0.005) << published.name << i;
    }
    EXPECT_NEAR(figures.distinct[0], published.distinct_in_8, 0.005);
    EXPECT_NEAR(figures.distinct[1], published.distinct_in_32, 0.005);
    EXPECT_NEAR(figures.entropy, published.entropy, 0.0005);
    EXPECT_LE(figures.least_entropy, figures.entropy);
    EXPECT_GE(figures.most_entropy, figures.entropy);
  }
}

RoutingTrace two_sequences() {
  RoutingTrace trace;
  trace.experts = 4;
  trace.chosen = 1;
  trace.layers.resize(2);
  RoutingTrace::Layer& layer = trace.layers[1];
  // Sequence 0: 0 0 1, sequence 1: 3 3, computed in turns; then sequence 0 from its beginning.
  const auto add = [&](int64_t sequence, int64_t position, int64_t pass, int32_t expert) {
    layer.tokens.push_back({sequence, position, pass, position == 0, 1, layer.experts.size()});
    layer.experts.push_back(expert);
  };
  add(0, 0, 0, 0);
  add(1, 0, 0, 3);
  add(0, 1, 1, 0);
  add(1, 1, 1, 3);
  add(0, 2, 2, 1);
  add(0, 0, 3, 2);
  return trace;
}

TEST(RoutingFigures, KeepSequencesApart) {
  const RoutingFigures figures = routing_figures(two_sequences(), RoutedTokens::kAll);
  EXPECT_EQ(figures.routed_layers, 1);
  EXPECT_EQ(figures.tokens, 6);
  EXPECT_EQ(figures.prompt_tokens, 3);
  EXPECT_EQ(figures.decoded_tokens, 3);
  EXPECT_EQ(figures.sequences, 2);
  EXPECT_EQ(figures.passes, 4);
  EXPECT_NEAR(figures.tokens_a_pass, 6.0 / 4, 1e-9);
  EXPECT_NEAR(figures.experts_a_pass, (2 + 2 + 1 + 1) / 4.0, 1e-9);
  // 0 after 0, 3 after 3, 1 after 0; the last token follows nobody.
  EXPECT_NEAR(figures.overlap[0], 2.0 / 3, 1e-9);
  EXPECT_EQ(figures.overlap[1], 0);
  EXPECT_EQ(figures.overlap[2], -1) << "no token has eight before it";
  EXPECT_EQ(figures.seen[0], -1);
  EXPECT_EQ(figures.distinct[0], -1);
  EXPECT_NEAR(figures.uniform[0], 4 * (1 - std::pow(0.75, 8)), 1e-9);
  // Uses 2, 1, 1, 2 of 6.
  EXPECT_NEAR(figures.hottest[2], 2.0 / 6, 1e-9);
  EXPECT_NEAR(figures.hottest[3], 4.0 / 6, 1e-9);
  EXPECT_NEAR(
      figures.entropy,
      -(2 * (1.0 / 3) * std::log(1.0 / 3) + 2 * (1.0 / 6) * std::log(1.0 / 6)) / std::log(4), 1e-9);
}

TEST(RoutingFigures, SayNothingOfTokensThatAreNotThere) {
  RoutingTrace trace = two_sequences();
  for (auto& token : trace.layers[1].tokens) token.is_prompt = false;
  const RoutingFigures figures = routing_figures(trace, RoutedTokens::kPrompts);
  EXPECT_EQ(figures.tokens, 0);
  EXPECT_EQ(figures.overlap[0], -1);
  EXPECT_EQ(figures.entropy, -1);
  EXPECT_EQ(figures.tokens_a_pass, -1);
}

}  // namespace
}  // namespace sluice
