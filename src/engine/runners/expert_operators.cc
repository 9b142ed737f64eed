// The operators of mixtures of experts, which runners execute alike: rows are brought together by
// expert, in rising order, so that each expert's matrices are multiplied once and sums do not
// depend on where they lie.
#include "kernels/route.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/synthetic_routing.h"
#include "src/engine/runners/operator_runner.h"
#include "src/layer/work_space.h"

namespace sluice {

namespace {
HostCompute::ExpertLayer layer_of(const Rows& in, int64_t width, int64_t out_cols) {
  return {in.rows, in.cols, width, out_cols};
}

// Of a made-up model, in place of what its router's weights give.
const float* synthetic_scores(const BoundModel& model, int64_t layer, const MicroBatch& batch,
                              int64_t experts, std::vector<float>& room) {
  room.resize(static_cast<size_t>(batch.rows() * experts));
  for (const Chunk& chunk : batch.chunks)
    fill_synthetic_scores(*model.synthetic_routing(), {layer, model.shape().num_layers, experts},
                          {chunk.sequence->tokens, chunk.first_position, chunk.count},
                          room.data() + chunk.row_begin * experts, experts);
  return room.data();
}
}  // namespace

void OperatorRunner::route(const Operator& op, Rows scores) {
  std::vector<float> scores_room;
  const float* correction = host_vector(op.weight, op.router.experts);
  const auto& sublayers = parts_.model->shape().sublayers;
  const float* x =
      parts_.model->synthetic_routing()
          ? synthetic_scores(*parts_.model,
                             sublayers[static_cast<size_t>(task_.sublayer)].layer_index, *batch_,
                             op.router.experts, scores_room)
          : on_host(scores.data, scores.rows * scores.cols, scores_room);
  choices_.resize(static_cast<size_t>(scores.rows * op.router.chosen));
  kernels::route(op.router, x, scores.cols, scores.rows, correction, choices_.data());
  routed_rows_.resize(choices_.size());
  routed_weights_.assign(2 * choices_.size(), 1);
  routed_begin_.resize(static_cast<size_t>(op.router.experts) + 1);
  kernels::group_by_expert(
      choices_.data(), scores.rows, op.router.chosen, op.router.experts,
      {routed_rows_, std::span(routed_weights_).first(choices_.size()), routed_begin_});
  if (parts_.observe_choices)
    parts_.observe_choices(
        {task_.pass, static_cast<size_t>(task_.sublayer), batch_, choices_, op.router.chosen});
}

int64_t OperatorRunner::routed_rows(int64_t expert) const {
  const auto e = static_cast<size_t>(expert);
  return routed_begin_[e + 1] - routed_begin_[e];
}

Routed OperatorRunner::routed() const {
  Routed out{{}, rows_, guessed_};
  for (int32_t e = 0; e + 1 < static_cast<int32_t>(routed_begin_.size()); ++e)
    if (const int64_t rows = routed_rows(e); rows > 0)
      out.experts.push_back({e, static_cast<int32_t>(rows)});
  return out;
}

OperatorRunner::ExpertWork OperatorRunner::expert_work(const Operator& op, Rows in, Rows work,
                                                       int64_t out_cols) {
  SLUICE_ASSERT(std::ssize(choices_) == in.rows * op.router.chosen,
                "a router chose for these rows");
  const float* of_inputs =
      op.weighs_inputs
          ? routed_lists(routed_rows_, std::span(routed_weights_).first(routed_rows_.size()))
                .weights
          : nullptr;
  return {in,
          work,
          matrix(op.weight),
          matrix(op.up),
          matrix(op.down),
          routed_lists(routed_rows_, weights_of_answers(op)),
          of_inputs,
          out_cols};
}

// Where weights are factors of what goes in, answers count as they are.
std::span<const float> OperatorRunner::weights_of_answers(const Operator& op) {
  const std::span<const float> all(routed_weights_);
  return op.weighs_inputs ? all.last(routed_rows_.size()) : all.first(routed_rows_.size());
}

// One expert's, to the rows that go to it; in the operator's work space.
Rows OperatorRunner::answer(const Operator& op, const ExpertWork& of, int64_t expert) {
  const int32_t begin = routed_begin_[static_cast<size_t>(expert)];
  const int64_t rows = routed_rows(expert);
  const int64_t width = of.gates.expert_rows;
  const int64_t outer = round_up(std::max(of.in.cols, of.out_cols), kSlotColumns);
  const auto area = [&](int64_t column, int64_t cols) {
    return Rows{of.work.data + padded_rows_ * column, rows, cols, cols};
  };
  Operator gating;
  gating.activation = op.activation;
  const Rows x = area(0, of.in.cols), y = area(0, of.out_cols);
  const Rows inner = area(outer, width);
  const Rows up = area(outer + round_up(width, kSlotColumns), width);
  if (of.input_weights) {
    const Rows plain = area(outer + 2 * round_up(width, kSlotColumns), of.in.cols);
    gather_routed(of.in, of.lists.rows + begin, plain);
    clear(x);
    // Only read.
    add_weighted(x, plain, {const_cast<float*>(of.input_weights) + begin, rows, 1, 1});
  } else {
    gather_routed(of.in, of.lists.rows + begin, x);
  }
  multiply_expert(of.gates.expert(expert), x, nullptr, inner);
  multiply_expert(of.ups.expert(expert), x, nullptr, up);
  show_product(op.weight, routed_rows_.data() + begin, x, inner, expert);
  show_product(op.up, routed_rows_.data() + begin, x, up, expert);
  const auto of_expert = [&](int32_t biases, int64_t count) {
    const float* const all = vector_or_null(biases);
    return all ? all + expert * count : nullptr;
  };
  if (op.clamp.limit > 0)
    gate_clamped(op.clamp, of_expert(op.bias, 2 * width), inner, up);
  else
    gate(gating, inner, up, inner);
  multiply_expert(of.downs.expert(expert), inner, of_expert(op.down_bias, of.out_cols), y);
  show_product(op.down, routed_rows_.data() + begin, inner, y, expert);
  return y;
}

void OperatorRunner::add_home(const ExpertWork& of, int32_t expert, ExpertHomes& out) const {
  int below = 0;
  for (const MatrixView* stack : {&of.gates, &of.ups, &of.downs})
    below += stack->expert(expert).inplace_rows > 0;
  (below == 0 ? out.here : below == 3 ? out.below : out.mixed).push_back(expert);
}

void OperatorRunner::begin_down_experts(const ExpertWork& of) {
  exchanged_.down += of.in.rows * of.in.cols * 4;
  begin_down(of.in, host().expert_input(layer_of(of.in, of.gates.expert_rows, of.out_cols)));
}

// Gives `take` each expert and its answers: to add up, or to send up while the next expert's gate
// is computed.
template <typename Take>
void OperatorRunner::compute_below(const Operator& op, const ExpertWork& of,
                                   std::span<const int32_t> experts, bool sends_each,
                                   const Take& take) {
  const auto of_expert = [&](int32_t biases, int64_t count, int64_t expert) {
    const float* const all = host_vector(biases, count * op.router.experts);
    return all ? all + expert * count : nullptr;
  };
  const int64_t width = of.gates.expert_rows;
  end_down();
  const Clock::time_point started = Clock::now();
  double flops = 0;
  HostCompute::AnswerPlace at{sends_each, [&] {
                                if (sends_each) await_up();
                              }};
  for (const int32_t e : experts) {
    const int32_t begin = routed_begin_[static_cast<size_t>(e)];
    HostCompute::Expert one{of.gates.expert(e), of.ups.expert(e), of.downs.expert(e)};
    one.rows = std::span(routed_rows_)
                   .subspan(static_cast<size_t>(begin), static_cast<size_t>(routed_rows(e)));
    if (op.weighs_inputs) one.input_weights = routed_weights_.data() + begin;
    one.gate_biases = of_expert(op.bias, 2 * width, e);
    one.down_bias = of_expert(op.down_bias, of.out_cols, e);
    take(e, host().expert(op, layer_of(of.in, of.gates.expert_rows, of.out_cols), one, at));
    flops += 2.0 * static_cast<double>(routed_rows(e) * width * (2 * of.in.cols + of.out_cols));
  }
  end_host_experts(started, flops);
  add_inplace(started);
}

// The sum of their answers goes up, not each answer.
void OperatorRunner::add_below(const Operator& op, const ExpertWork& of,
                               std::span<const int32_t> experts, Rows out) {
  const Rows sum = host().expert_sum(layer_of(of.in, of.gates.expert_rows, of.out_cols));
  const std::span<const float> weights = weights_of_answers(op);
  bool is_first = true;
  compute_below(op, of, experts, false, [&](int32_t e, const Rows& y) {
    // Not before the input is there: what went up from here may have been under way till then.
    if (std::exchange(is_first, false)) std::fill_n(sum.data, sum.rows * sum.cols, 0.0f);
    const int32_t begin = routed_begin_[static_cast<size_t>(e)];
    kernels::add_weighted_rows(y.data, y.stride, routed_rows_.data() + begin,
                               weights.data() + begin, 1, sum.data, sum.stride, y.rows, y.cols);
  });
  const Rows arrived{of.work.data, of.in.rows, of.out_cols, of.out_cols};
  exchanged_.up += sum.rows * sum.cols * 4;
  bring_up(sum, arrived.data);
  add(out, arrived);
}

void OperatorRunner::experts(const Operator& op, Rows in, Rows work, Rows out) {
  const ExpertWork of = expert_work(op, in, work, out.cols);
  clear(out);
  ExpertHomes homes;
  for (int32_t e = 0; e < op.router.experts; ++e)
    if (routed_rows(e) > 0) add_home(of, e, homes);
  const auto add_answer = [&](int32_t e) {
    const int32_t begin = routed_begin_[static_cast<size_t>(e)];
    const Rows y = answer(op, of, e);
    add_routed(y, {of.lists.rows + begin, of.lists.weights + begin}, out);
  };
  for (const int32_t e : homes.mixed) add_answer(e);
  if (!homes.below.empty()) begin_down_experts(of);
  for (const int32_t e : homes.here) add_answer(e);
  if (!homes.below.empty()) add_below(op, of, homes.below, out);
}

// Those that are there now; answers are kept, so that they are added up in one order whenever their
// experts came.
void OperatorRunner::some_experts(const Operator& op) {
  const int64_t cols = op.out.cols;
  const ExpertWork of = expert_work(op, rows_of(op.in[0]), rows_of(op.work), cols);
  SLUICE_ASSERT(std::ssize(choices_) * cols <= std::ssize(parts_.expert_answers),
                "the plan sizes the answers");
  ExpertHomes homes;
  for (const ExpertPlace& place : task_.compute().experts) add_home(of, place.expert, homes);
  const auto kept = [&](int32_t e) {
    return parts_.expert_answers.data() + routed_begin_[static_cast<size_t>(e)] * cols;
  };
  for (const int32_t e : homes.mixed) keep_answer(answer(op, of, e), kept(e));
  if (!homes.below.empty()) begin_down_experts(of);
  for (const int32_t e : homes.here) keep_answer(answer(op, of, e), kept(e));
  if (homes.below.empty()) return;
  compute_below(op, of, homes.below, true, [&](int32_t e, const Rows& y) {
    exchanged_.up += y.rows * cols * 4;
    bring_up(y, kept(e));
  });
}

void OperatorRunner::add_answers(const Operator& op) {
  const Rows out = rows_of(op.out);
  const RoutedLists lists = routed_lists(routed_rows_, weights_of_answers(op));
  clear(out);
  for (int64_t e = 0; e < op.router.experts; ++e) {
    const int64_t rows = routed_rows(e);
    if (rows == 0) continue;
    const int32_t begin = routed_begin_[static_cast<size_t>(e)];
    const Rows y{parts_.expert_answers.data() + begin * out.cols, rows, out.cols, out.cols};
    add_routed(y, {lists.rows + begin, lists.weights + begin}, out);
  }
}

}  // namespace sluice
