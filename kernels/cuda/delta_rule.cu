#include "kernels/cuda/delta_rule.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

namespace {
constexpr int kThreads = 256;
constexpr int64_t kMostShared = 64 << 10;  // of a block on any GPU
constexpr int kWideColumns = kWarp;  // of a head's matrix that a block has, where they fit; else
constexpr int kNarrowColumns = kWarp / 2;
constexpr int64_t kTaps = RecurrentShape::kMostTaps;

struct ConvSizes {
  int64_t columns, taps;
  int64_t window;  // where it begins in a state
};

// A thread has a column of a run.
SLUICE_KERNEL(kThreads)
causal_conv_kernel(ConvSizes sizes, const float* weights, const float* bias, const float* x,
                   int64_t x_stride, const kernels::StateRun* runs, float* y, int64_t y_stride) {
  const int64_t column = int64_t{block_x()} * kThreads + thread_index();
  if (column >= sizes.columns) return;
  const kernels::StateRun& run = runs[block_y()];
  const int64_t before = sizes.taps - 1;
  // All of what was kept first: the run may leave its own in the same place.
  float window[kTaps];
  float taps[kTaps];
  for (int64_t j = 0; j < before; ++j)
    window[j] = run.from ? run.from[sizes.window + j * sizes.columns + column] : 0.0f;
  for (int64_t j = 0; j < sizes.taps; ++j) taps[j] = weights[column * sizes.taps + j];
  const float* own = x + run.row * x_stride + column;
  const float added = bias ? bias[column] : 0.0f;
  const auto input = [&](int64_t t) { return t < 0 ? window[before + t] : own[t * x_stride]; };
  for (int64_t t = 0; t < run.count; ++t) {
    float sum = added;
    for (int64_t j = 0; j < sizes.taps; ++j) sum += taps[j] * input(t - before + j);
    y[(run.row + t) * y_stride + column] = sum / (1.0f + exp_of(-sum));
  }
  const auto leave = [&](int64_t tokens, float* state) {
    for (int64_t j = 0; j < before; ++j)
      state[sizes.window + j * sizes.columns + column] = input(tokens - before + j);
  };
  if (run.kept > 0) leave(run.kept, run.kept_to);
  leave(run.count, run.to);
}

// ln(1 + x) of x >= 0, exact to some roundings where x is small too: what 1 + x has lost of x is in
// the quotient.
SLUICE_DEVICE float log_of_one_more(float x) {
  constexpr float kLn2 = 0.69314718055994531f;
  const float more = 1.0f + x;
  return more == 1.0f ? x : kLn2 * log2_of(more) * (x / (more - 1.0f));
}

SLUICE_KERNEL(kThreads)
time_steps_kernel(float* x, int64_t stride, const float* bias, float low, float high, int64_t n,
                  int64_t heads) {
  const int64_t i = int64_t{block_x()} * kThreads + thread_index();
  if (i >= n) return;
  const int64_t head = i % heads;
  float& value = x[i / heads * stride + head];
  const float z = value + bias[head];
  const float step = z > 20.0f ? z : log_of_one_more(exp_of(z));
  value = step < low ? low : step > high ? high : step;
}

SLUICE_KERNEL(kThreads)
decay_gates_kernel(const float* steps, int64_t steps_stride, const float* a_log, float* kept,
                   int64_t kept_stride, int64_t n, int64_t heads) {
  const int64_t i = int64_t{block_x()} * kThreads + thread_index();
  if (i >= n) return;
  const int64_t row = i / heads, head = i % heads;
  kept[row * kept_stride + head] = exp_of(-exp_of(a_log[head]) * steps[row * steps_stride + head]);
}

struct DeltaSizes {
  int64_t key_width, value_width;
  int64_t first_query, first_key, first_value;  // of all heads
  int64_t heads_of_key;
  int64_t slices;  // of a head's columns
  bool is_delta;   // else the state space rule
  float q_factor;
};

// A block has kColumns columns of a head's matrix: a thread has one, and every kParts-th key.
template <int kColumns>
class DeltaBlock {
 public:
  static constexpr int kParts = kThreads / kColumns;
  static_assert(kWarp % kColumns == 0);

  // Matrix, q, k, sums of parts, sums of warps.
  static constexpr int64_t shared_bytes(int64_t key_width) {
    return 4 * (key_width * (kColumns + 2) + 2 * kThreads + kThreads / kWarp);
  }

  SLUICE_DEVICE DeltaBlock(const DeltaSizes& sizes, const RuleRows& rows,
                           const kernels::StateRun& run, float* out, int64_t out_stride)
      : sizes_(sizes), rows_(rows), run_(run), out_(out), out_stride_(out_stride) {
    head_ = block_x() / sizes.slices;
    column_ = block_x() % sizes.slices * kColumns + own_column();
    is_used_ = column_ < sizes.value_width;
    auto* shared = reinterpret_cast<float*>(shared_memory());
    matrix_ = shared;
    q_ = matrix_ + sizes.key_width * kColumns;
    k_ = q_ + sizes.key_width;
    partial_ = k_ + sizes.key_width;
    scratch_ = partial_ + 2 * kThreads;
  }

  SLUICE_DEVICE void run() {
    load();
    for (int64_t t = 0; t < run_.count; ++t) {
      if (run_.kept > 0 && t == run_.kept) leave(run_.kept_to);
      step(run_.row + t);
    }
    leave(run_.to);
  }

 private:
  SLUICE_DEVICE static int own_part() { return thread_index() / kColumns; }
  SLUICE_DEVICE static int own_column() { return thread_index() % kColumns; }

  template <class Use>
  SLUICE_DEVICE void for_each_key(const Use& use) {
    for (int64_t i = own_part(); i < sizes_.key_width; i += kParts) use(i);
  }
  SLUICE_DEVICE int64_t place(int64_t key) const {
    return (head_ * sizes_.key_width + key) * sizes_.value_width + column_;
  }
  SLUICE_DEVICE float& at(int64_t key) { return matrix_[key * kColumns + own_column()]; }

  // A thread's own elements: no barrier. Eight are asked for before the first is kept: 32 bytes a
  // thread are under way.
  SLUICE_DEVICE void load() {
    constexpr int kAhead = 8;
    const float* const from = is_used_ ? run_.from : nullptr;
    for (int64_t first = own_part(); first < sizes_.key_width; first += kAhead * kParts) {
      float values[kAhead];
      SLUICE_UNROLL
      for (int j = 0; j < kAhead; ++j) {
        const int64_t i = first + j * kParts;
        values[j] = from && i < sizes_.key_width ? from[place(i)] : 0.0f;
      }
      SLUICE_UNROLL
      for (int j = 0; j < kAhead; ++j)
        if (first + j * kParts < sizes_.key_width) at(first + j * kParts) = values[j];
    }
  }
  SLUICE_DEVICE void leave(float* state) {
    if (is_used_) for_each_key([&](int64_t i) { state[place(i)] = at(i); });
  }

  SLUICE_DEVICE void step(int64_t row) {
    const float* qkv = rows_.qkv + row * rows_.qkv_stride;
    const int64_t first = head_ / sizes_.heads_of_key * sizes_.key_width;
    const float* q = qkv + sizes_.first_query + first;
    const float* k = qkv + sizes_.first_key + first;
    float q_squares = 0, k_squares = 0, q_k = 0;
    for (int64_t i = thread_index(); i < sizes_.key_width; i += kThreads) {
      q_[i] = q[i];
      k_[i] = k[i];
      q_squares += q[i] * q[i];
      k_squares += k[i] * k[i];
      q_k += q[i] * k[i];
    }
    float q_scale = 1.0f, k_scale = 1.0f;
    if (sizes_.is_delta) {
      q_scale = sizes_.q_factor / sqrt_of(block_sum(q_squares, scratch_) + 1e-6f);
      k_scale = 1.0f / sqrt_of(block_sum(k_squares, scratch_) + 1e-6f);
    }
    q_k = block_sum(q_k, scratch_) * q_scale * k_scale;
    // The barriers of these sums stand between q_, k_ and who reads them.
    float known = 0, answered = 0;
    for_each_key([&](int64_t i) {
      known += k_[i] * at(i);
      answered += q_[i] * at(i);
    });
    known = sizes_.is_delta ? sum_of_parts(partial_, known) * k_scale : 0.0f;
    answered = sum_of_parts(partial_ + kThreads, answered) * q_scale;
    const float kept = rows_.kept[row * rows_.kept_stride + head_];
    const float learned = rows_.learned[row * rows_.learned_stride + head_];
    const float value =
        is_used_ ? qkv[sizes_.first_value + head_ * sizes_.value_width + column_] : 0.0f;
    const float change = learned * (value - kept * known);
    const float skipped = rows_.skip ? rows_.skip[head_] * value : 0.0f;
    if (is_used_ && own_part() == 0)
      out_[row * out_stride_ + head_ * sizes_.value_width + column_] =
          skipped + kept * answered + q_k * change;
    const float step = k_scale * change;
    for_each_key([&](int64_t i) { at(i) = kept * at(i) + k_[i] * step; });
    block_sync();  // before the next token's q and k
  }

  // Of all parts, a thread's column. Two places, so that one barrier is enough between them.
  SLUICE_DEVICE float sum_of_parts(float* place, float value) {
    place[thread_index()] = value;
    block_sync();
    float sum = 0;
    for (int part = 0; part < kParts; ++part) sum += place[part * kColumns + own_column()];
    return sum;
  }

  const DeltaSizes& sizes_;
  const RuleRows& rows_;
  const kernels::StateRun& run_;
  float* out_;
  int64_t out_stride_;
  int64_t head_;
  int64_t column_;
  bool is_used_;
  float* matrix_;
  float* q_;
  float* k_;
  float* partial_;
  float* scratch_;
};

template <int kColumns>
SLUICE_KERNEL(kThreads)
delta_rule_kernel(DeltaSizes sizes, RuleRows rows, const kernels::StateRun* runs, float* out,
                  int64_t out_stride) {
  DeltaBlock<kColumns>(sizes, rows, runs[block_y()], out, out_stride).run();
}

int blocks_of(int64_t items, int64_t each) { return static_cast<int>((items + each - 1) / each); }
}  // namespace

void causal_conv_silu(const RecurrentShape& shape, const float* weights, const float* bias,
                      const float* x, int64_t x_stride, const StateRuns& runs, float* y,
                      int64_t y_stride, Stream stream) {
  if (runs.count == 0) return;
  const ConvSizes sizes{shape.columns(), shape.taps, shape.matrices_floats()};
  launch("causal_conv", causal_conv_kernel,
         {blocks_of(sizes.columns, kThreads), static_cast<int>(runs.count)}, kThreads, 0, stream,
         sizes, weights, bias, x, x_stride, runs.data, y, y_stride);
}

void time_steps(float* x, int64_t stride, const float* bias, float low, float high, int64_t rows,
                int64_t heads, Stream stream) {
  if (rows == 0) return;
  launch("time_steps", time_steps_kernel, {blocks_of(rows * heads, kThreads)}, kThreads, 0, stream,
         x, stride, bias, low, high, rows * heads, heads);
}

void decay_gates(const float* steps, int64_t steps_stride, const float* a_log, float* kept,
                 int64_t kept_stride, int64_t rows, int64_t heads, Stream stream) {
  if (rows == 0) return;
  launch("decay_gates", decay_gates_kernel, {blocks_of(rows * heads, kThreads)}, kThreads, 0,
         stream, steps, steps_stride, a_log, kept, kept_stride, rows * heads, heads);
}

void recurrent_rule(const RecurrentShape& shape, const RuleRows& rows, const StateRuns& runs,
                    float* out, int64_t out_stride, Stream stream) {
  if (runs.count == 0) return;
  DeltaSizes sizes{};
  sizes.key_width = shape.key_width;
  sizes.value_width = shape.value_width;
  sizes.first_query = shape.first_query();
  sizes.first_key = shape.first_key();
  sizes.first_value = shape.first_value();
  sizes.is_delta = shape.is_delta();
  sizes.heads_of_key = shape.value_heads / shape.key_heads;
  sizes.q_factor = 1.0f / __builtin_sqrtf(static_cast<float>(shape.key_width));
  const auto run = [&](auto columns, auto kernel) {
    sizes.slices = blocks_of(shape.value_width, columns.value);
    launch("delta_rule", kernel,
           {static_cast<int>(shape.value_heads * sizes.slices), static_cast<int>(runs.count)},
           kThreads, DeltaBlock<columns.value>::shared_bytes(shape.key_width), stream, sizes, rows,
           runs.data, out, out_stride);
  };
  static_assert(DeltaBlock<kNarrowColumns>::shared_bytes(RecurrentShape::kMostKeyWidth) <=
                kMostShared);
  if (DeltaBlock<kWideColumns>::shared_bytes(shape.key_width) <= kMostShared)
    run(Constant<kWideColumns>(), delta_rule_kernel<kWideColumns>);
  else
    run(Constant<kNarrowColumns>(), delta_rule_kernel<kNarrowColumns>);
}

}  // namespace sluice::cuda
