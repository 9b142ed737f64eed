// Models that see, as releases have them: what stands inside their text's config, what outside of
// it, and what their tensors are called.
#include "src/model/text_part.h"

#include <gtest/gtest.h>

#include "src/base/files.h"
#include "tests/model/changed_model.h"

namespace sluice {
namespace {

using OrderedJson = nlohmann::ordered_json;
namespace fs = std::filesystem;

// `model` as the text part of one that sees, its tensors' names behind `place` where they begin
// with "model.", its head's behind `before_head`.
void wrap(ChangedModel& model, const std::string& type, const std::string& place,
          const std::string& before_head, const OrderedJson& outer = OrderedJson::object()) {
  OrderedJson header;
  for (const auto& [name, tensor] : model.header.items())
    header[name.starts_with("model.")    ? place + name.substr(6)
           : name.starts_with("lm_head") ? before_head + name
                                         : name] = tensor;
  model.header = header;
  OrderedJson config{{"model_type", type}, {"text_config", model.config}};
  config["text_config"].erase("architectures");
  config.merge_patch(outer);
  model.config = config;
  model.save();
}

struct Place {
  const char* type;
  const char* place;
  const char* before_head;
};

TEST(TextPart, TensorsAreFoundWhereReleasesAndTransformersHaveThem) {
  for (const Place& at :
       {Place{"llava", "language_model.model.", "language_model."},
        Place{"llava", "model.language_model.", ""}, Place{"idefics3", "model.text_model.", ""},
        Place{"qwen2_5_omni_thinker", "thinker.model.", "thinker."},
        Place{"kimi_k25", "language_model.model.", "language_model."}}) {
    ChangedModel model("llama-tiny-mha");
    ASSERT_TRUE(model.header.contains("lm_head.weight"));
    wrap(model, at.type, at.place, at.before_head);
    const BoundModel bound = BoundModel::open(model.folder());
    EXPECT_EQ(bound.tensor(0, 0).name, std::string(at.place) + "embed_tokens.weight");
    const SublayerShape& head = bound.shape().sublayers.back();
    for (size_t i = 0; i < head.weights.size(); ++i)
      if (head.weights[i].role == "logits") {
        EXPECT_EQ(bound.tensor(bound.shape().sublayers.size() - 1, i).name,
                  std::string(at.before_head) + "lm_head.weight");
      }
    ASSERT_EQ(bound.notes().size(), 1u);
    EXPECT_NE(bound.notes().front().find(at.type), std::string::npos) << bound.notes().front();
    EXPECT_NE(bound.notes().front().find("images and sound are not read"), std::string::npos);
  }
}

bool is_tied(const BoundModel& bound) {
  for (const WeightShape& weight : bound.shape().sublayers.back().weights)
    if (weight.shares_table) return true;
  return false;
}

// What the whole says goes before what its part says; where it says nothing the checkpoint does.
TEST(TextPart, TheWholeSaysWhetherItsHeadIsTheTable) {
  const auto tied = [](bool has_head, const OrderedJson& inner, const OrderedJson& outer) {
    ChangedModel model("llama-tiny-mha");
    model.config.erase("tie_word_embeddings");
    if (!inner.is_null()) model.config["tie_word_embeddings"] = inner;
    if (!has_head) {
      model.header["__pad_head"] = model.header["lm_head.weight"];
      model.header.erase("lm_head.weight");
    }
    OrderedJson changes = OrderedJson::object();
    if (!outer.is_null()) changes["tie_word_embeddings"] = outer;
    wrap(model, "mistral3", "language_model.model.", "language_model.", changes);
    return is_tied(BoundModel::open(model.folder()));
  };
  EXPECT_TRUE(tied(false, nullptr, true));
  EXPECT_TRUE(tied(false, false, true));
  EXPECT_FALSE(tied(true, true, false));
  EXPECT_TRUE(tied(false, nullptr, nullptr));
  EXPECT_TRUE(tied(false, true, nullptr));
  EXPECT_FALSE(tied(true, nullptr, nullptr));
  EXPECT_FALSE(tied(true, true, nullptr)) << "the class's own default is not tied";
  ChangedModel model("llama-tiny-mha");
  wrap(model, "mistral3", "language_model.model.", "language_model.",
       {{"tie_word_embeddings", true}});
  const Error error = model.refusal();
  EXPECT_NE(error.text().find("language_model.lm_head.weight"), std::string::npos) << error.text();
}

// Qwen2-VL and Qwen2.5-VL were released so.
TEST(TextPart, TheTextsSizesMayStandBesideTheRest) {
  ChangedModel model("qwen2-tiny");
  model.config["model_type"] = "qwen2_vl";
  model.config["vision_config"] = {{"model_type", "qwen2_vl"}, {"depth", 1}};
  model.config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {1, 1, 2}}};
  model.config.erase("rope_parameters");
  model.add("visual.blocks.0.attn.qkv.weight", "F32", {2, 2}, std::string(16, 0));
  model.save();
  const BoundModel bound = BoundModel::open(model.folder());
  EXPECT_EQ(bound.shape().family, "qwen2");
  ASSERT_EQ(bound.notes().size(), 1u);
  EXPECT_NE(bound.notes().front().find("qwen2_vl"), std::string::npos) << bound.notes().front();
}

TEST(TextPart, WhatIsComputedOtherwiseIsRefusedByName) {
  try {
    text_part(ModelConfig(R"({"model_type": "paligemma", "text_config": {"model_type": "gemma"}})",
                          "config.json"));
    FAIL() << "is read";
  } catch (const Error& error) {
    expect_words(error, {"paligemma", "both directions"});
  }
}

TEST(TextPart, SizesThatAreTheClassesOwnNeedNotBeSaid) {
  const auto part = [](const OrderedJson& config) {
    return text_part(ModelConfig(config.dump(), "config.json")).config;
  };
  const ModelConfig llava = part(
      {{"model_type", "llava"}, {"text_config", {{"model_type", "llama"}, {"vocab_size", 9}}}});
  EXPECT_EQ(llava.integer("hidden_size", 1, 1 << 20), 4096);
  EXPECT_EQ(llava.integer("vocab_size", 1, 1 << 20), 9);
  EXPECT_FALSE(part({{"model_type", "llama"}}).has("hidden_size")) << "of text parts alone";
  const ModelConfig omni =
      part({{"model_type", "qwen2_5_omni"},
            {"thinker_config",
             {{"model_type", "qwen2_5_omni_thinker"},
              {"text_config", {{"model_type", "qwen2_5_omni_text"}, {"hidden_size", 8}}}}}});
  EXPECT_EQ(omni.integer("hidden_size", 1, 1 << 20), 8);
}

// A checkpoint of tests/fixtures/foreign, its config.json as `change` makes it.
class QuantisedPart : public ::testing::Test {
 protected:
  QuantisedPart() {
    std::string pattern = ::testing::TempDir() + "/sluice_part_XXXXXX";
    folder_ = mkdtemp(pattern.data());
    fs::create_symlink(kFrom / "model.safetensors", folder_ / "model.safetensors");
    config = OrderedJson::parse(::sluice::read_file(kFrom / "config.json", 1 << 20));
  }
  ~QuantisedPart() override { fs::remove_all(folder_); }
  BoundModel open() const {
    write_file(folder_ / "config.json", config.dump());
    return BoundModel::open(folder_);
  }
  std::string refusal() const {
    try {
      open();
    } catch (const Error& error) {
      return error.what();
    }
    return "opened";
  }
  // The same as the text part of a model that sees.
  void wrap_config() {
    const OrderedJson inner = config;
    config = {{"model_type", "kimi_k25"}, {"text_config", inner}};
  }

  const fs::path kFrom = fs::path(SLUICE_FIXTURES) / "foreign" / "ct-int4";
  OrderedJson config;
  fs::path folder_;
};

TEST_F(QuantisedPart, TheQuantisationIsReadInsideAndOutside) {
  const auto bytes = open().shape().weight_bytes();
  const OrderedJson settings = config["quantization_config"];
  wrap_config();
  EXPECT_EQ(open().shape().weight_bytes(), bytes) << "inside";
  config["quantization_config"] = settings;
  EXPECT_EQ(open().shape().weight_bytes(), bytes) << "in both";
  config["text_config"].erase("quantization_config");
  EXPECT_EQ(open().shape().weight_bytes(), bytes) << "outside";
  config["text_config"]["quantization_config"] = settings;
  config["text_config"]["quantization_config"]["quant_method"] = "awq";
  EXPECT_NE(refusal().find("differ"), std::string::npos) << refusal();
}

TEST_F(QuantisedPart, AMissingWeightNamesThePackedOneThatIsThere) {
  config.erase("quantization_config");
  const std::string text = refusal();
  EXPECT_NE(text.find("q_proj.weight_packed"), std::string::npos) << text;
  EXPECT_NE(text.find("quantization_config"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice
