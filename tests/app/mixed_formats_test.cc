// Formats matrix by matrix under so many bits a weight.
#include "src/app/mixed_formats.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <random>
#include <set>

#include "io/checkpoint/packed_store.h"
#include "src/app/format_choice.h"
#include "src/app/quantisation.h"
#include "src/base/error.h"
#include "src/engine/stores/panel_quantiser.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::app {
namespace {

namespace fs = std::filesystem;

using Items = std::vector<std::vector<FormatOption>>;

FormatOption sum_of(const Items& items, const std::vector<size_t>& chosen) {
  FormatOption sum;
  for (size_t i = 0; i < items.size(); ++i) {
    sum.bytes += items[i][chosen[i]].bytes;
    sum.damage += items[i][chosen[i]].damage;
  }
  return sum;
}

// Every combination.
std::optional<double> least_damage(const Items& items, int64_t most_bytes) {
  std::optional<double> best;
  std::vector<size_t> chosen(items.size(), 0);
  while (true) {
    const FormatOption sum = sum_of(items, chosen);
    if (sum.bytes <= most_bytes && (!best || sum.damage < *best)) best = sum.damage;
    size_t item = 0;
    while (item < items.size() && ++chosen[item] == items[item].size()) chosen[item++] = 0;
    if (item == items.size()) return best;
  }
}

TEST(ChooseOptions, FindsWhatTryingAllFinds) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    Items items(1 + random() % 6);
    int64_t most = 0;
    for (auto& options : items) {
      options.resize(1 + random() % 4);
      for (FormatOption& option : options)
        // Options of no order, some worth nothing, some alike.
        option = {static_cast<int64_t>(random() % 40), static_cast<double>(random() % 50) / 8};
      most += static_cast<int64_t>(random() % 40);
    }
    const auto best = least_damage(items, most);
    const auto chosen = choose_options(items, most);
    ASSERT_EQ(chosen.has_value(), best.has_value()) << "round " << round;
    if (!best) continue;
    const FormatOption sum = sum_of(items, *chosen);
    EXPECT_LE(sum.bytes, most) << "round " << round;
    EXPECT_NEAR(sum.damage, *best, 1e-12) << "round " << round;
  }
}

// Sizes of no common measure: rounded to steps, and never over.
TEST(ChooseOptions, IsNearWhatTryingAllFindsWhereSizesAreLargeAndOdd) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 50; ++round) {
    Items items(6);
    int64_t least = 0, widest = 0;
    double damage = 0;
    for (auto& options : items) {
      const auto size = static_cast<int64_t>(1 + random() % (int64_t{1} << 40));
      for (int64_t bits : {17, 18, 20, 32})
        options.push_back({size * bits + static_cast<int64_t>(random() % 1000),
                           static_cast<double>(random() % 1000) / static_cast<double>(bits)});
      least += options.front().bytes;
      widest += options.back().bytes;
      damage += options.front().damage;
    }
    const int64_t most =
        least + static_cast<int64_t>(random() % static_cast<uint64_t>(widest - least));
    const auto chosen = choose_options(items, most);
    ASSERT_TRUE(chosen.has_value());
    EXPECT_LE(sum_of(items, *chosen).bytes, most);
    // A few steps less room at the worst.
    const int64_t fewer = most - (most - least) * std::ssize(items) / kMostSteps;
    EXPECT_LE(sum_of(items, *chosen).damage, *least_damage(items, fewer) + 1e-9 * damage);
  }
}

TEST(ChooseOptions, HasNoneWhereTheSmallestAreTooLarge) {
  const Items items{{{10, 1}, {20, 0}}, {{7, 3}}};
  EXPECT_FALSE(choose_options(items, 16).has_value());
  EXPECT_EQ(choose_options(items, 17), (std::vector<size_t>{0, 0}));
  EXPECT_EQ(choose_options(items, 27), (std::vector<size_t>{1, 0}));
  EXPECT_EQ(choose_options(items, int64_t{1} << 62), (std::vector<size_t>{1, 0}));
  EXPECT_TRUE(choose_options({}, 0)->empty());
}

ModelShape shape_of(const std::string& fixture) {
  return BoundModel::open(testing::fixture_model(fixture)).shape();
}

// Every matrix costs the same for each byte less.
Damages flat_damages(const ModelShape& shape) {
  Damages out;
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    for (size_t w = 0; w < shape.sublayers[i].weights.size(); ++w)
      if (shape.sublayers[i].weights[w].may_be_quantised())
        for (const WeightFormat& format : mixable_formats(shape))
          out[{i, w}].push_back(format.is_quantised() ? 9 - static_cast<double>(format.code_bits())
                                                      : 0);
  return out;
}

TEST(Bits, EndsOfTheRangeAreTheSmallestFormatAndWhatIsThere) {
  for (const char* name : {"stories260k", "llama-tiny-gqa", "llama-tiny-bf16", "mixtral-tiny",
                           "opt-350m-tiny", "gpt-oss-tiny"}) {
    const ModelShape shape = shape_of(name);
    const BitRange range = bit_range(shape);
    EXPECT_LT(range.least, range.most) << name;
    EXPECT_DOUBLE_EQ(range.most, 8.0 * static_cast<double>(dtype_bytes(shape.weight_dtype)));
    const Damages damages = flat_damages(shape);
    for (const double bits : {range.least, range.most}) {
      const Formats formats = choose_formats(shape, damages, bits);
      EXPECT_EQ(formats.size(), damages.size());
      EXPECT_NEAR(bits_a_weight(shape, formats), bits, 1e-9) << name;
    }
    for (const double bits : {range.least * 0.999, range.most * 1.001, 0.0, -4.0, 1e300,
                              double{INFINITY}, std::nan("")}) {
      try {
        choose_formats(shape, damages, bits);
        FAIL() << name << ": " << bits;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kUser);
        EXPECT_NE(error.text().find("this model's matrices take"), std::string::npos)
            << error.text();
      }
    }
  }
}

// Bits of one format: that format where all cost alike, and never more bits than asked for.
TEST(Bits, AreNeverMoreThanAskedFor) {
  const ModelShape shape = shape_of("llama-tiny-gqa");
  std::mt19937 random(4);
  const BitRange range = bit_range(shape);
  for (int round = 0; round < 100; ++round) {
    Damages damages = flat_damages(shape);
    for (auto& [place, of] : damages)
      for (size_t i = 0; i + 1 < of.size(); ++i)
        of[i] = static_cast<double>(random() % 1000);  // of no order at all
    const double bits =
        range.least + (range.most - range.least) * static_cast<double>(random() % 1000) / 1000;
    EXPECT_LE(bits_a_weight(shape, choose_formats(shape, damages, bits)), bits * (1 + 1e-9));
  }
}

TEST(Bits, GoToTheMatrixThatSuffers) {
  const ModelShape shape = shape_of("llama-tiny-bf16");
  Damages damages = flat_damages(shape);
  const auto worst = std::next(damages.begin(), 3)->first;
  for (double& damage : damages[worst]) damage *= 1000;
  Formats formats = choose_formats(shape, damages, bit_range(shape).least + 1);
  EXPECT_FALSE(formats.at(worst).is_quantised());
  for (const auto& [place, format] : formats) EXPECT_EQ(format.is_quantised(), place != worst);
}

TEST(Bits, OfHeadsTiedToTheirTableAreNotCounted) {
  const ModelShape shape = shape_of("stories260k");
  const Damages damages = flat_damages(shape);
  for (const auto& [place, of] : damages)
    EXPECT_NE(shape.sublayers[place.first].kind, SublayerKind::kHead);
  EXPECT_EQ(bits_a_weight(shape), 32);
}

class Mixed : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sluice-mixed-" + std::to_string(getpid()));
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<ScoredSequence> windows() const {
    std::mt19937 random(11);
    const auto vocab = static_cast<uint64_t>(shape_of(GetParam()).vocab_size);
    std::vector<ScoredSequence> out(3);
    for (ScoredSequence& window : out)
      for (int i = 0; i < 24; ++i)
        window.tokens.push_back(static_cast<int32_t>(3 + random() % (vocab - 3)));
    return out;
  }

  CalibrationText text() const {
    CalibrationText out{windows(), {}};
    out.options.memory_budget_bytes = 64 << 20;
    out.options.compute = ComputeChoice::kF32;
    out.options.kv_dtype = DType::kF32;
    out.options.workload.sequences = 3;
    out.options.workload.max_prompt_tokens = out.options.workload.max_total_tokens = 25;
    return out;
  }

  BoundModel converted(const BoundModel& model, Quantisation& quantisation) {
    fs::remove_all(folder_);
    io::ConvertOptions options;
    options.destination = folder_;
    options.quantise = panel_quantiser(kernels::RangeSearch::kClip);
    io::convert_checkpoint(model.checkpoint(), quantisation.groups(), options);
    return BoundModel::open(folder_);
  }

  fs::path folder_;
};

TEST_P(Mixed, AStoreHasTheBitsThatWereAskedFor) {
  const BoundModel model = BoundModel::open(testing::fixture_model(GetParam()));
  const BitRange range = bit_range(model.shape());
  for (const bool calibrated : {false, true})
    for (const double share : {0.0, 0.1, 0.4, 1.0}) {
      QuantisationRequest request;
      request.bits = range.least + share * (range.most - range.least);
      if (calibrated) request.text = text();
      request.threads = 2;
      Quantisation quantisation(model, request);
      const BoundModel store = converted(model, quantisation);
      const double bits = bits_a_weight(store.shape());
      EXPECT_LE(bits, *request.bits * (1 + 1e-9));
      EXPECT_GE(bits, *request.bits - 0.15 * (range.most - range.least));
      EXPECT_NE(quantisation.description().find(mix_of(store.shape())), std::string::npos)
          << quantisation.description();
      // A run of it, so that every format is multiplied.
      EngineOptions options = text().options;
      const auto engine = Engine::open(folder_, options);
      engine->load();
      int64_t scored = 0;
      score(*engine, windows(), [&](const TokenScore& one, std::span<const float>) {
        scored += std::isfinite(one.nll) ? 1 : 0;
      });
      EXPECT_EQ(scored, 3 * 23);
    }
}

// Each matrix's copy of the text differs from the plain run, and by that matrix alone.
TEST_P(Mixed, EveryMatrixHasAnEffect) {
  const BoundModel model = BoundModel::open(testing::fixture_model(GetParam()));
  const ProductEffects effects = measure_effects(model, text().options, windows());
  EXPECT_EQ(effects.size(), flat_damages(model.shape()).size());
  for (const auto& [place, effect] : effects) {
    EXPECT_TRUE(std::isfinite(effect));
    EXPECT_GT(effect, 0) << model.shape().sublayers[place.first].weights[place.second].role;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Mixed,
                         ::testing::Values("stories260k", "llama-tiny-gqa", "llama-tiny-mha",
                                           "opt-350m-tiny", "mixtral-tiny", "phi3-tiny",
                                           "qwen3-5-tiny", "deepseek-v3-tiny"),
                         [](const auto& info) { return testing::test_name(info.param); });

TEST(MixedErrors, WhatIsQuantisedIsRefusedByName) {
  for (const char* name : {"opt-tiny:int4", "llama-tiny-gqa:int8"}) {
    const BoundModel model = BoundModel::open(testing::fixture_model(name));
    QuantisationRequest request;
    request.bits = 5;
    try {
      Quantisation quantisation(model, request);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser);
      EXPECT_NE(error.text().find("already"), std::string::npos) << error.text();
    }
  }
}

}  // namespace
}  // namespace sluice::app
