// What config.json and GGUF metadata say of quantisation and positions is done or refused by name,
// never passed over: each case changes one setting of a checkpoint that opens.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/files.h"
#include "src/model/bound_model.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using PlainJson = nlohmann::json;

// The error of opening `path`, or "opened".
std::string opening_error(const fs::path& path) {
  try {
    BoundModel::open(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile) << error.what();
    return error.what();
  }
  return "opened";
}

class ForeignSettings : public ::testing::Test {
 protected:
  ForeignSettings() {
    std::string pattern = ::testing::TempDir() + "/sluice_settings_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~ForeignSettings() override { fs::remove_all(folder_); }

  // With `patch` merged into the quantisation settings of a fixture of tests/fixtures/foreign.
  std::string opening(const std::string& fixture, const PlainJson& patch) {
    const fs::path from = fs::path(SLUICE_FIXTURES) / "foreign" / fixture;
    PlainJson config = PlainJson::parse(read_file(from / "config.json", 1 << 20));
    config["quantization_config"].merge_patch(patch);
    fs::remove(folder_ / "model.safetensors");
    fs::create_symlink(from / "model.safetensors", folder_ / "model.safetensors");
    write_file(folder_ / "config.json", config.dump());
    return opening_error(folder_);
  }
  static PlainJson weights(const PlainJson& patch) {
    return {{"config_groups", {{"group_0", {{"weights", patch}}}}}};
  }
  void refused(const std::string& fixture, const PlainJson& patch, const std::string& word) {
    const std::string text = opening(fixture, patch);
    EXPECT_NE(text.find(word), std::string::npos) << patch << ": " << text;
    EXPECT_NE(text.find("config.json"), std::string::npos) << text;
  }

  fs::path folder_;
};

TEST_F(ForeignSettings, CompressedTensorsOfEveryKindOpen) {
  for (const char* fixture :
       {"ct-int4", "ct-int4-asymmetric", "ct-int4-channel", "ct-int8", "ct-int8-packed", "ct-fp8",
        "ct-fp8-tensor", "ct-fp8-block", "ct-int3", "ct-int6", "ct-nvfp4", "ct-mxfp4", "ct-mxfp6",
        "ct-mxfp8", "ct-bitmask", "ct-24-fp8", "ct-24-int8", "ct-marlin24", "ct-marlin24-int8"})
    EXPECT_EQ(opening(fixture, PlainJson::object()), "opened") << fixture;
  // As the library writes it today.
  EXPECT_EQ(opening("ct-int4", {{"global_compression_ratio", 1.5},
                                {"kv_cache_scheme", nullptr},
                                {"quantization_status", "compressed"},
                                {"sparsity_config", PlainJson::object()},
                                {"transform_config", PlainJson::object()},
                                {"version", "0.12.2"}}),
            "opened");
  EXPECT_EQ(opening("ct-int4", weights({{"actorder", nullptr},
                                        {"block_structure", nullptr},
                                        {"observer", "minmax"},
                                        {"observer_kwargs", PlainJson::object()},
                                        {"scale_dtype", nullptr},
                                        {"zp_dtype", nullptr}})),
            "opened");
}

TEST_F(ForeignSettings, CompressedTensorsThatAreNotReadAreRefusedByName) {
  refused("ct-int4", {{"transform_config", {{"config_groups", {{"R1", {{"type", "hadamard"}}}}}}}},
          "transform_config");
  refused("ct-int4", weights({{"num_bits", 1}}), "num_bits 1");
  refused("ct-int4", weights({{"num_bits", 5}, {"type", "float"}}), "num_bits 5 of type float");
  refused("ct-int4", weights({{"type", "complex"}}), "complex");
  refused("ct-int4", weights({{"strategy", "block"}}), "block");
  refused("ct-int4", weights({{"dynamic", true}}), "while they run");
  refused("ct-int4", weights({{"actorder", "random"}}), "random");
  refused("ct-int4", weights({{"block_structure", "128x128"}}), "block_structure");
  refused("ct-int4", weights({{"rounding", "up"}}), "rounding");
  for (const char* format : {"marlin-2", "sparse", "mxfp4"}) {
    refused("ct-int4", {{"format", format}}, format);
    refused("ct-int4", {{"config_groups", {{"group_0", {{"format", format}}}}}}, format);
  }
  refused("ct-int4", {{"sparsity_config", {{"format", "sparse-4-8"}}}}, "sparse-4-8");
  refused("ct-int4", {{"config_groups", nullptr}}, "config_groups");
  refused("ct-int4",
          {{"config_groups", {{"group_0", {{"output_activations", {{"num_bits", 8}}}}}}}},
          "output_activations");
  refused("ct-int4", {{"smooth_factor", 0.5}}, "smooth_factor");
}

TEST_F(ForeignSettings, TensorsMustBeWhatTheSettingsDeclare) {
  const auto says = [&](const std::string& fixture, const PlainJson& patch,
                        const std::string& word) {
    const std::string text = opening(fixture, patch);
    EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  says("ct-int4", weights({{"num_bits", 8}}), "has 8 words a row");
  says("ct-int8-packed", weights({{"num_bits", 4}}), "has 16 words a row");
  says("ct-int4", weights({{"type", "float"}}), "has 8 words a row");
  says("ct-mxfp4", weights({{"num_bits", 6}}), "floats of 4 bits");
  says("ct-mxfp6", weights({{"num_bits", 8}}), "floats of 6 bits");
  says("ct-mxfp8", weights({{"type", "int"}}), "floats of 8 bits");
  says("ct-nvfp4", weights({{"type", "int"}}), "floats of 4 bits");
  says("ct-fp8", weights({{"type", "int"}}), "floats of 8 bits");
  says("ct-int4", weights({{"symmetric", false}}), "weight_zero_point");
  says("ct-24-fp8", weights({{"type", "int"}}), "floats of 8 bits");
  says("ct-24-int8", weights({{"num_bits", 4}}), "integers of 8 bits");
  says("ct-marlin24", weights({{"num_bits", 8}}), "integers of 4 bits");
}

TEST_F(ForeignSettings, OlderConfigsKeepTheSettingsUnderAnotherName) {
  const fs::path from = fs::path(SLUICE_FIXTURES) / "foreign" / "ct-int4";
  PlainJson config = PlainJson::parse(read_file(from / "config.json", 1 << 20));
  config["compression_config"] = config["quantization_config"];
  config.erase("quantization_config");
  fs::create_symlink(from / "model.safetensors", folder_ / "model.safetensors");
  write_file(folder_ / "config.json", config.dump());
  EXPECT_EQ(BoundModel::open(folder_).foreign_method(), "compressed-tensors");
}

TEST_F(ForeignSettings, Fp8IsReadOrRefusedByName) {
  for (const char* fixture : {"ct-fp8-block", "fp8-block", "fp8-block-odd", "fp8-ue8m0", "fp8-e8m0",
                              "fp8-tensor", "fp8-rows"})
    EXPECT_EQ(opening(fixture, PlainJson::object()), "opened") << fixture;
  EXPECT_EQ(
      opening("fp8-block", {{"fmt", nullptr},
                            {"activation_scheme", nullptr},
                            {"ignored_layers", {"lm_head"}},
                            {"modules_to_not_convert", {"model.layers.0.mlp.gate", "lm_head"}},
                            {"scale_fmt", "ue8m0"},
                            {"dequantize", false}}),
      "opened");
  refused("fp8-block", {{"fmt", "e5m2"}}, "e5m2");
  refused("fp8-block", {{"activation_scheme", "once"}}, "once");
  refused("fp8-block", {{"expert_dtype", "fp4"}}, "fp4");
  refused("fp8-block", {{"modules_to_convert", {"model.embed_tokens"}}}, "modules_to_convert");
  refused("fp8-block", {{"rotation", "hadamard"}}, "rotation");
  for (const PlainJson& block : std::vector<PlainJson>{
           {128}, {128, 128, 1}, {0, 128}, {128, -1}, {128, 1 << 21}, PlainJson("128x128"), 128})
    refused("fp8-block", {{"weight_block_size", block}}, "weight_block_size");
  refused("ct-fp8-block", weights({{"strategy", "channel"}}), "block_structure");
  refused("ct-fp8-block", weights({{"block_structure", nullptr}}), "block_structure");
  refused("ct-fp8-block", weights({{"type", "int"}}), "block_structure");
}

// Blocks that are not the tensors' are an error, never other scales.
TEST_F(ForeignSettings, Fp8ScalesMustBeThoseOfTheirBlocks) {
  const auto says = [&](const std::string& fixture, const PlainJson& patch,
                        const std::string& word) {
    const std::string text = opening(fixture, patch);
    EXPECT_NE(text.find(word), std::string::npos) << text;
    EXPECT_NE(text.find("weight_scale"), std::string::npos) << text;
  };
  says("fp8-block", {{"weight_block_size", {64, 128}}}, "has shape");
  says("fp8-block", {{"weight_block_size", nullptr}}, "has shape");
  says("fp8-tensor", {{"weight_block_size", {32, 32}}}, "has shape");
  says("fp8-rows", {{"weight_block_size", {2, 64}}}, "has shape");
  says("ct-fp8-block", weights({{"block_structure", {32, 16}}}), "has shape");
  // Our groups have 32 columns at least.
  says("fp8-block-odd", {{"weight_block_size", {48, 80}}}, "blocks of 80 columns");
}

TEST_F(ForeignSettings, BitsAndBytesIsReadOrRefusedByName) {
  EXPECT_EQ(opening("bnb-nf4", {{"_load_in_4bit", true},
                                {"bnb_4bit_compute_dtype", "bfloat16"},
                                {"bnb_4bit_quant_storage", "uint8"},
                                {"llm_int8_threshold", 6.0}}),
            "opened");
  refused("bnb-nf4", {{"bnb_4bit_quant_storage", "bfloat16"}}, "bfloat16");
  refused("bnb-nf4", {{"bnb_3bit", true}}, "bnb_3bit");
}

// A GGUF file as bytes: the fixture's, with more keys.
class GgufKeys : public ::testing::Test {
 protected:
  GgufKeys() {
    std::string pattern = ::testing::TempDir() + "/sluice_gguf_keys_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~GgufKeys() override { fs::remove_all(folder_); }

  // `keys`: numbers become f32, whole numbers u32, texts strings.
  fs::path with(const std::vector<std::pair<std::string, PlainJson>>& keys) {
    std::string bytes = read_file(fs::path(SLUICE_FIXTURES) / "gguf" / "plain.gguf", 1 << 24);
    std::string more;
    const auto put = [&](const auto& value) {
      more.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    const auto put_text = [&](const std::string& text) {
      put(uint64_t{text.size()});
      more += text;
    };
    for (const auto& [key, value] : keys) {
      put_text(key);
      if (value.is_string()) {
        put(uint32_t{8});
        put_text(value.get<std::string>());
      } else if (value.is_number_integer()) {
        put(uint32_t{4});
        put(value.get<uint32_t>());
      } else {
        put(uint32_t{6});
        put(value.get<float>());
      }
    }
    // Tensor data stay aligned to 32 bytes.
    std::string padding = "padding";
    while ((more.size() + 8 + padding.size() + 4 + 8) % 32 != 0) padding += '.';
    put_text(padding);
    put(uint32_t{10});
    put(uint64_t{0});
    EXPECT_EQ(more.size() % 32, 0u);
    constexpr size_t kCountAt = 16, kKeysAt = 24;
    uint64_t count = 0;
    std::memcpy(&count, bytes.data() + kCountAt, 8);
    count += keys.size() + 1;
    std::memcpy(bytes.data() + kCountAt, &count, 8);
    bytes.insert(kKeysAt, more);
    write_file(folder_ / "model.gguf", bytes);
    return folder_ / "model.gguf";
  }
  PlainJson config_with(const std::vector<std::pair<std::string, PlainJson>>& keys) {
    return PlainJson::parse(BoundModel::open(with(keys)).config_text());
  }

  fs::path folder_;
};

TEST_F(GgufKeys, LinearScalingIsDoneHoweverItIsSpelled) {
  EXPECT_FALSE(config_with({}).contains("rope_scaling"));
  const PlainJson linear{{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(config_with({{"llama.rope.scale_linear", 4.0}})["rope_scaling"], linear);
  EXPECT_EQ(config_with({{"llama.rope.scaling.factor", 4.0}})["rope_scaling"], linear);
  EXPECT_EQ(config_with({{"llama.rope.scaling.type", "linear"},
                         {"llama.rope.scaling.factor", 4.0}})["rope_scaling"],
            linear);
  EXPECT_FALSE(config_with({{"llama.rope.scale_linear", 1.0}}).contains("rope_scaling"));
  EXPECT_FALSE(
      config_with({{"llama.rope.scaling.type", "none"}, {"llama.rope.scaling.factor", 4.0}})
          .contains("rope_scaling"));
}

TEST_F(GgufKeys, WhatIsNotReadIsRefusedByName) {
  const auto refused = [&](const std::string& key, const PlainJson& value,
                           const std::string& word) {
    const std::string text = opening_error(with({{key, value}}));
    EXPECT_NE(text.find(word), std::string::npos) << key << ": " << text;
  };
  refused("llama.rope.scaling.type", "yarn", "yarn");
  refused("llama.rope.scaling.attn_factor", 0.5, "attn_factor");
  refused("llama.attention.sliding_window", 4096, "sliding_window");
  refused("llama.logit_scale", 2.0, "logit_scale");
  refused("llama.attention.value_length", 16, "differ in length");
  refused("llama.tensor_data_layout", "transposed", "transposed");
  EXPECT_EQ(opening_error(with({{"llama.expert_count", 0},
                                {"llama.vocab_size", 100},
                                {"llama.attention.value_length", 8},
                                {"general.whatever", "free"},
                                {"llama.tensor_data_layout", "Meta AI original pth"}})),
            "opened");
}

}  // namespace
}  // namespace sluice
