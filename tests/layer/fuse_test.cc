// Fused programs compute what plain ones do: run by a machine of plain loops, whose copies of rows
// are what was last put into their places. And what families' programs become.
#include "src/layer/fuse.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "src/base/error.h"
#include "src/layer/layer_builder.h"
#include "src/layer/work_space.h"
#include "src/model/family.h"

namespace sluice {
namespace {

using Kind = Operator::Kind;
using Narrow = ProductInput::Narrow;
using Values = std::vector<double>;

constexpr int64_t kWidth = 16;
constexpr int64_t kHeadDim = 4;
const std::vector<int64_t> kFusedWidths{kWidth, 32, 48};

// Matrices of some formats from every width to every other.
SublayerShape random_sublayer(std::mt19937& random) {
  SublayerShape out{SublayerKind::kAttention, 0, {}};
  for (const int64_t rows : kFusedWidths)
    for (const int64_t cols : kFusedWidths) {
      WeightShape& weight = out.weights.emplace_back();
      weight.role = std::to_string(rows) + "x" + std::to_string(cols);
      weight.rows = rows;
      weight.cols = cols;
      const char* const formats[] = {"bf16", "int4-g32", "q4_0", "int8-g32"};
      if (const size_t pick = random() % 4; pick > 0)
        weight.quantised = parse_weight_format(formats[pick]).value();
    }
  return out;
}

// What a runner might do: bits say what.
Fusing random_fusing(std::mt19937& random, const SublayerShape& sublayer) {
  const uint32_t bits = random();
  const auto format = [&sublayer](int32_t weight) {
    return sublayer.weights[static_cast<size_t>(weight)].quantised;
  };
  Fusing fusing;
  fusing.has_rotating_attention = bits & 1;
  fusing.input_of = [=](int32_t weight) -> ProductInput {
    const bool has_own_rows = (bits >> (8 + weight)) & 3;
    if (!has_own_rows) return {};
    if (!format(weight).is_quantised()) return {Narrow::kF16, (bits & 2) != 0};
    if (format(weight).encoding == Encoding::kInt8)
      return {bits & 4 ? Narrow::kFp8 : Narrow::kNone, true};
    return {Narrow::kF16, (bits & 8) != 0};
  };
  fusing.writes_narrow = [=](Kind kind, int32_t) {
    return kind != Kind::kAttend && kind != Kind::kLinear && (bits & 16) != 0;
  };
  fusing.writes_codes = [=](Kind kind, int32_t) {
    return kind == Kind::kNormHidden && (bits & 32) != 0;
  };
  return fusing;
}

LayerProgram random_program(std::mt19937& random, const SublayerShape& sublayer,
                            std::span<const float> frequencies) {
  LayerBuilder layer(sublayer, kWidth);
  const NormSpec norm{NormKind::kLayer, "", "", 1e-5f};
  std::vector<View> written{layer.workspace(kWidth)};
  if (random() % 4)
    layer.norm_hidden(norm, written.front());
  else
    layer.read_hidden(written.front());
  const auto pick = [&] { return written[random() % written.size()]; };
  const auto product = [&](View in, View out) {
    layer.linear(std::to_string(out.cols) + "x" + std::to_string(in.cols), "", in, out);
  };
  for (size_t left = 1 + random() % 9; left > 0; --left) {
    const View in = pick();
    switch (random() % 9) {
      case 0: layer.activate(Activation::kRelu, in); break;
      case 1: layer.gate(Activation::kSilu, in, in, in); break;
      case 2:
        if (in.cols == kWidth) layer.norm_hidden(norm, in);
        break;
      case 3:
        if (in.cols == kWidth) layer.add_to_hidden(in);
        break;
      case 4: layer.rope(in, in.cols / kHeadDim, frequencies, 1.5f); break;
      default: {
        View out = random() % 2 ? pick() : View{};
        if (out.slot < 0 || out.slot == in.slot)
          written.push_back(out = layer.workspace(kFusedWidths[random() % kFusedWidths.size()]));
        product(in, out);
      }
    }
  }
  if (random() % 2) {
    const View qkv = layer.workspace(48), attended = layer.workspace(kWidth);
    product(pick(), qkv);
    const View q = qkv.columns(0, 16), k = qkv.columns(random() % 4 ? 16 : 0, 16);
    if (random() % 4) layer.rope(q, 4, frequencies, 1.5f);
    if (random() % 8 == 0) layer.activate(Activation::kRelu, q);
    if (random() % 4) layer.rope(k, 4, frequencies, random() % 8 ? 1.5f : 1.0f);
    layer.attend(q, k, qkv.columns(random() % 8 ? 32 : 16, 16), attended);
    written = {attended};
    product(attended, written.emplace_back(layer.workspace(kWidth)));
  }
  for (const View& view : written)
    if (view.cols == kWidth) return layer.add_to_hidden(view), layer.take();
  return layer.take();
}

// Computes one row.
struct Machine {
  const SublayerShape* sublayer = nullptr;
  const Fusing* fusing = nullptr;
  const LayerProgram* program = nullptr;
  Values hidden = Values(kWidth, 0.3), memory = Values(4096, NAN), narrow, codes;

  double& at(const View& view, int64_t col) {
    return memory[static_cast<size_t>(program->places[static_cast<size_t>(view.slot)] + view.begin +
                                      col)];
  }
  Values read(const View& view) {
    Values out;
    for (int64_t col = 0; col < view.cols; ++col) out.push_back(at(view, col));
    return out;
  }
  void write(const View& view, const Values& values) {
    for (int64_t col = 0; col < view.cols; ++col) at(view, col) = values[static_cast<size_t>(col)];
  }
  static Values rounded(Values values, double step) {
    for (double& value : values) value = std::round(value / step) * step;
    return values;
  }
  double step_of(int32_t weight) const {
    const WeightFormat& format = sublayer->weights[static_cast<size_t>(weight)].quantised;
    return !format.is_quantised() ? 0.5 : format.encoding == Encoding::kInt8 ? 0.25 : 0.125;
  }
  Values narrow_of(const Values& values, int32_t weight) const {
    const bool is_fp8 = fusing->input_of(weight).narrow == Narrow::kFp8;
    return rounded(values, is_fp8 ? step_of(weight) : 1.0 / 1024);
  }
  Values codes_of(const Values& values, int32_t weight) const {
    return rounded(values, step_of(weight) / 16);
  }
  // What the product takes: sums of the rows and their copies.
  Values product(const Operator& op) {
    const Values in = read(op.in[0]);
    const ProductInput input = fusing->input_of(op.weight);
    Values taken = in;
    const auto add = [&](const Values& copy) {
      EXPECT_EQ(copy.size(), taken.size());
      for (size_t i = 0; i < std::min(copy.size(), taken.size()); ++i) taken[i] += copy[i];
    };
    if (input.narrow != Narrow::kNone) {
      if (op.narrow == InputCopy::kMake) narrow = narrow_of(in, op.weight);
      add(narrow);
    }
    if (input.codes) {
      if (op.codes == InputCopy::kMake) codes = codes_of(in, op.weight);
      add(codes);
    }
    Values out(static_cast<size_t>(op.out.cols));
    for (size_t row = 0; row < out.size(); ++row)
      for (size_t col = 0; col < taken.size(); ++col)
        out[row] += taken[col] * std::sin(static_cast<double>(row * 7 + col * 3) + op.weight) / 8;
    return out;
  }
  void rotate(const Operator& op, const View& view) {
    for (int64_t col = 0; col < view.cols; ++col)
      at(view, col) = op.factor * at(view, col) +
                      op.frequencies[static_cast<size_t>(col % 2)] * at(view, col ^ 1) * 0.5;
  }
  Values attend(const Operator& op) {
    if (!op.frequencies.empty()) {
      EXPECT_EQ(op.heads, op.in[0].cols / kHeadDim);
      rotate(op, op.in[0]);
      rotate(op, op.in[1]);
    }
    const Values q = read(op.in[0]), k = read(op.in[1]), v = read(op.in[2]);
    Values out;
    for (size_t i = 0; i < q.size(); ++i) out.push_back(std::tanh(q[i] * k[i]) + v[i]);
    return out;
  }
  void norm_hidden(const Operator& op) {
    if (op.in[0].slot >= 0) {
      const Values in = read(op.in[0]);
      for (size_t i = 0; i < hidden.size(); ++i) hidden[i] += in[i];
    }
    Values out;
    for (const double value : hidden) out.push_back(std::tanh(value) * 2);
    write(op.out, out);
  }
  void execute(const Operator& op) {
    switch (op.kind) {
      case Kind::kReadHidden: write(op.out, hidden); break;
      case Kind::kNormHidden: norm_hidden(op); break;
      case Kind::kAddToHidden:
        for (int64_t i = 0; i < kWidth; ++i) hidden[static_cast<size_t>(i)] += at(op.in[0], i);
        break;
      case Kind::kLinear: write(op.out, product(op)); break;
      case Kind::kRope: rotate(op, op.out); break;
      case Kind::kAttend: write(op.out, attend(op)); break;
      case Kind::kActivate: {
        Values values = read(op.out);
        for (double& value : values) value = std::max(value, -0.5);
        write(op.out, values);
        break;
      }
      case Kind::kGate: {
        Values gate = read(op.in[0]);
        const Values up = read(op.in[1]);
        for (size_t i = 0; i < gate.size(); ++i) gate[i] = std::tanh(gate[i]) * up[i];
        write(op.out, gate);
        break;
      }
      default: FAIL() << "no such operator here";
    }
    if (op.narrow_for >= 0) narrow = narrow_of(read(op.out), op.narrow_for);
    if (op.codes_for >= 0) codes = codes_of(read(op.out), op.codes_for);
  }
  void run(const LayerProgram& of, const SublayerShape& shape, const Fusing& with) {
    program = &of;
    sublayer = &shape;
    fusing = &with;
    narrow.clear();
    codes.clear();
    for (const Operator& op : of.operators) execute(op);
  }
};

TEST(Fuse, ComputesWhatPlainProgramsDo) {
  std::mt19937 random(7);
  const std::array<float, 2> frequencies{0.75f, -0.5f};
  std::map<std::string, int> seen;
  for (int round = 0; round < 3000; ++round) {
    std::vector<SublayerShape> sublayers;
    std::vector<LayerProgram> plain, fusedly;
    std::vector<Fusing> fusings;
    for (int i = 0; i < 3; ++i) sublayers.push_back(random_sublayer(random));
    for (const SublayerShape& sublayer : sublayers) {
      plain.push_back(random_program(random, sublayer, frequencies));
      fusings.push_back(random_fusing(random, sublayer));
      fusedly.push_back(fused(plain.back(), sublayer, fusings.back()));
    }
    const bool puts_off = random() % 2;
    if (puts_off) fusedly = with_additions_put_off(std::move(fusedly), kWidth);
    Machine one, other;
    for (size_t i = 0; i < plain.size(); ++i) {
      one.run(plain[i], sublayers[i], fusings[i]);
      other.run(fusedly[i], sublayers[i], fusings[i]);
      if (!puts_off) {
        ASSERT_EQ(one.hidden, other.hidden) << "round " << round << ", program " << i;
        other.memory.assign(other.memory.size(), NAN);  // other micro-batches' rows
      }
      one.memory.assign(one.memory.size(), NAN);
      for (const Operator& op : fusedly[i].operators) {
        seen["put off"] += op.kind == Kind::kNormHidden && op.in[0].slot >= 0;
        seen["rotating"] += op.kind == Kind::kAttend && !op.frequencies.empty();
        seen["written narrow"] += op.narrow_for >= 0;
        seen["written codes"] += op.codes_for >= 0;
        seen["narrow by writer"] += op.narrow == InputCopy::kByWriter;
        seen["narrow by product"] += op.narrow == InputCopy::kByProduct;
        seen["codes by writer"] += op.codes == InputCopy::kByWriter;
        seen["codes by product"] += op.codes == InputCopy::kByProduct;
      }
    }
    ASSERT_EQ(one.hidden, other.hidden) << "round " << round;
    ASSERT_FALSE(std::isnan(one.hidden[0]));
  }
  for (const char* what :
       {"put off", "rotating", "written narrow", "written codes", "narrow by writer",
        "narrow by product", "codes by writer", "codes by product"})
    EXPECT_GT(seen[what], 100) << what;
}

Fusing everything() {
  Fusing fusing;
  fusing.has_rotating_attention = true;
  fusing.input_of = [](int32_t) { return ProductInput{Narrow::kF16, false}; };
  fusing.writes_narrow = [](Kind kind, int32_t) { return kind != Kind::kAttend; };
  fusing.writes_codes = [](Kind, int32_t) { return false; };
  return fusing;
}

std::vector<LayerProgram> fused_model(const FamilyModel& model) {
  std::vector<LayerProgram> out;
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i)
    out.push_back(fused(model.program(i), model.shape().sublayers[i], everything()));
  return out;
}

TEST(Fuse, Llama) {
  const auto model = make_family_model(ModelConfig(
      R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 48, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32})",
      "config.json"));
  const std::vector<LayerProgram> programs = fused_model(*model);
  const auto role = [&](size_t sublayer, int32_t weight) {
    return weight < 0
               ? ""
               : model->shape().sublayers[sublayer].weights[static_cast<size_t>(weight)].role;
  };
  const std::vector<Operator>& attention = programs[1].operators;
  ASSERT_EQ(attention.size(), 7u) << "norm, q, k, v, attention, o, addition";
  EXPECT_EQ(role(1, attention[0].narrow_for), "q");
  EXPECT_EQ(attention[1].narrow, InputCopy::kByWriter);
  EXPECT_EQ(attention[3].narrow, InputCopy::kByWriter);
  EXPECT_EQ(programs[1].cut, 4);
  EXPECT_EQ(attention[4].kind, Kind::kAttend);
  EXPECT_EQ(attention[4].heads, 4);
  EXPECT_EQ(attention[5].narrow, InputCopy::kMake);
  EXPECT_EQ(role(2, programs[2].operators[3].narrow_for), "down");
  EXPECT_EQ(programs[2].operators[4].narrow, InputCopy::kByWriter);
  EXPECT_EQ(role(5, programs[5].operators[1].narrow_for), "logits");

  const std::vector<LayerProgram> put_off = with_additions_put_off(programs, 16);
  EXPECT_EQ(put_off[0], programs[0]) << "the embedding sets the stream";
  for (const size_t i : {1u, 2u, 3u})
    EXPECT_NE(put_off[i].operators.back().kind, Kind::kAddToHidden) << i;
  EXPECT_EQ(put_off[4].operators.back().kind, Kind::kAddToHidden) << "the head has no norm of it";
  EXPECT_EQ(put_off[1].operators.front().in[0].slot, -1);
  for (const size_t i : {2u, 3u, 4u}) {
    const View& left = put_off[i].operators.front().in[0];
    ASSERT_GE(left.slot, 0) << i;
    EXPECT_EQ(put_off[i].places[static_cast<size_t>(left.slot)], 0);
  }
  EXPECT_EQ(put_off[5], programs[5]);
}

// A pass over the plainest of sublayers.
LayerProgram fused_of(const std::function<void(LayerBuilder&, View x, View y)>& write) {
  static const SublayerShape sublayer = [] {
    SublayerShape out{SublayerKind::kMlp, 0, {}};
    WeightShape& weight = out.weights.emplace_back();
    weight.role = "w";
    weight.rows = weight.cols = kWidth;
    return out;
  }();
  LayerBuilder layer(sublayer, kWidth);
  const View x = layer.workspace(kWidth), y = layer.workspace(kWidth);
  write(layer, x, y);
  return fused(layer.take(), sublayer, everything());
}

const NormSpec kPlainNorm{NormKind::kLayer, "", "", 1e-5f};

TEST(Fuse, CopiesAreMadeByWhoWritesTheRowsLast) {
  const LayerProgram program = fused_of([](LayerBuilder& layer, View x, View y) {
    layer.norm_hidden(kPlainNorm, x);
    layer.activate(Activation::kRelu, x);
    layer.linear("w", "", x, y);
    layer.add_to_hidden(y);
  });
  EXPECT_EQ(program.operators[0].narrow_for, -1);
  EXPECT_EQ(program.operators[1].narrow_for, 0);
}

// Of two additions the last is left to the next norm, and no norm adds two.
TEST(Fuse, OneAdditionIsPutOff) {
  const LayerProgram two = fused_of([](LayerBuilder& layer, View x, View y) {
    layer.norm_hidden(kPlainNorm, x);
    layer.linear("w", "", x, y);
    layer.linear("w", "", y, x);
    layer.add_to_hidden(x);
    layer.add_to_hidden(x);
  });
  const auto once = with_additions_put_off({two, two}, kWidth);
  EXPECT_EQ(once[0].operators.size(), 4u);
  ASSERT_EQ(once[0].operators.back().kind, Kind::kAddToHidden);
  EXPECT_EQ(with_additions_put_off(once, kWidth), once);
}

// A norm behind the addition reads the stream at once.
TEST(Fuse, NothingIsPutOffBeforeANormBehind) {
  const auto model = make_family_model(ModelConfig(
      R"({"model_type": "opt", "hidden_size": 16, "ffn_dim": 64, "num_hidden_layers": 2,
          "num_attention_heads": 2, "vocab_size": 32, "max_position_embeddings": 64,
          "do_layer_norm_before": false})",
      "config.json"));
  const std::vector<LayerProgram> programs = fused_model(*model);
  EXPECT_EQ(with_additions_put_off(programs, 16), programs);
}

}  // namespace
}  // namespace sluice
