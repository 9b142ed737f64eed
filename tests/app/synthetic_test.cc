// Synthetic checkpoints: they open as the shape they were made from, and their values depend on
// seed, tensor and element alone.
#include "src/app/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/model/bound_model.h"
#include "src/model/config.h"
#include "tests/engine/model_fixtures.h"
#include "tests/whole_file.h"

namespace sluice::app {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) { return whole_file(path); }

class Synthetic : public ::testing::Test {
 protected:
  Synthetic() {
    std::string pattern = (fs::temp_directory_path() / "sluice_app_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Synthetic() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  // Writes a model of a fixture's shape; returns its folder.
  fs::path write(const std::string& fixture, const std::string& name,
                 const SyntheticOptions& options) {
    const std::string config = read_file(testing::fixture_model(fixture) + "/config.json");
    const auto model = make_family_model(ModelConfig(config, fixture));
    bytes_ = write_synthetic_model(model->shape(), config, folder_ / name, options);
    return folder_ / name;
  }

  fs::path folder_;
  int64_t bytes_ = 0;
};

TEST_F(Synthetic, OpensAsTheShapeItWasMadeFrom) {
  for (const std::string fixture :
       {"opt-tiny", "opt-350m-tiny", "llama-tiny-gqa", "llama-tiny-bias"})
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      SyntheticOptions options;
      options.dtype = dtype;
      const fs::path path = write(fixture, fixture + std::string(dtype_name(dtype)), options);
      const BoundModel made = BoundModel::open(path);
      const BoundModel original = BoundModel::open(testing::fixture_model(fixture));
      EXPECT_EQ(made.shape().num_parameters(), original.shape().num_parameters());
      EXPECT_EQ(made.shape().weight_dtype, dtype);
      EXPECT_EQ(bytes_, original.shape().num_parameters() * dtype_bytes(dtype));
      EXPECT_EQ(made.checkpoint().total_bytes(), bytes_);
      const auto config = nlohmann::json::parse(read_file(path / "config.json"));
      EXPECT_EQ(config["torch_dtype"], dtype == DType::kF32   ? "float32"
                                       : dtype == DType::kF16 ? "float16"
                                                              : "bfloat16");
    }
}

TEST_F(Synthetic, MatricesHaveVarianceOneByColumnsAndGainsAreNearOne) {
  SyntheticOptions options;
  options.dtype = DType::kF32;
  const fs::path path = write("opt-tiny", "model", options);
  const BoundModel model = BoundModel::open(path);
  const std::string bytes = read_file(path / "model.safetensors");
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i)
    for (size_t w = 0; w < model.shape().sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = model.shape().sublayers[i].weights[w];
      const io::TensorEntry& tensor = model.tensor(i, w);
      std::vector<float> values(static_cast<size_t>(tensor.bytes) / sizeof(float));
      std::memcpy(values.data(), bytes.data() + tensor.offset, static_cast<size_t>(tensor.bytes));
      const auto count = static_cast<double>(values.size());
      double mean = 0, square = 0;
      for (float value : values) mean += value / count;
      for (float value : values) square += (value - mean) * (value - mean) / count;
      const double variance = weight.kind != WeightKind::kVector
                                  ? 1.0 / static_cast<double>(weight.cols)
                              : weight.role.ends_with("bias") ? 0.02 * 0.02 / 3
                                                              : 0.1 * 0.1 / 3;
      const double center = weight.kind == WeightKind::kVector && !weight.role.ends_with("bias");
      // Six standard deviations of a mean and of a variance over so many uniform values.
      EXPECT_NEAR(mean, center, 6 * std::sqrt(variance / count)) << tensor.name;
      EXPECT_NEAR(square, variance, 6 * variance * std::sqrt(0.8 / count) + variance / count)
          << tensor.name;
    }
}

TEST_F(Synthetic, ValuesDependOnTheSeedAndNotOnThreads) {
  SyntheticOptions options;
  options.seed = 3;
  const std::string first = read_file(write("stories260k", "a", options) / "model.safetensors");
  options.write.threads = 3;
  EXPECT_TRUE(read_file(write("stories260k", "b", options) / "model.safetensors") == first);
  options.seed = 4;
  EXPECT_FALSE(read_file(write("stories260k", "c", options) / "model.safetensors") == first);
}

TEST_F(Synthetic, TensorsOfOneShapeDiffer) {
  SyntheticOptions options;
  const fs::path path = write("opt-tiny", "model", options);
  const BoundModel model = BoundModel::open(path);
  const std::string bytes = read_file(path / "model.safetensors");
  std::map<std::string, std::string> seen;
  for (const io::TensorEntry& tensor : model.checkpoint().tensors()) {
    const std::string data(bytes, static_cast<size_t>(tensor.offset),
                           static_cast<size_t>(tensor.bytes));
    EXPECT_TRUE(seen.emplace(data, tensor.name).second) << tensor.name << " is " << seen[data];
  }
}

TEST_F(Synthetic, AModelThatIsThereIsNotReplacedUnasked) {
  SyntheticOptions options;
  const fs::path path = write("opt-tiny", "model", options);
  const std::string before = read_file(path / "model.safetensors");
  options.seed = 9;
  EXPECT_THROW(write("opt-tiny", "model", options), Error);
  EXPECT_TRUE(read_file(path / "model.safetensors") == before);
  options.write.overwrite = true;
  write("opt-tiny", "model", options);
  EXPECT_FALSE(read_file(path / "model.safetensors") == before);
}

TEST_F(Synthetic, CanBeStopped) {
  std::atomic<bool> stop{true};
  SyntheticOptions options;
  options.write.stop = &stop;
  try {
    write("opt-tiny", "model", options);
    ADD_FAILURE() << "not stopped";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
  }
  EXPECT_FALSE(fs::exists(folder_ / "model" / "model.safetensors"));
}

}  // namespace
}  // namespace sluice::app
