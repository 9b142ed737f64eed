// What operators cost: by arithmetic, and against plain loops over a tiny model that count each
// number they touch.
#include "src/layer/operator_cost.h"

#include <gtest/gtest.h>

#include "src/layer/layer_builder.h"
#include "src/model/family.h"

namespace sluice {
namespace {

using Kind = Operator::Kind;

// Runs a program's operators on one row by plain loops and counts.
struct Counter {
  const ModelShape& model;
  const SublayerShape& sublayer;
  double reads = 0, writes = 0, terms = 0, table_bytes = 0, weight_bytes = 0;

  void touch(int64_t columns, int reads_each, int writes_each) {
    for (int64_t i = 0; i < columns; ++i) {
      reads += reads_each;
      writes += writes_each;
    }
  }
  void product(const WeightShape& weight) {
    touch(weight.cols, 1, 0);
    touch(weight.rows, 0, 1);
    for (int64_t row = 0; row < weight.rows; ++row)
      for (int64_t col = 0; col < weight.cols; ++col) {
        terms += 1;
        weight_bytes += dtype_bytes(model.weight_dtype);
      }
  }
  void run(const Operator& op) {
    const auto weight = [&](int32_t index) { return sublayer.weights[static_cast<size_t>(index)]; };
    for (const int32_t index : {op.weight, op.bias})
      if (index >= 0 && weight(index).kind == WeightKind::kVector)
        for (int64_t col = 0; col < weight(index).cols; ++col) weight_bytes += 4;
    switch (op.kind) {
      case Kind::kGatherTokens:
      case Kind::kGatherPositions:
        for (int64_t col = 0; col < op.out.cols; ++col)
          table_bytes += dtype_bytes(model.weight_dtype);
        return touch(op.out.cols, 0, 1);
      case Kind::kSetHidden: return touch(op.in[0].cols, 1, 1);
      case Kind::kAddToHidden: return touch(op.in[0].cols, 2, 1);
      case Kind::kAdd: return touch(op.out.cols, 2, 1);
      case Kind::kGate: return touch(op.out.cols, 2, 1);
      case Kind::kLinear:
      case Kind::kLogits: return product(weight(op.weight));
      case Kind::kAttend:
        for (const View& in : op.in) touch(in.cols, 1, 0);
        for (int64_t head = 0; head < model.num_heads; ++head)
          for (int64_t i = 0; i < model.head_dim; ++i) terms += 2;
        return touch(op.out.cols, 0, 1);
      case Kind::kNormHeads:
      case Kind::kRope:
        for (int64_t head = 0; head < op.heads; ++head) touch(op.out.cols / op.heads, 1, 1);
        return;
      case Kind::kReadHidden:
      case Kind::kReadNeededHidden:
      case Kind::kNormHidden:
      case Kind::kNorm:
      case Kind::kScale:
      case Kind::kScaleByPosition:
      case Kind::kClamp:
      case Kind::kScaleColumns:
      case Kind::kRegroup:
      case Kind::kActivate: return touch(op.out.cols, 1, 1);
      case Kind::kNormHiddenInPlace: return touch(model.hidden_size, 1, 1);
      case Kind::kTakeHeads:
      case Kind::kAbsorb:
      case Kind::kExpand:
      case Kind::kConvolve:
      case Kind::kTimeSteps:
      case Kind::kDecay:
      case Kind::kRecurrentRule: break;  // by hand below
    }
  }
};

const char* const kModels[] = {
    R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32, "mlp_bias": true})",
    R"({"model_type": "opt", "hidden_size": 16, "ffn_dim": 20, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 32, "max_position_embeddings": 64,
        "word_embed_proj_dim": 8, "do_layer_norm_before": false})",
    R"({"model_type": "opt", "hidden_size": 16, "ffn_dim": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 32, "max_position_embeddings": 64})",
    R"({"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "vocab_size": 32})"};

TEST(OperatorCosts, AreWhatPlainLoopsTouch) {
  for (const char* config : kModels) {
    const auto model = make_family_model(ModelConfig(config, "config.json"));
    const ModelShape& shape = model->shape();
    for (size_t i = 0; i < shape.sublayers.size(); ++i)
      for (const Operator& op : model->program(i).operators) {
        Counter counter{shape, shape.sublayers[i]};
        counter.run(op);
        const OperatorCost cost = operator_cost(op, shape.sublayers[i], shape);
        const auto where = "operator " + std::to_string(static_cast<int>(op.kind));
        EXPECT_EQ(cost.flops, 2 * counter.terms) << where;
        EXPECT_EQ(cost.row_bytes, 4 * (counter.reads + counter.writes) + counter.table_bytes)
            << where;
        EXPECT_EQ(cost.weight_bytes, counter.weight_bytes) << where;
      }
  }
}

// The addition that a norm has taken over costs what it did, but the stream is read once.
TEST(OperatorCosts, OfANormThatAdds) {
  const auto model = make_family_model(ModelConfig(kModels[0], "config.json"));
  const SublayerShape& mlp = model->shape().sublayers[2];
  Operator norm = model->program(2).operators.front();
  const double alone = operator_cost(norm, mlp, model->shape()).row_bytes;
  norm.in[0] = {0, 0, 16};
  EXPECT_EQ(operator_cost(norm, mlp, model->shape()).row_bytes, alone + 4 * 2 * 16);
}

TEST(OperatorCosts, AWeightOfBothSidesIsNotBehindTheCut) {
  SublayerShape sublayer{SublayerKind::kAttention, 0, {}};
  for (const char* role : {"both", "behind"}) {
    WeightShape& weight = sublayer.weights.emplace_back();
    weight.role = role;
    weight.rows = weight.cols = 16;
  }
  LayerBuilder layer(sublayer, 16);
  const View x = layer.workspace(16), q = layer.workspace(16), attended = layer.workspace(16);
  layer.read_hidden(x);
  layer.linear("both", "", x, q);
  layer.attend(q, q, q, attended);
  layer.linear("behind", "", attended, x);
  layer.linear("both", "", x, attended);
  layer.add_to_hidden(attended);
  mark_weights_after_cut(layer.take(), sublayer);
  EXPECT_FALSE(sublayer.weights[0].is_after_cut);
  EXPECT_TRUE(sublayer.weights[1].is_after_cut);
}

TEST(OperatorCosts, OfAllProductsAreTheModels) {
  for (const char* config : kModels) {
    const auto model = make_family_model(ModelConfig(config, "config.json"));
    const ModelShape& shape = model->shape();
    double flops = 0;
    for (size_t i = 0; i < shape.sublayers.size(); ++i)
      for (const Operator& op : model->program(i).operators)
        if (op.kind != Kind::kAttend) flops += operator_cost(op, shape.sublayers[i], shape).flops;
    EXPECT_EQ(flops, shape.matmul_flops_per_token());
  }
}

TEST(OperatorCosts, RowsOfASublayerByArithmetic) {
  const auto model = make_family_model(ModelConfig(kModels[0], "config.json"));
  const auto& sublayers = model->shape().sublayers;
  EXPECT_EQ(sublayers[0].work, (SublayerWork{{4.0 * 3 * 16 + 2 * 16, 2}, {}}))
      << "gathered from bf16, set";
  EXPECT_EQ(sublayers[1].work,
            (SublayerWork{{4.0 * (2 * 16 + 2 * 16 + 2 * 8), 3}, {4.0 * 3 * 16, 1}}))
      << "norm, two rotations; behind attention an addition";
  EXPECT_EQ(sublayers[2].work, (SublayerWork{{4.0 * (5 * 16 + 3 * 40), 3}, {}}));
  EXPECT_EQ(sublayers[5].work, (SublayerWork{{4.0 * 4 * 16, 2}, {}}));
  for (const SublayerShape& sublayer : sublayers)
    for (const WeightShape& weight : sublayer.weights)
      EXPECT_EQ(weight.is_after_cut, weight.role == "o") << weight.role;
}

TEST(OperatorCosts, BehindTheCutAreProductsAndTheirBiases) {
  const auto model = make_family_model(ModelConfig(kModels[2], "config.json"));
  for (const WeightShape& weight : model->shape().sublayers[1].weights)
    EXPECT_EQ(weight.is_after_cut, weight.role == "o" || weight.role == "o.bias") << weight.role;
}

// By hand: 5 experts of 12 rows, of which a row of 16 columns goes to 2.
TEST(OperatorCosts, OfExpertsThoseThatARowGoesTo) {
  const auto family = make_family_model(ModelConfig(
      R"({"model_type": "mixtral", "hidden_size": 16, "intermediate_size": 12,
      "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 32, "num_local_experts": 5,
      "num_experts_per_tok": 2})",
      "config.json"));
  const ModelShape& shape = family->shape();
  int seen = 0;
  for (const Operator& op : family->program(2).operators) {
    const OperatorCost cost = operator_cost(op, shape.sublayers[2], shape);
    if (op.kind == Kind::kExperts) {
      EXPECT_EQ(cost.flops, 2 * 2 * 3 * 12 * 16);
      EXPECT_EQ(cost.weight_bytes, 2 * (2 * 3 * 12 * 16));
      ++seen;
    } else if (op.kind == Kind::kRoute) {
      EXPECT_EQ(cost.row_bytes, 4 * (5 + 4));
      EXPECT_EQ(cost.weight_bytes, 0);
      ++seen;
    }
  }
  EXPECT_EQ(seen, 2);
}

// By hand: 2 key heads and 4 value heads of 8 x 5, 3 taps.
TEST(OperatorCosts, OfADeltaNetsOwnOperators) {
  const auto family = make_family_model(
      ModelConfig(R"({"model_type": "qwen3_5_text", "hidden_size": 16, "intermediate_size": 40,
      "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
      "vocab_size": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
      "linear_key_head_dim": 8, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 3})",
                  "config.json"));
  const ModelShape& shape = family->shape();
  const SublayerShape& sublayer = shape.sublayers[1];
  constexpr double kColumns = 2 * 2 * 8 + 4 * 5;
  for (const Operator& op : family->program(1).operators) {
    const OperatorCost cost = operator_cost(op, sublayer, shape);
    if (op.kind == Kind::kConvolve) {
      EXPECT_EQ(cost.flops, 2 * 3 * kColumns);
      EXPECT_EQ(cost.row_bytes, 4 * 2 * kColumns);
      EXPECT_EQ(cost.weight_bytes, 4 * 3 * kColumns);
    } else if (op.kind == Kind::kTimeSteps || op.kind == Kind::kDecay) {
      EXPECT_EQ(cost.row_bytes, 4 * 2 * 4);
      EXPECT_EQ(cost.weight_bytes, 4 * 4);
    } else if (op.kind == Kind::kRecurrentRule) {
      EXPECT_EQ(cost.flops, 8 * 4 * 8 * 5);
      EXPECT_EQ(cost.row_bytes, 4 * (kColumns + 4 + 4 + 4 * 5));
      EXPECT_EQ(cost.weight_bytes, 0);
    }
  }
}

// By hand: 3 heads of 5 keys and 7 values, 4 columns turned, rows of 11: before attention the
// matrix is read for its keys, behind it for its values.
TEST(OperatorCosts, OfProductsHeadByHead) {
  const auto family = make_family_model(ModelConfig(
      R"({"model_type": "youtu", "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 1,
      "num_attention_heads": 3, "vocab_size": 32, "q_lora_rank": null, "kv_lora_rank": 11,
      "qk_nope_head_dim": 5, "qk_rope_head_dim": 4, "v_head_dim": 7})",
      "config.json"));
  const ModelShape& shape = family->shape();
  int seen = 0;
  for (const Operator& op : family->program(1).operators) {
    const OperatorCost cost = operator_cost(op, shape.sublayers[1], shape);
    if (op.kind == Kind::kAbsorb) {
      EXPECT_EQ(cost.flops, 2 * 3 * 5 * 11);
      EXPECT_EQ(cost.row_bytes, 4 * 3 * (5 + 4 + 4 + 11));
      EXPECT_EQ(cost.weight_bytes, 2 * 3 * 5 * 11);
    } else if (op.kind == Kind::kExpand) {
      EXPECT_EQ(cost.flops, 2 * 3 * 7 * 11);
      EXPECT_EQ(cost.row_bytes, 4 * 3 * (4 + 11 + 7));
      EXPECT_EQ(cost.weight_bytes, 2 * 3 * 7 * 11);
    } else {
      continue;
    }
    ++seen;
  }
  EXPECT_EQ(seen, 2);
}

}  // namespace
}  // namespace sluice
