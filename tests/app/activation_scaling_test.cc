#include "src/app/activation_scaling.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <map>
#include <random>

#include "io/checkpoint/packed_store.h"
#include "kernels/linear.h"
#include "src/app/error_compensation.h"
#include "src/app/perplexity.h"
#include "src/app/store_layout.h"
#include "src/app/weight_sample.h"
#include "src/base/error.h"
#include "src/engine/stores/panel_quantiser.h"
#include "src/layer/scaling_places.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::app {
namespace {

namespace fs = std::filesystem;

std::vector<ScoredSequence> windows_of(const std::string& fixture, uint32_t seed) {
  std::mt19937 random(seed);
  const int64_t vocab = BoundModel::open(testing::fixture_model(fixture)).shape().vocab_size;
  std::vector<ScoredSequence> windows(3);
  for (ScoredSequence& window : windows)
    for (int i = 0; i < 24; ++i)
      window.tokens.push_back(
          static_cast<int32_t>(3 + random() % static_cast<uint64_t>(vocab - 3)));
  return windows;
}

EngineOptions options_for(std::span<const ScoredSequence> windows) {
  EngineOptions options;
  options.memory_budget_bytes = 64 << 20;
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF32;
  options.workload.sequences = static_cast<int64_t>(windows.size());
  for (const ScoredSequence& window : windows)
    options.workload.max_prompt_tokens = options.workload.max_total_tokens =
        std::max(options.workload.max_total_tokens, static_cast<int64_t>(window.tokens.size()) + 1);
  return options;
}

std::vector<float> logits_of(const fs::path& model, std::span<const ScoredSequence> windows) {
  std::vector<std::vector<float>> rows(static_cast<size_t>(scored_tokens(windows)));
  const auto engine = Engine::open(model, options_for(windows));
  engine->load();
  score(*engine, windows, [&](const TokenScore& score, std::span<const float> logits) {
    rows[static_cast<size_t>(score.row)].assign(logits.begin(), logits.end());
  });
  std::vector<float> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{a[i]} * a[i];
  }
  return std::sqrt(difference / size);
}

class ActivationScaling : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sluice-scaling-" + std::to_string(getpid()));
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path convert(const BoundModel& model, const char* format, const Scalings* scalings,
                   Compensator* compensator = nullptr) {
    fs::remove_all(folder_);
    io::ConvertOptions options;
    options.destination = folder_;
    options.quantise = panel_quantiser(kernels::RangeSearch::kClip);
    io::convert_checkpoint(model.checkpoint(),
                           store_groups(model, parse_weight_format(format),
                                        kernels::RangeSearch::kClip, scalings, compensator),
                           options);
    return folder_;
  }

  fs::path folder_;
};

// Factors of any size at every place of the family: the model computes the same.
TEST_P(ActivationScaling, ChangesNothingButTheRounding) {
  const BoundModel model = BoundModel::open(testing::fixture_model(GetParam()));
  std::mt19937 random(3);
  Scalings scalings;
  size_t places = 0;
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i) {
    const SublayerShape& sublayer = model.shape().sublayers[i];
    for (const ScalingPlace& place : scaling_places(
             model.family().program(i), model.shape().num_heads == model.shape().num_kv_heads)) {
      ++places;
      const auto at = [&](int32_t weight) { return WeightPlace{i, static_cast<size_t>(weight)}; };
      std::vector<float> factors(
          static_cast<size_t>(sublayer.weights[at(place.consumers.front()).weight].cols));
      for (float& factor : factors)
        factor = std::exp2(static_cast<float>(static_cast<int>(random() % 3)) - 1);
      for (const int32_t weight : place.consumers) scalings[at(weight)].columns = factors;
      for (float& factor : factors) factor = 1 / factor;
      scalings[at(place.producer)].rows = factors;
      if (place.bias >= 0) scalings[at(place.bias)].rows = factors;
    }
  }
  ASSERT_GT(places, 0u);
  const auto windows = windows_of(GetParam(), 5);
  const auto exact = logits_of(testing::fixture_model(GetParam()), windows);
  const double plain = distance(exact, logits_of(convert(model, "int8-g32", nullptr), windows));
  const double scaled = distance(exact, logits_of(convert(model, "int8-g32", &scalings), windows));
  // Steps up to four times as wide; a place that was wrong would be off by a half and more.
  EXPECT_LT(plain, 0.05);
  EXPECT_LT(scaled, 0.12);
}

TEST_P(ActivationScaling, SumsTheInputsOfEveryLinearLayer) {
  const BoundModel model = BoundModel::open(testing::fixture_model(GetParam()));
  const auto windows = windows_of(GetParam(), 6);
  const Calibration calibration =
      calibrate(testing::fixture_model(GetParam()), options_for(windows), windows);
  size_t linear_layers = 0;
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i)
    for (size_t w = 0; w < model.shape().sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = model.shape().sublayers[i].weights[w];
      if (weight.kind != WeightKind::kMatrix || weight.shares_table) continue;
      ++linear_layers;
      const auto found = calibration.find({i, w});
      ASSERT_NE(found, calibration.end()) << weight.role;
      EXPECT_EQ(found->second.rows, 3 * 24) << "each row once";
      EXPECT_EQ(static_cast<int64_t>(found->second.square.size()), weight.cols);
      for (size_t col = 0; col < found->second.square.size(); ++col)
        EXPECT_GE(found->second.mean_square(col) * (1 + 1e-9),
                  found->second.mean_magnitude(col) * found->second.mean_magnitude(col));
    }
  EXPECT_EQ(calibration.size(), linear_layers);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ActivationScaling,
                         ::testing::Values("stories260k", "llama-tiny-mha", "llama-tiny-bias",
                                           "opt-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// On text that the model was made for.
class TrainedModel : public ActivationScaling {};
TEST_P(TrainedModel, IsCloserWhenCalibrated) {
  std::vector<ScoredSequence> windows;
  for (const auto& golden : testing::golden_cases(GetParam())) {
    ScoredSequence& window = windows.emplace_back();
    window.tokens = golden.prompt;
    window.tokens.insert(window.tokens.end(), golden.greedy.begin(), golden.greedy.end());
  }
  const BoundModel model = BoundModel::open(testing::fixture_model(GetParam()));
  const auto exact = logits_of(testing::fixture_model(GetParam()), windows);
  const auto format = parse_weight_format("int4-g32").value();
  const Scalings scalings = choose_scalings(
      model, calibrate(testing::fixture_model(GetParam()), options_for(windows), windows),
      [&](size_t, size_t) { return format; }, kernels::RangeSearch::kClip);
  EXPECT_NE(fingerprint(scalings), fingerprint({}));
  const double plain = distance(exact, logits_of(convert(model, "int4-g32", nullptr), windows));
  const double scaled = distance(exact, logits_of(convert(model, "int4-g32", &scalings), windows));
  EXPECT_LT(scaled, plain);
  CompensatorParts parts{.model = model,
                         .path = testing::fixture_model(GetParam()),
                         .options = options_for(windows),
                         .windows = windows,
                         .scalings = scalings,
                         .search = kernels::RangeSearch::kClip,
                         .threads = 2};
  Compensator whole(parts);
  EXPECT_EQ(whole.too_wide(), 0);
  const auto logits = logits_of(convert(model, "int4-g32", &scalings, &whole), windows);
  EXPECT_LT(distance(exact, logits), 0.8 * scaled);
  // As many at a time as fit: a run for each layer gives the same.
  parts.most_bytes = 4 * kernels::padded_rows(192) * 192;
  Compensator in_rounds(parts);
  EXPECT_EQ(in_rounds.too_wide(), 0);
  EXPECT_EQ(logits_of(convert(model, "int4-g32", &scalings, &in_rounds), windows), logits);
  // Nothing fits: the columns' importance alone.
  parts.most_bytes = 100;
  Compensator none(parts);
  EXPECT_GT(none.too_wide(), 0);
  EXPECT_EQ(distance(exact, logits_of(convert(model, "int4-g32", &scalings, &none), windows)),
            scaled);
}

// What is multiplied with the same rows has one H, and that is their products' sum.
TEST_P(TrainedModel, HasOneHessianForWhatSharesInputs) {
  const BoundModel model = BoundModel::open(testing::fixture_model(GetParam()));
  const auto windows = windows_of(GetParam(), 4);
  const Calibration squares =
      calibrate(testing::fixture_model(GetParam()), options_for(windows), windows);
  Hessians sums;
  size_t products = 0;
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i) {
    const auto& weights = model.shape().sublayers[i].weights;
    const auto sources = input_sources(model.family().program(i), weights.size());
    for (size_t weight = 0; weight < weights.size(); ++weight) {
      if (sources[weight] < 0 || weights[weight].shares_table) continue;
      ++products;
      const WeightPlace source{i, static_cast<size_t>(sources[weight])};
      EXPECT_EQ(squares.at({i, weight}).square, squares.at(source).square) << weights[weight].role;
      const int64_t cols = weights[weight].cols;
      sums[source].assign(static_cast<size_t>(kernels::padded_rows(cols) * cols), 0);
    }
  }
  EXPECT_EQ(products, squares.size());
  EXPECT_EQ(sums.size() * 7, products * 4) << "q, k and v share theirs, and gate and up";
  add_hessians(testing::fixture_model(GetParam()), options_for(windows), windows, sums);
  for (const auto& [place, values] : sums) {
    const auto& square = squares.at(place).square;
    const auto cols = static_cast<size_t>(square.size());
    for (size_t i = 0; i < cols; ++i) {
      EXPECT_NEAR(values[i * cols + i], square[i], 1e-4 * square[i] + 1e-6);
      EXPECT_EQ(values[i * cols], values[i]);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Fixtures, TrainedModel, ::testing::Values("stories260k"));

// What the errors of a quantised matrix cost on the inputs that `sum` is of.
double cost_of(const WeightFormat& format, const std::vector<float>& values,
               const std::vector<std::byte>& panels, int64_t cols, const std::vector<float>& sum) {
  double cost = 0;
  const int64_t rows = std::ssize(values) / cols;
  std::vector<float> back(static_cast<size_t>(16 * cols));
  for (int64_t row = 0; row < rows; ++row) {
    if (row % 16 == 0)
      kernels::dequantise_panel(format, panels.data() + row / 16 * format.panel_bytes(cols),
                                std::min<int64_t>(16, rows - row), cols, back.data(), cols);
    const auto error = [&](int64_t col) {
      return double{back[static_cast<size_t>(row % 16 * cols + col)]} -
             values[static_cast<size_t>(row * cols + col)];
    };
    for (int64_t i = 0; i < cols; ++i)
      for (int64_t j = 0; j < cols; ++j)
        cost += error(i) * sum[static_cast<size_t>(i * cols + j)] * error(j);
  }
  return cost;
}

// Experts have sums of their own, of the rows that went to them.
class Mixture : public ActivationScaling {};
TEST_P(Mixture, EachExpertMakesUpForItsErrors) {
  const BoundModel model = BoundModel::open(testing::fixture_model(GetParam()));
  const auto windows = windows_of(GetParam(), 9);
  const Calibration calibration =
      calibrate(testing::fixture_model(GetParam()), options_for(windows), windows);
  std::map<std::pair<size_t, size_t>, int64_t> rows;
  for (const auto& [place, inputs] : calibration)
    if (model.shape().sublayers[place.sublayer].weights[place.weight].experts > 0)
      rows[{place.sublayer, place.weight}] += inputs.rows;
  ASSERT_FALSE(rows.empty());
  for (const auto& [place, count] : rows)
    EXPECT_EQ(count, 3 * 24 * model.shape().experts_per_token);
  const auto format = parse_weight_format("int4-g32").value();
  const Scalings scalings = choose_scalings(
      model, calibration, [&](size_t, size_t) { return format; }, kernels::RangeSearch::kClip);
  for (const auto& [place, count] : rows) {
    const WeightShape& shape = model.shape().sublayers[place.first].weights[place.second];
    for (size_t expert = 0; expert < static_cast<size_t>(shape.experts); ++expert) {
      const auto found = scalings.find({place.first, place.second, expert});
      ASSERT_NE(found, scalings.end()) << "with rows or without";
      EXPECT_EQ(std::ssize(found->second.importance), shape.cols);
      EXPECT_TRUE(found->second.columns.empty());
    }
  }
  CompensatorParts parts{.model = model,
                         .path = testing::fixture_model(GetParam()),
                         .options = options_for(windows),
                         .windows = windows,
                         .scalings = scalings,
                         .search = kernels::RangeSearch::kClip,
                         .threads = 2};
  Compensator whole(parts);
  // On the rows that went to an expert its answers are nearer. (Logits say little of weights that
  // are random: a router that changes its mind changes all.)
  Hessians sums;
  for (const auto& [place, inputs] : calibration) {
    const auto cols = static_cast<int64_t>(inputs.square.size());
    sums[place].assign(static_cast<size_t>(kernels::padded_rows(cols) * cols), 0);
  }
  add_hessians(testing::fixture_model(GetParam()), options_for(windows), windows, sums);
  double plain = 0, compensated = 0;
  for (const auto& [place, sum] : sums) {
    if (!rows.contains({place.sublayer, place.weight})) continue;
    const MatrixRows matrix(model, place.sublayer, place.weight, place.expert);
    std::vector<float> values(static_cast<size_t>(matrix.rows() * matrix.cols()));
    matrix.read(0, matrix.rows(), values.data());
    std::vector<std::byte> panels(static_cast<size_t>(format.bytes(matrix.rows(), matrix.cols())));
    ASSERT_TRUE(
        whole.quantiser(place, format)(values.data(), matrix.rows(), matrix.cols(), panels.data()));
    compensated += cost_of(format, values, panels, matrix.cols(), sum);
    for (int64_t row = 0; row < matrix.rows(); row += 16)
      ASSERT_TRUE(
          kernels::quantise_panel(format, {}, values.data() + row * matrix.cols(), matrix.cols(),
                                  std::min<int64_t>(16, matrix.rows() - row), matrix.cols(),
                                  panels.data() + row / 16 * format.panel_bytes(matrix.cols())));
    plain += cost_of(format, values, panels, matrix.cols(), sum);
  }
  EXPECT_LT(compensated, 0.85 * plain);
  const auto logits = logits_of(convert(model, "int4-g32", &scalings, &whole), windows);
  // One expert's sums at a time.
  parts.most_bytes = 4 * kernels::padded_rows(192) * 192;
  Compensator in_rounds(parts);
  EXPECT_EQ(logits_of(convert(model, "int4-g32", &scalings, &in_rounds), windows), logits);
}
INSTANTIATE_TEST_SUITE_P(Fixtures, Mixture,
                         ::testing::Values("mixtral-tiny", "qwen3-moe-tiny", "olmoe-odd",
                                           "qwen3-5-moe-tiny"),
                         [](const auto& info) { return testing::test_name(info.param); });

TEST(ActivationScalingErrors, QuantisedModelsCanNotBeScaled) {
  const BoundModel model = BoundModel::open(testing::fixture_model("opt-tiny:int4"));
  const auto windows = windows_of("opt-tiny", 8);
  const auto calibration =
      calibrate(testing::fixture_model("opt-tiny:int4"), options_for(windows), windows);
  const auto int4 = [](size_t, size_t) { return parse_weight_format("int4").value(); };
  EXPECT_THROW(choose_scalings(model, calibration, int4, kernels::RangeSearch::kClip), Error);
}

}  // namespace
}  // namespace sluice::app
