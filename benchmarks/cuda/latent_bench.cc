// Latent attention absorbed (arXiv:2405.04434): attention to latent rows, and each head's products
// with its own rows of the matrix that would make keys and values of them. Bytes a second are of
// latent rows, and of the matrix; prompts' figure is their operations.
#include "benchmarks/cuda/device_operands.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/head_products.h"

namespace sluice {
namespace {
// Heads, and columns of a latent row and its rotary part: DeepSeek-V2, V2-Lite and MiniCPM3.
struct Model {
  int heads;
  int latent;
  int rotary;
  int width;  // of a head's keys without rotary part, and of its values
};
constexpr Model kModels[] = {{128, 512, 64, 128}, {16, 512, 64, 128}, {40, 256, 32, 64}};
constexpr int kPageTokens = 64;

// `sequences` of `context` positions each, the last `tokens` of them new.
class LatentSequences {
 public:
  LatentSequences(const Model& model, int32_t sequences, int32_t context, int32_t tokens) {
    shape_.num_heads = model.heads;
    shape_.num_kv_heads = 1;
    shape_.head_dim = model.latent + model.rotary;
    shape_.has_values = false;
    shape_.page_tokens = kPageTokens;
    shape_.scale = 0.05F;
    shape_.kv_dtype = DType::kF16;
    const int64_t pages_each = (context + kPageTokens - 1) / kPageTokens;
    pages_ = sequences * pages_each;
    const int64_t page_values = int64_t{kPageTokens} * shape_.head_dim;
    rounds =
        static_cast<int>(std::clamp<int64_t>(kRotateBytes / (pages_ * page_values * 2), 1, 16));
    std::byte* const rows = operands.filled(DType::kF16, rounds * pages_ * page_values);
    std::vector<std::byte*> table;
    for (int64_t page = 0; page < rounds * pages_; ++page)
      table.push_back(rows + page * page_values * 2);
    std::vector<cuda::AttentionRun> runs;
    for (int32_t i = 0; i < sequences; ++i)
      runs.push_back({int64_t{i} * tokens, i * pages_each, context - tokens, tokens});
    plan_ = cuda::plan_attention(shape_, runs, operands.multiprocessors());
    const int64_t cols = int64_t{shape_.num_heads} * shape_.head_dim;
    arguments_.q = operands.floats(sequences * tokens * cols);
    arguments_.out = operands.floats(sequences * tokens * cols);
    arguments_.q_stride = arguments_.out_stride = cols;
    arguments_.runs = operands.sent(plan_.runs);
    arguments_.pages = operands.sent(table);
    arguments_.items = operands.sent(plan_.items);
    arguments_.merges = operands.sent(plan_.merges);
    arguments_.workspace = operands.floats(plan_.workspace_floats);
  }
  void attend(int round) {
    cuda::AttentionArguments of = arguments_;
    of.pages += round * pages_;
    cuda::attention(shape_, plan_, of, operands.stream());
  }

  Operands operands;
  int rounds = 1;

 private:
  kernels::AttentionShape shape_;
  int64_t pages_ = 0;
  cuda::AttentionPlan plan_;
  cuda::AttentionArguments arguments_;
};

// Arguments: model, sequences, positions of each, new tokens of each.
void latent_attention(benchmark::State& state) {
  const Model& model = kModels[state.range(0)];
  const int64_t sequences = state.range(1), context = state.range(2), tokens = state.range(3);
  LatentSequences of(model, static_cast<int32_t>(sequences), static_cast<int32_t>(context),
                     static_cast<int32_t>(tokens));
  const int64_t columns = model.latent + model.rotary;
  measure(state, of.operands, of.rounds, sequences * context * columns * 2,
          [&](int round) { of.attend(round); });
  // Scores and values, of the positions that each new token sees.
  const int64_t seen = sequences * (tokens * (context - tokens) + tokens * (tokens + 1) / 2);
  state.counters["FLOP/s"] =
      benchmark::Counter(4.0 * static_cast<double>(seen * model.heads * columns),
                         benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(latent_attention)
    ->ArgsProduct({{0, 1, 2}, {1, 16}, {512, 4096}, {1}})
    ->Args({0, 1, 2048, 2048})
    ->Args({2, 1, 2048, 2048})
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(5);

// Arguments: model, rows, whether queries are brought to latent rows or answers back from them.
void head_products(benchmark::State& state) {
  const Model& model = kModels[state.range(0)];
  const int64_t rows = state.range(1);
  const bool is_back = state.range(2) != 0;
  const int64_t heads = model.heads, height = 2 * model.width, cols = model.latent;
  const int64_t values = heads * height * cols;
  const auto rounds = static_cast<int>(std::clamp<int64_t>(kRotateBytes / (values * 2), 1, 64));
  Operands operands;
  const std::byte* w = operands.filled(DType::kF16, rounds * values);
  float* const wide = operands.floats(rows * heads * cols);
  float* const narrow = operands.floats(rows * heads * model.width);
  const kernels::HeadRows of{heads, height, is_back ? model.width : 0, model.width};
  // Half of the matrix is for keys, half for values.
  measure(state, operands, rounds, values, [&](int round) {
    const kernels::MatrixRun run{w + round * values * 2, DType::kF16, 0, heads * height, cols};
    if (is_back)
      cuda::head_products(
          of, run, {rows, wide, heads * cols, cols, narrow, heads * model.width, model.width},
          operands.stream());
    else
      cuda::add_transposed_head_products(
          of, run, {rows, narrow, heads * model.width, model.width, wide, heads * cols, cols},
          operands.stream());
  });
  state.counters["FLOP/s"] = benchmark::Counter(static_cast<double>(rows * values),
                                                benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(is_back ? "answers" : "queries");
}
BENCHMARK(head_products)
    ->ArgsProduct({{0, 1, 2}, {1, 16, 512}, {0, 1}})
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(5);

}  // namespace
}  // namespace sluice
