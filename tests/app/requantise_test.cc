// Stores that are quantised already, quantised anew.
#include <gtest/gtest.h>

#include <filesystem>

#include "io/checkpoint/packed_store.h"
#include "kernels/quantise.h"
#include "src/app/store_layout.h"
#include "src/base/error.h"
#include "src/engine/stores/panel_quantiser.h"
#include "tests/app/store_values.h"
#include "tests/engine/model_fixtures.h"
#include "tests/temporary_folder.h"

namespace sluice::app {
namespace {

namespace fs = std::filesystem;

class Requantise : public ::testing::Test {
 protected:
  fs::path convert(const fs::path& source, const char* name, const WeightFormat& to,
                   bool requantises) {
    const BoundModel model = BoundModel::open(source);
    io::ConvertOptions options;
    options.destination = folder_.file(name);
    options.quantise = panel_quantiser(kernels::RangeSearch::kClip);
    io::convert_checkpoint(model.checkpoint(),
                           store_groups(model, to, kernels::RangeSearch::kClip, nullptr, nullptr,
                                        nullptr, requantises),
                           options);
    io::verify_store(options.destination);
    return options.destination;
  }

  TemporaryFolder folder_;
};

TEST_F(Requantise, IsWhatThePlainValuesOfTheStoreBecome) {
  const fs::path model = testing::fixture_model("llama-tiny-mha");
  for (const char* from : {"int8", "int4-g64", "q4_k", "nf4", "q4_0"}) {
    const WeightFormat first = *parse_weight_format(from);
    const fs::path store = convert(model, (std::string("first-") + from).c_str(), first, false);
    const fs::path plain = convert(store, (std::string("plain-") + from).c_str(),
                                   WeightFormat::plain(DType::kF32), true);
    for (const char* to : {"int4-g32", "int8", "q6_k", "bf16"}) {
      SCOPED_TRACE(std::string(from) + " to " + to);
      const WeightFormat second = *parse_weight_format(to);
      const std::string name = std::string(from) + "-" + to;
      const fs::path once = convert(store, name.c_str(), second, true);
      const fs::path twice = convert(plain, (name + "-by-f32").c_str(), second, false);
      const BoundModel a = BoundModel::open(once), b = BoundModel::open(twice);
      int matrices = 0;
      for (size_t i = 0; i < a.shape().sublayers.size(); ++i)
        for (size_t w = 0; w < a.shape().sublayers[i].weights.size(); ++w) {
          const io::TensorEntry& tensor = a.tensor(i, w);
          ASSERT_EQ(tensor.quantised, b.tensor(i, w).quantised) << tensor.name;
          ASSERT_EQ(bytes_of(a.checkpoint(), tensor), bytes_of(b.checkpoint(), b.tensor(i, w)))
              << tensor.name;
          matrices += tensor.quantised.is_quantised();
        }
      EXPECT_EQ(matrices > 0, second.is_quantised());
    }
  }
}

TEST_F(Requantise, IsRefusedUnlessItIsAllowed) {
  const fs::path store = convert(testing::fixture_model("llama-tiny-mha"), "first",
                                 *parse_weight_format("int8"), false);
  try {
    convert(store, "second", *parse_weight_format("int4-g32"), false);
    FAIL() << "nobody allowed it";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("int8"), std::string::npos) << error.what();
    EXPECT_NE(error.mend().find("`allow_requantise`"), std::string::npos) << error.mend();
  }
  // The same format stays as it is, byte by byte.
  const fs::path same = convert(store, "same", *parse_weight_format("int8"), true);
  const BoundModel a = BoundModel::open(store), b = BoundModel::open(same);
  EXPECT_EQ(bytes_of(a.checkpoint(), a.tensor(1, 1)), bytes_of(b.checkpoint(), b.tensor(1, 1)));
}

}  // namespace
}  // namespace sluice::app
