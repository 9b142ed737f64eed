#include "kernels/quantised_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/variant.h"
#include "kernels/k_layout.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/team.h"

namespace sluice::kernels {

namespace {
constexpr int64_t kLine = 64;
// Bytes of W that a thread takes at a time, at least, and products at most: half a millisecond, so
// that a helper that is about to lose its core soon holds none.
constexpr int64_t kShareBytes = 64 * 1024;
constexpr int64_t kShareProducts = int64_t{1} << 25;
// From so many rows on x is copied where its rows would meet in the cache.
constexpr int64_t kSpreadRows = 5;
constexpr int64_t kRowStep = 32;  // two units of every variant
// From so many rows on x is arranged in tiles, and the codes of a few rows of W decoded once for
// all of them.
constexpr int64_t kTiledRows = 48;     // of f32 x
constexpr int64_t kLookedUpRows = 12;  // likewise, where codes take long to decode
constexpr int64_t kTiledBf16Rows = 16;
constexpr int64_t kTwoPlaneRows = 40;  // likewise, beside K types' codes of two planes
// Values of x, or products with outliers, that a thread takes at a time, at least.
constexpr int64_t kShareValues = 1 << 15;
// LLM.int8() handles at most one column in so many apart: more is no outlier.
constexpr int64_t kOutlierShare = 16;

bool uses_bf16(const QuantisedOptions& options) noexcept {
  return options.compute == Compute::kBF16 && active_variant().quantised_bf16 != nullptr;
}

int64_t sums_of_row(const WeightFormat& format, int64_t k) noexcept {
  return format.padded_columns(k) / sum_columns(format, k);
}

// Takes areas from scratch, each on its own cache lines.
class Areas {
 public:
  explicit Areas(std::span<std::byte> scratch) : scratch_(scratch) {
    const auto address = reinterpret_cast<uintptr_t>(scratch.data());
    used_ = static_cast<int64_t>((kLine - address % kLine) % kLine);
  }
  template <typename T>
  T* take(int64_t count) {
    auto* at = reinterpret_cast<T*>(scratch_.data() + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), kLine);
    SLUICE_ASSERT(used_ <= static_cast<int64_t>(scratch_.size()),
                  "quantised_scratch_bytes says how much");
    return at;
  }

 private:
  std::span<std::byte> scratch_;
  int64_t used_ = 0;
};

template <typename Work>
void over_rows_of_x(int64_t m, int64_t k, const Work& work) {
  deal_each(m, kShareValues / std::max<int64_t>(k, 1), work);
}

// Bytes of a tile of f32 x: a number of each row a column.
int64_t f32_tile_bytes(int64_t k) noexcept { return k * active_variant().tile_room * 4; }

// Bytes of the tiles of m rows of x that are multiplied at a time.
int64_t tiles_bytes(int64_t m, int64_t tile_bytes) noexcept {
  return tiles_at_a_time(m, active_variant().tile_rows, tile_bytes) * tile_bytes;
}

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

int64_t tiled_f32_rows(const WeightFormat& format, SumOrder order) noexcept {
  if (order == SumOrder::kByRow) return kNever;
  const bool is_quick = has_int4_codes(format.encoding) || format.encoding == Encoding::kInt8;
  return is_quick ? kTiledRows : kLookedUpRows;
}

// Tiles that add up as few rows do serve either order.
int64_t tiled_bf16_rows(const WeightFormat& format, int64_t k, SumOrder order) noexcept {
  const bool is_same =
      !format.is_k() && format.group_columns(k) <= active_variant().same_sum_columns;
  if (order == SumOrder::kByRow && !is_same) return kNever;
  if (!format.is_k()) return kTiledBf16Rows;
  const KLayout layout = k_layout(format.encoding);
  return layout.has_nibbles + layout.has_pairs + layout.has_bits > 1 ? kTwoPlaneRows
                                                                     : kTiledBf16Rows;
}

// Bytes from a row of x to the next: an odd number of cache lines, so that the same columns of many
// rows do not meet in the same few sets of the cache.
int64_t spread_stride(int64_t bytes) noexcept { return round_up(bytes, kLine) | kLine; }

template <typename Kernel>
void run(const QuantisedCall& call, Kernel kernel) {
  const int64_t least = std::max<int64_t>(1, kShareBytes / call.format.row_bytes(call.k));
  const int64_t most = std::max<int64_t>(1, kShareProducts / std::max<int64_t>(call.k * call.m, 1));
  deal(call.n, {.granule = kRowStep, .least = least, .most = most},
       [&](int64_t begin, int64_t end) { kernel(call, begin, end); });
}

// All rows of x in tiles: as many at a time as stay in the cache beside W. arrange(begin, rows,
// tile) makes a tile of the rows from `begin` on.
template <typename Arrange, typename Kernel>
void run_tiles(const QuantisedCall& whole, std::byte* tiles, int64_t tile_bytes, bool is_prepared,
               const Arrange& arrange, Kernel kernel) {
  const int64_t tile_rows = active_variant().tile_rows;
  QuantisedCall part = whole;
  part.tiles = tiles;
  for (int64_t begin = 0; begin < whole.m; begin += part.m) {
    part.m = rows_at_a_time(whole.m - begin, tile_rows, tile_bytes);
    part.sums = whole.sums + begin * whole.sum_groups;
    part.y = whole.y + begin * whole.ldy;
    if (!is_prepared || part.m < whole.m)  // of several parts the last one's tiles are left
      over_rows_of_x(tile_count(part.m, tile_rows), whole.k,
                     [&](int64_t tile) { arrange(begin, part.m, tile); });
    run(part, kernel);
  }
}

void multiply_bf16(QuantisedCall call, const Activations& x, bool rounds_to_e4m3, Areas areas,
                   bool is_prepared) {
  const int64_t padded = call.format.padded_columns(call.k);
  const int64_t groups = call.sum_groups;
  auto* sums = areas.take<float>(call.m * groups);
  call.bf16 = x.bf16;
  call.ld = x.ld;
  if (padded != call.k || call.m >= kSpreadRows || rounds_to_e4m3) {
    const int64_t ld = spread_stride(padded * 2) / 2;
    auto* copy = areas.take<uint16_t>(call.m * ld);
    if (!is_prepared)
      over_rows_of_x(call.m, padded, [&](int64_t i) {
        if (rounds_to_e4m3)
          active_variant().round_e4m3(x.f32 + i * x.ld, call.k, nullptr, copy + i * ld);
        else
          std::memcpy(copy + i * ld, x.bf16 + i * x.ld, static_cast<size_t>(call.k) * 2);
        std::memset(copy + i * ld + call.k, 0, static_cast<size_t>(padded - call.k) * 2);
      });
    call.bf16 = copy;
    call.ld = ld;
  }
  // Only asymmetric codes need them, yet every kernel may read them.
  const int64_t columns = sum_columns(call.format, call.k);
  const bool has_sums = call.format.encoding == Encoding::kInt4 ||
                        (call.format.is_k() && k_layout(call.format.encoding).has_minima);
  if (!is_prepared)
    over_rows_of_x(call.m, padded, [&](int64_t i) {
      if (has_sums)
        active_variant().sum_groups(call.bf16 + i * call.ld, padded, columns, sums + i * groups);
      else
        std::memset(sums + i * groups, 0, static_cast<size_t>(groups) * 4);
    });
  call.sums = sums;
  if (call.m < tiled_bf16_rows(call.format, call.k, call.order))
    return run(call, active_variant().quantised_bf16);
  const int64_t tile_bytes = bf16_tile_bytes(padded, active_variant().tile_room);
  auto* const tiles = areas.take<std::byte>(tiles_bytes(call.m, tile_bytes));
  run_tiles(
      call, tiles, tile_bytes, is_prepared,
      [&](int64_t begin, int64_t rows, int64_t tile) {
        active_variant().arrange_pairs(call.bf16 + begin * call.ld, call.ld, rows, padded, tile,
                                       tiles);
      },
      active_variant().quantised_panels_bf16);
}

void multiply_f32(QuantisedCall call, const Activations& x, bool rounds_to_e4m3, Areas areas,
                  bool is_prepared) {
  const Variant& variant = active_variant();
  const int64_t padded = call.format.padded_columns(call.k);
  const int64_t groups = call.sum_groups;
  const int64_t ld = spread_stride(padded * 4) / 4;
  const bool in_tiles = call.m >= tiled_f32_rows(call.format, call.order);
  auto* sums = areas.take<float>(call.m * groups);
  auto* copy = areas.take<float>(in_tiles && !rounds_to_e4m3 ? 0 : call.m * ld);
  call.x = in_tiles && !rounds_to_e4m3 ? x.f32 : copy;
  call.ld = call.x == copy ? ld : x.ld;
  if (!is_prepared && call.x == copy)
    over_rows_of_x(call.m, padded, [&](int64_t i) {
      const float* from = x.f32 + i * x.ld;
      float* to = copy + i * ld;
      if (rounds_to_e4m3) {
        variant.round_e4m3(from, call.k, to, nullptr);
        from = to;
      }
      if (!in_tiles) variant.arrange_f32_codes(call.format, from, call.k, to, sums + i * groups);
    });
  call.sums = sums;
  if (!in_tiles) return run(call, variant.quantised_f32);
  const int64_t tile_bytes = f32_tile_bytes(call.k);
  auto* const tiles = areas.take<std::byte>(tiles_bytes(call.m, tile_bytes));
  run_tiles(
      call, tiles, tile_bytes, is_prepared,
      [&](int64_t begin, int64_t rows, int64_t tile) {
        variant.f32_arrange(call.x + begin * call.ld, call.ld, rows, call.k, tile,
                            reinterpret_cast<float*>(tiles));
      },
      variant.quantised_panels_f32);
}

// y += x_outliers W_outliers^T, a column at a time; `columns` are few.
void add_outliers(const QuantisedCall& call, const Activations& x, const int32_t* columns,
                  int64_t count) {
  constexpr int64_t kRows = WeightFormat::kPanelRows;
  const int64_t panels = (call.n + kRows - 1) / kRows;
  deal_each(panels, kShareValues / (count * call.m), [&](int64_t panel) {
    const std::byte* from = call.w + panel * call.panel_bytes;
    const int64_t rows = std::min(kRows, call.n - panel * kRows);
    float block[8 * kRows];
    for (int64_t c = 0; c < count; ++c) {
      const int64_t begin = round_down(columns[c], 8);
      active_variant().unpack_panel(call.format, from, call.k, begin,
                                    std::min<int64_t>(8, call.k - begin), block);
      const float* weights = block + (columns[c] - begin) * kRows;
      for (int64_t i = 0; i < call.m; ++i) {
        const float value = x.f32[i * x.ld + columns[c]];
        float* to = call.y + i * call.ldy + panel * kRows;
        for (int64_t row = 0; row < rows; ++row) to[row] += value * weights[row];
      }
    }
  });
}

// The first columns of x with a value of at least `threshold`, at most one in kOutlierShare.
int64_t find_outliers(const Activations& x, float threshold, int32_t* columns) {
  int64_t count = 0;
  for (int64_t column = 0; column < x.k; ++column) {
    bool is_outlier = false;
    for (int64_t i = 0; i < x.m && !is_outlier; ++i)
      is_outlier = std::fabs(x.f32[i * x.ld + column]) >= threshold;
    if (!is_outlier) continue;
    if (count >= x.k / kOutlierShare) return count;
    columns[count++] = static_cast<int32_t>(column);
  }
  return count;
}

// Rows of x that are prepared and multiplied at a time.
int64_t most_rows(const QuantisedOptions& options) noexcept {
  const bool is_one_by_one = options.order == SumOrder::kByRow && options.outlier_threshold > 0;
  return is_one_by_one ? 1 : kMostPreparedRows;
}

// Bytes of a value of int8 x beside such codes.
int64_t int8_bytes(const WeightFormat& format) noexcept {
  return format.encoding == Encoding::kInt8 && active_variant().widens_int8 ? 2 : 1;
}

// Rows of x in int8, as all products with them have them.
struct Int8Rows {
  Int8Rows(const WeightFormat& format, int64_t m, int64_t k, Areas& areas)
      : ld(spread_stride(format.padded_columns(k) * int8_bytes(format))),
        codes(areas.take<int8_t>(m * ld)),
        scales(areas.take<float>(m * format.groups(k))),
        sums(areas.take<float>(m * sums_of_row(format, k))) {}

  int64_t ld;  // bytes
  int8_t* codes;
  float* scales;
  float* sums;
};

void multiply_int8(QuantisedCall call, const Activations& x, const QuantisedOptions& options,
                   Areas areas, bool is_prepared) {
  const Variant& variant = active_variant();
  const int64_t padded = call.format.padded_columns(call.k);
  const int64_t groups = call.groups;
  const Int8Rows rows(call.format, call.m, call.k, areas);
  int32_t* outliers = nullptr;
  int64_t outlier_count = 0;
  Activations inliers = x;
  if (options.outlier_threshold > 0) {
    outliers = areas.take<int32_t>(call.k);
    outlier_count = find_outliers(x, options.outlier_threshold, outliers);
    auto* copy = areas.take<float>(call.m * call.k);
    if (outlier_count > 0 && !is_prepared) {
      over_rows_of_x(call.m, call.k, [&](int64_t i) {
        std::memcpy(copy + i * call.k, x.f32 + i * x.ld, static_cast<size_t>(call.k) * 4);
        for (int64_t c = 0; c < outlier_count; ++c) copy[i * call.k + outliers[c]] = 0;
      });
      inliers.f32 = copy;
      inliers.ld = call.k;
    }
  }
  if (!is_prepared)
    over_rows_of_x(call.m, padded, [&](int64_t i) {
      variant.quantise_activations(call.format, inliers.f32 + i * inliers.ld, call.k,
                                   rows.codes + i * rows.ld, rows.scales + i * groups,
                                   rows.sums + i * call.sum_groups);
    });
  call.int8 = rows.codes;
  call.ld = rows.ld / int8_bytes(call.format);
  call.scales = rows.scales;
  call.sums = rows.sums;
  run(call, variant.quantised_int8);
  if (outlier_count > 0) add_outliers(call, x, outliers, outlier_count);
}
}  // namespace

bool takes_int8_activations(const WeightFormat& format) noexcept {
  return has_int4_codes(format.encoding) || format.encoding == Encoding::kInt8 || format.is_k();
}

bool takes_fp8_activations(const WeightFormat& format) noexcept {
  return format.encoding == Encoding::kFp8;
}

bool takes_activations(const WeightFormat& format, ActivationFormat activations) noexcept {
  switch (activations) {
    case ActivationFormat::kInt8: return takes_int8_activations(format);
    case ActivationFormat::kFp8: return takes_fp8_activations(format);
    case ActivationFormat::k16Bit: break;
  }
  return true;
}

QuantisedOptions options_for(const WeightFormat& format, const QuantisedOptions& options) noexcept {
  if (takes_activations(format, options.activations)) return options;
  return {options.compute, ActivationFormat::k16Bit, 0, options.order};
}

RowPreparer::RowPreparer(const Activations& x, const WeightFormat& format,
                         const QuantisedOptions& options, std::span<std::byte> scratch)
    : x_(x), format_(format) {
  SLUICE_ASSERT(is_for(format, x.m, options), "others take x as it is written");
  Areas areas(scratch);
  const Int8Rows rows(format, x.m, x.k, areas);
  codes_ = rows.codes;
  ld_ = rows.ld;
  scales_ = rows.scales;
  sums_ = rows.sums;
}

bool RowPreparer::is_for(const WeightFormat& format, int64_t m,
                         const QuantisedOptions& options) noexcept {
  return options.activations == ActivationFormat::kInt8 && options.outlier_threshold <= 0 &&
         takes_int8_activations(format) && m > 0 && m <= kMostPreparedRows;
}

void RowPreparer::prepare(int64_t row) const noexcept {
  const int64_t groups = format_.groups(x_.k);
  active_variant().quantise_activations(format_, x_.f32 + row * x_.ld, x_.k, codes_ + row * ld_,
                                        scales_ + row * groups,
                                        sums_ + row * sums_of_row(format_, x_.k));
}

void linear_quantised(const Activations& x, const std::byte* w, const WeightFormat& format,
                      int64_t n, const float* bias, float* y, int64_t ldy,
                      const QuantisedOptions& asked, std::span<std::byte> scratch,
                      bool is_prepared) {
  const QuantisedOptions options = options_for(format, asked);
  const int64_t most = most_rows(options);
  is_prepared = is_prepared && x.m <= most;
  for (int64_t begin = 0; begin < x.m && n > 0; begin += most) {
    const Activations part{x.f32 ? x.f32 + begin * x.ld : nullptr,
                           x.bf16 ? x.bf16 + begin * x.ld : nullptr, std::min(most, x.m - begin),
                           x.k, x.ld};
    QuantisedCall call{};
    call.format = format;
    call.order = options.order;
    call.w = w;
    call.n = n;
    call.k = x.k;
    call.group_columns = format.group_columns(x.k);
    call.groups = format.groups(x.k);
    call.sum_groups = sums_of_row(format, x.k);
    call.group_code_bytes = format.group_code_bytes(x.k);
    call.panel_bytes = format.panel_bytes(x.k);
    call.m = part.m;
    call.bias = bias;
    call.y = y + begin * ldy;
    call.ldy = ldy;
    const bool is_fp8 = options.activations == ActivationFormat::kFp8;
    if (options.activations == ActivationFormat::kInt8)
      multiply_int8(call, part, options, Areas(scratch), is_prepared);
    else if (uses_bf16(options))
      multiply_bf16(call, part, is_fp8, Areas(scratch), is_prepared);
    else
      multiply_f32(call, part, is_fp8, Areas(scratch), is_prepared);
  }
}

int64_t quantised_scratch_bytes(const WeightFormat& format, int64_t max_m, int64_t k,
                                const QuantisedOptions& asked) noexcept {
  const QuantisedOptions options = options_for(format, asked);
  const int64_t m = std::min(max_m, most_rows(options));
  if (m == 0 || k == 0) return 0;
  const int64_t padded = format.padded_columns(k);
  const int64_t per_group = round_up(m * format.groups(k) * 4, kLine);
  const int64_t per_sum = round_up(m * sums_of_row(format, k) * 4, kLine);
  if (options.activations == ActivationFormat::kInt8) {
    int64_t bytes = kLine + m * spread_stride(padded * int8_bytes(format)) + per_group + per_sum;
    if (options.outlier_threshold > 0) bytes += round_up(k * 4, kLine) + round_up(m * k * 4, kLine);
    return bytes;
  }
  const bool is_f32 = !uses_bf16(options);
  const int64_t tile_bytes =
      is_f32 ? f32_tile_bytes(k) : bf16_tile_bytes(padded, active_variant().tile_room);
  const int64_t tiles = m < (is_f32 ? tiled_f32_rows(format, options.order)
                                    : tiled_bf16_rows(format, k, options.order))
                            ? 0
                            : tiles_bytes(m, tile_bytes);
  int64_t copied = m;
  if (is_f32 && options.activations != ActivationFormat::kFp8)
    copied = std::min(m, tiled_f32_rows(format, options.order) - 1);
  return kLine + per_sum + copied * spread_stride(padded * (is_f32 ? 4 : 2)) +
         round_up(tiles, kLine);
}

}  // namespace sluice::kernels
