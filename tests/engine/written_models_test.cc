// Small models that the test writes itself, their elements by a formula, against logits that
// transformers 5.24 computes of the same (scripts/golden/written.py).
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "src/model/family.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;
using Written = nlohmann::ordered_json;

// Every element of the `index`-th tensor: gains around 1, the rest around 0.
std::vector<float> elements(const std::string& name, int64_t count, uint32_t index) {
  const bool is_bias = name.ends_with("bias");
  const bool is_gain =
      !is_bias && (name.find("norm") != std::string::npos || name.find("ln_") != std::string::npos);
  std::vector<float> out;
  for (uint32_t i = 0; i < static_cast<uint32_t>(count); ++i) {
    const uint32_t mixed = (i + 1) * 2654435761u + (index + 1) * 2246822519u;
    const float value = static_cast<float>(((mixed >> 8) * 3266489917u) >> 16) / 32768.0f - 1.0f;
    out.push_back(is_gain ? 1 + 0.25f * value : (is_bias ? 0.25f : 0.5f) * value);
  }
  return out;
}

// The tensors that checkpoints of a model have, by name.
std::map<std::string, std::vector<int64_t>> tensors_of(const ModelShape& shape) {
  std::map<std::string, std::vector<int64_t>> out;
  for (const SublayerShape& sublayer : shape.sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      if (weight.shares_table) continue;
      if (!weight.fused.tensors.empty()) {
        out[weight.fused.tensors.front()] = {weight.fused.tensor_rows, weight.cols};
        continue;
      }
      for (int64_t expert = 0; expert < weight.tensors(); ++expert) {
        const WeightShape one = weight.of_expert(expert);
        std::vector<int64_t>& sizes = out[one.names.front()];
        sizes = {one.rows, one.cols};
        if (one.is_transposed) sizes = {one.cols, one.rows};
        if (one.kind == WeightKind::kVector) sizes = {one.cols};
        if (!one.tensor_shape.empty()) sizes = one.tensor_shape;
      }
    }
  return out;
}

void write_model(const fs::path& folder, const Written& config, size_t tensors) {
  const auto family = make_family_model(ModelConfig(config.dump(), "config.json"));
  Written header;
  std::string data;
  uint32_t index = 0;
  for (const auto& [name, shape] : tensors_of(family->shape())) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    const std::vector<float> values = elements(name, count, index++);
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  EXPECT_EQ(index, tensors);
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream weights(folder / "model.safetensors", std::ios::binary);
  weights.write(reinterpret_cast<const char*>(&length), sizeof length);
  weights << text << data;
  std::ofstream(folder / "config.json") << config.dump();
}

TEST(WrittenModels, LogitsEqualTransformers) {
  std::ifstream file(fs::path(SLUICE_FIXTURES) / "../engine/written_models.json");
  const Written models = Written::parse(file);
  EXPECT_GE(models.size(), 20u);
  for (const auto& [name, model] : models.items()) {
    SCOPED_TRACE(name);
    std::string pattern = ::testing::TempDir() + "/sluice_written_XXXXXX";
    const fs::path folder = mkdtemp(pattern.data());
    write_model(folder, model["config"], model["tensors"]);
    GenerationRequest request;
    for (int32_t i = 0; i < 12; ++i) request.prompt.push_back(3 + 5 * i % 29);
    request.score_prompt = true;
    EngineOptions options = options_for({request});
    options.compute = ComputeChoice::kF32;
    options.kv_dtype = DType::kF32;
    const std::vector<float> logits = run_all(folder.string(), options, {request})[0].logits;
    fs::remove_all(folder);
    const auto vocab = model["config"]["vocab_size"].get<size_t>();
    ASSERT_EQ(logits.size(), request.prompt.size() * vocab);
    const auto expected = model["logits"].get<std::vector<float>>();
    float largest = 0;
    for (const float value : expected) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(logits[logits.size() - vocab + i], expected[i], 1e-4f * largest) << i;
  }
}

}  // namespace
}  // namespace sluice::testing
