// Places of slots: nothing is overwritten while it is still read, and no more is taken than before.
#include "src/layer/work_space.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/layer/layer_builder.h"
#include "src/model/family.h"

namespace sluice {
namespace {

using Kind = Operator::Kind;

constexpr int64_t kHidden = 32;
const std::vector<int64_t> kWidths{kHidden, 7, 16, 40, 100};

// A matrix from every width to every other.
const SublayerShape& every_product() {
  static const SublayerShape shape = [] {
    SublayerShape out{SublayerKind::kMlp, 0, {}};
    for (const int64_t rows : kWidths)
      for (const int64_t cols : kWidths) {
        WeightShape& weight = out.weights.emplace_back();
        weight.role = std::to_string(rows) + "x" + std::to_string(cols);
        weight.rows = rows;
        weight.cols = cols;
      }
    return out;
  }();
  return shape;
}

struct Random {
  std::mt19937 engine;
  size_t below(size_t n) { return engine() % n; }
  template <class T>
  const T& of(const std::vector<T>& values) {
    return values[below(values.size())];
  }
};

// Operators that read what was written before, slots written again and again; `columns`: of all
// slots side by side.
LayerProgram random_program(Random& random, int64_t& columns) {
  LayerBuilder layer(every_product(), kHidden);
  std::vector<View> written;
  columns = 0;
  const auto slot = [&](int64_t cols) {
    columns += round_up(cols, kSlotColumns);
    return layer.workspace(cols);
  };
  written.push_back(slot(kHidden));
  layer.read_hidden(written.front());
  const size_t operators = 2 + random.below(10);
  for (size_t i = 0; i < operators; ++i) {
    const View in = random.of(written);
    switch (random.below(7)) {
      case 0: layer.activate(Activation::kSilu, in); break;
      case 1: layer.gate(Activation::kSilu, in, in, in); break;
      case 2:
        if (in.cols == kHidden) layer.add_to_hidden(in);
        break;
      case 3:
        if (in.cols == kHidden) layer.norm_hidden({NormKind::kLayer, "", "", 1e-5f}, in);
        break;
      case 4: {  // two products side by side
        const View wide = slot(40 + 16);
        const std::string cols = "x" + std::to_string(in.cols);
        layer.linear("40" + cols, "", in, wide.columns(0, 40));
        layer.linear("16" + cols, "", in, wide.columns(40, 16));
        layer.activate(Activation::kSilu, wide);
        written.push_back(wide.columns(0, 40));
        break;
      }
      default: {
        View out = random.below(2) ? random.of(written) : View{};
        if (out.slot < 0 || out.slot == in.slot) written.push_back(out = slot(random.of(kWidths)));
        layer.linear(std::to_string(out.cols) + "x" + std::to_string(in.cols), "", in, out);
      }
    }
  }
  for (const View& view : written)
    if (view.cols == kHidden && random.below(2)) layer.add_to_hidden(view);
  return layer.take();
}

// Computes with marks: who reads a column finds what its slot had there.
void expect_reads_what_was_written(const LayerProgram& program) {
  std::vector<std::pair<int32_t, int64_t>> memory(static_cast<size_t>(program.columns()), {-1, 0});
  const auto at = [&](const View& view, int64_t col) -> std::pair<int32_t, int64_t>& {
    return memory.at(
        static_cast<size_t>(program.places[static_cast<size_t>(view.slot)] + view.begin + col));
  };
  for (size_t i = 0; i < program.operators.size(); ++i) {
    const Operator& op = program.operators[i];
    const auto read = [&](const View& view) {
      for (int64_t col = 0; view.slot >= 0 && col < view.cols; ++col)
        ASSERT_EQ(at(view, col), std::pair(view.slot, view.begin + col)) << "operator " << i;
    };
    for (const View& in : op.in) read(in);
    if (op.is_in_place()) read(op.out);
    for (int64_t col = 0; op.out.slot >= 0 && col < op.out.cols; ++col)
      at(op.out, col) = {op.out.slot, op.out.begin + col};
    // An operator may write its output before it has read all of its inputs.
    for (const View& in : op.in)
      if (in.slot != op.out.slot) read(in);
  }
}

TEST(WorkSpace, NothingIsOverwrittenWhileItIsRead) {
  Random random{std::mt19937(1)};
  int narrowest = 0, narrow = 0, all = 0;
  for (int round = 0; round < 3000; ++round) {
    int64_t side_by_side = 0;
    const LayerProgram program = random_program(random, side_by_side);
    expect_reads_what_was_written(program);
    if (HasFatalFailure()) FAIL() << "round " << round;
    // Of rows that a norm or an addition puts at the beginning, some may push others aside.
    ASSERT_LE(program.columns(), side_by_side + kHidden) << "round " << round;
    ASSERT_GE(program.columns(), most_live_columns(program));
    for (const int64_t place : program.places) ASSERT_EQ(place % kSlotColumns, 0);
    ++all;
    narrowest += program.columns() == most_live_columns(program);
    narrow += program.columns() <= side_by_side;
  }
  EXPECT_GT(narrowest, all * 9 / 10) << narrowest << " of " << all;
  EXPECT_GT(narrow, all * 99 / 100) << narrow << " of " << all;
}

// The narrowest of all placings by trying them column by column.
int64_t narrowest(const LayerProgram& program, std::vector<int64_t>& places, size_t slot,
                  const std::vector<SlotLife>& lives, int64_t best) {
  const auto width = [&](size_t one) { return round_up(program.slots[one], kSlotColumns); };
  if (slot == program.slots.size()) {
    int64_t columns = 0;
    for (size_t i = 0; i < slot; ++i) columns = std::max(columns, places[i] + width(i));
    return std::min(best, columns);
  }
  for (int64_t at = 0; at + width(slot) < best; at += kSlotColumns) {
    bool is_free = true;
    for (size_t other = 0; other < slot; ++other)
      is_free &= !lives[slot].meets(lives[other]) || at + width(slot) <= places[other] ||
                 places[other] + width(other) <= at;
    if (!is_free) continue;
    places[slot] = at;
    best = narrowest(program, places, slot + 1, lives, best);
  }
  return best;
}

TEST(WorkSpace, IsAsNarrowAsAnyPlacingWhereNothingIsHandedOver) {
  Random random{std::mt19937(2)};
  int tried = 0;
  for (int round = 0; round < 4000 && tried < 300; ++round) {
    int64_t side_by_side = 0;
    LayerProgram program = random_program(random, side_by_side);
    std::erase_if(program.operators, [](const Operator& op) {
      return op.kind == Kind::kNormHidden || op.kind == Kind::kReadHidden ||
             op.kind == Kind::kAddToHidden;
    });
    split_slots(program);
    if (program.slots.size() > kTriedSlots || program.operators.empty()) continue;
    place_slots(program);
    std::vector<int64_t> places(program.slots.size());
    ++tried;
    ASSERT_EQ(program.columns(),
              narrowest(program, places, 0, slot_lives(program), program.columns() + 1))
        << "round " << round;
  }
  EXPECT_EQ(tried, 300);
}

// [sublayer]: columns, and those that live at once.
std::vector<std::pair<int64_t, int64_t>> columns_of(const std::string& config) {
  const auto model = make_family_model(ModelConfig(config, "config.json"));
  std::vector<std::pair<int64_t, int64_t>> out;
  for (size_t i = 0; i < model->shape().sublayers.size(); ++i)
    out.emplace_back(model->program(i).columns(), most_live_columns(model->program(i)));
  return out;
}

using Columns = std::vector<std::pair<int64_t, int64_t>>;

TEST(WorkSpace, OfFamilies) {
  // Attention: the rows that come from a norm and those that go into the residual stream lie alike.
  EXPECT_EQ(columns_of(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 160,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32})"),
            (Columns{{64, 64}, {256, 192}, {64 + 2 * 160, 64 + 2 * 160}, {64, 64}}));
  EXPECT_EQ(columns_of(R"({"model_type": "opt", "hidden_size": 64, "ffn_dim": 256,
      "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 32,
      "max_position_embeddings": 64, "word_embed_proj_dim": 32})"),
            (Columns{{128, 128}, {5 * 64, 4 * 64}, {5 * 64, 5 * 64}, {96, 96}}));
}

// A slot's second life is elsewhere; what an addition leaves and a norm writes are at the
// beginning.
TEST(WorkSpace, SlotsAreSplitByTheirLives) {
  const SublayerShape& shape = every_product();
  LayerBuilder layer(shape, kHidden);
  const View x = layer.workspace(kHidden), wide = layer.workspace(100);
  layer.read_hidden(x);
  layer.linear("100x32", "", x, wide);
  layer.linear("32x100", "", wide, x);
  layer.add_to_hidden(x);
  const LayerProgram program = layer.take();
  EXPECT_EQ(program.slots, (std::vector<int64_t>{kHidden, 100, kHidden}));
  EXPECT_EQ(program.places, (std::vector<int64_t>{0, kHidden, 0}));
  EXPECT_EQ(program.operators[2].out.slot, 2);
  EXPECT_EQ(program.operators[3].in[0].slot, 2);
}

TEST(WorkSpace, OnlyAttentionsOutputOutlivesTheCut) {
  const SublayerShape& shape = every_product();
  const auto write = [&](bool keeps_x) {
    LayerBuilder layer(shape, kHidden);
    const View x = layer.workspace(kHidden), q = layer.workspace(kHidden);
    const View attended = layer.workspace(kHidden);
    layer.read_hidden(x);
    layer.linear("32x32", "", x, q);
    layer.attend(q, q, q, attended);
    layer.add_to_hidden(keeps_x ? x : attended);
    return layer.take();
  };
  EXPECT_EQ(write(false).operators.size(), 4u);
  EXPECT_THROW(write(true), Error);
}

}  // namespace
}  // namespace sluice
