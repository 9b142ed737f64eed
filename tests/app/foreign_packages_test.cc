// Checkpoints made with bitsandbytes and compressed-tensors themselves, and in FP8 as DeepSeek-V3's
// are (scripts/golden/foreign.py), and for certain kernels (kernel_layouts.py): which format each
// becomes, and its values beside what the package dequantises.
#include <unistd.h>

#include "io/checkpoint/packed_store.h"
#include "src/app/store_layout.h"
#include "src/engine/stores/panel_quantiser.h"
#include "tests/app/repacked_run.h"
#include "tests/app/store_values.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::app {
namespace {

namespace fs = std::filesystem;

struct Case {
  const char* name;
  const char* format;
  double share;  // of the largest of 32 values
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class ForeignPackages : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("sluice-foreign-" + std::string(GetParam().name) + std::to_string(getpid()));
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path source() const { return fs::path(SLUICE_FIXTURES) / "foreign" / GetParam().name; }
  fs::path convert(std::optional<WeightFormat> to) {
    const BoundModel model = BoundModel::open(source());
    fs::remove_all(folder_);
    io::ConvertOptions options;
    options.destination = folder_;
    options.quantise = panel_quantiser(kernels::RangeSearch::kClip);
    io::convert_checkpoint(model.checkpoint(), store_groups(model, to), options);
    io::verify_store(folder_);
    return folder_;
  }

  fs::path folder_;
};

TEST_P(ForeignPackages, KeepsWhatThePackageMeans) {
  const fs::path store = convert(std::nullopt);
  const io::Checkpoint goldens = io::Checkpoint::open(source() / "expected.safetensors");
  ASSERT_GE(goldens.tensors().size(), 1u);
  for (const io::TensorEntry& golden : goldens.tensors()) {
    const io::Checkpoint made = io::Checkpoint::open(store);
    ASSERT_NE(made.find(golden.name), nullptr);
    EXPECT_TRUE(io::element_name(*made.find(golden.name)).starts_with(GetParam().format))
        << golden.name << " is " << io::element_name(*made.find(golden.name));
    EXPECT_LE(worst_share(store, source() / "expected.safetensors", golden.name), GetParam().share)
        << golden.name;
  }
  const auto requests = testing::greedy_requests({{5, 6, 7, 8}}, 6);
  const auto engine = Engine::open(store, testing::options_for(requests));
  testing::ListSource requests_source(requests);
  testing::CollectingSink sink;
  engine->generate(requests_source, sink);
  EXPECT_EQ(sink.answers[0].tokens.size(), 6u);
}

TEST_P(ForeignPackages, RunsAsItLies) { expect_runs_as_its_store(source(), convert(std::nullopt)); }

TEST_P(ForeignPackages, StreamsAsItLies) {
  // How many elements a row has is not known before all bitmasks are read.
  if (std::string(GetParam().name) == "ct-bitmask") {
    const BoundModel model = BoundModel::open(source());
    const EngineInput input =
        plan_input(model, testing::options_for(testing::greedy_requests({{5, 6}}, 2)));
    EXPECT_EQ(input.repacked_path, source());
    return;
  }
  std::mt19937 random(11);
  EXPECT_GE(expect_streams_as_its_store(source(), convert(std::nullopt), 8, random), 2);
}

// Made by the kernel that takes words as they lie, or code by code: the same bytes.
TEST_P(ForeignPackages, IsTheSameWordByWordAndCodeByCode) {
  const BoundModel model = BoundModel::open(source());
  int matrices = 0;
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i)
    for (size_t w = 0; w < model.shape().sublayers[i].weights.size(); ++w)
      if (const ForeignMatrix* matrix = model.foreign(i, w)) {
        ++matrices;
        expect_word_by_word(model, *matrix, model.tensor(i, w).name);
      }
  EXPECT_GT(matrices, 0);
}

TEST_P(ForeignPackages, BecomesPlainWhenAsked) {
  const fs::path store = convert(WeightFormat::plain(DType::kF32));
  const io::Checkpoint goldens = io::Checkpoint::open(source() / "expected.safetensors");
  // Packages dequantise in bf16 or f16 where the scale is that.
  for (const io::TensorEntry& golden : goldens.tensors())
    EXPECT_LE(worst_share(store, source() / "expected.safetensors", golden.name), 0.004)
        << golden.name;
}

constexpr double kExact = 1e-6, kBF16 = 0.004, kAnew = 0.005;
INSTANTIATE_TEST_SUITE_P(
    Packages, ForeignPackages,
    ::testing::Values(Case{"bnb-nf4", "nf4-g64", kExact}, Case{"bnb-nf4-double", "nf4-g64", kExact},
                      Case{"bnb-fp4", "int8-g32", kAnew}, Case{"bnb-int8", "int8", kBF16},
                      Case{"ct-int4", "int4-g32", kBF16},
                      Case{"ct-int4-asymmetric", "int4-g64", kBF16},
                      Case{"ct-int4-channel", "int4-g", kBF16}, Case{"ct-int3", "int4-g32", kBF16},
                      Case{"ct-int6", "int8", kBF16}, Case{"ct-nvfp4", "bf16", kBF16},
                      Case{"ct-mxfp4", "mxfp4", kExact}, Case{"ct-mxfp6", "int8-g32", kExact},
                      Case{"ct-mxfp8", "fp8-g32", kExact}, Case{"ct-int8", "int8", kBF16},
                      Case{"ct-int8-packed", "int8", kBF16}, Case{"ct-fp8", "fp8", kBF16},
                      Case{"ct-fp8-tensor", "fp8", kBF16}, Case{"ct-fp8-block", "fp8", kBF16},
                      Case{"fp8-block", "fp8", kExact}, Case{"fp8-block-odd", "fp8", kExact},
                      Case{"fp8-ue8m0", "fp8-g32", kExact}, Case{"fp8-e8m0", "fp8-g32", kExact},
                      Case{"fp8-tensor", "fp8", kExact}, Case{"fp8-rows", "fp8", kExact},
                      Case{"gptq-marlin", "int4-g128", kBF16},
                      Case{"gptq-marlin-rows", "int4-g", kBF16},
                      Case{"awq-gemv", "int4-g64", kBF16}, Case{"ct-marlin24", "int4-g128", kBF16},
                      Case{"ct-marlin24-int8", "int8", kBF16}, Case{"ct-bitmask", "bf16", kExact},
                      Case{"ct-24-fp8", "fp8", kBF16}, Case{"ct-24-int8", "int8", kBF16}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace sluice::app
