// Logits and greedy tokens against Hugging Face transformers (scripts/golden/models.py made the
// goldens).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/linear.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::testing {
namespace {

class Goldens : public ::testing::TestWithParam<std::string> {};

double relative_error(const std::vector<float>& ours, const std::vector<float>& reference) {
  double worst = 0;
  double largest = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    worst = std::max(worst, std::abs(double{ours[i]} - reference[i]));
    largest = std::max(largest, std::abs(double{reference[i]}));
    if (!std::isfinite(ours[i])) return INFINITY;
  }
  return worst / largest;
}

// The error that so large a share of the rows stays below.
double error_of_most_rows(const std::vector<float>& ours, const std::vector<float>& reference,
                          size_t cols, double share) {
  double largest = 0;
  for (const float value : reference) largest = std::max(largest, std::abs(double{value}));
  std::vector<double> errors;
  for (size_t row = 0; row * cols < reference.size(); ++row) {
    double worst = 0;
    for (size_t i = row * cols; i < (row + 1) * cols; ++i)
      worst = std::max(worst, std::abs(double{ours[i]} - reference[i]));
    errors.push_back(worst / largest);
  }
  std::sort(errors.begin(), errors.end());
  return errors[static_cast<size_t>(share * static_cast<double>(errors.size() - 1))];
}

// Of logits of every position of the prompt those of positions that goldens have; none where they
// are not of every position.
std::vector<float> kept_rows(const std::vector<float>& ours, const GoldenCase& golden) {
  if (ours.size() * golden.positions.size() != golden.logits.size() * golden.prompt.size())
    return {};
  const auto width = static_cast<ptrdiff_t>(ours.size() / golden.prompt.size());
  std::vector<float> rows;
  for (const int32_t position : golden.positions)
    rows.insert(rows.end(), ours.begin() + position * width, ours.begin() + (position + 1) * width);
  return rows;
}

TEST_P(Goldens, LogitsOfKeptPositionsEqualTransformersInF32) {
  std::vector<GenerationRequest> requests;
  const auto cases = golden_cases(GetParam());
  for (size_t i = 0; i < cases.size(); ++i) {
    GenerationRequest request;
    request.id = i;
    request.prompt = cases[i].prompt;
    request.score_prompt = true;
    requests.push_back(request);
  }
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF32;
  auto answers = run_all(GetParam(), options, requests);
  for (size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].logits.empty()) continue;
    const std::vector<float> ours = kept_rows(answers[i].logits, cases[i]);
    ASSERT_EQ(ours.size(), cases[i].logits.size()) << cases[i].name;
    EXPECT_LE(relative_error(ours, cases[i].logits), 1e-4) << cases[i].name;
    EXPECT_EQ(answers[i].finish, FinishReason::kScored);
  }
}

TEST_P(Goldens, GreedyTokensEqualTransformersInF32) {
  const auto cases = golden_cases(GetParam());
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < cases.size(); ++i) {
    requests.push_back(
        greedy_requests({cases[i].prompt}, static_cast<int>(cases[i].greedy.size())).front());
    requests.back().id = i;
  }
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF32;
  auto answers = run_all(GetParam(), options, requests);
  for (size_t i = 0; i < cases.size(); ++i)
    EXPECT_EQ(answers[i].tokens, cases[i].greedy) << cases[i].name;
}

// Of every layer and token the experts that transformers chose.
TEST_P(Goldens, RoutersChooseAsTransformersInF32) {
  for (const GoldenCase& golden : golden_cases(GetParam())) {
    if (golden.experts.empty()) continue;
    GenerationRequest request;
    request.prompt = golden.prompt;
    request.score_prompt = true;
    EngineOptions options = options_for({request});
    options.compute = ComputeChoice::kF32;
    options.kv_dtype = DType::kF32;
    std::vector<std::vector<std::vector<int32_t>>> chosen(golden.experts.size());
    options.observe_choices = [&](const RoutedRows& rows) {
      for (size_t i = 0; i < rows.choices.size(); i += static_cast<size_t>(rows.chosen)) {
        auto& row = chosen[(rows.sublayer - 2) / 2].emplace_back();
        for (const RoutedTo& choice : rows.choices.subspan(i, static_cast<size_t>(rows.chosen)))
          row.push_back(choice.expert);
      }
    };
    run_all(GetParam(), options, {request});
    for (size_t layer = 0; layer < chosen.size(); ++layer)
      EXPECT_EQ(chosen[layer], golden.experts[layer]) << golden.name << ", layer " << layer;
  }
}

// In the precision that a user gets without asking: bf16 products and 16-bit KV where the
// checkpoint is 16-bit. The bound is what transformers itself loses in that type, times two (other
// roundings, same number of them).
TEST_P(Goldens, DefaultPrecisionStaysWithinWhatTheTypeAllows) {
  const auto cases = golden_cases(GetParam());
  const double allowed = std::max(2 * half_precision_error(GetParam()), 1e-4);
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < cases.size(); ++i) {
    GenerationRequest request;
    request.id = i;
    request.prompt = cases[i].prompt;
    request.score_prompt = true;
    requests.push_back(request);
  }
  auto answers = run_all(GetParam(), options_for(requests), requests);
  const ModelShape shape = BoundModel::open(fixture_model(GetParam())).shape();
  // Quantised weights are multiplied in bf16 where the CPU can, whatever type is beside them.
  const bool is_16_bit =
      allowed > 1e-4 || (shape.is_quantised() && kernels::bf16_compute_supported());
  for (size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].logits.empty()) continue;
    const std::vector<float> ours = kept_rows(answers[i].logits, cases[i]);
    ASSERT_EQ(ours.size(), cases[i].logits.size()) << cases[i].name;
    // Roundings turn a router's choice where two experts are near to each other, in transformers
    // too: such rows are others, and so is what attends to them.
    if (shape.num_experts > 1 && is_16_bit) {
      EXPECT_LE(
          error_of_most_rows(ours, cases[i].logits, static_cast<size_t>(shape.vocab_size), 0.5),
          0.05)
          << cases[i].name;
      continue;
    }
    EXPECT_LE(relative_error(ours, cases[i].logits), allowed) << cases[i].name;
  }
}

std::vector<std::string> models_with_goldens() {
  std::vector<std::string> names;
  for (const std::string& name : fixture_models()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Goldens, ::testing::ValuesIn(models_with_goldens()),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace sluice::testing
