// SumOrder::kByRow: what comes of a row is the same bits whoever is beside it.
#include "kernels/sum_order.h"

#include <algorithm>
#include <cstring>

#include "kernels/attention_order.h"
#include "kernels/delta_rule.h"
#include "kernels/elementwise.h"
#include "kernels/head_products.h"
#include "kernels/linear.h"
#include "kernels/low_rank.h"
#include "kernels/quantise.h"
#include "kernels/quantised_linear.h"
#include "src/base/team.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/rounds.h"

namespace sluice::kernels {
namespace {

// Runs `work` on a team of so many threads.
template <typename Work>
void on_threads(int threads, const Work& work) {
  Team team(threads);
  const Team::Use use(team);
  work();
}

// Row `row` of a result and the same row of another; the first column that differs, or -1.
int64_t first_difference(const float* a, const float* b, int64_t columns) {
  for (int64_t i = 0; i < columns; ++i)
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0) return i;
  return -1;
}

// Products of some rows of x, which any of its rows can be computed from.
struct Rows {
  int64_t m, n, k;
  std::vector<float> x, bias;
  std::vector<std::byte> rounded;

  Rows(int64_t rows, int64_t out, int64_t in, Random& random) : m(rows), n(out), k(in) {
    x = random.normal((padded_rows(m) + 16) * k);
    rounded = stored_as(DType::kBF16, x);
    bias = random.normal(n);
  }
  Activations slice(int64_t first, int64_t count) const {
    return {x.data() + first * k, reinterpret_cast<const uint16_t*>(rounded.data()) + first * k,
            count, k, k};
  }
  // The largest run of rows there is to compare, and where each row computed beside other numbers
  // of them is another. multiply(slice, y): y [rows, n].
  template <typename Multiply>
  int64_t differing_rows(const Multiply& multiply) const {
    const std::vector<float> all = product(multiply, 0, m);
    int64_t found = 0;
    for (const int64_t count : {1, 2, 3, 5, 13, 49}) {
      if (count >= m) break;
      for (int64_t first = 0; first + count <= m; first += std::max<int64_t>(count, m / 4)) {
        const std::vector<float> some = product(multiply, first, count);
        for (int64_t row = 0; row < count; ++row)
          found += first_difference(some.data() + row * n, all.data() + (first + row) * n, n) >= 0;
      }
    }
    return found;
  }
  template <typename Multiply>
  std::vector<float> product(const Multiply& multiply, int64_t first, int64_t count) const {
    std::vector<float> y(static_cast<size_t>(padded_rows(count) * n), -7.0f);
    multiply(slice(first, count), y.data());
    return y;
  }
};

int64_t linear_differences(const Rows& rows, DType dtype, Compute compute, SumOrder order,
                           const std::vector<std::byte>& w) {
  return rows.differing_rows([&](const Activations& x, float* y) {
    std::vector<std::byte> scratch(
        static_cast<size_t>(linear_scratch_bytes(dtype, x.m, rows.n, rows.k, compute, order)));
    linear(x, w.data(), dtype, rows.n, rows.k, rows.bias.data(), y, rows.n, compute, scratch,
           order);
  });
}

TEST(SumOrder, PlainProductsOfARowAreTheSameBitsBesideAnyRows) {
  for_each_isa([] {
    int64_t fastest_differ = 0;
    for (uint32_t seed = 0; seed < rounds(20u); ++seed) {
      Random random(seed);
      SCOPED_TRACE(random.trace());
      const Rows rows(random.between(2, 150), random.between(1, 140), random.between(1, 700),
                      random);
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
        for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
          if (compute == Compute::kBF16 && (dtype != DType::kBF16 || !bf16_sums_by_row())) continue;
          const auto w = stored_as(dtype, random.normal(rows.n * rows.k));
          EXPECT_EQ(linear_differences(rows, dtype, compute, SumOrder::kByRow, w), 0)
              << "m " << rows.m << ", n " << rows.n << ", k " << rows.k << ", " << dtype_name(dtype)
              << (compute == Compute::kBF16 ? " in bf16" : " in f32");
          fastest_differ += linear_differences(rows, dtype, compute, SumOrder::kFastest, w);
        }
    }
    EXPECT_GT(fastest_differ, 0) << "so these tests would see it";
  });
}

TEST(SumOrder, ProductsAreTheSameBitsOnAnyThreadsAndOfAnyRunOfRowsOfW) {
  for_each_isa([] {
    Random random(5);
    const Rows rows(70, 331, 517, random);
    const auto w = stored_as(DType::kBF16, random.normal(rows.n * rows.k));
    for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
      if (compute == Compute::kBF16 && !bf16_sums_by_row()) continue;
      const auto multiply = [&](int64_t begin, int64_t end, float* y) {
        std::vector<std::byte> scratch(static_cast<size_t>(
            linear_scratch_bytes(DType::kBF16, rows.m, rows.n, rows.k, compute, SumOrder::kByRow)));
        linear(rows.slice(0, rows.m), w.data() + begin * rows.k * 2, DType::kBF16, end - begin,
               rows.k, rows.bias.data() + begin, y + begin, rows.n, compute, scratch,
               SumOrder::kByRow);
      };
      const auto bytes = static_cast<size_t>(padded_rows(rows.m) * rows.n);
      std::vector<float> one(bytes), three(bytes), parts(bytes);
      on_threads(1, [&] { multiply(0, rows.n, one.data()); });
      on_threads(3, [&] { multiply(0, rows.n, three.data()); });
      for (int64_t begin = 0; begin < rows.n; begin += 64)
        multiply(begin, std::min(begin + 64, rows.n), parts.data());
      const int64_t values = rows.m * rows.n;
      EXPECT_EQ(first_difference(one.data(), three.data(), values), -1);
      EXPECT_EQ(first_difference(one.data(), parts.data(), values), -1);
    }
  });
}

struct QuantisedCase {
  Compute compute;
  ActivationFormat activations;
  float outliers;
};
constexpr QuantisedCase kQuantisedCases[] = {
    {Compute::kF32, ActivationFormat::k16Bit, 0}, {Compute::kBF16, ActivationFormat::k16Bit, 0},
    {Compute::kF32, ActivationFormat::kInt8, 0},  {Compute::kF32, ActivationFormat::kInt8, 2.5f},
    {Compute::kBF16, ActivationFormat::kFp8, 0},  {Compute::kF32, ActivationFormat::kFp8, 0}};

int64_t quantised_differences(const Rows& rows, const WeightFormat& format,
                              const std::vector<std::byte>& w, const QuantisedOptions& options) {
  return rows.differing_rows([&](const Activations& x, float* y) {
    std::vector<std::byte> scratch(
        static_cast<size_t>(quantised_scratch_bytes(format, x.m, rows.k, options)));
    linear_quantised(x, w.data(), format, rows.n, rows.bias.data(), y, rows.n, options, scratch);
  });
}

std::vector<std::byte> quantised(const WeightFormat& format, const Rows& rows, Random& random) {
  const std::vector<float> weights = random.normal(rows.n * rows.k, 0.1f);
  std::vector<std::byte> w(static_cast<size_t>(format.bytes(rows.n, rows.k)));
  for (int64_t row = 0; row < rows.n; row += 16)
    EXPECT_TRUE(quantise_panel(
        format, {RangeSearch::kMinMax, nullptr}, weights.data() + row * rows.k, rows.k,
        std::min<int64_t>(16, rows.n - row), rows.k, w.data() + row * format.row_bytes(rows.k)));
  return w;
}

TEST(SumOrder, QuantisedProductsOfARowAreTheSameBitsBesideAnyRows) {
  for_each_isa([] {
    int64_t fastest_differ = 0;
    for (const char* name : {"int4-g32", "int4-g64", "int4-g128", "int8", "int8-g32", "nf4-g64",
                             "fp8", "fp8-g64", "mxfp4", "q4_0", "q2_k", "q3_k", "q4_k", "q6_k"})
      for (uint32_t seed = 0; seed < rounds(4u); ++seed) {
        const WeightFormat format = parse_weight_format(name).value();
        Random random(seed);
        SCOPED_TRACE(random.trace() + ", " + name);
        const int64_t k = format.is_k() ? format.group * random.between(1, 1024 / format.group)
                                        : random.between(1, 2500);
        const Rows rows(random.between(2, 70), random.between(1, 70), k, random);
        const std::vector<std::byte> w = quantised(format, rows, random);
        for (const QuantisedCase& of : kQuantisedCases) {
          if (!takes_activations(format, of.activations)) continue;
          if (of.compute == Compute::kBF16 && !bf16_sums_by_row()) continue;
          QuantisedOptions options{of.compute, of.activations, of.outliers, SumOrder::kByRow};
          EXPECT_EQ(quantised_differences(rows, format, w, options), 0)
              << "m " << rows.m << ", n " << rows.n << ", k " << rows.k
              << (of.compute == Compute::kBF16 ? ", bf16" : ", f32") << ", activations "
              << static_cast<int>(of.activations) << ", outliers from " << of.outliers;
          options.order = SumOrder::kFastest;
          const int64_t fastest = quantised_differences(rows, format, w, options);
          if (of.activations == ActivationFormat::kInt8 && of.outliers == 0)
            EXPECT_EQ(fastest, 0) << "sums of whole numbers are the same in any order";
          fastest_differ += fastest;
        }
      }
    EXPECT_GT(fastest_differ, 0) << "so this test would see it";
  });
}

// A context in pages that lie one behind the other.
struct Context {
  AttentionShape shape;
  int32_t length;
  std::vector<float> q, k, v;
  std::vector<std::byte> memory;
  std::vector<std::byte*> pages;
  std::vector<const std::byte*> const_pages;

  Context(const AttentionShape& of, int32_t tokens, Random& random) : shape(of), length(tokens) {
    const int64_t row = int64_t{shape.num_kv_heads} * shape.head_dim;
    q = random.normal(int64_t{length} * shape.num_heads * shape.head_dim, 2);
    k = random.normal(length * row);
    v = random.normal(length * row);
    const int count = (length + shape.page_tokens - 1) / shape.page_tokens;
    memory.assign(static_cast<size_t>(shape.page_bytes() * count), std::byte{0xff});
    for (int page = 0; page < count; ++page)
      pages.push_back(memory.data() + page * shape.page_bytes());
    const_pages.assign(pages.begin(), pages.end());
    kv_write(shape, k.data(), v.data(), row, 0, length, pages.data());
  }
  int64_t row() const { return int64_t{shape.num_heads} * shape.head_dim; }
  AttentionSequence tokens(int32_t first, int32_t count, float* out) const {
    AttentionSequence sequence{};
    sequence.q = q.data() + first * row();
    sequence.q_stride = row();
    sequence.first_position = first;
    sequence.count = count;
    sequence.pages = const_pages.data();
    sequence.out = out + first * row();
    sequence.out_stride = row();
    return sequence;
  }
};

// Answers of a context's tokens from `begin` on, some computed at a time, beside the others'.
std::vector<float> answers(const Context& context, const std::vector<Context>& others,
                           int32_t begin, int32_t chunk, SumOrder order) {
  std::vector<float> out(context.q.size());
  std::vector<float> scratch(static_cast<size_t>(attention_scratch_floats(context.shape, 3)));
  std::vector<std::vector<float>> theirs;
  for (const Context& other : others) theirs.emplace_back(other.q.size());
  for (int32_t first = begin; first < context.length; first += chunk) {
    std::vector<AttentionSequence> sequences;
    for (size_t i = 0; i < others.size(); ++i)
      sequences.push_back(others[i].tokens(0, others[i].length, theirs[i].data()));
    sequences.push_back(context.tokens(first, std::min(chunk, context.length - first), out.data()));
    attention(context.shape, sequences, scratch.data(), static_cast<int64_t>(scratch.size()),
              order);
  }
  return out;
}

AttentionShape some_shape(KvFormat kv, Random& random) {
  AttentionShape shape;
  constexpr int kHeads[][2] = {{1, 1}, {4, 2}, {6, 1}, {9, 3}, {20, 1}, {8, 8}};
  constexpr int kDims[] = {64, 128, 32, 80, 40, 256};
  const auto& heads = kHeads[random.between(0, 5)];
  shape.num_heads = heads[0];
  shape.num_kv_heads = heads[1];
  shape.head_dim = kDims[random.between(0, 5)];
  shape.page_tokens = random.between(0, 1) ? 64 : 16;
  shape.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  shape.kv_dtype = kv;
  return shape;
}

const KvFormat kKvFormats[] = {DType::kF32,     DType::kF16,     DType::kBF16,
                               kQuantisedKv[0], kQuantisedKv[1], kQuantisedKv[2]};

// Expects a token's answers whatever the chunks, the threads and who attends beside it, of those
// from `begin` on; whether the fastest order's differ.
bool check_attention(const AttentionShape& shape, Random& random, int32_t begin = 0) {
  const auto length = begin + static_cast<int32_t>(random.between(100, 400));
  const Context context(shape, length, random);
  std::vector<Context> others;
  for (int i = 0; i < 3; ++i)
    others.emplace_back(shape, static_cast<int32_t>(random.between(1, 90)), random);
  const std::vector<float> alone = answers(context, {}, begin, 1, SumOrder::kByRow);
  const auto size = static_cast<int64_t>(alone.size());
  const auto most = static_cast<int32_t>(random.between(2, length - begin));
  for (const int32_t chunk : {most, length}) {
    EXPECT_EQ(
        first_difference(alone.data(),
                         answers(context, others, begin, chunk, SumOrder::kByRow).data(), size),
        -1)
        << "chunks of " << chunk;
  }
  on_threads(1, [&] {
    EXPECT_EQ(first_difference(alone.data(),
                               answers(context, {}, begin, 7, SumOrder::kByRow).data(), size),
              -1)
        << "one thread";
  });
  const std::vector<float> a = answers(context, {}, begin, 1, SumOrder::kFastest),
                           b = answers(context, others, begin, length, SumOrder::kFastest);
  return first_difference(a.data(), b.data(), size) >= 0;
}

TEST(SumOrder, AttentionOfATokenIsTheSameBitsInAnyChunkAndCompany) {
  for_each_isa([] {
    int64_t fastest_differ = 0;
    for (const KvFormat& kv : kKvFormats)
      for (uint32_t seed = 0; seed < rounds(4u); ++seed) {
        Random random(seed);
        AttentionShape shape = some_shape(kv, random);
        std::vector<float> sinks = random.normal(shape.num_heads);
        if (seed % 2) shape.sinks = sinks.data();
        if (seed % 4 == 3) shape.soft_cap = 20;
        if (seed % 4 == 2) shape.sliding_window = static_cast<int>(random.between(1, 200));
        SCOPED_TRACE(random.trace() + ", KV " + kv_format_name(kv) + ", heads of " +
                     std::to_string(shape.head_dim) + ", " + std::to_string(shape.num_heads) +
                     " over " + std::to_string(shape.num_kv_heads) + ", window " +
                     std::to_string(shape.sliding_window));
        fastest_differ += check_attention(shape, random);
      }
    EXPECT_GT(fastest_differ, 0) << "so this test would see it";
  });
}

// Contexts of several pieces, some of which are merged by the threads that attend and some behind.
TEST(SumOrder, AttentionToLongContextsIsTheSameBits) {
  for_each_isa([] {
    for (const KvFormat& kv : kKvFormats) {
      Random random(23);
      SCOPED_TRACE("KV " + kv_format_name(kv));
      AttentionShape shape = some_shape(kv, random);
      shape.num_heads = 4;
      shape.num_kv_heads = 2;
      shape.head_dim = 64;
      const std::vector<float> sinks = random.normal(4);
      shape.sinks = sinks.data();
      check_attention(shape, random, 900);
      shape.sinks = nullptr;
      check_attention(shape, random, 400);
    }
  });
}

TEST(SumOrder, AttentionToSomeToChunksAndToLatentRowsIsTheSameBits) {
  for_each_isa([] {
    for (const KvFormat& kv : kKvFormats) {
      Random random(11);
      SCOPED_TRACE("KV " + kv_format_name(kv));
      AttentionShape sparse = some_shape(kv, random);
      sparse.sparsity = 0.2f;
      sparse.sparse_positions = 400;
      check_attention(sparse, random);
      if (kv.is_quantised()) continue;
      AttentionShape chunked = some_shape(kv, random);
      chunked.sliding_window = 100;
      chunked.is_chunked = true;
      check_attention(chunked, random);
      AttentionShape latent = some_shape(kv, random);
      latent.num_heads = 5;
      latent.num_kv_heads = 1;
      latent.has_values = false;
      check_attention(latent, random);
    }
  });
}

TEST(SumOrder, AdaptersAndHeadsOfLatentRowsGiveARowTheSameBits) {
  for_each_isa([] {
    Random random(3);
    const int64_t m = 90, cols = 333, outputs = 301, rank = 13;
    const std::vector<float> x = random.normal(m * cols), b = random.normal(outputs * rank);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(dtype_name(dtype));
      const auto a = stored_as(dtype, random.normal(rank * cols));
      std::vector<std::byte> turned(static_cast<size_t>(outputs * rank * dtype_bytes(dtype)));
      place_low_rank_b(b.data(), outputs, rank, dtype, turned.data());
      const LowRank of{a.data(), turned.data(), dtype, rank, 0.5f, nullptr};
      const auto wide = stored_as(dtype, random.normal(3 * 100 * 111));
      const auto compute = [&](int64_t first, int64_t rows, float* y, float* heads, float* back) {
        std::vector<float> scratch(static_cast<size_t>(low_rank_scratch_floats(rows, rank)));
        LowRankOperands operands{
            x.data() + first * cols, cols, cols, nullptr, y, outputs, outputs, nullptr};
        const LowRankRun run{&of, 0, rows};
        add_low_rank({&run, 1}, operands, scratch.data());
        const HeadRows head{3, 100, 7, 50};
        const MatrixRun matrix{wide.data(), dtype, 0, 300, 111};
        head_products(head, matrix, {rows, x.data() + first * cols, cols, 111, heads, 150, 50});
        add_transposed_head_products(head, matrix,
                                     {rows, x.data() + first * cols, cols, 50, back, 333, 111});
      };
      std::vector<float> y(static_cast<size_t>(m * outputs)), heads(static_cast<size_t>(m * 150)),
          back(static_cast<size_t>(m * 333));
      compute(0, m, y.data(), heads.data(), back.data());
      for (int64_t row = 0; row < m; ++row) {
        std::vector<float> one(static_cast<size_t>(outputs)), head(150), transposed(333);
        compute(row, 1, one.data(), head.data(), transposed.data());
        EXPECT_EQ(first_difference(one.data(), y.data() + row * outputs, outputs), -1);
        EXPECT_EQ(first_difference(head.data(), heads.data() + row * 150, 150), -1);
        EXPECT_EQ(first_difference(transposed.data(), back.data() + row * 333, 333), -1);
      }
    }
  });
}

// Activations of all rows in one go have elements beside each other, and ends, of several rows.
TEST(SumOrder, ActivationsAreTheSameBitsWhereverAnElementLies) {
  for_each_isa([] {
    Random random(9);
    const int64_t n = 100;
    const std::vector<float> x = random.normal(n, 4);
    for (const Activation activation :
         {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu,
          Activation::kReluSquared, Activation::kSigmoid}) {
      std::vector<float> all = x;
      activate(activation, all.data(), n);
      for (int64_t i = 0; i < n; ++i) {
        float one = x[static_cast<size_t>(i)];
        activate(activation, &one, 1);
        EXPECT_EQ(first_difference(&one, &all[static_cast<size_t>(i)], 1), -1)
            << "activation " << static_cast<int>(activation) << " of element " << i;
      }
    }
    std::vector<float> capped = x;
    soft_cap(capped.data(), 3, n);
    for (int64_t i = 0; i < n; ++i) {
      float one = x[static_cast<size_t>(i)];
      soft_cap(&one, 3, 1);
      EXPECT_EQ(first_difference(&one, &capped[static_cast<size_t>(i)], 1), -1) << "element " << i;
    }
  });
}

// A run of tokens in any cuts.
TEST(SumOrder, RecurrentStatesAreTheSameBitsInAnyCuts) {
  for_each_isa([] {
    for (const RecurrentShape& shape :
         {RecurrentShape{2, 4, 37, 65, 4, RecurrentRule::kGatedDelta},
          RecurrentShape{2, 4, 37, 65, 4, RecurrentRule::kStateSpace}}) {
      Random random(17);
      const int64_t tokens = 23, columns = shape.columns(), heads = shape.value_heads;
      const auto x = random.normal(tokens * columns), weights = random.normal(columns * shape.taps);
      auto kept = random.normal(tokens * heads), learned = random.normal(tokens * heads);
      for (float& value : kept) value = 1 / (1 + std::exp(-value));
      const auto run = [&](int64_t chunk) {
        std::vector<float> state(static_cast<size_t>(shape.floats()));
        std::vector<float> convolved(x.size());
        std::vector<float> out(static_cast<size_t>(tokens * shape.value_columns()));
        for (int64_t first = 0; first < tokens; first += chunk) {
          StateRun part;
          part.row = first;
          part.count = std::min(chunk, tokens - first);
          part.from = first > 0 ? state.data() : nullptr;
          part.to = state.data();
          causal_conv_silu(shape, weights.data(), nullptr, x.data(), columns, {&part, 1},
                           convolved.data(), columns);
          recurrent_rule(
              shape,
              {convolved.data(), columns, learned.data(), heads, kept.data(), heads, nullptr},
              {&part, 1}, out.data(), shape.value_columns());
        }
        return out;
      };
      const std::vector<float> whole = run(tokens);
      for (const int64_t chunk : {1, 2, 7})
        EXPECT_EQ(first_difference(whole.data(), run(chunk).data(), std::ssize(whole)), -1)
            << "chunks of " << chunk;
    }
  });
}

}  // namespace
}  // namespace sluice::kernels
