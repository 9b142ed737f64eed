#include "src/model/bound_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "src/base/bytes.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

BoundModel open_fixture(const std::string& name) {
  return BoundModel::open(fs::path(SLUICE_FIXTURES) / "models" / name);
}

TEST(BoundModel, OpensEveryFixtureAndFindsEveryWeight) {
  int models = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(SLUICE_FIXTURES) / "models")) {
    if (!entry.is_directory()) continue;
    ++models;
    const BoundModel model = BoundModel::open(entry.path());
    const ModelShape& shape = model.shape();
    int64_t bytes = 0;
    std::set<std::string> names;
    for (size_t s = 0; s < shape.sublayers.size(); ++s)
      for (size_t w = 0; w < shape.sublayers[s].weights.size(); ++w) {
        const WeightShape& weight = shape.sublayers[s].weights[w];
        for (int64_t expert = 0; expert < weight.tensors(); ++expert) {
          const io::TensorEntry& tensor = model.tensor(s, w, static_cast<size_t>(expert));
          const WeightFormat format = tensor.quantised.is_quantised()
                                          ? tensor.quantised
                                          : WeightFormat::plain(tensor.dtype);
          ASSERT_EQ(tensor.bytes, format.bytes(weight.expert_rows(), weight.cols)) << tensor.name;
          EXPECT_EQ(names.insert(tensor.name).second, !weight.shares_table) << tensor.name;
          if (weight.shares_table) continue;
          // Vectors may have a type of their own.
          bytes += weight.experts > 0 ? round_up(tensor.bytes, ModelShape::kExpertAlignment)
                   : weight.kind == WeightKind::kVector
                       ? weight.cols * dtype_bytes(shape.weight_dtype)
                       : tensor.bytes;
        }
      }
    EXPECT_EQ(bytes, shape.weight_bytes()) << entry.path();
    EXPECT_EQ(model.family().shape().sublayers.size(), shape.sublayers.size());
    const std::vector<std::string> of_shape{shape.note};  // LongRoPE's, say
    EXPECT_TRUE(shape.note.empty() ? model.notes().empty() : model.notes() == of_shape)
        << entry.path() << ": " << model.notes().front();
  }
  EXPECT_GE(models, 16);
}

TEST(BoundModel, TakesTheElementTypeFromTheWeights) {
  EXPECT_EQ(open_fixture("opt-tiny").shape().weight_dtype, DType::kF32);
  EXPECT_EQ(open_fixture("opt-tiny-f16").shape().weight_dtype, DType::kF16);
  EXPECT_EQ(open_fixture("llama-tiny-bf16").shape().weight_dtype, DType::kBF16);
}

TEST(BoundModel, KnowsWhichTokensEndASequence) {
  EXPECT_EQ(open_fixture("llama3-rope-tiny").eos_token_ids().size(), 2u)
      << "generation_config.json wins";
  EXPECT_EQ(open_fixture("opt-tiny").eos_token_ids(), (std::vector<int32_t>{2}));
}

TEST(BoundModel, ShapesAreTheConfigs) {
  const BoundModel wide = open_fixture("llama-tiny-head-dim");
  EXPECT_EQ(wide.shape().head_dim, 24);
  EXPECT_NE(wide.shape().head_dim * wide.shape().num_heads, wide.shape().hidden_size);
  const BoundModel grouped = open_fixture("llama-tiny-gqa");
  EXPECT_EQ(grouped.shape().num_heads, 8);
  EXPECT_EQ(grouped.shape().num_kv_heads, 2);
  EXPECT_TRUE(grouped.shape().sublayers.back().find("logits")->shares_table);
  EXPECT_FALSE(
      open_fixture("llama-tiny-mha").shape().sublayers.back().find("logits")->shares_table);
  const BoundModel narrow = open_fixture("opt-350m-tiny");
  EXPECT_NE(narrow.shape().sublayers.front().find("project_in"), nullptr);
  EXPECT_EQ(narrow.shape().sublayers.back().find("norm"), nullptr) << "350m has no final norm";
}

TEST(BoundModel, StaysWholeWhenItMoves) {
  BoundModel first = open_fixture("opt-tiny");
  const std::string name = first.tensor(1, 0).name;
  const BoundModel second = std::move(first);
  EXPECT_EQ(second.tensor(1, 0).name, name);
  EXPECT_EQ(second.checkpoint().find(name), &second.tensor(1, 0));
}

}  // namespace
}  // namespace sluice
