#include "src/model/config.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "src/base/error.h"
#include "src/model/family.h"

namespace sluice {
namespace {

template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile) << error.what();
    EXPECT_NE(error.text().find("here/config.json"), std::string::npos) << error.text();
    return error.text();
  }
  return "accepted";
}

ModelConfig config(const std::string& json) { return ModelConfig(json, "here/config.json"); }

TEST(ModelConfig, ReadsFieldsOfEveryType) {
  const ModelConfig c = config(
      R"({"n": 12, "x": 0.5, "whole": 3, "b": true, "t": "gelu", "nothing": null, "ids": [1, 2], "id": 7,
                                   "inner": {"factor": 8}})");
  EXPECT_EQ(c.integer("n", 1, 12), 12);
  EXPECT_EQ(c.integer_or("m", 5, 1, 9), 5);
  EXPECT_EQ(c.integer_or("nothing", 6, 1, 9), 6);
  EXPECT_EQ(c.number("x"), 0.5);
  EXPECT_EQ(c.number("whole"), 3.0);
  EXPECT_EQ(c.number_or("y", 2.5), 2.5);
  EXPECT_TRUE(c.boolean_or("b", false));
  EXPECT_TRUE(c.boolean_or("nothing", true));
  EXPECT_EQ(c.text_or("t", "relu"), "gelu");
  EXPECT_EQ(c.text_or("nothing", "relu"), "relu");
  EXPECT_EQ(c.integers("ids"), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(c.integers("id"), (std::vector<int32_t>{7}));
  EXPECT_TRUE(c.integers("nothing").empty());
  EXPECT_TRUE(c.has("n"));
  EXPECT_FALSE(c.has("nothing") || c.has("absent"));
  EXPECT_TRUE(c.is_null("nothing"));
  EXPECT_FALSE(c.is_null("n") || c.is_null("absent"));
  EXPECT_EQ(c.object("inner")->number("factor"), 8);
  EXPECT_FALSE(c.object("absent"));
}

// As Python writes them, and as transformers 5 does; in texts they are letters.
TEST(ModelConfig, ReadsWhatIsNoNumberInJson) {
  const ModelConfig c = config(
      R"({"limits": [0.0, Infinity], "same": [-Infinity, {"__float__": "Infinity"}], "bad": [NaN],
          "text": "Infinity \"NaN\" -Infinity", "other": [{"__float__": "many"}]})");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(c.numbers("limits", true), (std::vector<double>{0, kInfinity}));
  EXPECT_EQ(c.numbers("same", true), (std::vector<double>{-kInfinity, kInfinity}));
  EXPECT_EQ(c.text_or("text", ""), R"(Infinity "NaN" -Infinity)");
  for (const char* key : {"limits", "same", "bad", "other"})
    EXPECT_NE(refusal([&] { c.numbers(key); }).find(key), std::string::npos);
  EXPECT_NE(refusal([&] { c.numbers("bad", true); }).find("bad"), std::string::npos);
}

TEST(ModelConfig, RefusesWithFieldAndReason) {
  const ModelConfig c = config(
      R"({"n": "12", "f": 1.5, "big": 18446744073709551615, "neg": -5, "b": 1, "t": 5, "ids": [1, "2"],
                                   "negative_ids": [-1], "huge_id": 3000000000, "inner": [1], "x": "1e-5"})");
  const auto integer = [&](const char* key) { return refusal([&] { c.integer(key, 1, 100); }); };
  EXPECT_NE(integer("absent").find("\"absent\" is missing"), std::string::npos);
  EXPECT_NE(integer("n").find("\"n\" is not a whole number"), std::string::npos);
  EXPECT_NE(integer("f").find("\"f\" is not a whole number"), std::string::npos);
  EXPECT_NE(integer("neg").find("\"neg\" is -5, outside 1..100"), std::string::npos);
  EXPECT_NE(integer("big").find("outside 1..100"), std::string::npos);
  EXPECT_NE(refusal([&] { c.integer_or("neg", 1, 0, 9); }).find("\"neg\" is -5"),
            std::string::npos);
  EXPECT_NE(refusal([&] { c.number("x"); }).find("\"x\" is not a number"), std::string::npos);
  EXPECT_NE(refusal([&] { c.boolean_or("b", false); }).find("\"b\" is not true or false"),
            std::string::npos);
  EXPECT_NE(refusal([&] { c.text_or("t", ""); }).find("\"t\" is not a string"), std::string::npos);
  EXPECT_NE(refusal([&] { c.object("inner"); }).find("\"inner\" is not an object"),
            std::string::npos);
  for (const char* key : {"ids", "negative_ids", "huge_id", "big", "f"})
    EXPECT_NE(refusal([&] { c.integers(key); }).find("is not a token id or a list of them"),
              std::string::npos)
        << key;
}

TEST(ModelConfig, InnerObjectsKeepTheWay) {
  const ModelConfig c = config(R"({"rope_scaling": {"factor": "8"}})");
  EXPECT_NE(refusal([&] { c.object("rope_scaling")->number("factor"); }).find("rope_scaling"),
            std::string::npos);
}

// A small llama config with one field set to something else (or left out, for an empty value).
std::string llama_with(const std::string& key, const std::string& value) {
  std::pair<std::string, std::string> fields[] = {
      {"model_type", "\"llama\""},  {"hidden_size", "64"},
      {"intermediate_size", "96"},  {"num_hidden_layers", "2"},
      {"num_attention_heads", "4"}, {"num_key_value_heads", "2"},
      {"vocab_size", "100"},        {"max_position_embeddings", "128"}};
  std::string json;
  bool is_there = false;
  for (auto& [name, text] : fields) {
    if (name == key) text = value, is_there = true;
    if (!text.empty()) json += (json.empty() ? "{\"" : ", \"") + name + "\": " + text;
  }
  if (!is_there && !value.empty()) json += ", \"" + key + "\": " + value;
  return json + "}";
}

std::string llama_refusal(const std::string& key, const std::string& value) {
  return refusal([&] { make_family_model(config(llama_with(key, value))); });
}

TEST(FamilyConfig, LlamaAcceptsWhatItKnows) {
  EXPECT_EQ(llama_refusal("", ""), "accepted");
  EXPECT_EQ(llama_refusal("rope_scaling", R"({"type": "linear", "factor": 2.0})"), "accepted");
  EXPECT_EQ(llama_refusal("rope_scaling", "null"), "accepted");
  EXPECT_EQ(llama_refusal("rope_parameters", R"({"rope_type": "default", "rope_theta": 300})"),
            "accepted");
  // Both spellings, as long as they say the same.
  EXPECT_EQ(llama_refusal("rope_parameters",
                          R"({"rope_type": "linear", "factor": 2, "rope_theta": 300},
                              "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 300)"),
            "accepted");
  EXPECT_EQ(llama_refusal("head_dim", "24"), "accepted");
  EXPECT_EQ(llama_refusal("num_key_value_heads", ""), "accepted");
}

TEST(FamilyConfig, LlamaRefusesWhatItCanNotRunNamingTheField) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"hidden_size", "", "hidden_size"},
      {"hidden_size", "0", "hidden_size"},
      {"hidden_size", "66", "not a multiple"},
      {"hidden_size", "9223372036854775807", "hidden_size"},
      {"num_hidden_layers", "1000000000", "num_hidden_layers"},
      {"num_attention_heads", "-4", "num_attention_heads"},
      {"num_key_value_heads", "3", "KV heads"},
      {"num_key_value_heads", "8", "num_key_value_heads"},
      {"vocab_size", "1e9", "vocab_size"},
      {"head_dim", "15", "head_dim"},
      {"hidden_act", "\"mish\"", "hidden_act"},
      {"hidden_act", "3", "hidden_act"},
      {"rope_theta", "0", "rope_theta"},
      {"rope_theta", "-1", "rope_theta"},
      {"rope_theta", "1e-300", "rope_theta"},
      {"rope_scaling", R"({"type": "abf", "factor": 2})", "abf"},
      {"rope_scaling", R"({"type": "yarn", "factor": 0})", "factor"},
      {"rope_scaling", R"({"type": "linear", "factor": 0})", "factor"},
      {"rope_scaling", R"({"type": "linear", "factor": 1e-300})", "factor"},
      {"rope_scaling", R"({"type": "linear"})", "factor"},
      {"rope_scaling", R"({"rope_type": "llama3", "factor": 8})", "low_freq_factor"},
      {"rope_scaling",
       R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1,
                           "original_max_position_embeddings": 8192})",
       "high_freq_factor"},
      {"rope_scaling", R"({"type": "linear", "rope_type": "default", "factor": 2})", "differ"},
      {"rope_scaling", R"({"rope_type": "default", "scales": 2})", "scales"},
      {"rope_parameters", R"({"full_attention": {"rope_theta": 5}})", "full_attention"},
      {"rope_parameters", R"({"rope_theta": 300, "partial_rotary_factor": 0.1})", "of 16 columns"},
      {"rope_parameters", R"({"rope_theta": 300}, "rope_theta": 400)", "rope_theta"},
      {"rope_parameters",
       R"({"rope_type": "linear", "factor": 2}, "rope_scaling": {"type": "linear", "factor": 4})",
       "rope_scaling"},
      {"rope_parameters",
       R"({"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 4})",
       "rope_scaling"},
      {"rms_norm_eps", "-1", "rms_norm_eps"},
      {"rms_norm_eps", "1e39", "rms_norm_eps"},
      {"torch_dtype", "\"int8\"", "torch_dtype"},
      {"torch_dtype", "\"float64\"", "torch_dtype"},
      {"tie_word_embeddings", "\"yes\"", "tie_word_embeddings"},
      {"model_type", "\"\"", "model_type"},
      {"model_type", "", "model_type"},
      {"model_type", "\"t5\"", "t5"}};
  for (const auto& [key, value, words] : cases) {
    const std::string text = llama_refusal(key, value);
    EXPECT_NE(text.find(words), std::string::npos) << key << " = " << value << " -> " << text;
  }
}

std::string opt_refusal(const std::string& more) {
  return refusal([&] {
    make_family_model(config(
        R"({"model_type": "opt", "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                                 "vocab_size": 100, "max_position_embeddings": 32)" +
        more + "}"));
  });
}

TEST(FamilyConfig, OptRefusesWhatItCanNotRunNamingTheField) {
  EXPECT_EQ(opt_refusal(""), "accepted");
  EXPECT_EQ(
      opt_refusal(
          R"(, "activation_function": "gelu", "enable_bias": false, "word_embed_proj_dim": 32)"),
      "accepted");
  EXPECT_NE(opt_refusal(R"(, "activation_function": "tanh")").find("tanh"), std::string::npos);
  EXPECT_NE(opt_refusal(R"(, "word_embed_proj_dim": 0)").find("word_embed_proj_dim"),
            std::string::npos);
  EXPECT_NE(opt_refusal(R"(, "do_layer_norm_before": 1)").find("do_layer_norm_before"),
            std::string::npos);
}

// The windows of the layers of a family's small model with `more` in its config.json.
std::vector<int64_t> windows_of(const std::string& family, const std::string& more) {
  std::string text = llama_with("model_type", "\"" + family + "\"");
  text.insert(text.size() - 1, more);
  const auto model = make_family_model(config(text));
  std::vector<int64_t> windows;
  for (const SublayerShape& sublayer : model->shape().sublayers)
    if (sublayer.kind == SublayerKind::kAttention)
      windows.push_back(model->shape().state_of(sublayer.state).window);
  return windows;
}

// The same of layers that are all alike.
int64_t window_of(const std::string& family, const std::string& more) {
  const std::vector<int64_t> windows = windows_of(family, more);
  EXPECT_EQ(windows, std::vector<int64_t>(windows.size(), windows.front()));
  return windows.front();
}

TEST(FamilyConfig, MistralHasAWindowUnlessItSaysOtherwise) {
  EXPECT_EQ(window_of("mistral", R"(, "sliding_window": 64)"), 64);
  EXPECT_EQ(window_of("mistral", R"(, "sliding_window": null)"), 0);
  EXPECT_EQ(window_of("mistral", ""), 0) << "4096, which no sequence of 128 tokens leaves";
  EXPECT_EQ(window_of("mistral", R"(, "sliding_window": 128)"), 0) << "as wide as all there is";
  EXPECT_NE(
      refusal([] { window_of("mistral", R"(, "sliding_window": 0)"); }).find("sliding_window"),
      std::string::npos);
}

TEST(FamilyConfig, QwenHasAWindowOnlyWhereItIsSwitchedOn) {
  for (const char* family : {"qwen2", "qwen3"}) {
    EXPECT_EQ(window_of(family, R"(, "sliding_window": 64)"), 0);
    EXPECT_EQ(window_of(family, R"(, "use_sliding_window": false, "sliding_window": 64)"), 0);
    EXPECT_EQ(window_of(family, R"(, "use_sliding_window": true, "sliding_window": 64,
                                   "max_window_layers": 0)"),
              64);
    EXPECT_EQ(window_of(family, R"(, "use_sliding_window": true, "sliding_window": 64,
                                   "max_window_layers": 2)"),
              0)
        << "no layer has it";
    EXPECT_EQ(windows_of(family, R"(, "use_sliding_window": true, "sliding_window": 64,
                                    "max_window_layers": 1)"),
              (std::vector<int64_t>{0, 64}));
  }
}

TEST(FamilyConfig, LayerTypesSayWhichLayersHaveAWindow) {
  const std::string window = R"(, "use_sliding_window": true, "sliding_window": 64)";
  const auto types = [&](const std::string& list) {
    return window + R"(, "layer_types": [)" + list + "]";
  };
  for (const char* family : {"qwen2", "qwen3"}) {
    EXPECT_EQ(windows_of(family, types(R"("sliding_attention", "full_attention")")),
              (std::vector<int64_t>{64, 0}));
    EXPECT_NE(refusal([&] {
                windows_of(family, types(R"("sliding_attention")"));
              }).find("1 entries for 2 layers"),
              std::string::npos);
    EXPECT_NE(refusal([&] {
                windows_of(family, types(R"("sliding_attention", "linear_attention")"));
              }).find("linear_attention"),
              std::string::npos);
  }
}

TEST(FamilyConfig, Qwen3HasHeadsOf128UnlessItSaysOtherwise) {
  const auto width = [](const std::string& family) {
    const std::string text = llama_with("model_type", "\"" + family + "\"");
    return make_family_model(config(text))->shape().head_dim;
  };
  EXPECT_EQ(width("qwen3"), 128);
  EXPECT_EQ(width("qwen2"), 16);
  EXPECT_EQ(width("mistral"), 16);
}

TEST(FamilyConfig, AnUnknownFamilyIsToldWhichThereAre) {
  try {
    make_family_model(config(R"({"model_type": "t5"})"));
    FAIL();
  } catch (const Error& error) {
    for (const Family& family : families())
      EXPECT_NE(error.mend().find(family.model_type), std::string::npos) << error.mend();
  }
}

}  // namespace
}  // namespace sluice
