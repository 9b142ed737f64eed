#include "src/layer/operator_cost.h"

#include <algorithm>

namespace sluice {

using Kind = Operator::Kind;

namespace {
constexpr double kF32 = 4;

struct Columns {
  int64_t read = 0;
  int64_t written = 0;
};

// Of each expert a row is brought together with its others, goes through gate and up, and is added
// to what the others gave.
Columns columns_of_experts(const Operator& op) {
  const int64_t in = op.in[0].cols, out = op.out.cols, k = op.router.chosen;
  const int64_t width = (op.work.cols - std::max(in, out)) / 2;
  return {k * (in + 2 * width + 2 * out) + op.in[1].cols, out + k * (in + width + out)};
}

Columns columns_of(const Operator& op, int64_t hidden) {
  const int64_t out = op.out.cols;
  switch (op.kind) {
    case Kind::kGatherTokens:
    case Kind::kGatherPositions: return {0, out};
    case Kind::kSetHidden: return {op.in[0].cols, hidden};
    case Kind::kReadHidden:
    case Kind::kReadNeededHidden: return {hidden, out};
    case Kind::kNormHidden:
      return {hidden + op.in[0].cols, out + (op.in[0].slot >= 0 ? hidden : 0)};
    case Kind::kNormHiddenInPlace:
    case Kind::kScaleHidden: return {hidden, hidden};
    case Kind::kCarry: return {op.in[0].cols, op.in[0].cols};
    case Kind::kReadCarried: return {out, out};
    case Kind::kAddToHidden: return {op.in[0].cols + hidden, hidden};
    case Kind::kNorm:
    case Kind::kNormHeads:
    case Kind::kScale:
    case Kind::kScaleByPosition:
    case Kind::kClamp:
    case Kind::kScaleColumns:
    case Kind::kTimeSteps:
    case Kind::kActivate: return {out, out};
    case Kind::kAdd: return {op.in[0].cols + out, out};
    case Kind::kAddWeighted: return {op.in[0].cols + op.in[1].cols + out, out};
    case Kind::kExperts: return columns_of_experts(op);
    case Kind::kRope: {
      const int64_t rotated = op.heads * 2 * static_cast<int64_t>(op.frequencies.size());
      return {rotated, rotated};
    }
    case Kind::kLinear:
    case Kind::kRoute:
    case Kind::kGate:
    case Kind::kRegroup:
    case Kind::kTakeHeads:
    case Kind::kAbsorb:
    case Kind::kExpand:
    case Kind::kConvolve:
    case Kind::kDecay:
    case Kind::kRecurrentRule:
    case Kind::kAttend:
    case Kind::kLogits: break;
  }
  return {op.in[0].cols + op.in[1].cols + op.in[2].cols, out};
}

// Rows of a matrix that an operator uses: of one that is multiplied head by head some of each head
// before attention, the others behind it; of experts' those that a row goes to.
int64_t rows_used(const Operator& op, const WeightShape& weight) {
  if (weight.experts > 0) return op.router.chosen * weight.expert_rows();
  if (!op.is_by_head()) return weight.rows;
  const int64_t keys = op.offset * op.heads;
  return op.kind == Kind::kAbsorb ? keys : weight.rows - keys;
}

}  // namespace

OperatorCost operator_cost(const Operator& op, const SublayerShape& sublayer,
                           const ModelShape& model) {
  OperatorCost cost;
  const Columns columns = columns_of(op, model.hidden_size);
  cost.row_bytes = kF32 * static_cast<double>(columns.read + columns.written);
  for (const int32_t index : op.weights()) {
    if (index < 0) continue;
    const WeightShape& weight = sublayer.weights[static_cast<size_t>(index)];
    const auto terms = static_cast<double>(weight.rows) * static_cast<double>(weight.cols);
    if (weight.kind == WeightKind::kTable) {
      cost.row_bytes += static_cast<double>(model.row_bytes(weight));
    } else if (weight.kind == WeightKind::kVector) {
      cost.weight_bytes += kF32 * terms;
    } else {
      const int64_t rows = rows_used(op, weight);
      cost.flops += 2 * static_cast<double>(rows) * static_cast<double>(weight.cols);
      cost.weight_bytes += static_cast<double>(model.rows_bytes(weight, rows));
    }
  }
  if (op.kind == Kind::kLogits)
    cost.row_bytes +=
        kF32 * static_cast<double>(sublayer.weights[static_cast<size_t>(op.weight)].rows);
  // q k and the weighted sum of v, for every head.
  if (op.kind == Kind::kAttend) cost.flops = 4 * static_cast<double>(op.in[0].cols);
  // The state itself is read and written once a run.
  if (op.kind == Kind::kConvolve || op.kind == Kind::kRecurrentRule) {
    const RecurrentShape& shape = model.state_of(sublayer.state).recurrent;
    cost.flops = op.kind == Kind::kConvolve ? 2 * static_cast<double>(shape.taps * shape.columns())
                                            : shape.rule_flops();
  }
  return cost;
}

SublayerWork row_work(const LayerProgram& program, const SublayerShape& sublayer,
                      const ModelShape& model) {
  SublayerWork work;
  for (size_t i = 0; i < program.operators.size(); ++i) {
    const Operator& op = program.operators[i];
    if (op.is_product() || op.is_by_head() || op.kind == Kind::kAttend) continue;
    const bool is_after = program.cut >= 0 && static_cast<int32_t>(i) > program.cut;
    RowWork& side = is_after ? work.after_cut : work.before_cut;
    side.bytes += operator_cost(op, sublayer, model).row_bytes;
    ++side.operators;
  }
  return work;
}

void mark_weights_after_cut(const LayerProgram& program, SublayerShape& sublayer) {
  if (program.cut < 0) return;
  for (const Operator& op : program.after_cut())
    for (const int32_t weight : op.weights())
      if (weight >= 0) sublayer.weights[static_cast<size_t>(weight)].is_after_cut = true;
  for (const Operator& op : program.before_cut())
    for (const int32_t weight : op.weights())
      if (weight >= 0) sublayer.weights[static_cast<size_t>(weight)].is_after_cut = false;
}

}  // namespace sluice
