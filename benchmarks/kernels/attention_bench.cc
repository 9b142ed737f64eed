// Attention over paged KV: decode against the memory's read rate, prefill in FLOP/s (4 head_dim per
// visible pair).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "benchmarks/kernels/weight_pool.h"
#include "kernels/attention.h"
#include "src/base/team.h"

namespace sluice::bench {
namespace {

using kernels::AttentionSequence;
using kernels::AttentionShape;

AttentionShape shape_of(int heads, int kv_heads, KvFormat dtype) {
  AttentionShape shape;
  shape.num_heads = heads;
  shape.num_kv_heads = kv_heads;
  shape.head_dim = 128;
  shape.page_tokens = static_cast<int>(dtype.page_tokens());
  shape.scale = 1 / std::sqrt(128.0f);
  shape.kv_dtype = dtype;
  return shape;
}

struct Batch {
  Batch(const AttentionShape& shape, int64_t sequences, int32_t context, int32_t count)
      : row(int64_t{shape.num_heads} * shape.head_dim),
        q(static_cast<size_t>(sequences * count * row), 0.01f),
        out(q.size()),
        pages_each((context + shape.page_tokens - 1) / shape.page_tokens),
        pages(static_cast<size_t>(sequences * pages_each)) {
    for (int64_t i = 0; i < sequences; ++i) {
      AttentionSequence& s = list.emplace_back();
      s.q = q.data() + i * count * row;
      s.q_stride = s.out_stride = row;
      s.first_position = context - count;
      s.count = count;
      s.pages = pages.data() + i * pages_each;
      s.out = out.data() + i * count * row;
    }
    scratch.resize(static_cast<size_t>(kernels::attention_scratch_floats(shape, loop_threads())));
  }
  void run(const AttentionShape& shape) {
    for (const std::byte*& page : pages) page = WeightPool::instance().next(shape.page_bytes());
    kernels::attention(shape, list, scratch.data(), static_cast<int64_t>(scratch.size()));
  }
  int64_t row;
  std::vector<float> q, out, scratch;
  int64_t pages_each;
  std::vector<const std::byte*> pages;
  std::vector<AttentionSequence> list;
};

void decode(benchmark::State& state, KvFormat dtype, float sparsity = 1) {
  AttentionShape shape =
      shape_of(static_cast<int>(state.range(2)), static_cast<int>(state.range(3)), dtype);
  shape.sparsity = sparsity;
  shape.sparse_positions = static_cast<int>(state.range(1));
  Batch batch(shape, state.range(0), static_cast<int32_t>(state.range(1)), 1);
  const double read_rate = WeightPool::instance().read_rate();
  batch.run(shape);
  const double start = now_seconds();
  for (auto _ : state) batch.run(shape);
  const double seconds = (now_seconds() - start) / static_cast<double>(state.iterations());
  const auto bytes =
      static_cast<double>(shape.page_bytes() * static_cast<int64_t>(batch.pages.size()));
  state.counters["GB/s"] = bytes / seconds / 1e9;
  state.counters["of_read"] = bytes / seconds / read_rate;
}

void prefill(benchmark::State& state, KvFormat dtype) {
  const AttentionShape shape =
      shape_of(static_cast<int>(state.range(2)), static_cast<int>(state.range(3)), dtype);
  const int64_t context = state.range(1), count = state.range(0);
  Batch batch(shape, 1, static_cast<int32_t>(context), static_cast<int32_t>(count));
  for (auto _ : state) batch.run(shape);
  const double pairs = static_cast<double>(count) * static_cast<double>(context - count) +
                       static_cast<double>(count) * static_cast<double>(count + 1) / 2;
  const double flop =
      4.0 * pairs * shape.num_heads * shape.head_dim * static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(flop / 1e9, benchmark::Counter::kIsRate);
}

void decode_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"sequences", "context", "heads", "kv_heads"})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  bench->Args({1, 16384, 32, 32})
      ->Args({1, 16384, 32, 8})
      ->Args({1, 65536, 8, 1})
      ->Args({32, 1024, 32, 32});
  bench->Args({32, 1024, 32, 8})->Args({32, 1024, 64, 8});
}

void prefill_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"count", "context", "heads", "kv_heads"})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  bench->Args({512, 512, 32, 32})
      ->Args({2048, 2048, 32, 8})
      ->Args({512, 8192, 32, 8})
      ->Args({8, 16384, 32, 8});
}

void decode_bf16(benchmark::State& state) { decode(state, DType::kBF16); }
void decode_f16(benchmark::State& state) { decode(state, DType::kF16); }
void decode_f32(benchmark::State& state) { decode(state, DType::kF32); }
void decode_int8(benchmark::State& state) { decode(state, KvFormat(KvEncoding::kInt8)); }
void decode_k8v4(benchmark::State& state) { decode(state, kInt8KeysInt4Values); }
void decode_int4(benchmark::State& state) { decode(state, KvFormat(KvEncoding::kInt4)); }
void decode_sparse(benchmark::State& state) { decode(state, DType::kBF16, 0.1f); }
void decode_sparse_int4(benchmark::State& state) {
  decode(state, KvFormat(KvEncoding::kInt4), 0.1f);
}
void prefill_bf16(benchmark::State& state) { prefill(state, DType::kBF16); }
void prefill_f32(benchmark::State& state) { prefill(state, DType::kF32); }
void prefill_int4(benchmark::State& state) { prefill(state, KvFormat(KvEncoding::kInt4)); }

BENCHMARK(decode_bf16)->Name("attention/decode/bf16")->Apply(decode_shapes);
BENCHMARK(decode_f16)->Name("attention/decode/f16")->Apply(decode_shapes);
BENCHMARK(decode_f32)->Name("attention/decode/f32")->Apply(decode_shapes);
BENCHMARK(decode_int8)->Name("attention/decode/int8")->Apply(decode_shapes);
BENCHMARK(decode_int4)->Name("attention/decode/int4")->Apply(decode_shapes);
BENCHMARK(decode_sparse)->Name("attention/decode/bf16_a_tenth")->Apply(decode_shapes);
BENCHMARK(decode_sparse_int4)->Name("attention/decode/int4_a_tenth")->Apply(decode_shapes);
BENCHMARK(prefill_bf16)->Name("attention/prefill/bf16")->Apply(prefill_shapes);
BENCHMARK(prefill_f32)->Name("attention/prefill/f32")->Apply(prefill_shapes);
BENCHMARK(prefill_int4)->Name("attention/prefill/int4")->Apply(prefill_shapes);

}  // namespace
}  // namespace sluice::bench
