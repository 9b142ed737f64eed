// Groups of a packed store: in the order of a pass, every tensor once.
#include "src/app/store_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/engine/model_fixtures.h"

namespace sluice::app {
namespace {

class StoreGroups : public ::testing::TestWithParam<std::string> {};

TEST_P(StoreGroups, HoldEveryTensorOfTheModelOnceInTheOrderOfAPass) {
  const BoundModel model = BoundModel::open(testing::fixture_model(GetParam()));
  const auto groups = store_groups(model, std::nullopt);
  std::vector<std::string> stored;
  for (const auto& group : groups)
    for (const auto& tensor : group.tensors) {
      EXPECT_EQ(tensor.store_name, tensor.source_name);
      EXPECT_FALSE(tensor.to.has_value());
      stored.push_back(tensor.source_name);
    }
  std::vector<std::string> expected;
  std::set<std::string> seen;
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i)
    for (size_t w = 0; w < model.shape().sublayers[i].weights.size(); ++w)
      for (int64_t e = 0; e < model.shape().sublayers[i].weights[w].tensors(); ++e)
        if (const std::string& name = model.tensor(i, w, static_cast<size_t>(e)).name;
            seen.insert(name).second)
          expected.push_back(name);
  EXPECT_EQ(stored, expected);
}

TEST_P(StoreGroups, AreEmbedTheLayersAndHead) {
  const BoundModel model = BoundModel::open(testing::fixture_model(GetParam()));
  const auto groups = store_groups(model, WeightFormat::plain(DType::kBF16));
  ASSERT_GE(groups.size(), static_cast<size_t>(model.shape().num_layers) + 1);
  EXPECT_EQ(groups.front().name, "embed");
  EXPECT_EQ(groups[1].name, "layer-00000");
  std::set<std::string> names;
  for (const auto& group : groups) {
    EXPECT_TRUE(names.insert(group.name).second) << group.name << " twice";
    EXPECT_FALSE(group.tensors.empty()) << group.name;
    for (const auto& tensor : group.tensors)
      EXPECT_EQ(tensor.to, WeightFormat::plain(DType::kBF16));
  }
}

// Stacks of experts are taken apart first, codes of other tools repacked, and turned matrices
// turned.
std::vector<std::string> models_of_one_tensor_each() {
  std::vector<std::string> names = testing::fixture_models();
  for (std::string& name : names)
    if (name.starts_with("gpt-oss-") || name.starts_with("gpt2-") || name.starts_with("llama4-") ||
        name.ends_with("-fp8") || name.ends_with("-gguf"))
      name += ":store";
  return names;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, StoreGroups, ::testing::ValuesIn(models_of_one_tensor_each()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '-' || c == ':'; });
                           return name;
                         });

}  // namespace
}  // namespace sluice::app
