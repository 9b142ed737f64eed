// The operators of mixtures of experts, which runners execute alike: rows are brought together by
// expert, in rising order, so that each expert's matrices are multiplied once and sums do not
// depend on where they lie.
#include "kernels/route.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/runners/operator_runner.h"
#include "src/layer/work_space.h"

namespace sluice {

void OperatorRunner::route(const Operator& op, Rows scores) {
  std::vector<float> scores_room;
  const float* correction = host_vector(op.weight, op.router.experts);
  const float* x = on_host(scores.data, scores.rows * scores.cols, scores_room);
  choices_.resize(static_cast<size_t>(scores.rows * op.router.chosen));
  kernels::route(op.router, x, scores.cols, scores.rows, correction, choices_.data());
  if (parts_.observe_choices)
    parts_.observe_choices(static_cast<size_t>(task_.sublayer), choices_, op.router.chosen);
}

void OperatorRunner::experts(const Operator& op, Rows in, Rows work, Rows out) {
  const int64_t chosen = op.router.chosen, experts = op.router.experts;
  SLUICE_ASSERT(std::ssize(choices_) == in.rows * chosen, "a router chose for these rows");
  routed_rows_.resize(choices_.size());
  routed_weights_.resize(choices_.size());
  routed_begin_.resize(static_cast<size_t>(experts) + 1);
  kernels::group_by_expert(choices_.data(), in.rows, chosen, experts,
                           {routed_rows_, routed_weights_, routed_begin_});
  const RoutedLists lists = routed_lists(routed_rows_, routed_weights_);
  const MatrixView gates = matrix(op.weight), ups = matrix(op.up), downs = matrix(op.down);
  const int64_t width = gates.expert_rows;
  const int64_t outer = round_up(std::max(in.cols, out.cols), kSlotColumns);
  const auto area = [&](int64_t column, int64_t rows, int64_t cols) {
    return Rows{work.data + padded_rows_ * column, rows, cols, cols};
  };
  Operator gating;
  gating.activation = op.activation;
  clear(out);
  for (int64_t e = 0; e < experts; ++e) {
    const int32_t begin = routed_begin_[static_cast<size_t>(e)];
    const int64_t rows = routed_begin_[static_cast<size_t>(e) + 1] - begin;
    if (rows == 0) continue;
    const Rows x = area(0, rows, in.cols), y = area(0, rows, out.cols);
    const Rows inner = area(outer, rows, width);
    const Rows up = area(outer + round_up(width, kSlotColumns), rows, width);
    gather_routed(in, lists.rows + begin, x);
    multiply_expert(gates.expert(e), x, inner);
    multiply_expert(ups.expert(e), x, up);
    gate(gating, inner, up, inner);
    multiply_expert(downs.expert(e), inner, y);
    add_routed(y, {lists.rows + begin, lists.weights + begin}, out);
  }
}

}  // namespace sluice
