// What the next layer of a mixture will be asked for, as far as its router can say before the rows
// are there: it is run on the rows that this layer's router has seen, for the residual stream
// changes little from one layer to the next. Nothing but loads depends on it.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/route.h"
#include "src/base/synthetic_routing.h"
#include "src/engine/runners/operator_runner.h"

namespace sluice {

namespace {
// Of more rows than this the layer will be asked for most of what it has, whoever is guessed.
constexpr int64_t kMostGuessedRows = 64;
// Of a row's choices the last eighth is left out: a guess of eight experts finds its first nearly
// always, its last as often as not.
constexpr int64_t kLeftOut = 8;

const Operator* route_of(const LayerProgram& program) {
  const std::span<const Operator> operators = program.before_experts();
  const auto found = std::find_if(operators.begin(), operators.end(), [](const Operator& op) {
    return op.kind == Operator::Kind::kRoute;
  });
  return found == operators.end() ? nullptr : &*found;
}

// Who has written what `read` reads, the last before `end`.
const Operator* writer_of(std::span<const Operator> operators, const Operator* end,
                          const View& read) {
  const Operator* found = nullptr;
  for (const Operator& op : operators) {
    if (&op == end) break;
    if (op.out.slot == read.slot) found = &op;
  }
  const bool writes_all = found && found->out.begin == read.begin && found->out.cols == read.cols;
  return writes_all ? found : nullptr;
}

// Made again from what is at hand, whatever the program has ready.
Operator from_scratch(Operator op) {
  op.narrow = op.codes = InputCopy::kMake;
  op.narrow_for = op.codes_for = -1;
  return op;
}
}  // namespace

// A norm of the residual stream and a product make them; of other routers nothing is guessed.
bool OperatorRunner::guess_scores(const LayerProgram& program, const Operator& route, Rows scores,
                                  Rows room) {
  const std::span<const Operator> operators = program.before_experts();
  const Operator* const product = writer_of(operators, &route, route.in[0]);
  if (!product || product->kind != Operator::Kind::kLinear) return false;
  const Operator* const norm = writer_of(operators, product, product->in[0]);
  if (!norm || norm->kind != Operator::Kind::kNormHidden || norm->in[0].slot >= 0 ||
      product->in[0].cols != room.cols)
    return false;
  const MatrixView router = matrix(product->weight);
  if (router.resident_rows != router.rows) return false;
  norm_hidden(from_scratch(*norm), {}, room);
  linear(from_scratch(*product), room, scores);
  return true;
}

void OperatorRunner::guess_next() {
  guessed_.clear();
  if (parts_.guessed_after.empty() || !guesses() || parts_.observe_product ||
      rows_ > kMostGuessedRows)
    return;
  const int32_t next = parts_.guessed_after[static_cast<size_t>(task_.sublayer)];
  if (next < 0) return;
  const Programs& programs = programs_[batch_->pass_class];
  const LayerProgram& program = programs.distinct[programs.of[static_cast<size_t>(next)]];
  const Operator* const route = route_of(program);
  const int64_t hidden = parts_.model->shape().hidden_size;
  // Answers come when this layer's experts are computed.
  if (!route || padded_rows_ * (hidden + route->in[0].cols) > std::ssize(parts_.expert_answers))
    return;
  const Rows room{parts_.expert_answers.data(), rows_, hidden, hidden};
  const Rows scores{room.data + padded_rows_ * hidden, rows_, route->in[0].cols, route->in[0].cols};
  const int32_t here = std::exchange(task_.sublayer, next);
  sublayer_ = &sublayer_of(task_);
  bool is_guessed = true;
  if (parts_.model->synthetic_routing()) {
    for (const Chunk& chunk : batch_->chunks)
      fill_guessed_scores(
          *parts_.model->synthetic_routing(),
          {sublayer_->layer_index, parts_.model->shape().num_layers, route->router.experts},
          {chunk.sequence->tokens, chunk.first_position, chunk.count},
          scores.data + chunk.row_begin * scores.stride, scores.stride);
  } else {
    is_guessed = guess_scores(program, *route, scores, room);
  }
  if (is_guessed) take_guesses(*route, scores);
  task_.sublayer = here;
  sublayer_ = &sublayer_of(task_);
}

// Those that most rows go to first, of as many rows those of the largest weight.
void OperatorRunner::take_guesses(const Operator& route, const Rows& scores) {
  std::vector<RoutedTo> choices(static_cast<size_t>(scores.rows * route.router.chosen));
  kernels::route(route.router, scores.data, scores.stride, scores.rows,
                 host_vector(route.weight, route.router.experts), choices.data());
  std::vector<std::pair<int64_t, float>> sure(static_cast<size_t>(route.router.experts));
  const int64_t taken = route.router.chosen - route.router.chosen / kLeftOut;
  for (int64_t row = 0; row < scores.rows; ++row) {
    const auto first = choices.begin() + row * route.router.chosen;
    std::sort(first, first + route.router.chosen,
              [](const RoutedTo& a, const RoutedTo& b) { return a.weight > b.weight; });
    for (auto choice = first; choice < first + taken; ++choice) {
      auto& [rows, weight] = sure[static_cast<size_t>(choice->expert)];
      if (rows++ == 0) guessed_.push_back(choice->expert);
      weight = std::max(weight, choice->weight);
    }
  }
  std::sort(guessed_.begin(), guessed_.end(), [&](int32_t one, int32_t other) {
    const auto& a = sure[static_cast<size_t>(one)];
    const auto& b = sure[static_cast<size_t>(other)];
    return a != b ? a > b : one < other;
  });
}

}  // namespace sluice
