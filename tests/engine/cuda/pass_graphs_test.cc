// Which passes are replayed from a graph, without an engine: contexts long enough to be split would
// take one minutes.
#include "src/engine/cuda/pass_graphs.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using Step = PassGraphs::Step;

TEST(PassGraphs, OnlyPassesOfOneKindAreReplayed) {
  const cuda::OwnedStream stream;
  PassGraphs graphs(stream.get(), true);
  const PassGraphs::Kind kind{1, {{4, 2, 0}}};
  EXPECT_EQ(graphs.begin(kind), Step::kRun);
  ASSERT_EQ(graphs.begin(kind), Step::kRecord);
  ASSERT_TRUE(graphs.finish());
  EXPECT_EQ(graphs.begin(kind), Step::kReplay);
  for (const PassGraphs::Kind& other :
       {PassGraphs::Kind{2, {{4, 2, 0}}}, PassGraphs::Kind{1, {{8, 2, 0}}},
        PassGraphs::Kind{1, {{4, 1, 0}}}, PassGraphs::Kind{1, {{4, 2, 0}}, {1, 8}}})
    EXPECT_EQ(graphs.begin(other), Step::kRun);
  EXPECT_EQ(graphs.begin(kind), Step::kReplay);
  EXPECT_EQ(graphs.launches(), 3);
}

}  // namespace
}  // namespace sluice
