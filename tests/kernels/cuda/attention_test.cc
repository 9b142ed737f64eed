// Attention and KV writes on the device against the reference, over random shapes.
#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cuda/rows.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/rounds.h"
#ifdef SLUICE_CUDA_ON_HOST
#include "kernels/cuda/shim/host_driver.h"
#endif

namespace sluice::cuda {
namespace {
using kernels::AttentionShape;
using kernels::Random;
namespace reference = kernels::reference;

// Sequences with their KV in pages that lie anywhere, on the host and on the device.
class Case {
 public:
  Case(const AttentionShape& shape, const std::vector<std::pair<int32_t, int32_t>>& lengths,
       uint32_t seed)
      : shape_(shape), random_(seed) {
    int64_t pages = 0;
    for (const auto& [first_position, count] : lengths) {
      runs_.push_back({rows_, pages, first_position, count});
      rows_ += count;
      pages += (first_position + count + shape.page_tokens - 1) / shape.page_tokens;
    }
    order_.resize(static_cast<size_t>(pages));
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::shuffle(order_.begin(), order_.end(), random_.engine());
    // What nobody has written is NaN: it must not count.
    memory_.assign(static_cast<size_t>(pages * shape.page_bytes()), std::byte{0xff});
    for (const AttentionRun& run : runs_) {
      const int32_t length = run.first_position + run.count;
      const auto k = random_.normal(int64_t{length} * kv_cols());
      auto v = random_.normal(int64_t{length} * kv_cols());
      for (float& value : v) value += 0.5f;
      std::vector<std::byte*> table = pages_of(run, memory_.data());
      reference::kv_write(shape, k.data(), v.data(), kv_cols(), 0, length, table.data());
    }
    q_ = random_.normal(rows_ * q_cols(), 2);
  }

  /// Queries so many times as large: scores that no exponential holds, or none.
  void scale_queries(float factor) {
    for (float& value : q_) value *= factor;
  }

  std::string trace() const {
    std::string text = random_.trace() + ", " + std::to_string(shape_.num_heads) + "/" +
                       std::to_string(shape_.num_kv_heads) + " heads of " +
                       std::to_string(shape_.head_dim) + ", pages of " +
                       std::to_string(shape_.page_tokens) + ", " + kv_format_name(shape_.kv_dtype) +
                       (shape_.is_chunked ? ", chunk " : ", window ") +
                       std::to_string(shape_.sliding_window);
    for (const AttentionRun& run : runs_)
      text += ", " + std::to_string(run.first_position) + "+" + std::to_string(run.count);
    return text;
  }

  std::vector<float> on_device(int multiprocessors, size_t* merges = nullptr) const {
    // Pages lie some way behind their addresses, as those of a later layer.
    constexpr int64_t kOffset = 4096;
    std::vector<std::byte> moved(static_cast<size_t>(kOffset));
    moved.insert(moved.end(), memory_.begin(), memory_.end());
    DeviceArray<std::byte> memory(moved);
    DeviceArray<float> q(q_), out(q_.size());
    std::vector<const std::byte*> table;
    for (const AttentionRun& run : runs_)
      for (const std::byte* page : pages_of(run, memory.data())) table.push_back(page);
    AttentionPlan plan = plan_attention(shape_, runs_, {multiprocessors});
    EXPECT_LE(std::ssize(plan.runs), rows_);
    EXPECT_LE(plan.workspace_floats, attention_workspace_floats(shape_, {multiprocessors}));
    EXPECT_LE(static_cast<int64_t>(plan.items.size()),
              attention_most_items(shape_, rows_, {multiprocessors}));
    if (merges) *merges = plan.merges.size();
    // Blocks that have nothing to do change nothing.
    if (static_cast<size_t>(plan.tile_items) < plan.items.size()) plan.items.push_back({.run = -1});
    if (!plan.merges.empty()) plan.merges.push_back({.run = -1});
    DeviceArray<AttentionRun> runs(plan.runs);
    DeviceArray<const std::byte*> pages(table);
    DeviceArray<AttentionItem> items(plan.items);
    DeviceArray<AttentionMerge> merged(plan.merges);
    DeviceArray<float> workspace(static_cast<size_t>(plan.workspace_floats));
    DeviceArray<float> slopes(
        shape_.slopes ? std::vector<float>(shape_.slopes, shape_.slopes + shape_.num_heads)
                      : std::vector<float>(1));
    DeviceArray<float> sinks(shape_.sinks
                                 ? std::vector<float>(shape_.sinks, shape_.sinks + shape_.num_heads)
                                 : std::vector<float>(1));
    AttentionShape shape = shape_;
    if (shape.slopes) shape.slopes = slopes.data();
    if (shape.sinks) shape.sinks = sinks.data();
    attention(shape, plan,
              {q.data(), q_cols(), out.data(), q_cols(), runs.data(), pages.data(), kOffset,
               items.data(), merged.data(), workspace.data()},
              nullptr);
    return out.values();
  }

  std::vector<float> expected() const {
    // What the device takes: queries of 16 bits, beside int4 keys of the reference's 7.
    const std::vector<float> q =
        shape_.kv_dtype == KvFormat(KvEncoding::kInt4) ? q_ : kernels::rounded_to(taken_as(), q_);
    std::vector<float> out(q.size());
    std::vector<std::vector<std::byte*>> tables;
    std::vector<kernels::AttentionSequence> sequences;
    tables.reserve(runs_.size());
    for (const AttentionRun& run : runs_) {
      tables.push_back(pages_of(run, const_cast<std::byte*>(memory_.data())));
      kernels::AttentionSequence sequence;
      sequence.q = q.data() + run.row_begin * q_cols();
      sequence.q_stride = q_cols();
      sequence.first_position = run.first_position;
      sequence.count = run.count;
      sequence.pages = tables.back().data();
      sequence.out = out.data() + run.row_begin * q_cols();
      sequence.out_stride = q_cols();
      sequences.push_back(sequence);
    }
    reference::attention(shape_, sequences);
    return out;
  }

  // Weights are rounded to 16 bits, and so are dequantised K (scores) and V.
  double tolerance() const {
    const double rounding = taken_as() == DType::kBF16 ? 0x1p-8 : 0x1p-11;
    constexpr double kLargestValue = 5.5;
    return rounding * kLargestValue * (shape_.kv_dtype.is_quantised() ? 6 : 1);
  }

  /// False for columns of the output that mean nothing.
  bool is_value(size_t i) const {
    return static_cast<int64_t>(i) % shape_.head_dim >= shape_.value_begin;
  }

  int64_t q_cols() const { return int64_t{shape_.num_heads} * shape_.head_dim; }
  int64_t kv_cols() const { return int64_t{shape_.num_kv_heads} * shape_.head_dim; }

 private:
  DType taken_as() const {
    return shape_.kv_dtype == KvFormat(DType::kBF16) ? DType::kBF16 : DType::kF16;
  }
  std::vector<std::byte*> pages_of(const AttentionRun& run, std::byte* memory) const {
    std::vector<std::byte*> table;
    const int64_t pages =
        (run.first_position + run.count + shape_.page_tokens - 1) / shape_.page_tokens;
    for (int64_t i = 0; i < pages; ++i)
      table.push_back(memory +
                      static_cast<int64_t>(order_[static_cast<size_t>(run.first_page + i)]) *
                          shape_.page_bytes());
    return table;
  }

  AttentionShape shape_;
  Random random_;
  std::vector<AttentionRun> runs_;
  int64_t rows_ = 0;
  std::vector<size_t> order_;
  std::vector<std::byte> memory_;
  std::vector<float> q_;
};

AttentionShape shape_of(int group, int kv_heads, int head_dim, int page_tokens,
                        const KvFormat& format, int window = 0) {
  AttentionShape shape;
  shape.num_heads = group * kv_heads;
  shape.num_kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.page_tokens = page_tokens;
  shape.scale = 1 / std::sqrt(static_cast<float>(head_dim));
  shape.kv_dtype = format;
  shape.sliding_window = window;
  return shape;
}

AttentionShape chunked(AttentionShape shape, int chunk) {
  shape.sliding_window = chunk;
  shape.is_chunked = true;
  return shape;
}

// Of one KV head whose keys are the values, those but for the first `begin` columns.
AttentionShape latent_shape(int heads, int dim, int begin, int page_tokens, DType type) {
  AttentionShape shape = shape_of(heads, 1, dim, page_tokens, type);
  shape.has_values = false;
  shape.value_begin = begin;
  return shape;
}

void expect_as_reference(const Case& one, int multiprocessors) {
  SCOPED_TRACE(one.trace());
  const auto got = one.on_device(multiprocessors);
  const auto expected = one.expected();
  size_t worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_FALSE(std::isnan(got[i])) << i;
    if (!one.is_value(i)) continue;
    if (!one.is_value(worst) ||
        std::fabs(got[i] - expected[i]) > std::fabs(got[worst] - expected[worst]))
      worst = i;
  }
  EXPECT_NEAR(got[worst], expected[worst], one.tolerance()) << "element " << worst;
}

// The same of a case of many, with the next seed.
void expect_of_many(uint32_t& seed, const AttentionShape& shape,
                    const std::vector<std::pair<int32_t, int32_t>>& lengths, int multiprocessors) {
  const uint32_t number = seed++;
  if (!is_left_to_release(number))
    expect_as_reference(Case(shape, lengths, number), multiprocessors);
}

std::vector<KvFormat> formats() {
  std::vector<KvFormat> out{DType::kF16};
  out.insert(out.end(), kQuantisedKv.begin(), kQuantisedKv.end());
  if (first_device().has_bf16) out.emplace_back(DType::kBF16);
  return out;
}

std::vector<DType> plain_types() {
  std::vector<DType> out{DType::kF16};
  if (first_device().has_bf16) out.push_back(DType::kBF16);
  return out;
}

TEST(CudaAttention, DecodesAsTheReference) {
  uint32_t seed = 1;
  for (const KvFormat& format : formats())
    for (const int head_dim : {8, 64, 80, 128, 256, 100})
      for (const int group : {1, 4, 7})
        for (const int page : {16, 5})
          expect_of_many(seed, shape_of(group, 2, head_dim, page, format),
                         {{0, 1}, {5, 1}, {63, 1}, {64, 1}, {130, 1}}, 1);
}

TEST(CudaAttention, WindowsAndSplitsOfQuantisedPagesBeginAtBlocks) {
  uint32_t seed = 200;
  for (const KvFormat& format : kQuantisedKv)
    for (const int page : {16, 64, 9})
      for (const int window : {0, 7, 900})
        expect_of_many(seed, shape_of(4, 2, 64, page, format, window),
                       {{1500, 1}, {3, 1}, {1001, 2}, {70, 40}}, 4);
  // Codes of K and V in turn.
  for (const KvFormat& format : kQuantisedKv)
    for (const int window : {0, 90})
      expect_as_reference(Case(shape_of(3, 1, 256, 16, format, window),
                               {{600, 1}, {3, 1}, {301, 2}, {70, 40}}, seed++),
                          4);
}

TEST(CudaAttention, CapsAndSlopesScoresAsTheReference) {
  uint32_t seed = 400;
  const std::vector<float> slopes{0.5f, 0.25f, 0.125f, 0.01f, 0.3f, 0.2f,
                                  0.1f, 0.05f, 0.7f,   0.02f, 0.6f, 0.4f};  // one a head
  for (const KvFormat& format : formats())
    for (const int head_dim : {64, 100, 256})
      for (const auto& [cap, is_sloped, window] :
           {std::tuple{0.7f, false, 0}, {3.0f, true, 40}, {0.0f, true, 0}}) {
        AttentionShape shape = shape_of(6, 2, head_dim, 16, format, window);
        shape.soft_cap = cap;
        if (is_sloped) shape.slopes = slopes.data();
        expect_of_many(seed, shape, {{0, 1}, {130, 1}, {63, 2}, {20, 60}, {700, 1}}, 2);
      }
}

// Of plain KV; with and without all that heads of other widths have.
TEST(CudaAttention, WideHeadsAttendAsTheReference) {
  uint32_t seed = 600;
  const std::vector<float> slopes{0.5f, 0.25f, 0.0f, 0.01f, 0.3f, 0.2f, 0.1f, 0.05f};
  const std::vector<float> sinks{-40.0f, 3.0f, 9.0f, 1.5f, 60.0f, 0.0f, -3.0f, 6.0f};
  for (const DType type : plain_types())
    for (const int head_dim : {257, 320, 500, 512})
      for (const int group : {1, 4, 7})
        for (const int page : {16, 5}) {
          AttentionShape shape =
              shape_of(group, group == 4 ? 2 : 1, head_dim, page, type, page == 5 ? 40 : 0);
          if (group == 4) shape.slopes = slopes.data();
          if (group == 4 || page == 5) shape.sinks = sinks.data();
          if (group == 7) shape.soft_cap = 2;
          expect_of_many(seed, shape,
                         {{0, 1}, {31, 1}, {32, 1}, {95, 1}, {0, 35}, {20, 3}, {63, 2}}, 1);
        }
  AttentionShape split = shape_of(4, 2, 512, 16, DType::kF16);
  for (const bool has_sinks : {false, true}) {
    split.sinks = has_sinks ? sinks.data() : nullptr;
    Case one(split, {{1500, 1}, {3, 1}, {2100, 2}}, seed++);
    size_t merges = 0;
    one.on_device(4, &merges);
    EXPECT_EQ(merges, 2u);
    for (const int multiprocessors : {1, 4, 16}) expect_as_reference(one, multiprocessors);
    one.scale_queries(has_sinks ? 300 : 0);
    expect_as_reference(one, 4);
  }
  EXPECT_FALSE(takes_attention(shape_of(1, 1, 513, 16, DType::kF16)));
  EXPECT_TRUE(takes_attention(shape_of(1, 1, 512, 16, DType::kBF16)));
  EXPECT_FALSE(takes_attention(shape_of(1, 1, 257, 16, KvFormat(KvEncoding::kInt8))));
  // A Turing has room for a block.
  EXPECT_TRUE(attention_fits(shape_of(1, 1, 512, 16, DType::kF16), {40, 64 << 10, 0}));
}

// Sinks that take nothing, as much as positions do, and nearly all; of prompts, single tokens, and
// contexts that are split.
TEST(CudaAttention, SinksTakeTheirShareAsTheReference) {
  uint32_t seed = 500;
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> sinks{-40.0f, 0.0f, 3.0f, 9.0f, 60.0f, 1.5f, -3.0f, 6.0f, -infinity};
  for (const KvFormat& format : formats())
    for (const int head_dim : {64, 100, 256})
      for (const int window : {0, 40})
        for (const float cap : {0.0f, 2.0f}) {
          AttentionShape shape = shape_of(3, 3, head_dim, 16, format, window);
          shape.sinks = sinks.data();
          shape.soft_cap = cap;
          expect_as_reference(
              Case(shape, {{0, 1}, {130, 1}, {63, 2}, {20, 60}, {0, 3}, {700, 1}}, seed++), 2);
        }
  AttentionShape split = shape_of(4, 2, 64, 16, DType::kF16);
  split.sinks = sinks.data();
  const Case one(split, {{1500, 1}, {3, 1}, {2100, 2}}, seed++);
  size_t merges = 0;
  one.on_device(4, &merges);
  EXPECT_EQ(merges, 2u);
  for (const int multiprocessors : {1, 4, 16}) expect_as_reference(one, multiprocessors);
  // Scores and sinks that no exponential holds.
  const std::vector<float> large{-20000.0f, 20000.0f, 300.0f, 0.0f, 20000.0f, -1.0f, -300.0f, 5.0f};
  split.sinks = large.data();
  Case far(split, {{2100, 1}, {1500, 2}, {90, 1}, {20, 60}}, seed++);
  far.scale_queries(300);
  expect_as_reference(far, 8);
}

TEST(CudaAttention, PromptsAttendAsTheReference) {
  uint32_t seed = 100;
  for (const KvFormat& format : formats())
    for (const int head_dim : {12, 64, 128, 256})
      for (const int group : {1, 3})
        expect_as_reference(Case(shape_of(group, 1, head_dim, 8, format),
                                 {{0, 1}, {0, 70}, {33, 40}, {10, 3}}, seed++),
                            1);
}

TEST(CudaAttention, RandomShapes) {
  for (uint32_t seed = 1000; seed < 1000 + rounds(25u); ++seed) {
    Random random(seed);
    const auto all = formats();
    const KvFormat format = all[static_cast<size_t>(random.between(0, 2))];
    const int window = random.between(0, 1) ? static_cast<int>(random.between(1, 90)) : 0;
    AttentionShape shape = shape_of(
        static_cast<int>(random.between(1, 9)), static_cast<int>(random.between(1, 3)),
        static_cast<int>(random.between(1, 140)),
        static_cast<int>(random.between(0, 1) ? 16 * random.between(1, 3) : random.between(1, 40)),
        format, window);
    std::vector<std::pair<int32_t, int32_t>> lengths;
    for (int64_t i = random.between(1, 4); i > 0; --i)
      lengths.emplace_back(random.between(0, 200),
                           random.between(0, 2) ? 1 : random.between(1, 60));
    expect_as_reference(Case(shape, lengths, seed), static_cast<int>(random.between(1, 4)));
    if (window == 0) continue;
    shape.is_chunked = true;
    if (takes_attention(shape)) expect_as_reference(Case(shape, lengths, seed), 2);
  }
}

TEST(CudaAttention, LongContextsAreSplitAndMerged) {
  const Case one(shape_of(4, 2, 64, 16, DType::kF16), {{1500, 1}, {3, 1}, {2100, 2}}, 5);
  size_t merges = 0;
  one.on_device(4, &merges);
  EXPECT_EQ(merges, 2u);
  expect_as_reference(one, 1);
  expect_as_reference(one, 16);
  const Case windowed(shape_of(4, 2, 64, 16, DType::kF16, 1000), {{1500, 1}, {2100, 2}}, 6);
  expect_as_reference(windowed, 4);
}

// Chunks of one position, less than a page, a page, a warp's rows and one more or less, a tile, and
// more than there is; runs within one, up to where one ends, from there on, and over many.
TEST(CudaAttention, ChunksAreSeenFromTheirBeginningOn) {
  uint32_t seed = 700;
  for (const DType type : plain_types())
    for (const auto& [group, kv_heads, head_dim] :
         {std::tuple{1, 2, 64}, {5, 1, 100}, {4, 2, 128}, {3, 1, 256}, {2, 1, 512}})
      for (const int chunk : {1, 5, 16, 17, 37, 64, 1000})
        for (const int page : {16, 7})
          expect_as_reference(Case(chunked(shape_of(group, kv_heads, head_dim, page, type), chunk),
                                   {{0, 1},
                                    {chunk, 1},
                                    {2 * chunk - 1, 1},
                                    {0, 75},
                                    {33, 40},
                                    {chunk, 3},
                                    {3 * chunk - 2, 4}},
                                   seed++),
                              1);
}

// Of codes they begin where blocks of turned keys do, or anywhere where keys lie row by row.
TEST(CudaAttention, ChunksOfQuantisedPagesBeginAtBlocks) {
  uint32_t seed = 800;
  for (const KvFormat& format : kQuantisedKv) {
    const auto shape = [&](int page, int chunk, int head_dim = 64) {
      return chunked(shape_of(4, 2, head_dim, page, format), chunk);
    };
    for (const auto& [page, chunk] : {std::pair{16, 16}, {64, 48}, {64, 128}, {9, 1}, {9, 37}})
      for (const int head_dim : {64, 256}) {
        EXPECT_TRUE(takes_attention(shape(page, chunk, head_dim)));
        expect_as_reference(Case(shape(page, chunk, head_dim),
                                 {{0, 1}, {chunk, 1}, {600, 1}, {301, 2}, {70, 60}}, seed++),
                            4);
      }
    for (const int chunk : {1, 15, 17, 8191})
      EXPECT_FALSE(takes_attention(shape(64, chunk))) << chunk;
  }
}

TEST(CudaAttention, LongChunksAreSplitAndMerged) {
  for (const int head_dim : {64, 512}) {
    const Case one(chunked(shape_of(4, 2, head_dim, 16, DType::kF16), 1100),
                   {{3299, 1}, {1100, 1}, {2198, 4}, {2150, 1}}, 810);
    size_t merges = 0;
    one.on_device(8, &merges);
    EXPECT_EQ(merges, 3u) << "one sees nothing but itself, the second half of a run two";
    for (const int multiprocessors : {1, 8, 16}) expect_as_reference(one, multiprocessors);
  }
}

// All rows of a block see positions from the one on that it begins with, so that kernels need not
// know of chunks; rows are each in one block.
TEST(CudaAttention, ChunksCutRuns) {
  const std::vector<AttentionRun> runs{
      {0, 0, 0, 100}, {100, 9, 31, 1}, {101, 12, 32, 1}, {102, 20, 30, 130}, {232, 40, 64, 32}};
  for (const bool has_values : {true, false})
    for (const int chunk : {1, 3, 32, 33, 64, 5000}) {
      SCOPED_TRACE(chunk);
      AttentionShape shape = chunked(shape_of(3, 1, 64, 16, DType::kF16), chunk);
      shape.has_values = has_values;
      const AttentionPlan plan = plan_attention(shape, runs, {2});
      EXPECT_LE(std::ssize(plan.items), attention_most_items(shape, 264, {2}));
      int64_t rows = 0;
      for (const AttentionRun& run : plan.runs) {
        EXPECT_EQ(run.row_begin, rows);
        rows += run.count;
        EXPECT_GT(run.count, 0);
        EXPECT_EQ(run.first_position / chunk, (run.first_position + run.count - 1) / chunk);
      }
      EXPECT_EQ(rows, 264);
      for (const AttentionItem& item : plan.items) {
        const AttentionRun& run = plan.runs[static_cast<size_t>(item.run)];
        const int32_t chunk_begin = run.first_position / chunk * chunk;
        EXPECT_TRUE(item.split < 0 ? item.begin == chunk_begin : item.begin >= chunk_begin);
        EXPECT_LE(item.end, run.first_position + run.count);
      }
    }
  // Without chunks runs stay as they are.
  const AttentionPlan whole = plan_attention(shape_of(3, 1, 64, 16, DType::kF16, 32), runs, {2});
  ASSERT_EQ(whole.runs.size(), runs.size());
  for (size_t i = 0; i < runs.size(); ++i) EXPECT_EQ(whole.runs[i].count, runs[i].count);
}

// Maxima of warps, tiles and splits are far apart: a weight beside another's maximum overflows.
TEST(CudaAttention, LargeScoresDoNotOverflow) {
  uint32_t seed = 300;
  for (const DType type : {DType::kF16, DType::kBF16})
    for (const float factor : {300.0f, 3000.0f}) {
      if (type == DType::kBF16 && !first_device().has_bf16) continue;
      Case one(shape_of(4, 2, 64, 16, type), {{2100, 1}, {1500, 2}, {90, 1}, {20, 60}}, seed++);
      one.scale_queries(factor);
      expect_as_reference(one, 8);
    }
}

// All positions weigh the same.
TEST(CudaAttention, ZeroQueriesTakeTheMean) {
  uint32_t seed = 320;
  for (const KvFormat& format : formats()) {
    Case one(shape_of(3, 2, 64, 16, format), {{0, 1}, {500, 1}, {20, 60}}, seed++);
    one.scale_queries(0);
    expect_as_reference(one, 2);
  }
}

TEST(CudaAttention, AttendsToLatentRowsAsTheReference) {
  uint32_t seed = 400;
  for (const DType type : plain_types())
    for (const auto& [heads, dim] :
         {std::pair{1, 8}, {4, 20}, {3, 17}, {33, 128}, {40, 288}, {5, 320}, {16, 576}, {70, 500}})
      for (const int page : {16, 5})
        expect_of_many(seed, latent_shape(heads, dim, dim / 8, page, type),
                       {{0, 1}, {31, 1}, {32, 1}, {95, 1}, {0, 35}, {20, 3}}, 1);
}

TEST(CudaAttention, LongContextsOfLatentRowsAreSplitAndMerged) {
  const Case one(latent_shape(40, 96, 8, 16, DType::kF16), {{1500, 1}, {3, 1}, {2100, 1}, {9, 4}},
                 5);
  size_t merges = 0;
  one.on_device(4, &merges);
  EXPECT_EQ(merges, 2u);
  expect_as_reference(one, 1);
  expect_as_reference(one, 16);
  AttentionShape shape = latent_shape(7, 96, 0, 16, DType::kF16);
  shape.sliding_window = 1000;
  expect_as_reference(Case(shape, {{1500, 1}, {2100, 1}, {1200, 2}}, 6), 8);
}

TEST(CudaAttention, LargeScoresOfLatentRowsDoNotOverflow) {
  for (const DType type : plain_types()) {
    Case one(latent_shape(9, 64, 16, 16, type), {{2100, 1}, {90, 1}, {20, 40}}, 430);
    one.scale_queries(3000);
    expect_as_reference(one, 8);
    one.scale_queries(0);
    expect_as_reference(one, 8);
  }
}

TEST(CudaAttention, CapsAndSlopesScoresOfLatentRows) {
  AttentionShape shape = latent_shape(6, 40, 8, 16, DType::kF16);
  shape.soft_cap = 2;
  const std::vector<float> slopes{0.5f, 0.25f, 0.125f, 0.0625f, 0.03f, 0.01f};
  shape.slopes = slopes.data();
  expect_as_reference(Case(shape, {{70, 1}, {5, 20}}, 440), 2);
}

#ifdef SLUICE_CUDA_ON_HOST
void expect_the_same_in_any_order(const Case& one) {
  host::set_seed(0);
  const auto expected = one.on_device(4);
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    host::set_seed(seed);
    EXPECT_EQ(one.on_device(4), expected);
  }
  host::set_seed(0);
}
#endif

TEST(CudaAttention, TheOrderOfThreadsDoesNotMatterToLatentRows) {
#ifdef SLUICE_CUDA_ON_HOST
  expect_the_same_in_any_order(
      Case(latent_shape(20, 72, 8, 16, DType::kF16), {{700, 1}, {30, 20}}, 7));
#else
  GTEST_SKIP() << "a GPU has its own order";
#endif
}

TEST(CudaAttention, WritesLatentRowsAsTheReference) {
  uint32_t seed = 60;
  for (const DType type : plain_types())
    for (const int dim : {1, 20, 130, 576}) {
      const AttentionShape shape = latent_shape(4, dim, 0, 5, type);
      Random random(seed++);
      const auto k = random.normal(int64_t{7} * (dim + 3));
      std::vector<std::byte> expected(static_cast<size_t>(2 * shape.page_bytes()));
      DeviceArray<std::byte> memory(expected);
      DeviceArray<float> rows(k);
      std::vector<KvPlace> places;
      for (int32_t i = 0; i < 7; ++i)
        places.push_back({memory.data() + i / 5 * shape.page_bytes(), i % 5});
      DeviceArray<KvPlace> table(places);
      kv_write(shape, rows.data(), nullptr, dim + 3, table.data(), 0, 7, {}, nullptr);
      std::byte* const pages[] = {expected.data(), expected.data() + shape.page_bytes()};
      reference::kv_write(shape, k.data(), nullptr, dim + 3, 0, 7, pages);
      EXPECT_EQ(memory.values(), expected) << dim;
    }
}

TEST(CudaAttention, TheOrderOfThreadsDoesNotMatter) {
#ifdef SLUICE_CUDA_ON_HOST
  for (const KvFormat& format : formats())
    expect_the_same_in_any_order(Case(shape_of(4, 2, 64, 16, format), {{700, 1}, {30, 40}}, 7));
#else
  GTEST_SKIP() << "a GPU has its own order";
#endif
}

TEST(CudaAttention, WritesPagesAsTheReference) {
  uint32_t seed = 50;
  for (const KvFormat& format : formats())
    for (const int head_dim : {1, 12, 64, 80, 100, 128, 256}) {
      const AttentionShape shape = shape_of(1, 3, head_dim, 5, format);
      Random random(seed++);
      SCOPED_TRACE(random.trace() + " " + kv_format_name(format) + " " + std::to_string(head_dim));
      constexpr int32_t kTokens = 12;
      const int64_t stride = 3 * head_dim + 2;
      auto k = random.normal(kTokens * stride, 3);
      const auto v = random.normal(kTokens * stride);
      for (int d = 0; d < head_dim; ++d) k[static_cast<size_t>(d)] = 0.25f;  // a constant group
      std::vector<std::byte> memory(static_cast<size_t>(3 * shape.page_bytes()));
      DeviceArray<std::byte> device(memory);
      DeviceArray<float> dk(k), dv(v);
      std::vector<KvPlace> places;
      std::vector<std::byte*> table;
      for (int64_t page = 0; page < 3; ++page)
        table.push_back(memory.data() + page * shape.page_bytes());
      for (int32_t i = 0; i < kTokens; ++i)
        places.push_back({device.data() + (i / 5 - 1) * shape.page_bytes(), i % 5});
      places[7].page = nullptr;  // goes nowhere
      DeviceArray<KvPlace> dp(places);
      kv_write(shape, dk.data(), dv.data(), stride, dp.data(), shape.page_bytes(), kTokens, {},
               nullptr);
      reference::kv_write(shape, k.data(), v.data(), stride, 0, 7, table.data());
      reference::kv_write(shape, k.data() + 8 * stride, v.data() + 8 * stride, stride, 8, 4,
                          table.data());
      const auto got = device.values();
#ifdef SLUICE_CUDA_ON_HOST
      EXPECT_EQ(got, memory);
#else
      // A fused product may round a code the other way.
      size_t others = 0;
      for (size_t i = 0; i < got.size(); ++i) others += got[i] != memory[i];
      EXPECT_LE(others, got.size() / 200);
#endif
    }
}

// The same bits as rotating first: rows that go nowhere too, and nothing but Q and K.
TEST(CudaAttention, RotatesWhatItWrites) {
  uint32_t seed = 70;
  for (const KvFormat& format : formats())
    for (const auto& [head_dim, rotary_dim] : {std::pair{64, 64}, {100, 32}, {128, 128}}) {
      const AttentionShape shape = shape_of(3, 2, head_dim, 4, format);
      Random random(seed++);
      SCOPED_TRACE(random.trace() + " " + kv_format_name(format) + " " + std::to_string(head_dim));
      constexpr int64_t kRows = 7;
      const int64_t q_cols = int64_t{shape.num_heads} * head_dim;
      const int64_t kv_cols = int64_t{shape.num_kv_heads} * head_dim;
      const int64_t stride = q_cols + 2 * kv_cols + 3;
      const auto qkv = random.normal(kRows * stride);
      std::vector<float> frequencies;
      for (int i = 0; i < rotary_dim / 2; ++i)
        frequencies.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / 64.0f));
      DeviceArray<float> apart(qkv), joined(qkv), inverse(frequencies);
      DeviceArray<int32_t> positions(std::vector<int32_t>{0, 5, 6, 100, 3000, 1, 2});
      const auto pages = static_cast<size_t>(2 * shape.page_bytes());
      DeviceArray<std::byte> first{std::vector<std::byte>(pages)},
          second{std::vector<std::byte>(pages)};
      const auto places_in = [&](const DeviceArray<std::byte>& memory) {
        std::vector<KvPlace> places;
        for (int32_t i = 0; i < kRows; ++i)
          places.push_back({memory.data() + i / 4 * shape.page_bytes(), i % 4});
        places[5].page = nullptr;
        return places;
      };
      DeviceArray<KvPlace> first_places(places_in(first)), second_places(places_in(second));
      // Both layouts in turn.
      const RopeLayout layout = seed % 2 == 0 ? RopeLayout::kHalves : RopeLayout::kPairs;
      rope_inplace(apart.data(), {kRows, q_cols, stride}, shape.num_heads, rotary_dim,
                   positions.data(), inverse.data(), 1.25f, layout, nullptr);
      rope_inplace(apart.data() + q_cols, {kRows, kv_cols, stride}, shape.num_kv_heads, rotary_dim,
                   positions.data(), inverse.data(), 1.25f, layout, nullptr);
      kv_write(shape, apart.data() + q_cols, apart.data() + q_cols + kv_cols, stride,
               first_places.data(), 0, kRows, {}, nullptr);
      const Rotation rotation{joined.data(), positions.data(), inverse.data(), rotary_dim, 1.25f,
                              layout};
      kv_write(shape, joined.data() + q_cols, joined.data() + q_cols + kv_cols, stride,
               second_places.data(), 0, kRows, rotation, nullptr);
      EXPECT_EQ(joined.values(), apart.values());
      EXPECT_NE(joined.values(), qkv);
      EXPECT_EQ(second.values(), first.values());
    }
}

}  // namespace
}  // namespace sluice::cuda
