// Checkpoints that do not belong to their config: each test changes one thing of a sound model.
#include "tests/model/changed_model.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kQuery = "model.layers.1.self_attn.q_proj.weight";

TEST(BoundModelErrors, TheChangedCopyItselfOpens) {
  const ChangedModel model("llama-tiny-mha");
  model.save();
  EXPECT_NO_THROW(BoundModel::open(model.folder()));
}

TEST(BoundModelErrors, AFusedTensorOfOtherRowsIsNamed) {
  ChangedModel model("phi3-tiny");
  model.config["num_key_value_heads"] = 1;
  expect_words(model.refusal(), {"self_attn.qkv_proj.weight", "[64, 32]", "[48, 32]"});
  model.config["num_key_value_heads"] = 2;
  model.header["elsewhere"] = model.header["model.layers.1.mlp.gate_up_proj.weight"];
  model.header.erase("model.layers.1.mlp.gate_up_proj.weight");
  expect_words(model.refusal(), {"mlp.gate_proj.weight", "missing"});
}

TEST(BoundModelErrors, AMissingTensorIsNamed) {
  ChangedModel model("llama-tiny-mha");
  Json& header = model.header;
  header["some.other.weight"] = header[kQuery];
  header.erase(kQuery);
  expect_words(model.refusal(),
               {kQuery, "layers.1.self_attn.q_proj.weight", "is missing", "sluice inspect"});
}

TEST(BoundModelErrors, AWrongShapeIsToldBesideTheRightOne) {
  ChangedModel model("llama-tiny-mha");
  auto& shape = model.header[kQuery]["shape"];
  const int64_t rows = shape[0].get<int64_t>();
  const int64_t cols = shape[1].get<int64_t>();
  shape = {rows / 2, cols * 2};
  expect_words(
      model.refusal(),
      {kQuery, "has shape [" + std::to_string(rows / 2) + ", " + std::to_string(cols * 2) + "]",
       "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]"});
}

TEST(BoundModelErrors, AnotherModelsConfigIsFoundOut) {
  ChangedModel model("llama-tiny-mha");
  model.config["vocab_size"] = model.config["vocab_size"].get<int64_t>() + 1;
  expect_words(model.refusal(), {"embed_tokens", "config.json says"});
}

TEST(BoundModelErrors, AConfigWithMoreLayersMissesTheirTensors) {
  ChangedModel model("llama-tiny-mha");
  const int64_t layers = model.config["num_hidden_layers"].get<int64_t>();
  model.config["num_hidden_layers"] = layers + 1;
  expect_words(model.refusal(), {"layers." + std::to_string(layers) + ".", "is missing"});
}

TEST(BoundModelErrors, MatricesHaveElementTypesOfTheirOwn) {
  // Half as wide in bytes and twice in elements would be another shape: so the other tensors' type
  // stays, one changes its type and keeps its bytes.
  ChangedModel model("llama-tiny-f16");
  Json& tensor = model.header[kQuery];
  ASSERT_EQ(tensor["dtype"], "F16");
  tensor["dtype"] = "BF16";
  model.save();
  const BoundModel bound = BoundModel::open(model.folder());
  EXPECT_NO_THROW(bound.require_runnable());
  EXPECT_EQ(bound.shape().weight_dtype, DType::kF16) << "of most bytes";
  const WeightShape& q = *bound.shape().sublayers[3].find("q");
  EXPECT_EQ(bound.shape().format_of(q), WeightFormat::plain(DType::kBF16));
  const WeightShape& k = *bound.shape().sublayers[3].find("k");
  EXPECT_EQ(bound.shape().format_of(k), WeightFormat::plain(DType::kF16));
  ModelShape rounded = bound.shape();
  rounded.set_weights(WeightFormat::plain(DType::kF32));
  EXPECT_EQ(rounded.format_of(*rounded.sublayers[3].find("q")), WeightFormat::plain(DType::kF32));
}

// They lie one behind the other in memory.
TEST(BoundModelErrors, ExpertsOfSeveralElementTypesAreRefusedWithAWayOut) {
  ChangedModel model("mixtral-tiny");
  std::string expert;
  for (const auto& [name, tensor] : model.header.items())
    if (name.find("layers.0.") != std::string::npos &&
        name.find("experts.1.w1") != std::string::npos)
      expert = name;
  ASSERT_FALSE(expert.empty());
  Json& tensor = model.header[expert];
  const std::string halves = model.data_of(expert);
  const Json shape = tensor["shape"];
  model.header["__pad_old"] = tensor;
  model.header.erase(expert);
  model.add(expert, "BF16", shape, halves.substr(0, halves.size() / 2));
  model.save();
  const BoundModel bound = BoundModel::open(model.folder());
  try {
    bound.require_runnable();
    FAIL() << "runs";
  } catch (const Error& error) {
    expect_words(error, {expert.c_str(), "bf16", "f32", "sluice convert"});
  }
}

TEST(BoundModelErrors, AnElementTypeThatIsNoWeightIsRefused) {
  ChangedModel model("llama-tiny-f16");
  model.header[kQuery]["dtype"] = "I16";
  expect_words(model.refusal(), {kQuery, "i16"});
}

TEST(BoundModelErrors, AMissingConfigIsSaidToBeMissing) {
  const ChangedModel model("llama-tiny-mha");
  model.remove("config.json");
  expect_words(model.refusal_unsaved(), {"config.json", "is missing"});
}

TEST(BoundModelErrors, MissingWeightsAreAnErrorOfTheFolder) {
  const ChangedModel model("llama-tiny-mha");
  model.remove("model.safetensors");
  (void)model.refusal_unsaved();
}

TEST(BoundModelErrors, AFolderThatIsNotThere) {
  try {
    BoundModel::open("/nonexistent/model");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_NE(error.text().find("/nonexistent/model"), std::string::npos);
  }
}

TEST(BoundModelErrors, TensorsThatNobodyUsesAreNoted) {
  ChangedModel model("llama-tiny-mha");
  model.config["num_hidden_layers"] = 1;
  model.save();
  const BoundModel bound = BoundModel::open(model.folder());
  ASSERT_EQ(bound.notes().size(), 1u);
  EXPECT_NE(bound.notes()[0].find("not used"), std::string::npos) << bound.notes()[0];
}

// A matrix of its own beside tied embeddings: which one is the model's?
TEST(BoundModelErrors, AnotherOutputMatrixBesideTiedEmbeddingsIsRefused) {
  const std::string table = "model.embed_tokens.weight";
  for (const bool is_same : {true, false}) {
    ChangedModel model("llama-tiny-gqa");
    ASSERT_TRUE(model.config["tie_word_embeddings"]);
    std::string data = model.data_of(table);
    if (!is_same) data.back() = static_cast<char>(data.back() ^ 1);
    model.add("lm_head.weight", model.header[table]["dtype"], model.header[table]["shape"], data);
    if (is_same) {
      model.save();
      EXPECT_NO_THROW(BoundModel::open(model.folder()));
    } else {
      expect_words(model.refusal(), {"lm_head.weight", table, "tie_word_embeddings"});
      model.config["tie_word_embeddings"] = false;  // as the error advises
      model.save();
      EXPECT_NO_THROW(BoundModel::open(model.folder()));
    }
  }
}

TEST(BoundModelErrors, AClassifierIsNoLanguageModel) {
  ChangedModel model("llama-tiny-mha");
  model.add("score.weight", "F32", {1, 2}, std::string(8, 'x'));
  expect_words(model.refusal(), {"score.weight", "classifier", "lm_head"});
  ChangedModel by_name("llama-tiny-mha");
  by_name.config["architectures"] = {"LlamaForSequenceClassification"};
  expect_words(by_name.refusal(), {"LlamaForSequenceClassification", "no language model"});
}

TEST(BoundModelErrors, ABiasThatTheConfigLeavesOutMustBeZero) {
  const int64_t rows = 4;
  for (const char value : {'\0', '\1'}) {
    ChangedModel model("llama-tiny-mha");
    ASSERT_TRUE(model.header.contains(kQuery));
    std::string name = kQuery;
    name.replace(name.size() - 6, 6, "bias");
    model.add(name, "F32", {rows}, std::string(static_cast<size_t>(rows * 4), value));
    if (value == 0) {
      model.save();
      EXPECT_NO_THROW(BoundModel::open(model.folder()));
    } else {
      expect_words(model.refusal(), {name, "not zero", "attention_bias"});
    }
  }
}

TEST(BoundModelErrors, EndTokensOutsideTheVocabularyAreLeftOut) {
  ChangedModel model("llama-tiny-mha");
  model.config["eos_token_id"] = {1, 2000000000};
  model.save();
  EXPECT_EQ(BoundModel::open(model.folder()).eos_token_ids(), (std::vector<int32_t>{1}));
  model.config["eos_token_id"] = "two";
  expect_words(model.refusal(), {"eos_token_id"});
}

// Qwen3.5's checkpoints are those of models that see: the text's config is an object of its own,
// its tensors have a longer name, and there are others beside them.
TEST(BoundModelErrors, AModelThatSeesIsReadForItsTextAndTheRestIsSaid) {
  ChangedModel model("qwen3-5-tiny");
  Json header;
  for (const auto& [name, tensor] : model.header.items()) {
    const bool is_inside = name.starts_with("model.");
    header[is_inside ? "model.language_model." + name.substr(6) : name] = tensor;
  }
  model.header = header;
  model.add("model.visual.blocks.0.attn.qkv.weight", "F32", {2, 2}, std::string(16, 0));
  model.add("mtp.layers.0.mlp.up_proj.weight", "F32", {2, 2}, std::string(16, 0));
  model.config = {{"model_type", "qwen3_5"},
                  {"architectures", {"Qwen3_5ForConditionalGeneration"}},
                  {"text_config", model.config},
                  {"vision_config", {{"model_type", "qwen3_5_vision"}, {"hidden_size", 8}}}};
  model.save();
  const BoundModel bound = BoundModel::open(model.folder());
  EXPECT_EQ(bound.shape().family, "qwen3_5_text");
  EXPECT_EQ(bound.tensor(1, 1).name,
            "model.language_model.layers.0.linear_attn.in_proj_qkv.weight");
  ASSERT_EQ(bound.notes().size(), 1u);
  EXPECT_NE(bound.notes().front().find("2 tensors"), std::string::npos) << bound.notes().front();
}

// Of which the experts of a layer are one tensor.
TEST(BoundModelErrors, AMixtureThatSeesHasItsStacksBehindTheLongerNameToo) {
  ChangedModel model("qwen3-5-moe-tiny");
  Json header;
  for (const auto& [name, tensor] : model.header.items())
    header[name.starts_with("model.") ? "model.language_model." + name.substr(6) : name] = tensor;
  model.header = header;
  model.config = {{"model_type", "qwen3_5_moe"},
                  {"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                  {"text_config", model.config}};
  model.save();
  EXPECT_EQ(BoundModel::open(model.folder()).shape().family, "qwen3_5_moe_text");
  const std::string stack = "model.language_model.layers.1.mlp.experts.gate_up_proj";
  model.header[stack]["shape"] = {6, 16, 24};
  expect_words(model.refusal(), {stack, "[6, 16, 24]", "[6, 24, 16]"});
  model.header[stack + ".weight"] = model.header[stack];
  model.header.erase(stack);
  expect_words(model.refusal(), {"layers.1.mlp.experts", "gate_up_proj", "missing"});
}

// Gemma 4's see and hear; layers that share may have matrices for keys that nobody uses.
TEST(BoundModelErrors, AModelThatSeesAndHearsIsReadForItsTextAndTheRestIsSaid) {
  ChangedModel model("gemma4-tiny");
  Json header;
  for (const auto& [name, tensor] : model.header.items())
    header[name.starts_with("model.") ? "model.language_model." + name.substr(6) : name] = tensor;
  model.header = header;
  model.add("model.vision_tower.patch_embedder.input_proj.weight", "F32", {2, 2},
            std::string(16, 0));
  model.add("model.audio_tower.layers.0.norm_out.weight", "F32", {4}, std::string(16, 0));
  model.add("model.language_model.layers.3.self_attn.k_proj.weight", "F32", {12, 16},
            std::string(4 * 12 * 16, 1));
  model.config = {{"model_type", "gemma4"},
                  {"architectures", {"Gemma4ForConditionalGeneration"}},
                  {"text_config", model.config},
                  {"vision_config", {{"model_type", "gemma4_vision"}}},
                  {"audio_config", {{"model_type", "gemma4_audio"}}}};
  model.save();
  const BoundModel bound = BoundModel::open(model.folder());
  EXPECT_EQ(bound.shape().family, "gemma4_text");
  EXPECT_EQ(bound.tensor(0, 1).name, "model.language_model.embed_tokens_per_layer.weight");
  ASSERT_EQ(bound.notes().size(), 1u);
  EXPECT_NE(bound.notes().front().find("3 tensors"), std::string::npos) << bound.notes().front();
}

TEST(BoundModelErrors, AConvolutionHasTheShapeThatItsConfigSays) {
  ChangedModel model("qwen3-5-tiny");
  model.header["model.layers.0.linear_attn.conv1d.weight"]["shape"] = {64, 4, 1};
  expect_words(model.refusal(), {"linear_attn.conv1d.weight", "[64, 4, 1]", "[64, 1, 4]"});
}

}  // namespace
}  // namespace sluice
