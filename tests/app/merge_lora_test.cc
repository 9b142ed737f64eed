// Adapters merged into a store: answers of PEFT's model with the adapter beside it
// (scripts/golden/lora.py), in every format that a store has, and what is refused.
#include "src/app/merge_lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/app/store_layout.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/engine/stores/panel_quantiser.h"
#include "tests/app/repacked_run.h"
#include "tests/app/store_values.h"

namespace sluice::app {
namespace {
using std::filesystem::path;

path adapter_folder(const std::string& name) { return path(SLUICE_FIXTURES) / "lora" / name; }

class MergeLora : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("merge_lora_" + std::to_string(getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // The store of `base` with the adapter merged.
  path merged(const std::string& base, const LoraAdapter& adapter, const std::string& format) {
    const BoundModel model = BoundModel::open(base);
    const WeightFormat to = *parse_weight_format(format);
    auto groups = store_groups(model, to);
    merge_lora(model, adapter, kernels::RangeSearch::kClip, groups);
    io::ConvertOptions options;
    options.destination = folder_ / ("store-" + format);
    options.overwrite = true;
    options.quantise = panel_quantiser(kernels::RangeSearch::kClip);
    io::convert_checkpoint(model.checkpoint(), groups, options);
    return options.destination;
  }

  // An adapter's folder that can be spoilt.
  path copied(const std::string& name) {
    const path out = folder_ / name;
    std::filesystem::copy(adapter_folder(name), out);
    return out;
  }
  static void set(const path& adapter, const char* key, const nlohmann::json& value) {
    const path file = adapter / "adapter_config.json";
    auto config = nlohmann::json::parse(read_file(file.string(), 1 << 20));
    config[key] = value;
    std::ofstream(file) << config.dump();
  }
  static std::string refusal(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_FALSE(error.mend().empty()) << error.what();
      return error.text();
    }
    return "nothing was refused";
  }

  path folder_;
};

struct Golden {
  std::string base;
  std::vector<int32_t> prompt;
  std::vector<float> logits;  // of the last position
};

Golden golden_of(const std::string& name) {
  const auto json =
      nlohmann::json::parse(read_file((adapter_folder(name) / "golden.json").string(), 1 << 20));
  return {testing::fixture_model(json["base"]), json["prompt"].get<std::vector<int32_t>>(),
          testing::read_npy((adapter_folder(name) / "logits.npy").string())};
}

double error_of(const path& store, const Golden& golden) {
  GenerationRequest request;
  request.prompt = golden.prompt;
  request.score_prompt = true;
  EngineOptions options = testing::options_for({request});
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF32;
  const auto answers = run_path(store, options, {request});
  const std::vector<float>& logits = answers.at(0).logits;
  EXPECT_EQ(logits.size(), golden.prompt.size() * golden.logits.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < golden.logits.size(); ++i) {
    const float ours = logits[logits.size() - golden.logits.size() + i];
    worst = std::max(worst, std::abs(double{ours} - golden.logits[i]));
    largest = std::max(largest, std::abs(double{golden.logits[i]}));
  }
  return worst / largest;
}

// LoRA, rsLoRA with patterns, DoRA, an embedding with a saved head, fused matrices.
TEST_F(MergeLora, AnswersAsPeftsModelDoes) {
  for (const char* name : {"plain", "patterns", "dora", "ends", "fused"}) {
    SCOPED_TRACE(name);
    const Golden golden = golden_of(name);
    const LoraAdapter adapter = LoraAdapter::open(adapter_folder(name));
    EXPECT_LE(error_of(merged(golden.base, adapter, "f32"), golden), 2e-5);
    EXPECT_GT(error_of(golden.base, golden), 1e-2) << "without it the answer is another";
  }
}

// What is quantised is the sum, not the parts.
TEST_F(MergeLora, QuantisesWhatTheMergedMatricesAre) {
  const Golden golden = golden_of("patterns");
  const LoraAdapter adapter = LoraAdapter::open(adapter_folder("patterns"));
  const path plain = merged(golden.base, adapter, "f32");
  const BoundModel model = BoundModel::open(plain);
  for (const char* format : {"int4-g32", "int8", "nf4", "bf16"}) {
    SCOPED_TRACE(format);
    const path store = merged(golden.base, adapter, format);
    io::ConvertOptions options;
    options.destination = folder_ / ("twice-" + std::string(format));
    options.quantise = panel_quantiser(kernels::RangeSearch::kClip);
    io::convert_checkpoint(model.checkpoint(), store_groups(model, *parse_weight_format(format)),
                           options);
    const io::Checkpoint once = io::Checkpoint::open(store);
    const io::Checkpoint twice = io::Checkpoint::open(options.destination);
    for (const io::TensorEntry& tensor : once.tensors())
      EXPECT_EQ(bytes_of(once, tensor), bytes_of(twice, *twice.find(tensor.name))) << tensor.name;
  }
}

TEST_F(MergeLora, RefusesByNameWhatItDoesNotKnow) {
  const auto opening = [&](const char* key, const nlohmann::json& value) {
    const path adapter = copied("plain");
    set(adapter, key, value);
    const std::string text = refusal([&] { LoraAdapter::open(adapter); });
    std::filesystem::remove_all(adapter);
    return text;
  };
  const std::pair<const char*, nlohmann::json> kSettings[] = {
      {"peft_type", "LOHA"},
      {"bias", "all"},
      {"lora_bias", true},
      {"layer_replication", {{0, 1}}},
      {"use_qalora", true},
      {"trainable_token_indices", {1, 2}},
      {"init_lora_weights", "pissa_niter_4"},
      {"lora_alpha", "much"},
      {"alpha_pattern", {{"([", 3}}},
      {"alpha_pattern", {{".*", 3}, {"v_proj", 4}}},
      {"use_dora", true}};
  for (const auto& [key, value] : kSettings) {
    const std::string text = opening(key, value);
    EXPECT_NE(text.find(key), std::string::npos) << text;
  }
  EXPECT_EQ(opening("init_lora_weights", "gaussian"), "nothing was refused");
  EXPECT_EQ(opening("megatron_core", "megatron.core"), "nothing was refused");
  EXPECT_NE(refusal([&] { LoraAdapter::open(folder_); }).find("no adapter_config.json"),
            std::string::npos);
  const path empty = copied("dora");
  std::filesystem::remove(empty / "adapter_model.safetensors");
  EXPECT_NE(refusal([&] { LoraAdapter::open(empty); }).find("no adapter_model.safetensors"),
            std::string::npos);
}

TEST_F(MergeLora, RefusesAnotherModelsAdapter) {
  const auto merging = [&](const char* base, const char* name, const char* format = "f32") {
    const LoraAdapter adapter = LoraAdapter::open(adapter_folder(name));
    return refusal([&] { merged(testing::fixture_model(base), adapter, format); });
  };
  EXPECT_NE(merging("llama-tiny-gqa", "patterns").find("the adapter is for"), std::string::npos);
  EXPECT_NE(merging("opt-tiny", "plain").find("no such tensor"), std::string::npos);
  EXPECT_NE(merging("qwen2-tiny", "fused").find("no such tensor"), std::string::npos);
  EXPECT_NE(merging("llama-tiny-gqa:int8", "plain").find("it is quantised"), std::string::npos);
  // The head is the embedding: PEFT changes one of the two.
  LoraAdapter tied;
  tied.name = "tied";
  LoraMatrix& table = tied.matrices["model.embed_tokens.weight"];
  table.rows = 131, table.cols = 64, table.rank = 1;
  table.a.assign(64, 0.5f);
  table.b.assign(131, 0.5f);
  EXPECT_NE(refusal([&] {
              merged(testing::fixture_model("llama-tiny-gqa"), tied, "f32");
            }).find("share it"),
            std::string::npos);
}

// Every byte of the small files wrong once: an error or another adapter, never a crash.
TEST_F(MergeLora, LivesThroughDamage) {
  const path adapter = copied("dora");
  for (const char* name : {"adapter_model.safetensors", "adapter_config.json"}) {
    const std::string whole = read_file((adapter / name).string(), 1 << 20);
    int refused = 0;
    for (size_t at = 0; at<whole.size(); at += whole.size()> 2000 ? 7 : 1) {
      std::string wrong = whole;
      wrong[at] = static_cast<char>(wrong[at] ^ 0x51);
      std::ofstream(adapter / name, std::ios::binary) << wrong;
      try {
        LoraAdapter::open(adapter);
      } catch (const Error& error) {
        EXPECT_NE(error.kind(), ErrorKind::kInternal) << error.what();
        ++refused;
      }
    }
    EXPECT_GT(refused, 10) << name;
    std::ofstream(adapter / name, std::ios::binary) << whole;
  }
  EXPECT_NO_THROW(LoraAdapter::open(adapter));
}

TEST(LoraAdapter, FingerprintsAreTheirOwn) {
  LoraAdapter one = LoraAdapter::open(adapter_folder("plain"));
  const uint64_t before = one.fingerprint();
  EXPECT_EQ(before, LoraAdapter::open(adapter_folder("plain")).fingerprint());
  one.matrices.begin()->second.b.back() += 1e-3f;
  EXPECT_NE(one.fingerprint(), before);
}

}  // namespace
}  // namespace sluice::app
