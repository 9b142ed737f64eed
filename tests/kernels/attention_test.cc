#include "kernels/attention.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/elementwise.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/rounds.h"

namespace sluice::kernels {
namespace {

AttentionShape make_shape(int heads, int kv_heads, int head_dim, int page_tokens,
                          KvFormat dtype = DType::kF32, int window = 0) {
  AttentionShape shape;
  shape.num_heads = heads;
  shape.num_kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.page_tokens = page_tokens;
  shape.scale = 1 / std::sqrt(static_cast<float>(head_dim));
  shape.kv_dtype = dtype;
  shape.sliding_window = window;
  return shape;
}

// One sequence: its queries, and its KV in pages that lie in memory in random order. What was never
// written is NaN.
class Context {
 public:
  Context(const AttentionShape& shape, int32_t length, Random& random, float deviation = 1)
      : shape_(shape), length_(length) {
    const int64_t kv_row = int64_t{shape.num_kv_heads} * shape.head_dim;
    q_ = random.normal(int64_t{length} * shape.num_heads * shape.head_dim, deviation);
    k_ = random.normal(length * kv_row, deviation);
    v_ = random.normal(length * kv_row, deviation);
    lay_out(random);
  }
  Context(const AttentionShape& shape, int32_t length, Random& random, std::vector<float> q,
          std::vector<float> k, std::vector<float> v)
      : shape_(shape), length_(length), q_(std::move(q)), k_(std::move(k)), v_(std::move(v)) {
    lay_out(random);
  }

  int32_t length() const { return length_; }
  const std::vector<float>& values() const { return v_; }
  std::vector<std::byte*>& pages() { return pages_; }

  // The last `count` tokens before `end` as one chunk; row strides are longer than rows.
  AttentionSequence chunk(int32_t end, int32_t count, std::vector<float>& out,
                          std::vector<float>& lse) {
    const int64_t row = int64_t{shape_.num_heads} * shape_.head_dim;
    out.assign(static_cast<size_t>(count * (row + 3)), -77.0f);
    lse.assign(static_cast<size_t>(int64_t{count} * shape_.num_heads), -77.0f);
    AttentionSequence sequence;
    sequence.q = q_.data() + (end - count) * row;
    sequence.q_stride = row;
    sequence.first_position = end - count;
    sequence.count = count;
    sequence.pages = const_pages_.data();
    sequence.out = out.data();
    sequence.out_stride = row + 3;
    sequence.lse = lse.data();
    return sequence;
  }

 private:
  void lay_out(Random& random) {
    const int64_t bytes = shape_.page_bytes();
    const int count = (length_ + shape_.page_tokens - 1) / shape_.page_tokens;
    memory_.assign(static_cast<size_t>(bytes * count), std::byte{0xff});  // NaN in every type
    std::vector<int> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine());
    for (const int place : order) pages_.push_back(memory_.data() + place * bytes);
    const_pages_.assign(pages_.begin(), pages_.end());
    kv_write(shape_, k_.data(), v_.data(), int64_t{shape_.num_kv_heads} * shape_.head_dim, 0,
             length_, pages_.data());
  }

  AttentionShape shape_;
  int32_t length_;
  std::vector<float> q_, k_, v_;
  std::vector<std::byte> memory_;
  std::vector<std::byte*> pages_;
  std::vector<const std::byte*> const_pages_;
};

// Of products of codes with numbers of 15 bits, which the CPU may take for whole groups: rounding
// to half of a 2^14th of the largest, a tenth of that left of sums whose errors are at random.
// (Queries beside int4 keys are rounded to 7 bits on both sides alike.)
double code_error(const AttentionShape& shape) {
  return shape.kv_dtype.is_quantised() && shape.head_dim % KvFormat::kGroup == 0 ? 0x1p-15 : 0.0;
}

// Weights beside int4 values are of 8 bits of the largest of their chunk: half of a 2^8th, an
// eighth of that left.
double weight_error(const AttentionShape& shape) {
  const bool are_bytes =
      shape.kv_dtype.value_encoding == KvEncoding::kInt4 && code_error(shape) > 0;
  if (!are_bytes) return code_error(shape);
  // With slopes the sum of the weights is hardly more than the largest: all of it is left.
  return shape.slopes ? 0x1p-9 : 0x1p-12;
}

// A cap brings scores nearer to each other, and their errors; it has some roundings of its own.
double score_error(const AttentionShape& shape, double score) {
  const double of_cap = shape.soft_cap > 0 ? 10 * kRounding : 0;
  return (sum_error(shape.head_dim) + 2 * kRounding + code_error(shape) + of_cap) * score;
}

// Rows of sparse attention whose last kept score is nearer to the first dropped one than twice
// `error`: either choice is right. [count, num_heads]
std::vector<bool> open_rows(const AttentionShape& shape, const AttentionSequence& sequence,
                            double error) {
  const auto rows = static_cast<size_t>(int64_t{sequence.count} * shape.num_heads);
  if (shape.sparsity == 1) return std::vector<bool>(rows);
  std::vector<bool> open;
  for (int64_t token = 0; token < sequence.count; ++token)
    for (int head = 0; head < shape.num_heads; ++head) {
      std::vector<double> scores = reference::attention_scores(shape, sequence, token, head);
      std::sort(scores.begin(), scores.end(), std::greater<>());
      const double share = std::ceil(double{shape.sparsity} * static_cast<double>(scores.size()));
      const auto kept = static_cast<size_t>(std::max(share, 1.0));
      open.push_back(kept < scores.size() && scores[kept - 1] - scores[kept] < 2 * error);
    }
  return open;
}

// |q k| summed over head_dim and scaled is at most `score`: its error moves every weight
// e^score by that factor; then e^ itself, the sums over the context, and a maximum that may move
// with each chunk.
double tolerance_of(const AttentionShape& shape, int32_t context, double score, double value) {
  return 2 *
         (std::expm1(score_error(shape, score)) + 4e-7 + sum_error(context) + weight_error(shape) +
          (context / 64.0 + 1) * 3 * kRounding) *
         value;
}

void run(const AttentionShape& shape, std::vector<AttentionSequence>& sequences,
         int scratch_threads = 64) {
  std::vector<float> scratch(static_cast<size_t>(attention_scratch_floats(shape, scratch_threads)));
  attention(shape, sequences, scratch.data(), static_cast<int64_t>(scratch.size()));
}

double largest(const std::vector<float>& values) {
  double result = 0;
  for (const float value : values) result = std::max(result, std::fabs(double{value}));
  return result;
}

// Chunks (end, count) of several sequences at once, against the reference.
void compare(const AttentionShape& shape, const std::vector<std::pair<int32_t, int32_t>>& chunks,
             uint32_t seed, float deviation = 1) {
  Random random(seed);
  SCOPED_TRACE(random.trace() + ", heads " + std::to_string(shape.num_heads) + "/" +
               std::to_string(shape.num_kv_heads) + ", head_dim " + std::to_string(shape.head_dim) +
               ", page " + std::to_string(shape.page_tokens) + ", " +
               kv_format_name(shape.kv_dtype) + ", window " + std::to_string(shape.sliding_window));
  std::vector<Context> contexts;
  std::vector<std::vector<float>> out(chunks.size()), lse(chunks.size()), expected(chunks.size()),
      expected_lse(chunks.size());
  for (const auto& [end, count] : chunks) contexts.emplace_back(shape, end, random, deviation);
  std::vector<AttentionSequence> sequences, plain;
  for (size_t i = 0; i < chunks.size(); ++i) {
    sequences.push_back(contexts[i].chunk(chunks[i].first, chunks[i].second, out[i], lse[i]));
    plain.push_back(
        contexts[i].chunk(chunks[i].first, chunks[i].second, expected[i], expected_lse[i]));
  }
  run(shape, sequences);
  reference::attention(shape, plain);
  size_t open_of_all = 0, rows_of_all = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    // A product of two normal variables has a mean magnitude of 2 / pi; 4 covers the largest of all
    // scores.
    const double score = 4 * std::sqrt(static_cast<double>(shape.head_dim)) * deviation * deviation;
    const double allowed =
        tolerance_of(shape, chunks[i].first, score, largest(contexts[i].values()));
    const std::vector<bool> open = open_rows(shape, sequences[i], score_error(shape, score));
    open_of_all += static_cast<size_t>(std::count(open.begin(), open.end(), true));
    rows_of_all += open.size();
    const auto row_of = [&](size_t at) {
      const auto stride = static_cast<size_t>(sequences[i].out_stride);
      const auto heads = static_cast<size_t>(shape.num_heads);
      const size_t head = at % stride / static_cast<size_t>(shape.head_dim);
      return at / stride * heads + std::min(head, heads - 1);  // what is between rows stays anyway
    };
    // Before value_begin there may be anything but NaN.
    const auto is_value = [&](size_t at) {
      const auto column = static_cast<int64_t>(at % static_cast<size_t>(sequences[i].out_stride));
      return column >= int64_t{shape.num_heads} * shape.head_dim ||
             column % shape.head_dim >= shape.value_begin;
    };
    expect_close(out[i], expected[i], [&](size_t at) {
      return open[row_of(at)] || !is_value(at) ? std::numeric_limits<double>::infinity() : allowed;
    });
    expect_close(lse[i], expected_lse[i], [&](size_t at) {
      return score_error(shape, score) + sum_error(chunks[i].first) + 4e-7 +
             kRounding * 2 * std::fabs(expected_lse[i][at]);
    });
  }
  EXPECT_LE(4 * open_of_all, rows_of_all) << "most choices are not open";
}

TEST(Attention, AgreesWithTheReferenceForAllPageSizes) {
  for_each_isa([] {
    for (const int page : {1, 3, 16, 64}) {
      compare(make_shape(4, 2, 32, page), {{1, 1}, {65, 1}, {63, 63}, {130, 20}}, 1);
      compare(make_shape(4, 2, 64, page, DType::kBF16), {{200, 1}, {129, 129}}, 2);
      compare(make_shape(4, 2, 64, page, DType::kF16), {{100, 1}, {70, 40}}, 3);
    }
  });
}

TEST(Attention, AgreesWithTheReferenceForAllGroups) {
  for_each_isa([] {
    for (const int group : {1, 2, 3, 4, 7, 8, 13})
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
        compare(make_shape(2 * group, 2, 48, 16, dtype), {{77, 1}, {50, 50}, {64, 2}, {90, 5}},
                static_cast<uint32_t>(group));
  });
}

TEST(Attention, AgreesWithTheReferenceOnQuantisedPages) {
  // The same codes on both sides; minima and codes are summed apart, so magnitudes are a few times
  // those of the scores.
  unsigned number = 0;
  for_each_isa([&] {
    for (const KvFormat& format : kQuantisedKv)
      for (const auto& [dim, page] : {std::pair{1, 16},
                                      {8, 16},
                                      {16, 3},
                                      {20, 16},
                                      {33, 16},
                                      {64, 16},
                                      {80, 1},
                                      {80, 3},
                                      {96, 16},
                                      {128, 16},
                                      {160, 16},
                                      {192, 64},
                                      {256, 16}}) {
        if (is_left_to_release(number++)) continue;
        compare(make_shape(8, 2, dim, page, format), {{1, 1}, {77, 1}, {150, 1}}, 81, 0.5f);
        compare(make_shape(3, 3, dim, page, format), {{65, 1}, {50, 50}, {130, 20}}, 82, 0.5f);
      }
    compare(make_shape(4, 1, 64, 16, KvFormat(KvEncoding::kInt4)), {{3001, 1}}, 83, 0.5f);
    for (const KvFormat& format : kQuantisedKv)
      for (const int group : {1, 2, 5, 7, 8, 16, 17})
        compare(make_shape(2 * group, 2, 128, 64, format), {{203, 1}, {64, 1}}, 85, 0.5f);
    for (const KvFormat& format : kQuantisedKv)
      for (const int page : {1, 2, 7, 17, 40, 48})
        compare(make_shape(4, 2, 64, page, format), {{203, 1}, {64, 1}, {90, 30}}, 86, 0.5f);
  });
}

TEST(Attention, AgreesWithTheReferenceOnQuantisedPagesWithAWindow) {
  // Windows that begin inside a block of turned keys, in pages that are whole blocks and that are
  // not; splits of the context that the window cuts.
  for_each_isa([] {
    for (const KvFormat& format : kQuantisedKv)
      for (const int page : {16, 11, 64})
        for (const int window : {1, 5, 70}) {
          compare(make_shape(2, 2, 128, page, format, window), {{300, 1}, {300, 40}}, 84, 0.5f);
          compare(make_shape(2, 1, 64, page, format, 900), {{2500, 1}}, 85, 0.5f);
        }
  });
}

TEST(Attention, AgreesWithTheReferenceWhereOnlyTheHighestCount) {
  for_each_isa([] {
    for (const float sparsity : {0.001f, 0.3f})
      for (const KvFormat format :
           {KvFormat(DType::kF32), KvFormat(DType::kBF16), KvFormat(DType::kF16),
            KvFormat(KvEncoding::kInt8), KvFormat(KvEncoding::kInt4), kInt8KeysInt4Values})
        for (const auto& [heads, kv_heads, dim, window] :
             {std::array{4, 2, 64, 0}, std::array{3, 3, 20, 0}, std::array{8, 1, 32, 50}}) {
          AttentionShape shape = make_shape(heads, kv_heads, dim, 16, format, window);
          shape.sparsity = sparsity;
          shape.sparse_positions = 333;
          compare(shape, {{1, 1}, {333, 1}, {64, 1}, {130, 20}, {40, 40}}, 91, 0.5f);
        }
  });
}

// Capped scores, and ones that positions move: all ways to attend (few and many rows, padded heads,
// codes, the highest only), with windows.
TEST(Attention, AgreesWithTheReferenceOnCappedAndSlopedScores) {
  unsigned number = 0;
  for_each_isa([&] {
    std::vector<float> slopes;
    for (int head = 0; head < 8; ++head)
      slopes.push_back(std::exp2(-1.0f - static_cast<float>(head)));
    for (const KvFormat format :
         {KvFormat(DType::kF32), KvFormat(DType::kBF16), KvFormat(KvEncoding::kInt8),
          KvFormat(KvEncoding::kInt4), kInt8KeysInt4Values})
      for (const auto& [heads, kv_heads, dim] : {std::array{4, 2, 64}, {3, 3, 20}, {8, 1, 32}})
        for (const auto& [cap, is_sloped, window, is_rounded] : {std::tuple{0.7f, false, 0, false},
                                                                 {2.0f, true, 40, false},
                                                                 {0.0f, true, 0, false},
                                                                 {50.0f, false, 3, false},
                                                                 {0.0f, true, 0, true},
                                                                 {3.0f, true, 40, true}})
          for (const float sparsity : {1.0f, 0.3f}) {
            if (is_left_to_release(number++)) continue;
            AttentionShape shape = make_shape(heads, kv_heads, dim, 16, format, window);
            shape.soft_cap = cap;
            if (is_sloped) shape.slopes = slopes.data();
            shape.rounds_slopes = is_rounded;
            shape.sparsity = sparsity;
            shape.sparse_positions = 150;
            compare(shape, {{1, 1}, {150, 1}, {64, 1}, {130, 20}, {40, 40}}, 95, 0.5f);
          }
  });
}

// A score without a value beside those of positions, small, even with them and far above: all ways
// to attend, with windows, and contexts that are split.
TEST(Attention, AgreesWithTheReferenceWithSinks) {
  const std::vector<float> sinks{0.0f, -1.5f, 2.0f, 6.0f, -40.0f, 30.0f, 0.3f, -90.0f};
  unsigned number = 0;
  for_each_isa([&] {
    for (const KvFormat format :
         {KvFormat(DType::kF32), KvFormat(DType::kBF16), KvFormat(KvEncoding::kInt8),
          KvFormat(KvEncoding::kInt4), kInt8KeysInt4Values})
      for (const auto& [heads, kv_heads, dim, window] :
           {std::array{4, 2, 64, 0}, {3, 3, 20, 0}, {8, 1, 32, 40}, {8, 8, 64, 128}})
        for (const float sparsity : {1.0f, 0.3f}) {
          if (is_left_to_release(number++)) continue;
          AttentionShape shape = make_shape(heads, kv_heads, dim, 16, format, window);
          shape.sinks = sinks.data();
          shape.sparsity = sparsity;
          shape.sparse_positions = 150;
          compare(shape, {{1, 1}, {150, 1}, {64, 1}, {130, 20}, {40, 40}}, 97, 0.5f);
        }
    AttentionShape split = make_shape(4, 2, 64, 16);
    split.sinks = sinks.data();
    compare(split, {{3000, 1}}, 98);
    split.sliding_window = 700;
    compare(split, {{3000, 1}}, 99);
  });
}

// What a sink takes is missing from the output: weights are less than one in all.
TEST(Attention, ASinkTakesItsShare) {
  const std::vector<float> sinks{1.0f, -200.0f, 200.0f};
  AttentionShape shape = make_shape(3, 3, 8, 4);
  shape.sinks = sinks.data();
  Random random(3);
  // Keys of zeros: every score is 0. Values of ones.
  const std::vector<float> q(5 * 3 * 8, 1.0f), k(5 * 3 * 8, 0.0f), v(5 * 3 * 8, 1.0f);
  Context context(shape, 5, random, q, k, v);
  std::vector<float> out, lse;
  std::vector<AttentionSequence> sequences{context.chunk(5, 1, out, lse)};
  run(shape, sequences);
  const double of_one = 5 / (5 + std::exp(1.0));
  EXPECT_NEAR(out[0], of_one, 1e-6);
  EXPECT_NEAR(lse[0], std::log(5 + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(out[8], 1, 1e-6);
  EXPECT_EQ(out[16], 0);
  EXPECT_EQ(lse[2], 200);
}

// Where a sequence stands changes nothing, not by a bit: slopes are those of distances.
TEST(Attention, SlopesAreOfDistancesHoweverLongTheContext) {
  const std::vector<float> slopes{0.5f, 0.1f, 0.03f, 0.001f};
  for_each_isa([&] {
    for (const KvFormat format : {KvFormat(DType::kF32), KvFormat(KvEncoding::kInt8)})
      for (const float sparsity : {1.0f, 0.4f}) {
        AttentionShape shape = make_shape(4, 2, 64, 16, format, 70);
        shape.slopes = slopes.data();
        shape.sparsity = sparsity;
        constexpr int32_t kFar = 1 << 12, kLength = 200;
        shape.sparse_positions = kFar + kLength;
        Random random(7);
        Context context(shape, kLength, random);
        std::vector<float> near, near_lse, far, far_lse;
        std::vector<AttentionSequence> sequences{context.chunk(kLength, 3, near, near_lse)};
        run(shape, sequences, 1);
        sequences = {context.chunk(kLength, 3, far, far_lse)};
        std::vector<const std::byte*> pages(kFar / 16, nullptr);
        pages.insert(pages.end(), sequences[0].pages, sequences[0].pages + (kLength + 15) / 16);
        sequences[0].pages = pages.data();
        sequences[0].first_position += kFar;
        run(shape, sequences, 1);
        EXPECT_EQ(near, far) << kv_format_name(format) << " " << sparsity;
        EXPECT_EQ(near_lse, far_lse) << kv_format_name(format) << " " << sparsity;
      }
  });
}

// Rows whose ends are the values; what is before those ends means nothing in the output.
TEST(Attention, AgreesWithTheReferenceWhereKeysAreTheValues) {
  for_each_isa([] {
    uint32_t seed = 700;
    for (const auto& [dim, begin] :
         {std::pair{1, 0}, {7, 3}, {16, 1}, {20, 4}, {96, 32}, {130, 33}, {576, 64}})
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
        for (const int heads : {1, 5, 16, 128}) {
          if (heads > 16 && dim > 96) continue;
          if (seed += 2; is_left_to_release(seed)) continue;
          AttentionShape shape = make_shape(heads, 1, dim, seed % 4 ? 16 : 5, dtype);
          shape.has_values = false;
          shape.value_begin = begin;
          compare(shape, {{1, 1}, {65, 1}, {33, 33}, {130, 5}}, seed, 0.7f);
          shape.sparsity = 0.3f;
          shape.sparse_positions = 130;
          compare(shape, {{1, 1}, {65, 1}, {130, 5}}, seed + 1, 0.7f);
        }
    // Two such heads, and a context that is split.
    AttentionShape shape = make_shape(6, 2, 48, 16, DType::kBF16);
    shape.has_values = false;
    compare(shape, {{77, 1}, {90, 30}}, seed++);
    shape = make_shape(4, 1, 48, 16, DType::kBF16, 700);
    shape.has_values = false;
    shape.value_begin = 16;
    compare(shape, {{3001, 1}, {600, 2}}, seed++);
  });
}

TEST(Attention, KeepsTheFirstOfEqualScores) {
  for_each_isa([] {
    constexpr int kLength = 100, kDim = 16;
    AttentionShape shape = make_shape(1, 1, kDim, 16);
    shape.sparsity = 0.03f;
    shape.sparse_positions = kLength;
    Random random(5);
    std::vector<float> k(kLength * kDim, 0.0f), v(kLength * kDim);
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / kDim);
    k[50 * kDim] = 1;  // the highest; all others are equal
    std::vector<float> q(kLength * kDim, 0.0f);
    q[(kLength - 1) * kDim] = 4 * static_cast<float>(std::sqrt(kDim));
    Context context(shape, kLength, random, q, k, v);
    std::vector<float> out, lse;
    std::vector<AttentionSequence> sequences{context.chunk(kLength, 1, out, lse)};
    run(shape, sequences);
    const double sum = std::exp(4.0) + 2;  // positions 50, 0 and 1
    EXPECT_NEAR(out[0], (50 * std::exp(4.0) + 1) / sum, 1e-4);
    EXPECT_NEAR(lse[0], std::log(sum), 1e-5);
  });
}

// Element d of a quantised row, read as src/base/kv_format.h lays it out.
float stored_element(const AttentionShape& shape, const std::byte* page, bool is_value, int head,
                     int64_t in_page, int d) {
  const KvRows format = shape.rows_of(is_value);
  const bool is_int4 = format.encoding == KvEncoding::kInt4;
  const int64_t code_bytes = format.code_bytes(shape.head_dim);
  const std::byte* codes = page + shape.head_offset(head, is_value);
  const int64_t byte = is_int4 ? d / 32 * 16 + d % 16 : d;
  int code = static_cast<int>(codes[(is_value ? value_code_offset : key_code_offset)(
      code_bytes, shape.page_tokens, in_page, byte)]);
  if (is_int4) code = d % 32 < 16 ? code & 15 : code >> 4;
  uint16_t halves[2];
  for (int64_t i = 0; i < 2; ++i)
    std::memcpy(&halves[i],
                codes + shape.page_tokens * code_bytes +
                    ((d / KvFormat::kGroup * 2 + i) * shape.page_tokens + in_page) * 2,
                2);
  return f16_to_f32(halves[0]) * static_cast<float>(code) + f16_to_f32(halves[1]);
}

TEST(KvWrite, QuantisedRowsComeBackWithinHalfAStep) {
  for_each_isa([] {
    for (const KvFormat& format : kQuantisedKv)
      for (const int dim : {1, 16, 64, 100, 128})
        for (const int page : {4, 16}) {
          const AttentionShape shape = make_shape(2, 2, dim, page, format);
          Random random(91);
          const int32_t count = 23;
          auto k = random.normal(count * 2 * dim), v = random.normal(count * 2 * dim);
          for (int d = 0; d < dim; ++d) k[static_cast<size_t>(d)] = 3.25f;  // all equal
          const int64_t bytes = shape.page_bytes();
          std::vector<std::byte> memory(static_cast<size_t>((count + page - 1) / page * bytes));
          std::vector<std::byte*> pages;
          for (int i = 0; i * page < count; ++i) pages.push_back(memory.data() + i * bytes);
          kv_write(shape, k.data(), v.data(), 2 * dim, 0, count, pages.data());
          for (int32_t p = 0; p < count; ++p)
            for (const bool is_value : {false, true})
              for (int head = 0; head < 2; ++head) {
                const float* from = (is_value ? v : k).data() + (p * 2 + head) * dim;
                for (int d = 0; d < dim; ++d) {
                  const int begin = d / 64 * 64, end = std::min(dim, begin + 64);
                  const float low = *std::min_element(from + begin, from + end);
                  const float high = *std::max_element(from + begin, from + end);
                  const double allowed =
                      (double{high} - low) *
                          (0.5 / static_cast<double>(shape.rows_of(is_value).levels()) + 0x1p-9) +
                      std::fabs(low) * 0x1p-10 + 1e-3;
                  ASSERT_NEAR(stored_element(shape, pages[static_cast<size_t>(p / page)], is_value,
                                             head, p % page, d),
                              from[d], allowed)
                      << kv_format_name(shape.kv_dtype) << " position " << p << " element " << d;
                }
              }
        }
  });
}

TEST(Attention, TakesMoreHeadsThanABlockHasRows) {
  for_each_isa([] { compare(make_shape(130, 1, 16, 8), {{40, 1}, {30, 7}}, 9); });
}

TEST(Attention, AgreesWithTheReferenceForAllHeadSizes) {
  for_each_isa([] {
    for (const int dim : {1, 4, 8, 15, 16, 17, 20, 64, 80, 96, 128, 256})
      for (const DType dtype : {DType::kF32, DType::kBF16})
        compare(make_shape(6, 3, dim, 16, dtype), {{33, 1}, {70, 70}, {40, 3}},
                static_cast<uint32_t>(dim));
  });
}

TEST(Attention, SeesOnlyTheSlidingWindow) {
  for_each_isa([] {
    for (const int window : {1, 2, 7, 64, 100, 1000}) {
      compare(make_shape(4, 2, 32, 16, DType::kF32, window),
              {{1, 1}, {150, 1}, {150, 150}, {300, 40}}, 21);
      compare(make_shape(8, 1, 32, 16, DType::kBF16, window), {{900, 1}}, 22);
    }
  });
}

TEST(Attention, NeverReadsPagesOutsideTheWindow) {
  for (const KvFormat format : {KvFormat(DType::kF32), KvFormat(KvEncoding::kInt4)}) {
    const AttentionShape shape = make_shape(2, 1, 16, 8, format, 10);
    Random random(4);
    Context context(shape, 100, random);
    std::vector<float> out, lse, expected, expected_lse;
    std::vector<AttentionSequence> sequences{context.chunk(100, 2, out, lse)};
    std::vector<AttentionSequence> plain{context.chunk(100, 2, expected, expected_lse)};
    reference::attention(shape, plain);
    std::vector<const std::byte*> pages(sequences[0].pages, sequences[0].pages + 13);
    std::fill(pages.begin(), pages.begin() + 11,
              nullptr);  // positions 0 .. 87; the window begins at 89
    sequences[0].pages = pages.data();
    run(shape, sequences);
    expect_close(out, expected, [&](size_t) { return tolerance_of(shape, 12, 20, 4); });
  }
}

TEST(Attention, SplitsALongContext) {
  // Few heads and one sequence: the pieces of the context are merged.
  for_each_isa([] {
    compare(make_shape(1, 1, 64, 16), {{5000, 1}}, 31);
    compare(make_shape(8, 1, 64, 64, DType::kBF16), {{3001, 1}}, 32);
    compare(make_shape(2, 1, 32, 16), {{2000, 4}}, 33);
    compare(make_shape(2, 1, 32, 16), {{1500, 1}, {3, 1}}, 34);
    compare(make_shape(1, 1, 32, 16, DType::kF32, 700), {{3000, 1}}, 35);
  });
}

TEST(Attention, GivesTheSameForAnyScratch) {
  // Less scratch means fewer threads, and other splits: the same result within the tolerance of
  // each.
  const AttentionShape shape = make_shape(4, 1, 64, 16);
  Random random(6);
  Context context(shape, 2500, random);
  std::vector<float> many, few, lse;
  std::vector<AttentionSequence> sequences{context.chunk(2500, 3, many, lse)};
  run(shape, sequences, 64);
  sequences = {context.chunk(2500, 3, few, lse)};
  run(shape, sequences, 1);
  expect_close(many, few, [&](size_t) { return 2 * tolerance_of(shape, 2500, 32, 4); });
}

TEST(Attention, ChunksEqualTheWholePrompt) {
  for_each_isa([] {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const AttentionShape shape = make_shape(6, 2, 64, 16, dtype);
      Random random(41);
      SCOPED_TRACE(random.trace());
      Context context(shape, 210, random);
      std::vector<float> whole, lse;
      std::vector<AttentionSequence> sequences{context.chunk(210, 210, whole, lse)};
      run(shape, sequences);
      int32_t end = 0;
      for (const int32_t count : {1, 63, 16, 100, 29, 1}) {
        end += count;
        std::vector<float> part;
        sequences = {context.chunk(end, count, part, lse)};
        run(shape, sequences);
        const auto row = part.size() / static_cast<size_t>(count);
        const auto begin = whole.begin() + static_cast<int64_t>(row) * (end - count);
        expect_close(part, {begin, begin + static_cast<int64_t>(part.size())},
                     [&](size_t) { return 2 * tolerance_of(shape, end, 32, 4); });
      }
      EXPECT_EQ(end, 210);
    }
  });
}

TEST(Attention, StaysRightWithScoresOfTenThousands) {
  // Elements +-1e4 and a power of two as scale: scores of +-1e8 times small integers, all exact in
  // f32, so that the weights are exact too: the positions with the largest score share everything.
  for_each_isa([] {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      constexpr int kDim = 16;
      AttentionShape shape = make_shape(2, 1, kDim, 16, dtype);
      shape.scale = 0.25f;
      Random random(51);
      const float size = dtype == DType::kF32 ? 1e4f : 9984.0f;  // 9984 = 39 * 256 is exact in bf16
      const auto signs = [&](int64_t n) {
        auto values = random.normal(n);
        for (float& value : values) value = value < 0 ? -size : size;
        return values;
      };
      auto q = signs(200 * 2 * kDim), k = signs(200 * kDim), v = signs(200 * kDim);
      Context context(shape, 200, random, q, k, v);
      std::vector<float> out, lse, expected, expected_lse;
      std::vector<AttentionSequence> sequences{context.chunk(200, 200, out, lse)};
      std::vector<AttentionSequence> plain{context.chunk(200, 200, expected, expected_lse)};
      run(shape, sequences);
      reference::attention(shape, plain);
      for (const float value : out) ASSERT_TRUE(std::isfinite(value));
      expect_close(out, expected, [&](size_t) { return (sum_error(200) + 4e-7) * size; });
      expect_close(lse, expected_lse,
                   [&](size_t i) { return 2 * kRounding * std::fabs(expected_lse[i]) + 1e-5; });
    }
  });
}

TEST(Attention, LeavesNothingElseTouched) {
  const AttentionShape shape = make_shape(2, 2, 20, 4);
  Random random(61);
  Context context(shape, 9, random);
  std::vector<float> out, lse;
  std::vector<AttentionSequence> sequences{context.chunk(9, 9, out, lse)};
  sequences[0].lse = nullptr;
  run(shape, sequences);
  for (int64_t row = 0; row < 9; ++row)
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(out[static_cast<size_t>(row * 43 + 40 + i)], -77.0f);
  for (const float value : lse) EXPECT_EQ(value, -77.0f);
}

TEST(Attention, DoesNothingForNoSequences) {
  std::vector<AttentionSequence> none;
  run(make_shape(2, 1, 16, 4), none);
}

TEST(Attention, ChunksAreSeenFromTheirBeginningOn) {
  for (const int chunk : {1, 5, 37, 64, 512})
    for (const KvFormat dtype : {KvFormat(DType::kF32), KvFormat(DType::kBF16)})
      for (const int page_tokens : {5, 16}) {
        AttentionShape shape = make_shape(6, 2, 20, page_tokens, dtype, chunk);
        shape.is_chunked = true;
        compare(shape, {{1, 1}, {37, 1}, {38, 1}, {130, 130}, {200, 77}, {700, 3}}, 91);
      }
}

TEST(MergeAttention, TwoHalvesEqualTheWhole) {
  const AttentionShape shape = make_shape(4, 2, 32, 16);
  Random random(71);
  SCOPED_TRACE(random.trace());
  Context context(shape, 96, random);
  std::vector<float> whole, whole_lse, late, late_lse;
  std::vector<AttentionSequence> sequences{context.chunk(96, 1, whole, whole_lse)};
  run(shape, sequences);
  // The last query over positions 64 .. 95 alone: a window; and over 0 .. 63 alone: as if it stood
  // there.
  AttentionShape window = shape;
  window.sliding_window = 32;
  sequences = {context.chunk(96, 1, late, late_lse)};
  run(window, sequences);
  std::vector<float> early(late.size(), -77.0f), early_lse(late_lse.size());
  sequences[0].first_position = 63;
  sequences[0].out = early.data();
  sequences[0].lse = early_lse.data();
  run(shape, sequences);
  merge_attention(early.data(), early_lse.data(), late.data(), late_lse.data(), 4, 32);
  expect_close(early, whole, [&](size_t) { return 2 * tolerance_of(shape, 96, 24, 4); });
  expect_close(early_lse, whole_lse, [](size_t) { return 2e-5; });
}

TEST(MergeAttention, AgreesWithTheReference) {
  Random random(72);
  SCOPED_TRACE(random.trace());
  auto out = random.normal(5 * 17), lse = random.normal(5, 10);
  const auto other = random.normal(5 * 17), other_lse = random.normal(5, 10);
  lse[1] = -INFINITY;
  auto expected = out, expected_lse = lse;
  merge_attention(out.data(), lse.data(), other.data(), other_lse.data(), 5, 17);
  reference::merge_attention(expected.data(), expected_lse.data(), other.data(), other_lse.data(),
                             5, 17);
  expect_close(out, expected, [&](size_t i) {
    return 64 * kRounding * (std::fabs(expected[i]) + std::fabs(other[i]) + 1);
  });
  expect_close(lse, expected_lse,
               [&](size_t i) { return 4 * kRounding * (std::fabs(expected_lse[i]) + 1); });
}

TEST(MergeAttention, NothingCountsForNothing) {
  std::vector<float> out{1, 2}, lse{-INFINITY};
  const std::vector<float> other{3, 4}, other_lse{0.5f}, empty_lse{-INFINITY};
  merge_attention(out.data(), lse.data(), other.data(), empty_lse.data(), 1, 2);
  EXPECT_EQ(lse[0], -INFINITY);
  merge_attention(out.data(), lse.data(), other.data(), other_lse.data(), 1, 2);
  EXPECT_EQ(out, other);
  EXPECT_EQ(lse[0], 0.5f);
  merge_attention(out.data(), lse.data(), other.data(), empty_lse.data(), 1, 2);
  EXPECT_EQ(out, other);
}

TEST(KvWrite, EqualsTheReferenceAndTouchesOnlyItsPositions) {
  for_each_isa([] {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
      for (const int page : {1, 3, 16}) {
        const AttentionShape shape = make_shape(6, 3, 20, page, dtype);
        Random random(static_cast<uint32_t>(page));
        const int64_t stride = 3 * 20 + 7;
        const auto k = random.normal(100 * stride), v = random.normal(100 * stride);
        const int64_t bytes = 2 * 3 * int64_t{page} * 20 * dtype_bytes(dtype);
        const size_t count = static_cast<size_t>((111 + page - 1) / page);
        std::vector<std::byte> memory(static_cast<size_t>(bytes) * count, std::byte{0x11});
        auto expected = memory;
        std::vector<std::byte*> pages, expected_pages;
        for (size_t i = 0; i < count; ++i) {
          pages.push_back(memory.data() + (count - 1 - i) * static_cast<size_t>(bytes));
          expected_pages.push_back(expected.data() + (count - 1 - i) * static_cast<size_t>(bytes));
        }
        kv_write(shape, k.data(), v.data(), stride, 11, 100, pages.data());
        reference::kv_write(shape, k.data(), v.data(), stride, 11, 100, expected_pages.data());
        EXPECT_EQ(memory, expected) << dtype_name(dtype) << " page " << page;
      }
  });
}

TEST(KvWrite, PutsCodesWhereTheReferenceDoes) {
  for_each_isa([] {
    for (const KvFormat& format : kQuantisedKv)
      for (const int dim : {20, 64, 128})
        for (const int page : {1, 3, 16, 18, 64}) {
          const AttentionShape shape = make_shape(3, 3, dim, page, format);
          Random random(static_cast<uint32_t>(page + dim));
          const int64_t stride = int64_t{3} * dim + 7;
          const auto k = random.normal(100 * stride), v = random.normal(100 * stride);
          const int64_t bytes = shape.page_bytes();
          const size_t count = static_cast<size_t>((111 + page - 1) / page);
          std::vector<std::byte> memory(static_cast<size_t>(bytes) * count, std::byte{0x11});
          auto expected = memory;
          std::vector<std::byte*> pages, expected_pages;
          for (size_t i = 0; i < count; ++i) {
            pages.push_back(memory.data() + i * static_cast<size_t>(bytes));
            expected_pages.push_back(expected.data() + i * static_cast<size_t>(bytes));
          }
          kv_write(shape, k.data(), v.data(), stride, 11, 100, pages.data());
          reference::kv_write(shape, k.data(), v.data(), stride, 11, 100, expected_pages.data());
          EXPECT_EQ(memory, expected) << kv_format_name(shape.kv_dtype) << " page " << page;
        }
  });
}

}  // namespace
}  // namespace sluice::kernels
