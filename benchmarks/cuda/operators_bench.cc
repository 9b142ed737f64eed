// Operators on rows, each by itself, and the gated delta net's: bound by memory but for the rule of
// a prompt, whose steps follow one another. The bytes a second that each must move are the figure.
#include <benchmark/benchmark.h>

#include "benchmarks/cuda/device_operands.h"
#include "kernels/cuda/delta_rule.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/plain_linear.h"
#include "kernels/cuda/rows.h"

namespace sluice {
namespace {
constexpr int kMostRounds = 256;
constexpr int64_t kHeadDim = 128;

// What an operator is given: x and y of `shape`, a vector of a row, a place for copies.
struct RowOperands {
  float* x;
  float* y;
  const float* vector;
  const int32_t* positions;
  std::byte* copy;
  cuda::RowsShape shape;
  cuda::Stream stream;

  cuda::Rows16 narrow() const {
    return {reinterpret_cast<uint16_t*>(copy), shape.stride, DType::kF16};
  }
};
struct RowOperator {
  const char* name;
  double bytes;  // for each element of x
  void (*run)(const RowOperands& of);
};
const RowOperator kOperators[] = {
    {"copy_rows", 6,
     [](const RowOperands& of) {
       cuda::copy_rows_for_products(of.x, of.shape, {of.narrow(), {}}, of.stream);
     }},
    {"add_inplace", 12,
     [](const RowOperands& of) {
       cuda::add_inplace(of.y, of.x, of.shape.rows * of.shape.cols, of.stream);
     }},
    {"add_bias", 8,
     [](const RowOperands& of) { cuda::add_bias(of.y, of.vector, of.shape, of.stream); }},
    {"activate", 10,
     [](const RowOperands& of) {
       cuda::activate(Activation::kGeluTanh, of.y, of.shape, {of.narrow(), {}}, of.stream);
     }},
    {"gated", 14,
     [](const RowOperands& of) {
       cuda::gated(Activation::kSilu, of.x, of.y, of.y, of.shape, {of.narrow(), {}}, of.stream);
     }},
    {"scale_rows", 8,
     [](const RowOperands& of) {
       cuda::scale_rows(of.y, of.shape, 0.5F, {of.positions, 0, 100}, of.stream);
     }},
    {"soft_cap", 8,
     [](const RowOperands& of) {
       cuda::soft_cap(of.y, 30, of.shape.rows * of.shape.cols, of.stream);
     }},
    {"regroup_heads", 8,
     [](const RowOperands& of) {
       const int64_t groups = of.shape.cols / kHeadDim / 4;
       cuda::regroup_heads(of.x, of.y, of.shape, {groups, 2, kHeadDim}, of.stream);
     }},
    {"take_heads", 4,  // every second head
     [](const RowOperands& of) {
       const cuda::RowsShape half{of.shape.rows, of.shape.cols / 2, of.shape.cols / 2};
       cuda::take_heads(of.x, of.shape.stride, of.y, half, {half.cols / kHeadDim, kHeadDim, 2, 0},
                        of.stream);
     }},
    {"rope", 8,
     [](const RowOperands& of) {
       cuda::rope_inplace(of.y, of.shape, static_cast<int>(of.shape.cols / kHeadDim), kHeadDim,
                          of.positions, of.vector, 1, RopeLayout::kHalves, of.stream);
     }},
    {"gather_rows", 8,
     [](const RowOperands& of) {
       cuda::gather_rows(of.x, DType::kF32, of.shape.cols, of.positions, 0, of.shape.rows, of.y,
                         of.stream);
     }},
    {"round_rows_to_fp8", 5,
     [](const RowOperands& of) {
       const WeightFormat format{Encoding::kFp8, DType::kBF16, 0};
       cuda::round_rows_to_fp8(of.x, of.shape,
                               cuda::fp8_rows(format, of.shape.rows, of.shape.cols, of.copy), {},
                               nullptr, of.stream);
     }},
    {"decay_gates", 8, [](const RowOperands& of) {
       cuda::decay_gates(of.x, of.shape.stride, of.vector, of.y, of.shape.stride, of.shape.rows,
                         of.shape.cols, of.stream);
     }}};

// Arguments: operator, rows, columns.
void row_operator(benchmark::State& state) {
  const RowOperator& which = kOperators[state.range(0)];
  const int64_t rows = state.range(1);
  const int64_t cols = state.range(2);
  const int64_t values = rows * cols;
  const auto rounds =
      static_cast<int>(std::min<int64_t>(kRotateBytes / (values * 8) + 1, kMostRounds));
  Operands operands;
  float* const x = operands.floats(rounds * values);
  float* const y = operands.floats(rounds * values);
  std::vector<int32_t> positions(static_cast<size_t>(rows));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i * 7 % rows);
  RowOperands of{x,
                 y,
                 operands.floats(cols),
                 operands.sent(positions),
                 operands.take(values * 4 + 4096),
                 {rows, cols, cols},
                 operands.stream()};
  measure(state, operands, rounds, static_cast<int64_t>(which.bytes * static_cast<double>(values)),
          [&](int round) {
            of.x = x + round * values;
            of.y = y + round * values;
            which.run(of);
          });
  state.SetLabel(which.name);
}
void arguments(benchmark::internal::Benchmark* bench) {
  for (const int64_t rows : {1, 16, 1024})
    for (int64_t i = 0; i < static_cast<int64_t>(std::size(kOperators)); ++i)
      bench->Args({i, rows, 8192});
  bench->Unit(benchmark::kMicrosecond)->UseManualTime()->Iterations(5);
}
BENCHMARK(row_operator)->Apply(arguments);

// Heads as Qwen3.5's large models have them.
constexpr RecurrentShape kRecurrent{16, 32, 128, 128, 4};

// `sequences` of `tokens` new tokens each, whose states take turns.
class Recurrence {
 public:
  Recurrence(int64_t sequences, int64_t tokens) : rows_(sequences * tokens) {
    const int64_t states = sequences * kRecurrent.floats();
    rounds_ = static_cast<int>(std::min<int64_t>(kRotateBytes / (states * 4) + 1, 16));
    float* const memory = operands.floats(rounds_ * states);
    std::vector<kernels::StateRun> runs;
    for (int64_t i = 0; i < rounds_ * sequences; ++i) {
      float* const at = memory + i * kRecurrent.floats();
      runs.push_back({i % sequences * tokens, tokens, at, at});
    }
    runs_ = operands.sent(runs);
    sequences_ = sequences;
    x_ = operands.floats(rows_ * kRecurrent.columns());
    y_ = operands.floats(rows_ * kRecurrent.columns());
    // A state must not grow without bounds: what is learned, and kept, of each token.
    learned_ = operands.sent(std::vector<float>(rows_ * kRecurrent.value_heads, 0.1F));
    kept_ = operands.sent(std::vector<float>(rows_ * kRecurrent.value_heads, 0.9F));
    weights_ = operands.floats(kRecurrent.columns() * kRecurrent.taps);
  }
  void convolve(int round) {
    cuda::causal_conv_silu(kRecurrent, weights_, nullptr, x_, kRecurrent.columns(), runs(round), y_,
                           kRecurrent.columns(), operands.stream());
  }
  void apply_rule(int round) {
    cuda::recurrent_rule(
        kRecurrent,
        {x_, kRecurrent.columns(), learned_, kRecurrent.value_heads, kept_, kRecurrent.value_heads},
        runs(round), y_, kRecurrent.columns(), operands.stream());
  }
  int rounds() const { return rounds_; }

  Operands operands;

 private:
  cuda::StateRuns runs(int round) const { return {runs_ + round * sequences_, sequences_}; }

  int64_t rows_;
  int rounds_ = 1;
  int64_t sequences_ = 1;
  const kernels::StateRun* runs_;
  const float* x_;
  float* y_;
  const float* learned_;
  const float* kept_;
  const float* weights_;
};

// Arguments of both: sequences, new tokens of each.
void causal_conv(benchmark::State& state) {
  Recurrence of(state.range(0), state.range(1));
  const int64_t rows = state.range(0) * state.range(1);
  const int64_t bytes =
      kRecurrent.columns() * (rows * 8 + state.range(0) * 2 * (kRecurrent.taps - 1) * 4);
  measure(state, of.operands, of.rounds(), bytes, [&](int round) { of.convolve(round); });
}
void delta_rule(benchmark::State& state) {
  Recurrence of(state.range(0), state.range(1));
  const int64_t rows = state.range(0) * state.range(1);
  const int64_t bytes = state.range(0) * kRecurrent.matrices_floats() * 8 +
                        rows * (kRecurrent.columns() + kRecurrent.value_columns()) * 4;
  measure(state, of.operands, of.rounds(), bytes, [&](int round) { of.apply_rule(round); });
}
void sequences(benchmark::internal::Benchmark* bench) {
  constexpr int64_t kEach[][2] = {{1, 1}, {16, 1}, {64, 1}, {1, 512}};
  for (const auto& [count, tokens] : kEach) bench->Args({count, tokens});
  bench->Unit(benchmark::kMicrosecond)->UseManualTime()->Iterations(5);
}
BENCHMARK(causal_conv)->Apply(sequences);
BENCHMARK(delta_rule)->Apply(sequences);

// Where cuBLASLt has no product. Arguments: rows of x, n and k.
void plain_product(benchmark::State& state) {
  const int64_t m = state.range(0);
  const int64_t n = state.range(1);
  Operands operands;
  const float* x = operands.floats(m * n);
  const float* w = operands.floats(n * n);
  float* y = operands.floats(m * n);
  measure(state, operands, 4, n * n * 4, [&](int) {
    cuda::plain_linear(cuda::PlainType::kF32, x, n, m, n, w, n, nullptr, y, n, operands.stream());
  });
}
BENCHMARK(plain_product)
    ->Args({1, 4096})
    ->Args({64, 4096})
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(5);

}  // namespace
}  // namespace sluice
