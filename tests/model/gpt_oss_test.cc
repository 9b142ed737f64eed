// gpt-oss: what its config.json means, its stacks of experts as they lie in files, plain and in
// MXFP4, and what of either is refused.
#include <array>
#include <cmath>

#include "src/model/planning_shapes.h"
#include "tests/model/changed_model.h"

namespace sluice {
namespace {

const WeightShape& weight_named(const ModelShape& shape, size_t layer, std::string_view role) {
  const WeightShape* found = shape.sublayers[2 + 2 * layer].find(role);
  if (!found) found = shape.sublayers[1 + 2 * layer].find(role);
  return *found;
}

// So that nothing has the name any more.
void rename(ChangedModel& model, const std::string& name) {
  model.header[name + ".gone"] = model.header[name];
  model.header.erase(name);
}

TEST(GptOss, WindowsAreInEveryOtherLayerFromTheFirst) {
  const ModelShape shape = planning_shape("gpt-oss-20b").value();
  std::vector<int64_t> windows;
  for (const SublayerShape& sublayer : shape.sublayers)
    if (sublayer.kind == SublayerKind::kAttention)
      windows.push_back(shape.state_of(sublayer.state).window);
  ASSERT_EQ(windows.size(), 24u);
  for (size_t layer = 0; layer < windows.size(); ++layer)
    EXPECT_EQ(windows[layer], layer % 2 == 0 ? 128 : 0) << layer;
  EXPECT_EQ(shape.head_dim, 64);
  EXPECT_EQ(weight_named(shape, 3, "sinks").cols, 64);
  EXPECT_EQ(weight_named(shape, 3, "router.bias").cols, 32);
  EXPECT_EQ(weight_named(shape, 3, "experts.gate_up.bias").cols, 32 * 2 * 2880);
}

// As released: 12.8 and 60.8 GiB, all but experts in bf16.
TEST(GptOss, PlannedShapesAreAsLargeAsTheReleasedFiles) {
  for (const auto& [name, gib] : {std::pair{"gpt-oss-20b", 12.8}, {"gpt-oss-120b", 60.8}}) {
    const ModelShape shape = planning_shape(name).value();
    EXPECT_NEAR(static_cast<double>(shape.weight_bytes()) / (1 << 30), gib, 0.01 * gib) << name;
    EXPECT_EQ(format_name(shape.format_of(weight_named(shape, 0, "experts.down"))), "mxfp4");
    EXPECT_EQ(format_name(shape.format_of(weight_named(shape, 0, "q"))), "bf16");
  }
  ModelShape plain = planning_shape("gpt-oss-20b").value();
  plain.set_weights(WeightFormat::plain(DType::kBF16));
  EXPECT_FALSE(plain.is_quantised());
}

TEST(GptOss, ConfigsThatMeanSomethingElseAreRefused) {
  const auto refused = [](const char* key, const nlohmann::ordered_json& value, const char* word) {
    ChangedModel model("gpt-oss-tiny");
    model.config[key] = value;
    expect_words(model.refusal(), {word});
  };
  refused("hidden_act", "gelu", "hidden_act");
  refused("swiglu_limit", -1, "swiglu_limit");
  refused("swiglu_alpha", 0, "swiglu_alpha");
  refused("num_experts_per_tok", 6, "num_experts_per_tok");
  refused("layer_types", {"full_attention"}, "layer_types");
  refused("layer_types", {"full_attention", "chunked", "full_attention"}, "chunked");
  refused("quantization_config", {{"quant_method", "mxfp8"}}, "mxfp8");
}

TEST(GptOss, ATensorThatIsMissingOrOfAnotherShapeIsNamed) {
  for (const char* name :
       {"self_attn.sinks", "mlp.router.bias", "mlp.experts.gate_up_proj",
        "mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj", "mlp.experts.down_proj_bias"}) {
    const std::string whole = std::string("model.layers.1.") + name;
    ChangedModel without("gpt-oss-tiny");
    ASSERT_TRUE(without.header.contains(whole)) << whole;
    rename(without, whole);
    expect_words(without.refusal(), {whole});
    ChangedModel turned("gpt-oss-tiny");
    auto& shape = turned.header[whole]["shape"];
    shape.insert(shape.begin(), 1);
    expect_words(turned.refusal(), {whole});
  }
}

class Mxfp4Stacks : public ::testing::Test {
 protected:
  static constexpr const char* kBlocks = "model.layers.1.mlp.experts.gate_up_proj_blocks";
  static constexpr const char* kScales = "model.layers.1.mlp.experts.gate_up_proj_scales";
  ChangedModel model_{"gpt-oss-mxfp4"};
};

TEST_F(Mxfp4Stacks, TheChangedCopyItselfOpens) {
  model_.save();
  const BoundModel model = BoundModel::open(model_.folder());
  EXPECT_EQ(model.foreign_method(), "MXFP4");
  EXPECT_EQ(model.shape().weight_dtype, DType::kBF16);
  EXPECT_NO_THROW(model.require_runnable());
}

TEST_F(Mxfp4Stacks, BlocksThatAreMissingOrDoNotFitAreNamed) {
  const auto before = model_.header;
  rename(model_, kScales);
  expect_words(model_.refusal(), {kScales, "is missing"});
  model_.header = before;
  rename(model_, kBlocks);
  expect_words(model_.refusal(), {kBlocks, "is missing"});
  model_.header = before;
  model_.header[kBlocks]["shape"] = {6, 128, 6, 8};
  expect_words(model_.refusal(), {kBlocks, "[6, 128, 6, 8]", "[6, 128, 3, 16]"});
  model_.header = before;
  model_.header[kBlocks]["dtype"] = "I8";
  expect_words(model_.refusal(), {kBlocks, "i8", "u8"});
  model_.header = before;
  model_.header[kScales]["shape"] = {6, 3, 128};
  expect_words(model_.refusal(), {kScales, "[6, 128, 3]"});
}

TEST_F(Mxfp4Stacks, RowsThatAreNoWholeBlocksAreRefused) {
  model_.config["intermediate_size"] = 63;
  expect_words(model_.refusal(), {"model.layers.0.mlp.experts.gate_up_proj_blocks"});
  model_.config["intermediate_size"] = 64;
  model_.config["hidden_size"] = 97;
  expect_words(model_.refusal(), {"97 values", "blocks of 32"});
}

TEST_F(Mxfp4Stacks, ConfigMustSayWhatTheyAre) {
  const auto settings = model_.config["quantization_config"];
  model_.config.erase("quantization_config");
  expect_words(model_.refusal(), {"gate_up_proj_blocks", "MXFP4", "quant_method"});
  model_.config["quantization_config"] = settings;
  model_.config["quantization_config"]["quant_method"] = "mxfp6";
  expect_words(model_.refusal(), {"mxfp6", "mxfp4"});
  model_.config["quantization_config"] = settings;
  model_.config["quantization_config"]["group_size"] = 16;
  expect_words(model_.refusal(), {"group_size"});
}

uint64_t fnv1a(std::span<const std::byte> bytes) {
  uint64_t value = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes) value = (value ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;
  return value;
}

// Every code beside every scale but the largest (scripts/golden/mxfp4.py has transformers' values).
TEST(Mxfp4, ValuesAreTransformersToTheBitAndSoAreCodesTimesScales) {
  constexpr int64_t kRows = 4, kGroups = 64, kCols = kGroups * 32;
  std::vector<std::byte> blocks, scales;
  for (int64_t i = 0; i < kRows * kGroups * 16; ++i)
    blocks.push_back(static_cast<std::byte>((i * 37 + 11) % 256));
  for (int64_t i = 0; i < kRows * kGroups; ++i) scales.push_back(static_cast<std::byte>(i % 253));
  io::Checkpoint checkpoint = io::Checkpoint::describe({{.name = "stack_blocks",
                                                         .dtype = DType::kU8,
                                                         .shape = {1, kRows, kGroups, 16},
                                                         .bytes = std::ssize(blocks)},
                                                        {.name = "stack_scales",
                                                         .dtype = DType::kU8,
                                                         .shape = {1, kRows, kGroups},
                                                         .bytes = std::ssize(scales)}},
                                                       "{}");
  WeightShape weight{.role = "experts", .rows = kRows, .cols = kCols, .names = {"x.{e}.weight"}};
  weight.experts = 1;
  weight.fused = {{"stack"}, 0, kRows, 1, true};
  const auto foreign = mxfp4_weights(ModelConfig("{}", "config.json"), checkpoint);
  checkpoint.add_rows(foreign->parts(weight));
  const std::optional<ForeignMatrix> matrix = foreign->find(weight.of_expert(0));
  ASSERT_TRUE(matrix);
  EXPECT_EQ(format_name(matrix->format), "mxfp4");
  const ForeignBytes bytes{blocks, scales};
  const auto decoder = matrix->decoder(bytes, matrix->whole());
  std::vector<float> values(kRows * kCols);
  for (int64_t row = 0; row < kRows; ++row) decoder->values(row, values.data() + row * kCols);
  EXPECT_EQ(fnv1a(std::as_bytes(std::span(values))), 0x906ecfac7185fdc1u);
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t group = 0; group < kGroups; ++group) {
      std::array<uint8_t, 32> codes{};
      float scale = 0, zero = 1;
      ASSERT_TRUE(decoder->codes(row, group, codes.data(), scale, zero));
      for (int64_t i = 0; i < 32; ++i) {
        const uint8_t code = codes[static_cast<size_t>(i)];
        const float value = scale * kValues[code % 8] * (code < 8 ? 1.0f : -1.0f);
        ASSERT_EQ(value, values[static_cast<size_t>(row * kCols + group * 32 + i)]);
      }
    }
}

TEST(Mxfp4, AScaleThatIsNoNumberGivesNone) {
  const std::vector<std::byte> blocks(16, std::byte{0x11}), scales{std::byte{255}};
  io::Checkpoint checkpoint = io::Checkpoint::describe(
      {{.name = "stack_blocks", .dtype = DType::kU8, .shape = {1, 1, 1, 16}, .bytes = 16},
       {.name = "stack_scales", .dtype = DType::kU8, .shape = {1, 1, 1}, .bytes = 1}},
      "{}");
  WeightShape weight{.role = "experts", .rows = 1, .cols = 32, .names = {"x.{e}.weight"}};
  weight.experts = 1;
  weight.fused = {{"stack"}, 0, 1, 1, true};
  const auto foreign = mxfp4_weights(ModelConfig("{}", "config.json"), checkpoint);
  checkpoint.add_rows(foreign->parts(weight));
  const ForeignBytes bytes{blocks, scales};
  const std::optional<ForeignMatrix> matrix = foreign->find(weight.of_expert(0));
  const auto decoder = matrix->decoder(bytes, matrix->whole());
  std::array<uint8_t, 32> codes{};
  float scale = 0, zero = 0, values[32];
  EXPECT_FALSE(decoder->codes(0, 0, codes.data(), scale, zero));
  decoder->values(0, values);
  EXPECT_TRUE(std::isnan(values[5]));
}

}  // namespace
}  // namespace sluice
