// Programs of layers: what a builder writes, what it refuses, the two sides of a cut.
#include <gtest/gtest.h>

#include <functional>

#include "src/base/error.h"
#include "src/layer/layer_builder.h"
#include "src/layer/work_space.h"

namespace sluice {
namespace {

using Kind = Operator::Kind;

SublayerShape shape() {
  SublayerShape out{SublayerKind::kAttention, 0, {}};
  const auto add = [&](const char* role, WeightKind kind, int64_t rows, int64_t cols) {
    WeightShape weight;
    weight.role = role;
    weight.kind = kind;
    weight.rows = rows;
    weight.cols = cols;
    out.weights.push_back(weight);
  };
  add("norm", WeightKind::kVector, 1, 8);
  add("q", WeightKind::kMatrix, 12, 8);
  add("q.bias", WeightKind::kVector, 1, 12);
  add("o", WeightKind::kMatrix, 8, 4);
  return out;
}

std::string fault(const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& error) {
    return error.text();
  }
  return "none";
}

class LayerProgramTest : public ::testing::Test {
 protected:
  SublayerShape shape_ = shape();
  LayerBuilder layer_{shape_, 8};
  std::array<float, 2> frequencies_{1, 0.5};
  NormSpec norm_{NormKind::kRms, "norm", "", 1e-6f};
};

TEST_F(LayerProgramTest, SaysWhatWasWritten) {
  const View x = layer_.workspace(8);
  const View q = layer_.workspace(12);
  layer_.norm_hidden(norm_, x);
  layer_.linear("q", "q.bias", x, q);
  layer_.rope(q.columns(0, 4), 1, frequencies_, 2.0f);
  const View attended = layer_.workspace(4);
  layer_.attend(q.columns(0, 4), q.columns(4, 4), q.columns(8, 4), attended);
  layer_.linear("o", "", attended, x);
  layer_.add_to_hidden(x);
  const LayerProgram program = layer_.take();
  EXPECT_EQ(program.slots, (std::vector<int64_t>{8, 12, 4, 8})) << "x is written anew";
  EXPECT_EQ(program.columns(), 3 * kSlotColumns);
  ASSERT_EQ(program.operators.size(), 6u);
  EXPECT_EQ(program.operators[0].kind, Kind::kNormHidden);
  EXPECT_EQ(program.operators[0].weight, 0);
  EXPECT_EQ(program.operators[1].weight, 1);
  EXPECT_EQ(program.operators[1].bias, 2);
  EXPECT_EQ(program.operators[2].out, (View{1, 0, 4}));
  EXPECT_EQ(program.operators[3].in[2], (View{1, 8, 4}));
  EXPECT_EQ(program.operators[4].weight, 3);
  EXPECT_EQ(program.operators[4].bias, -1);

  EXPECT_EQ(program.cut, 3);
  EXPECT_EQ(program.before_cut().size(), 4u);
  EXPECT_EQ(program.before_cut().back().kind, Kind::kAttend);
  EXPECT_EQ(program.after_cut().size(), 3u);
  EXPECT_EQ(program.after_cut().front().kind, Kind::kAttend);

  LayerProgram other = program;
  EXPECT_EQ(other, program);
  other.operators[2].factor = 1;
  EXPECT_FALSE(other == program);
}

TEST_F(LayerProgramTest, WithoutAttentionThereIsNoCut) {
  const View x = layer_.workspace(8);
  layer_.read_hidden(x);
  layer_.set_hidden(x);
  const LayerProgram program = layer_.take();
  EXPECT_EQ(program.cut, -1);
  EXPECT_EQ(program.before_cut().size(), 2u);
  EXPECT_TRUE(program.after_cut().empty());
}

TEST_F(LayerProgramTest, HeadsHaveOneGainAndASlotOfTheirOwn) {
  const View x = layer_.workspace(8);
  const View heads = layer_.workspace(24);
  const NormSpec of_heads{NormKind::kRms, "norm", "", 1e-6f};
  EXPECT_NE(fault([&] { layer_.norm_heads(of_heads, heads, 3); }).find("what it has written"),
            std::string::npos);
  layer_.read_hidden(x);
  EXPECT_NE(fault([&] { layer_.norm_heads(of_heads, x, 2); }).find("as wide as its rows"),
            std::string::npos);
  EXPECT_NE(fault([&] { layer_.norm_heads(of_heads, x, 3); }).find("by themselves"),
            std::string::npos);
  EXPECT_NE(fault([&] { layer_.norm_heads(of_heads, x.columns(0, 4), 2); }).find("one behind"),
            std::string::npos);
  layer_.norm_heads(of_heads, x, 1);
  const Operator op = layer_.take().operators.back();
  EXPECT_EQ(op.kind, Kind::kNormHeads);
  EXPECT_EQ(op.heads, 1);
  EXPECT_EQ(op.weight, 0);
  EXPECT_EQ(op.eps, 1e-6f);
}

TEST_F(LayerProgramTest, WhatDoesNotFitTogetherIsAFault) {
  const View x = layer_.workspace(8);
  const View q = layer_.workspace(12);
  EXPECT_NE(fault([&] { layer_.linear("q", "", x, q); }).find("what it has written"),
            std::string::npos);
  layer_.read_hidden(x);
  EXPECT_NE(fault([&] { layer_.linear("k", "", x, q); }).find("weights that it has listed"),
            std::string::npos);
  EXPECT_NE(fault([&] { layer_.linear("norm", "", x, q); }).find("weights that it has listed"),
            std::string::npos);
  EXPECT_NE(fault([&] { layer_.linear("q", "", x, q.columns(0, 8)); }).find("fit together"),
            std::string::npos);
  EXPECT_NE(fault([&] { layer_.linear("q", "norm", x, q); }).find("as wide as its rows"),
            std::string::npos);
  EXPECT_NE(fault([&] { layer_.linear("o", "", x.columns(0, 4), x); }).find("fit together"),
            std::string::npos);
  EXPECT_NE(fault([&] { layer_.read_hidden(q); }).find("whole"), std::string::npos);
  EXPECT_NE(fault([&] {
              layer_.norm({NormKind::kRms, "norm", "", 0}, x.columns(0, 4));
            }).find("as wide"),
            std::string::npos);
  EXPECT_NE(fault([&] { layer_.activate(Activation::kRelu, q); }).find("what it has written"),
            std::string::npos);
  EXPECT_NE(fault([&] {
              layer_.activate(Activation::kRelu, x.columns(4, 8));
            }).find("columns are those of"),
            std::string::npos);
  EXPECT_NE(fault([&] { layer_.rope(x, 4, frequencies_, 1); }).find("within themselves"),
            std::string::npos);
  EXPECT_NE(fault([&] { layer_.add(x, x.columns(0, 4)); }).find("as wide"), std::string::npos);
  EXPECT_NE(fault([&] { layer_.workspace(0); }).find("columns"), std::string::npos);
  layer_.linear("q", "", x, q);
  const View k = q.columns(4, 4);
  layer_.attend(q.columns(0, 4), k, k, x.columns(0, 4));
  EXPECT_NE(fault([&] { layer_.attend(k, k, k, x.columns(4, 4)); }).find("attends once"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
