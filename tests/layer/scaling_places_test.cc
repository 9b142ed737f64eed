// Where inputs of products can be scaled: in families' programs, and where not.
#include "src/layer/scaling_places.h"

#include <gtest/gtest.h>

#include "src/layer/layer_builder.h"
#include "src/model/family.h"

namespace sluice {
namespace {

// "norm:q,k,v v:o", by roles; "+" where the producer has a bias.
std::string places_of(const SublayerShape& sublayer, const LayerProgram& program, bool own_values) {
  const auto role = [&](int32_t weight) {
    return sublayer.weights[static_cast<size_t>(weight)].role;
  };
  std::string out;
  for (const ScalingPlace& place : scaling_places(program, own_values)) {
    out += (out.empty() ? "" : " ") + role(place.producer) + (place.bias >= 0 ? "+" : "") + ":";
    for (size_t i = 0; i < place.consumers.size(); ++i)
      out += (i ? "," : "") + role(place.consumers[i]);
  }
  return out;
}

std::vector<std::string> places_of(const std::string& config) {
  const auto model = make_family_model(ModelConfig(config, "config.json"));
  const ModelShape& shape = model->shape();
  std::vector<std::string> out;
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    out.push_back(
        places_of(shape.sublayers[i], model->program(i), shape.num_heads == shape.num_kv_heads));
  return out;
}

using Places = std::vector<std::string>;

TEST(ScalingPlaces, Llama) {
  const std::string begin = R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 40,
      "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 32, "num_key_value_heads": )";
  EXPECT_EQ(places_of(begin + "4}"), (Places{"", "norm:q,k,v v:o", "norm:gate,up up:down", ""}));
  EXPECT_EQ(places_of(begin + "2}"), (Places{"", "norm:q,k,v", "norm:gate,up up:down", ""}));
  EXPECT_EQ(places_of(begin + R"(4, "attention_bias": true, "mlp_bias": true})"),
            (Places{"", "norm:q,k,v v+:o", "norm:gate,up up+:down", ""}));
}

TEST(ScalingPlaces, OfNormsOfHeadsNone) {
  const std::string begin = R"("hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 4, "vocab_size": 32})";
  EXPECT_EQ(places_of(R"({"model_type": "qwen3", )" + begin),
            (Places{"", "norm:q,k,v v:o", "norm:gate,up up:down", ""}));
  EXPECT_EQ(places_of(R"({"model_type": "qwen2", )" + begin),
            (Places{"", "norm:q,k,v v+:o", "norm:gate,up up:down", ""}));
}

TEST(ScalingPlaces, Opt) {
  const std::string begin = R"({"model_type": "opt", "hidden_size": 16, "ffn_dim": 20,
      "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 32,
      "max_position_embeddings": 64)";
  EXPECT_EQ(places_of(begin + "}"), (Places{"", "norm+:q,k,v v+:o", "norm+:fc1 fc1+:fc2", ""}));
  EXPECT_EQ(places_of(begin + R"(, "activation_function": "gelu"})"),
            (Places{"", "norm+:q,k,v v+:o", "norm+:fc1", ""}));
  EXPECT_EQ(places_of(begin + R"(, "layer_norm_elementwise_affine": false})"),
            (Places{"", "v+:o", "fc1+:fc2", ""}));
  EXPECT_EQ(places_of(begin + R"(, "do_layer_norm_before": false})"),
            (Places{"", "v+:o", "fc1+:fc2", ""}));
}

SublayerShape square_shape() {
  SublayerShape out{SublayerKind::kMlp, 0, {}};
  for (const char* role : {"norm", "a", "b"}) {
    WeightShape& weight = out.weights.emplace_back();
    weight.role = role;
    weight.kind = out.weights.size() == 1 ? WeightKind::kVector : WeightKind::kMatrix;
    weight.rows = out.weights.size() == 1 ? 1 : 8;
    weight.cols = 8;
  }
  return out;
}

// What else reads a producer's outputs would be scaled too.
TEST(ScalingPlaces, NoneWhereSomethingElseReads) {
  const SublayerShape shape = square_shape();
  const NormSpec norm{NormKind::kRms, "norm", "", 1e-6f};
  const auto places = [&](const auto& write) {
    LayerBuilder layer(shape, 8);
    const View x = layer.workspace(8), y = layer.workspace(8), z = layer.workspace(8);
    write(layer, x, y, z);
    return places_of(shape, layer.take(), true);
  };
  EXPECT_EQ(places([&](LayerBuilder& layer, View x, View y, View) {
              layer.norm_hidden(norm, x);
              layer.linear("a", "", x, y);
              layer.add(x, y);
              layer.add_to_hidden(x);
            }),
            "");
  EXPECT_EQ(places([&](LayerBuilder& layer, View x, View y, View z) {
              layer.read_hidden(x);
              layer.linear("a", "", x, y);
              layer.read_hidden(z);
              layer.gate(Activation::kSilu, z, y, z);
              layer.linear("b", "", z, x);
              layer.add_to_hidden(y);  // the factor itself
            }),
            "");
  EXPECT_EQ(places([&](LayerBuilder& layer, View x, View y, View z) {
              layer.norm_hidden(norm, x);
              layer.linear("a", "", x, y);
              layer.activate(Activation::kRelu, y);
              layer.add(y, x);  // between the activation and the product
              layer.linear("b", "", y, z);
              layer.add_to_hidden(z);
            }),
            "");
  EXPECT_EQ(places([&](LayerBuilder& layer, View x, View y, View z) {
              layer.norm_hidden(norm, x);
              layer.linear("a", "", x, y);
              layer.linear("b", "", x, z);
              layer.gate(Activation::kSilu, y, z, y);
              layer.add_to_hidden(y);
            }),
            "norm:a,b");
}

}  // namespace
}  // namespace sluice
