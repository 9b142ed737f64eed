// What adapters add to rows on the device against the reference, and where the two differ: rows are
// grouped by adapter wherever they lie, and parts of a micro-batch's rows are computed alone.
#include "kernels/cuda/low_rank.h"

#include <algorithm>
#include <cmath>

#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::cuda {
namespace {
using kernels::LowRank;
using kernels::LowRankOperands;
using kernels::LowRankRun;
using kernels::Random;

struct Case {
  int64_t cols;
  int64_t outputs;
  std::vector<int64_t> ranks;  // of the adapters there are; 0: nothing for this weight
  std::vector<int> rows;       // the adapter of each row; -1: none
};

// Rows whose adapters take turns, with some that have none between them.
std::vector<int> in_turn(int rows, int adapters, int none_each) {
  std::vector<int> out;
  for (int i = 0; i < rows; ++i) out.push_back(i % none_each == 1 ? -1 : i % adapters);
  return out;
}

std::vector<Case> cases() {
  return {{1, 1, {1}, {0}},
          {3, 5, {2, 1}, {0, -1, 1}},
          {67, 255, {8, 17, 1}, {-1, 0, 1, 2, 0, -1, 1, 0}},
          {64, 256, {16}, std::vector<int>(9, 0)},  // one adapter's, more than an item has
          {129, 257, {7, 33, 0}, in_turn(19, 3, 4)},
          {1301, 519, {64, 31}, {1, 0, 0}},  // columns in parts, more ranks than are taken at once
          {2050, 31, {4}, {0}},
          {255, 513, {1, 2, 3, 4, 5, 6, 7, 8, 17, 16}, in_turn(23, 10, 7)},
          {96, 700, {40}, {-1, -1, -1}}};
}

// Of the device's type and place: `tables` has what each adapter adds to two weights, of which the
// second is the product's.
struct Adapters {
  std::vector<std::vector<std::byte>> host;
  std::vector<std::vector<float>> factors;
  std::vector<LowRank> on_host;
  std::vector<DeviceArray<std::byte>> there;
  std::vector<DeviceArray<float>> factors_there;
  std::vector<DeviceArray<LowRank>> tables;
};

Adapters make_adapters(const Case& one, int64_t a_rows_or_cols, DType type, bool is_dora,
                       Random& random) {
  Adapters out;
  for (const int64_t rank : one.ranks) {
    // As an adapter that changes the other weight alone has it.
    const LowRank other{.dtype = DType::kF16, .rank = 3, .scale = 9};
    const int64_t element = dtype_bytes(type);
    const int64_t a_bytes = a_rows_or_cols * rank * element;
    std::vector<std::byte> bytes = kernels::stored_as(type, random.normal(a_rows_or_cols * rank));
    bytes.resize(static_cast<size_t>(a_bytes + one.outputs * rank * element));
    kernels::place_low_rank_b(random.normal(one.outputs * rank).data(), one.outputs, rank, type,
                              bytes.data() + a_bytes);
    out.host.push_back(bytes);
    out.there.emplace_back(bytes);
    out.factors.push_back(random.normal(one.outputs));
    out.factors_there.emplace_back(out.factors.back());
    const auto changes = [&](const std::byte* at, const float* factors) {
      if (rank == 0) return LowRank{};
      return LowRank{at, at + a_bytes, type, rank, 0.75f, is_dora ? factors : nullptr};
    };
    out.on_host.push_back(changes(out.host.back().data(), out.factors.back().data()));
    out.tables.emplace_back(std::vector<LowRank>{
        other, changes(out.there.back().data(), out.factors_there.back().data())});
  }
  return out;
}

// Up to eight rows of an adapter each, and one item that has nothing to do.
std::vector<LowRankItem> items_of(const Case& one, const Adapters& adapters) {
  std::vector<LowRankItem> items(1);
  for (size_t adapter = 0; adapter < one.ranks.size(); ++adapter) {
    int taken = 0;
    for (size_t row = 0; row < one.rows.size(); ++row) {
      if (one.rows[row] != static_cast<int>(adapter)) continue;
      if (taken % kLowRankRows == 0) items.emplace_back().changes = adapters.tables[adapter].data();
      items.back().rows[taken++ % kLowRankRows] = static_cast<int32_t>(row);
    }
  }
  return items;
}

void expect_as_reference(const Case& one, DType type, bool is_table, bool is_dora, bool has_bias,
                         int processors, uint32_t seed) {
  Random random(seed);
  SCOPED_TRACE(random.trace() + (is_table ? " table" : "") + (is_dora ? " dora" : "") +
               (has_bias ? " bias" : "") + " " + std::string(dtype_name(type)) + " cols " +
               std::to_string(one.cols) + " on " + std::to_string(processors));
  constexpr int64_t kTableRows = 11;
  Adapters adapters = make_adapters(one, is_table ? kTableRows : one.cols, type, is_dora, random);
  const auto rows = static_cast<int64_t>(one.rows.size());
  const int64_t most_rank = *std::max_element(one.ranks.begin(), one.ranks.end());
  const int64_t x_stride = one.cols + 2, y_stride = one.outputs + 3;
  const std::vector<float> x = random.normal(rows * x_stride);
  const std::vector<float> before = random.normal(rows * y_stride);
  const std::vector<float> bias = random.normal(one.outputs);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < rows; ++i)
    ids.push_back(static_cast<int32_t>(random.between(0, kTableRows - 1)));
  std::vector<float> expected = before;
  LowRankOperands operands{is_table ? nullptr : x.data(),
                           x_stride,
                           one.cols,
                           is_table ? ids.data() : nullptr,
                           expected.data(),
                           y_stride,
                           one.outputs,
                           has_bias ? bias.data() : nullptr};
  std::vector<LowRankRun> runs;
  for (int64_t row = 0; row < rows; ++row)
    if (const int adapter = one.rows[static_cast<size_t>(row)];
        adapter >= 0 && adapters.on_host[static_cast<size_t>(adapter)].rank > 0)
      runs.push_back({&adapters.on_host[static_cast<size_t>(adapter)], row, 1});
  kernels::reference::add_low_rank(runs, operands);

  const DeviceArray<float> x_there(x), y_there(before), bias_there(bias);
  const DeviceArray<int32_t> ids_there(ids);
  const std::vector<LowRankItem> items = items_of(one, adapters);
  const DeviceArray<LowRankItem> items_there(items);
  // Exactly as much as is asked for, of numbers that would be seen.
  const DeviceArray<float> scratch(
      std::vector<float>(static_cast<size_t>(low_rank_scratch_floats(rows, most_rank)), NAN));
  // The rows in two halves, as logits are computed.
  const int64_t cut = random.between(0, rows);
  for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, {cut, rows}}) {
    operands.x = is_table ? nullptr : x_there.data() + begin * x_stride;
    operands.ids = is_table ? ids_there.data() + begin : nullptr;
    operands.y = y_there.data() + begin * y_stride;
    operands.bias = has_bias ? bias_there.data() : nullptr;
    add_low_rank({items_there.data(), std::ssize(items), 1, most_rank, begin, end - begin},
                 operands, scratch.data(), {processors}, nullptr);
  }
  const std::vector<float> y = y_there.values();
  const double size = std::sqrt(double(one.cols) * double(most_rank)) + 4;
  kernels::expect_close(
      y, expected, [&](size_t) { return 8 * kernels::sum_error(one.cols + most_rank) * size; });
  for (int64_t row = 0; row < rows; ++row) {
    const int adapter = one.rows[static_cast<size_t>(row)];
    const bool is_changed = adapter >= 0 && adapters.on_host[static_cast<size_t>(adapter)].rank > 0;
    for (int64_t i = is_changed ? one.outputs : 0; i < y_stride; ++i)
      ASSERT_EQ(y[static_cast<size_t>(row * y_stride + i)],
                before[static_cast<size_t>(row * y_stride + i)])
          << "what no adapter changes stays as it is, row " << row << ", column " << i;
  }
}

TEST(CudaLowRank, AgreesWithTheReference) {
  uint32_t seed = 1;
  for (const Case& one : cases())
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16})
      for (int kind = 0; kind < 4; ++kind, ++seed)
        expect_as_reference(one, type, (kind & 1) != 0, (kind & 2) != 0, seed % 2 == 0,
                            seed % 3 == 0 ? 1 : 132, seed);
}

TEST(CudaLowRank, RandomShapesAgreeWithTheReference) {
  constexpr int64_t kRanks[] = {1, 8, 17, 64};
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    Random random(seed);
    Case one{random.between(1, 1500), random.between(1, 600), {}, {}};
    const int64_t adapters = random.between(1, 10);
    for (int64_t i = 0; i < adapters; ++i)
      one.ranks.push_back(kRanks[static_cast<size_t>(random.between(0, 3))]);
    for (int64_t i = random.between(1, 20); i > 0; --i)
      one.rows.push_back(static_cast<int>(random.between(-1, adapters - 1)));
    constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
    expect_as_reference(one, kTypes[seed % 3], seed % 4 == 0, seed % 5 == 0, seed % 2 == 0,
                        static_cast<int>(random.between(1, 200)), seed + 100);
  }
}

// Columns are cut in parts where few blocks would be left, and all fit what is asked for.
TEST(CudaLowRank, PartsFitTheScratch) {
  for (const int64_t items : {1, 3, 64, 500})
    for (const int64_t rank : {1, 16, 64, 513})
      for (const int64_t rows : {1, 8, 33, 512, 4096})
        for (const int64_t cols : {1, 1024, 4097, 28672})
          for (const int count : {1, 40, 132}) {
            const int parts = low_rank_parts({nullptr, items, 0, rank, 0, rows}, cols, {count});
            EXPECT_GE(parts, 1);
            EXPECT_LE(parts * rows * rank, low_rank_scratch_floats(rows, rank));
            EXPECT_LE(parts, std::max<int64_t>(1, (cols + 1023) / 1024));
          }
  EXPECT_GT(low_rank_parts({nullptr, 1, 0, 16, 0, 1}, 4096, {132}), 1) << "one row alone is cut";
  EXPECT_EQ(low_rank_parts({nullptr, 64, 0, 16, 0, 512}, 4096, {132}), 1);
  EXPECT_EQ(low_rank_scratch_floats(512, 0), 0);
}

}  // namespace
}  // namespace sluice::cuda
