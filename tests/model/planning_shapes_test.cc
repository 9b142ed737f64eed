#include "src/model/planning_shapes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "src/model/builtin.h"

namespace sluice {
namespace {

TEST(PlanningShapes, ParametersAreThePublishedTotals) {
  const std::pair<const char*, double> published[] = {
      {"gpt2", 0.124},          {"gpt-neox-20b", 20.55},   {"bloom-176b", 176.2},
      {"falcon-180b", 179.5},   {"falcon-7b", 6.92},       {"gemma-2-9b", 9.24},
      {"gemma-3-27b", 27.0},    {"gemma-3-1b", 1.0},       {"command-r7b", 8.03},
      {"command-a-111b", 111},  {"olmo-2-7b", 7.3},        {"smollm3-3b", 3.08},
      {"seed-oss-36b", 36.15},  {"exaone-4.0-32b", 32},    {"starcoder2-15b", 15.96},
      {"granite-3.3-8b", 8.17}, {"glm-4-32b-0414", 32.6},  {"phi-2", 2.78},
      {"gpt-j-6b", 6.05},       {"stablelm-2-1.6b", 1.64}, {"nemotron-4-340b", 341},
      {"pythia-6.9b", 6.86},    {"ministral-3-8b", 8.5},   {"minitron-4b", 4.19},
      {"mistral-7b", 7.24},     {"qwen2-7b", 7.62},        {"qwen2.5-72b", 72.7},
      {"qwen3-30b-a3b", 30.5},  {"mixtral-8x7b", 46.7},    {"mixtral-8x22b", 140.6},
      {"deepseek-v3", 671},     {"llama-65b", 65.2},       {"llama-3.1-405b", 405.9},
      {"opt-175b", 174.6},      {"olmoe-1b-7b", 6.92},     {"qwen1.5-moe-a2.7b", 14.3},
      {"qwen3-235b-a22b", 235}, {"glm-4.5-air", 106.9},    {"minimax-m2", 229},
      {"gpt-oss-20b", 20.9},    {"gpt-oss-120b", 116.8},   {"deepseek-v2", 236},
      {"kimi-k2", 1026}};
  for (const auto& [name, billions] : published) {
    const auto shape = planning_shape(name);
    ASSERT_TRUE(shape) << name;
    EXPECT_NEAR(static_cast<double>(shape->num_parameters()) / 1e9, billions, 0.015 * billions)
        << name;
  }
}

TEST(PlanningShapes, NamesAreDistinctAndAllHaveAShape) {
  const auto names = builtin_model_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const std::string& name : names) {
    const auto shape = planning_shape(name);
    ASSERT_TRUE(shape) << name;
    EXPECT_EQ(std::count_if(
                  shape->sublayers.begin(), shape->sublayers.end(),
                  [](const SublayerShape& one) { return one.kind == SublayerKind::kAttention; }),
              shape->num_layers)
        << name;
    EXPECT_GT(shape->workspace_columns, shape->hidden_size) << name;
  }
  EXPECT_FALSE(planning_shape("opt-31b"));
}

TEST(PlanningShapes, ATokenOfAMixtureComputesWithItsExpertsOnly) {
  const ModelShape mixtral = *planning_shape("mixtral-8x7b");
  EXPECT_NEAR(mixtral.matmul_flops_per_token() / 2e9, 12.7, 0.4)
      << "12.9 billion active with tables";
  const ModelShape deepseek = *planning_shape("deepseek-v3");
  EXPECT_NEAR(deepseek.matmul_flops_per_token() / 2e9, 36.6, 1.2) << "37 billion active";
  EXPECT_EQ(deepseek.state_groups.front().state.elements_per_token(), 576)
      << "one latent row for k and v";
}

}  // namespace
}  // namespace sluice
