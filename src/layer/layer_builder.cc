#include "src/layer/layer_builder.h"

#include <algorithm>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/layer/work_space.h"

namespace sluice {

using Kind = Operator::Kind;

View LayerBuilder::workspace(int64_t cols) {
  SLUICE_ASSERT(cols > 0, "a slot has columns");
  program_.slots.push_back(cols);
  written_.emplace_back();
  return {static_cast<int32_t>(program_.slots.size()) - 1, 0, cols};
}

int32_t LayerBuilder::weight(std::string_view role, WeightKind kind) const {
  if (role.empty()) return -1;
  const auto& weights = sublayer_.weights;
  const auto found = std::find_if(weights.begin(), weights.end(),
                                  [&](const WeightShape& one) { return one.role == role; });
  SLUICE_ASSERT(found != weights.end() && found->kind == kind,
                "a family uses weights that it has listed, for what they are");
  return static_cast<int32_t>(found - weights.begin());
}

const WeightShape& LayerBuilder::shape_of(int32_t weight) const {
  SLUICE_ASSERT(weight >= 0, "an operator of a weight names it");
  return sublayer_.weights[static_cast<size_t>(weight)];
}

void LayerBuilder::set_norm(const NormSpec& norm, int64_t cols, Operator& out) const {
  out.norm = norm.kind;
  out.eps = norm.eps;
  out.weight = weight(norm.gain, WeightKind::kVector);
  out.bias = weight(norm.bias, WeightKind::kVector);
  for (const int32_t one : {out.weight, out.bias})
    SLUICE_ASSERT(one < 0 || shape_of(one).cols == cols,
                  "a norm's vectors are as wide as its rows");
}

void LayerBuilder::check_hidden(const View& view) const {
  SLUICE_ASSERT(view.cols == hidden_size_, "the residual stream is read and written whole");
}

// Every column has been written by some operator before.
void LayerBuilder::check_read(const View& view) const {
  int64_t at = view.begin;
  const auto& pieces = written_[static_cast<size_t>(view.slot)];
  for (bool goes_on = true; goes_on && at < view.begin + view.cols;) {
    goes_on = false;
    for (const View& piece : pieces)
      if (piece.begin <= at && at < piece.begin + piece.cols) {
        at = piece.begin + piece.cols;
        goes_on = true;
      }
  }
  SLUICE_ASSERT(at >= view.begin + view.cols, "a family reads what it has written");
}

void LayerBuilder::append(const Operator& op) {
  const auto check = [&](const View& view) {
    SLUICE_ASSERT(view.slot < static_cast<int32_t>(program_.slots.size()) && view.begin >= 0 &&
                      view.cols > 0 &&
                      view.begin + view.cols <= program_.slots[static_cast<size_t>(view.slot)],
                  "a family's columns are those of its slots");
  };
  for (const View& view : op.in)
    if (view.slot >= 0) {
      check(view);
      check_read(view);
    }
  if (op.work.slot >= 0) check(op.work);
  if (op.out.slot >= 0) {
    check(op.out);
    if (op.is_in_place()) check_read(op.out);
    written_[static_cast<size_t>(op.out.slot)].push_back(op.out);
  }
  program_.operators.push_back(op);
}

void LayerBuilder::gather_tokens(std::string_view role, View out) {
  Operator op{.kind = Kind::kGatherTokens, .out = out, .weight = weight(role, WeightKind::kTable)};
  SLUICE_ASSERT(shape_of(op.weight).cols == out.cols, "rows of a table are as wide as it is");
  append(op);
}

void LayerBuilder::gather_positions(std::string_view role, int64_t offset, View out) {
  Operator op{
      .kind = Kind::kGatherPositions, .out = out, .weight = weight(role, WeightKind::kTable)};
  SLUICE_ASSERT(shape_of(op.weight).cols == out.cols, "rows of a table are as wide as it is");
  op.offset = offset;
  append(op);
}

void LayerBuilder::set_hidden(View in) {
  check_hidden(in);
  append({.kind = Kind::kSetHidden, .in = {in}});
}

void LayerBuilder::read_hidden(View out) {
  check_hidden(out);
  append({.kind = Kind::kReadHidden, .out = out});
}

void LayerBuilder::read_needed_hidden(View out) {
  check_hidden(out);
  append({.kind = Kind::kReadNeededHidden, .out = out});
}

void LayerBuilder::norm_hidden(const NormSpec& norm, View out) {
  check_hidden(out);
  Operator op{.kind = Kind::kNormHidden, .out = out};
  set_norm(norm, hidden_size_, op);
  append(op);
}

void LayerBuilder::norm_hidden_in_place(const NormSpec& norm) {
  Operator op{.kind = Kind::kNormHiddenInPlace};
  set_norm(norm, hidden_size_, op);
  append(op);
}

void LayerBuilder::add_to_hidden(View in) {
  check_hidden(in);
  append({.kind = Kind::kAddToHidden, .in = {in}});
}

void LayerBuilder::scale_hidden(std::string_view role) {
  Operator op{.kind = Kind::kScaleHidden, .weight = weight(role, WeightKind::kVector)};
  SLUICE_ASSERT(shape_of(op.weight).cols == 1, "all rows are scaled alike");
  append(op);
}

void LayerBuilder::carry(View in) {
  check_slot(in);
  append({.kind = Kind::kCarry, .in = {in}});
}

void LayerBuilder::read_carried(int64_t first, View out) {
  check_slot(out);
  Operator op{.kind = Kind::kReadCarried, .out = out};
  op.offset = first;
  append(op);
}

void LayerBuilder::norm(const NormSpec& norm, View in_out) {
  Operator op{.kind = Kind::kNorm, .out = in_out};
  set_norm(norm, in_out.cols, op);
  append(op);
}

void LayerBuilder::norm_heads(const NormSpec& norm, View in_out, int64_t heads) {
  SLUICE_ASSERT(heads > 0 && in_out.cols % heads == 0, "heads are normalised by themselves");
  SLUICE_ASSERT(in_out.cols == program_.slots[static_cast<size_t>(in_out.slot)],
                "heads that are rows of their own lie one behind the other");
  Operator op{.kind = Kind::kNormHeads, .out = in_out};
  op.heads = heads;
  set_norm(norm, in_out.cols / heads, op);
  append(op);
}

void LayerBuilder::add(View in_out, View in) {
  SLUICE_ASSERT(in_out.cols == in.cols, "what is added is as wide");
  append({.kind = Kind::kAdd, .out = in_out, .in = {in}});
}

void LayerBuilder::linear(std::string_view role, std::string_view bias, View in, View out) {
  Operator op{.kind = Kind::kLinear,
              .out = out,
              .in = {in},
              .weight = weight(role, WeightKind::kMatrix),
              .bias = weight(bias, WeightKind::kVector)};
  const WeightShape& matrix = shape_of(op.weight);
  SLUICE_ASSERT(matrix.cols == in.cols && matrix.rows == out.cols && !overlap(in, out),
                "a family's shapes fit together");
  SLUICE_ASSERT(op.bias < 0 || shape_of(op.bias).cols == out.cols, "a bias is as wide as its rows");
  append(op);
}

void LayerBuilder::check_slot(const View& view) const {
  SLUICE_ASSERT(view.cols == program_.slots[static_cast<size_t>(view.slot)],
                "rows of a slot lie one behind the other");
}

void LayerBuilder::scale(View in_out, float factor) {
  check_slot(in_out);
  Operator op{.kind = Kind::kScale, .out = in_out};
  op.factor = factor;
  append(op);
}

void LayerBuilder::clamp(View in_out, float most) {
  Operator op{.kind = Kind::kClamp, .out = in_out};
  op.factor = most;
  append(op);
}

void LayerBuilder::scale_columns(std::string_view gains, View in_out) {
  check_slot(in_out);
  Operator op{
      .kind = Kind::kScaleColumns, .out = in_out, .weight = weight(gains, WeightKind::kVector)};
  SLUICE_ASSERT(shape_of(op.weight).cols == in_out.cols, "a gain for each column");
  append(op);
}

void LayerBuilder::scale_by_position(View in_out, float factor, int64_t period, int32_t shift) {
  SLUICE_ASSERT(period > 0, "positions are counted in periods");
  Operator op{.kind = Kind::kScaleByPosition, .out = in_out};
  op.factor = factor;
  op.offset = period;
  op.shift = shift;
  append(op);
}

void LayerBuilder::regroup(View in, View out, int64_t groups, int64_t head_dim) {
  check_slot(in);
  check_slot(out);
  SLUICE_ASSERT(in.cols == out.cols && in.slot != out.slot && groups > 0 && head_dim > 0 &&
                    in.cols % (groups * head_dim) == 0 && in.cols / (groups * head_dim) > 2,
                "groups are whole heads of q, k and v");
  Operator op{.kind = Kind::kRegroup, .out = out, .in = {in}};
  op.heads = groups;
  op.offset = head_dim;
  append(op);
}

void LayerBuilder::take_heads(View in, View out, int64_t heads, int64_t first) {
  SLUICE_ASSERT(in.slot != out.slot && heads > 0 && out.cols % heads == 0 &&
                    in.cols % out.cols == 0 && first >= 0 && first < in.cols / out.cols,
                "heads are taken whole");
  Operator op{.kind = Kind::kTakeHeads, .out = out, .in = {in}};
  op.heads = heads;
  op.offset = first;
  append(op);
}

int64_t LayerBuilder::head_cols(const View& view, int64_t heads) const {
  check_slot(view);
  SLUICE_ASSERT(heads > 0 && view.cols % heads == 0, "heads are equally wide");
  return view.cols / heads;
}

Operator LayerBuilder::by_head(Kind kind, std::string_view role, int64_t heads, int64_t keys,
                               View in, View out) const {
  Operator op{.kind = kind, .out = out, .in = {in}, .weight = weight(role, WeightKind::kMatrix)};
  op.heads = heads;
  op.offset = keys;
  const WeightShape& matrix = shape_of(op.weight);
  SLUICE_ASSERT(matrix.is_by_head && matrix.rows % heads == 0 && keys > 0 &&
                    keys < matrix.rows / heads && in.slot != out.slot,
                "each head has rows of the matrix, some of them the keys'");
  return op;
}

void LayerBuilder::absorb(std::string_view role, int64_t heads, int64_t keys, View in, View out) {
  const Operator op = by_head(Kind::kAbsorb, role, heads, keys, in, out);
  SLUICE_ASSERT(head_cols(in, heads) >= keys &&
                    head_cols(out, heads) == head_cols(in, heads) - keys + shape_of(op.weight).cols,
                "a family's shapes fit together");
  append(op);
}

void LayerBuilder::expand(std::string_view role, int64_t heads, int64_t keys, View in, View out) {
  const Operator op = by_head(Kind::kExpand, role, heads, keys, in, out);
  const WeightShape& matrix = shape_of(op.weight);
  SLUICE_ASSERT(
      head_cols(in, heads) >= matrix.cols && head_cols(out, heads) == matrix.rows / heads - keys,
      "a family's shapes fit together");
  append(op);
}

void LayerBuilder::convolve(std::string_view role, std::string_view bias,
                            const RecurrentShape& shape, View in, View out) {
  Operator op{.kind = Kind::kConvolve,
              .out = out,
              .in = {in},
              .weight = weight(role, WeightKind::kVector),
              .bias = weight(bias, WeightKind::kVector)};
  SLUICE_ASSERT(in.slot != out.slot && in.cols == shape.columns() && out.cols == in.cols &&
                    shape_of(op.weight).cols == shape.columns() * shape.taps &&
                    (op.bias < 0 || shape_of(op.bias).cols == in.cols),
                "a convolution has taps for each column");
  append(op);
}

void LayerBuilder::time_steps(std::string_view bias, float low, float high, View in_out) {
  Operator op{.kind = Kind::kTimeSteps, .out = in_out, .bias = weight(bias, WeightKind::kVector)};
  op.low = low;
  op.high = high;
  SLUICE_ASSERT(shape_of(op.bias).cols == in_out.cols && low <= high, "steps are one a head");
  append(op);
}

void LayerBuilder::decay(std::string_view a_log, View steps, View out) {
  Operator op{.kind = Kind::kDecay,
              .out = out,
              .in = {steps},
              .weight = weight(a_log, WeightKind::kVector)};
  SLUICE_ASSERT(shape_of(op.weight).cols == out.cols && steps.cols == out.cols &&
                    (steps == out || !overlap(steps, out)),
                "gates are one a head");
  append(op);
}

void LayerBuilder::recurrent_rule(const RecurrentShape& shape, View qkv, View learned, View kept,
                                  std::string_view skip, View out) {
  Operator op{.kind = Kind::kRecurrentRule,
              .out = out,
              .in = {qkv, learned, kept},
              .weight = weight(skip, WeightKind::kVector)};
  SLUICE_ASSERT(op.weight < 0 || shape_of(op.weight).cols == shape.value_heads,
                "each head adds its values to an extent");
  SLUICE_ASSERT(qkv.cols == shape.columns() && out.cols == shape.value_columns() &&
                    learned.cols == shape.value_heads && kept.cols == shape.value_heads &&
                    out.slot != qkv.slot && out.slot != learned.slot && out.slot != kept.slot,
                "a recurrent state's shapes fit together");
  append(op);
}

void LayerBuilder::rope(View in_out, int64_t heads, std::span<const float> frequencies,
                        float factor, RopeLayout layout) {
  SLUICE_ASSERT(heads > 0 && in_out.cols % heads == 0 &&
                    2 * static_cast<int64_t>(frequencies.size()) <= in_out.cols / heads,
                "heads are turned within themselves");
  Operator op{.kind = Kind::kRope, .out = in_out};
  op.heads = heads;
  op.frequencies = frequencies;
  op.factor = factor;
  op.rope = layout;
  append(op);
}

void LayerBuilder::attend(View q, View k, View v, View out, const AttendSpec& how, View kept,
                          std::string_view sinks) {
  SLUICE_ASSERT(program_.cut < 0, "a sublayer attends once");
  program_.cut = static_cast<int32_t>(program_.operators.size());
  if (kept.slot >= 0) check_slot(kept);
  SLUICE_ASSERT((k.slot < 0) == sublayer_.state.is_reader && (k.slot >= 0 || v.slot < 0),
                "a layer writes keys and values, or reads another's");
  Operator op{.kind = Kind::kAttend,
              .out = out,
              .in = {q, k, v, kept},
              .weight = weight(sinks, WeightKind::kVector)};
  SLUICE_ASSERT(op.weight < 0 || q.cols % shape_of(op.weight).cols == 0, "a sink for each head");
  op.attend = how;
  append(op);
}

void LayerBuilder::route(const RouterSpec& router, std::string_view correction, View in, View out) {
  check_slot(in);
  check_slot(out);
  Operator op{.kind = Kind::kRoute,
              .out = out,
              .in = {in},
              .weight = weight(correction, WeightKind::kVector)};
  op.router = router;
  SLUICE_ASSERT(in.cols == router.experts && router.experts <= RouterSpec::kMostExperts &&
                    router.chosen > 0 && router.groups > 0 && router.experts % router.groups == 0 &&
                    router.kept_groups > 0 && router.kept_groups <= router.groups &&
                    router.chosen <= router.kept_groups * (router.experts / router.groups),
                "as many are chosen as there are to choose from");
  SLUICE_ASSERT(op.weight < 0 || shape_of(op.weight).cols == router.experts,
                "each expert's score is corrected");
  SLUICE_ASSERT(in.slot != out.slot && out.cols == route_columns(router), "room for the choices");
  append(op);
}

void LayerBuilder::experts(const ExpertsSpec& of, View in, View choices, View out) {
  for (const View& view : {in, choices, out}) check_slot(view);
  Operator op{.kind = Kind::kExperts,
              .out = out,
              .in = {in, choices},
              .weight = weight(of.gate, WeightKind::kMatrix),
              .bias = weight(of.gate_up_bias, WeightKind::kVector)};
  op.up = weight(of.up, WeightKind::kMatrix);
  op.down = weight(of.down, WeightKind::kMatrix);
  op.down_bias = weight(of.down_bias, WeightKind::kVector);
  op.activation = of.activation;
  op.clamp = of.clamp;
  op.weighs_inputs = of.weighs_inputs;
  const auto made = std::find_if(
      program_.operators.rbegin(), program_.operators.rend(),
      [&](const Operator& one) { return one.kind == Kind::kRoute && one.out == choices; });
  SLUICE_ASSERT(made != program_.operators.rend(), "choices are a router's");
  op.router = made->router;
  const WeightShape& inner = shape_of(op.weight);
  const WeightShape& last = shape_of(op.down);
  const int64_t width = inner.expert_rows();
  for (const WeightShape* one : {&inner, &shape_of(op.up), &last})
    SLUICE_ASSERT(one->experts == op.router.experts, "a matrix for each expert");
  SLUICE_ASSERT(inner.cols == in.cols && shape_of(op.up).cols == in.cols &&
                    shape_of(op.up).expert_rows() == width && last.cols == width &&
                    last.expert_rows() == out.cols && out.slot != in.slot,
                "a family's shapes fit together");
  SLUICE_ASSERT(op.bias < 0 ||
                    (op.clamp.limit > 0 && shape_of(op.bias).cols == 2 * width * op.router.experts),
                "a clamped gate adds biases of gate and up");
  SLUICE_ASSERT(op.down_bias < 0 || shape_of(op.down_bias).cols == out.cols * op.router.experts,
                "a bias for each expert");
  // Rows of one expert: what goes in and later what comes out, gate and up; before they are
  // weighted what goes in.
  op.work = workspace(std::max(round_up(in.cols, kSlotColumns), round_up(out.cols, kSlotColumns)) +
                      2 * round_up(width, kSlotColumns) +
                      (of.weighs_inputs ? round_up(in.cols, kSlotColumns) : 0));
  append(op);
}

void LayerBuilder::add_weighted(View in_out, View in, View by) {
  SLUICE_ASSERT(
      in_out.cols == in.cols && by.cols == 1 && in.slot != in_out.slot && by.slot != in_out.slot,
      "rows are added that are as wide, each times a value");
  append({.kind = Kind::kAddWeighted, .out = in_out, .in = {in, by}});
}

void LayerBuilder::activate(Activation activation, View in_out) {
  Operator op{.kind = Kind::kActivate, .out = in_out};
  op.activation = activation;
  append(op);
}

void LayerBuilder::gate(Activation activation, View gate, View up, View out) {
  SLUICE_ASSERT(gate.cols == up.cols && gate.cols == out.cols, "gates are as wide");
  Operator op{.kind = Kind::kGate, .out = out, .in = {gate, up}};
  op.activation = activation;
  append(op);
}

void LayerBuilder::logits(std::string_view role, View in, std::string_view bias, float soft_cap) {
  Operator op{.kind = Kind::kLogits,
              .in = {in},
              .weight = weight(role, WeightKind::kMatrix),
              .bias = weight(bias, WeightKind::kVector)};
  op.factor = soft_cap;
  SLUICE_ASSERT(op.bias < 0 || shape_of(op.bias).cols == shape_of(op.weight).rows,
                "a bias is as wide as its rows");
  SLUICE_ASSERT(shape_of(op.weight).cols == in.cols, "a family's shapes fit together");
  append(op);
}

// Between the two sides of a cut other micro-batches are computed in the same work space.
void LayerBuilder::check_cut() const {
  if (program_.cut < 0) return;
  const std::vector<SlotLife> lives = slot_lives(program_);
  const Operator& attend = program_.operators[static_cast<size_t>(program_.cut)];
  for (size_t slot = 0; slot < lives.size(); ++slot)
    SLUICE_ASSERT(static_cast<int32_t>(slot) == attend.out.slot ||
                      static_cast<int32_t>(slot) == attend.in[3].slot ||
                      lives[slot].last <= program_.cut || lives[slot].first > program_.cut,
                  "only what attention gives, and what it is told to, is kept from before it");
}

LayerProgram LayerBuilder::take() {
  SLUICE_ASSERT(!program_.operators.empty(), "a sublayer computes something");
  split_slots(program_);
  check_cut();
  place_slots(program_);
  written_.clear();
  return std::exchange(program_, {});
}

}  // namespace sluice
