#include "kernels/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "kernels/cpu/amx_linear.h"
#include "kernels/cpu/onednn_matmul.h"
#include "kernels/cpu/variant.h"
#include "src/base/error.h"
#include "src/base/team.h"

namespace sluice::kernels {

namespace {
// Up to here f32 products take W as it lies: one tile of x, for which turning W does not pay.
constexpr int64_t kF32DotRows = 12;
// With AMX: up to here dot products that fetch the next rows ahead read W faster than tiles do.
constexpr int64_t kDotRows = 2;
// Up to here AMX beats oneDNN, even on weights in its own layout, since every byte of W is read
// once.
constexpr int64_t kAmxRows = 64;
// Of x, where AMX multiplies any number of rows: a block of W meets them all while it is in L2.
constexpr int64_t kMostAmxRows = 256;
// Bytes of x that meet a share of W at a time where dot products take any number of rows.
constexpr int64_t kDotBytes = 256 * 1024;
// A product of fewer multiply-adds takes less time than oneDNN's code generation for its shape.
constexpr int64_t kSmallProduct = int64_t{1} << 23;
// Bytes of W that a thread takes at a time, at least, and products at most: half a millisecond or
// so, that a helper that is about to lose its core soon holds none.
constexpr int64_t kShareBytes = 64 * 1024;
constexpr int64_t kShareProducts = int64_t{1} << 25;
// Scratch is brought to this alignment before use.
constexpr int64_t kLine = 64;

#ifdef SLUICE_NO_ONEDNN
constexpr bool kHasOnednn = false;
#else
constexpr bool kHasOnednn = true;
#endif

#ifdef __x86_64__
bool has_amx() noexcept { return active_isa() == Isa::kAmx; }
#else
bool has_amx() noexcept { return false; }
#endif

bool multiplies_bf16(DType dtype, Compute compute) noexcept {
  return compute == Compute::kBF16 && dtype == DType::kBF16 && bf16_compute_supported();
}

// deal() of n rows of W by what each costs: its bytes, or products that take as long, and products.
template <typename Work>
void over_rows(int64_t n, int64_t cost, int64_t products, int64_t granule, const Work& work) {
  deal(n,
       {.granule = granule,
        .least = std::max<int64_t>(1, kShareBytes / cost),
        .most = kShareProducts / std::max<int64_t>(products, 1)},
       work);
}

std::span<std::byte> aligned(std::span<std::byte> scratch) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  const size_t skip = (kLine - address % kLine) % kLine;
  return skip <= scratch.size() ? scratch.subspan(skip) : std::span<std::byte>{};
}

// Bytes of a tile of x as the panel kernels take it.
int64_t tile_bytes(Compute compute, int64_t k) noexcept {
  const int64_t room = active_variant().tile_room;
  return compute == Compute::kBF16 ? bf16_tile_bytes(k, room) : k * room * 4;
}

// Calls arrange(tile) for each tile of m rows of x.
template <typename Arrange>
void over_tiles(Compute compute, int64_t m, int64_t k, std::span<std::byte> scratch,
                const Arrange& arrange) {
  const int64_t tiles = tile_count(m, active_variant().tile_rows);
  SLUICE_ASSERT(tiles * tile_bytes(compute, k) <= static_cast<int64_t>(scratch.size()),
                "linear_scratch_bytes says how much");
  deal_each(tiles, 1, arrange);
}

// Calls work(first, rows) for m rows of x, `most` of them at a time.
template <typename Work>
void in_runs(int64_t m, int64_t most, const Work& work) {
  for (int64_t first = 0; first < m; first += most) work(first, std::min(most, m - first));
}

// Dot products of rows as they lie, any number of them: the order of a sum is the same for all.
void dot_kernels(const Activations& x, const void* w, DType dtype, int64_t n, int64_t k,
                 const float* bias, float* y, int64_t ldy) {
  const int64_t most = std::max<int64_t>(kDotBytes / (k * 4) / 4, 1) * 4;
  const int64_t cost = k * std::max(dtype_bytes(dtype), x.m);
  over_rows(n, cost, k * x.m, kLinearRun, [&](int64_t begin, int64_t end) {
    in_runs(x.m, most, [&](int64_t first, int64_t rows) {
      active_variant().linear_rows(w, dtype, begin, end, k, x.f32 + first * x.ld, x.ld, rows, bias,
                                   y + first * ldy, ldy, SumOrder::kByRow);
    });
  });
}

void dot_bf16_kernels(const Activations& x, const uint16_t* w, int64_t n, int64_t k,
                      const float* bias, float* y, int64_t ldy) {
  over_rows(n, k * std::max<int64_t>(2, x.m), k * x.m, kLinearRun, [&](int64_t begin, int64_t end) {
    in_runs(x.m, kBf16DotRows, [&](int64_t first, int64_t rows) {
      active_variant().linear_rows_bf16(w, begin, end, k, x.bf16 + first * x.ld, x.ld, rows, bias,
                                        y + first * ldy, ldy, SumOrder::kByRow);
    });
  });
}

void own_kernels(const Activations& x, const void* w, DType dtype, int64_t n, int64_t k,
                 const float* bias, float* y, int64_t ldy, std::span<std::byte> scratch) {
  const Variant& variant = active_variant();
  if (x.m <= kF32DotRows)
    return over_rows(n, k * dtype_bytes(dtype), k * x.m, kLinearRun,
                     [&](int64_t begin, int64_t end) {
                       variant.linear_rows(w, dtype, begin, end, k, x.f32, x.ld, x.m, bias, y, ldy,
                                           SumOrder::kFastest);
                     });
  auto* const tiles = reinterpret_cast<float*>(scratch.data());
  over_tiles(Compute::kF32, x.m, k, scratch,
             [&](int64_t tile) { variant.f32_arrange(x.f32, x.ld, x.m, k, tile, tiles); });
  // Compute-bound products take smaller shares, so that no thread waits long for the last.
  over_rows(n, k * x.m, k * x.m, kLinearRun, [&](int64_t begin, int64_t end) {
    variant.linear_panels(w, dtype, begin, end, k, tiles, x.m, bias, y, ldy);
  });
}

void own_bf16_kernels(const Activations& x, const uint16_t* w, int64_t n, int64_t k,
                      const float* bias, float* y, int64_t ldy, std::span<std::byte> scratch) {
  const Variant& variant = active_variant();
  if (x.m <= kBf16DotRows)
    return over_rows(n, k * 2, k * x.m, kLinearRun, [&](int64_t begin, int64_t end) {
      variant.linear_rows_bf16(w, begin, end, k, x.bf16, x.ld, x.m, bias, y, ldy,
                               SumOrder::kFastest);
    });
  over_tiles(Compute::kBF16, x.m, k, scratch, [&](int64_t tile) {
    variant.arrange_pairs(x.bf16, x.ld, x.m, k, tile, scratch.data());
  });
  over_rows(n, k * 2 * ((x.m + 15) / 16), k * x.m, kLinearRun, [&](int64_t begin, int64_t end) {
    variant.linear_panels_bf16(w, begin, end, k, scratch.data(), x.m, bias, y, ldy);
  });
}

#ifdef __x86_64__
void amx_kernels(const Activations& x, const uint16_t* w, int64_t n, int64_t k, const float* bias,
                 float* y, int64_t ldy, std::byte* scratch) {
  const int64_t tiles = amx_scratch_bytes(x.m, k) / kAmxTileBytes;
  constexpr int64_t kRun = 32;
  deal(tiles, {.granule = kRun, .least = 4 * kRun},
       [&](int64_t begin, int64_t end) { amx_arrange(x.bf16, x.m, k, x.ld, begin, end, scratch); });
  over_rows(n, k * 2, k * x.m / 16, kAmxRowBlock, [&](int64_t begin, int64_t end) {
    amx_linear_rows(w, begin, end, k, scratch, x.m, bias, y, ldy);
  });
}
#else
void amx_kernels(const Activations&, const uint16_t*, int64_t, int64_t, const float*, float*,
                 int64_t, std::byte*) {}
#endif

int64_t amx_rows(SumOrder order) noexcept {
  return order == SumOrder::kByRow ? kMostAmxRows : kAmxRows;
}

// The part of x and y that begins at row `begin`, at most `rows` of it.
Activations slice(const Activations& x, int64_t begin, int64_t rows) noexcept {
  return {x.f32 ? x.f32 + begin * x.ld : nullptr, x.bf16 ? x.bf16 + begin * x.ld : nullptr,
          std::min(rows, x.m - begin), x.k, x.ld};
}

// Helpers beyond these get no scratch and leave oneDNN's products to others. The C library reads a
// file for their number, and a plan asks some hundred thousand times.
int processors() noexcept {
  static const int count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return count;
}

// oneDNN says what it would use; its reference kernels, which some versions pick on CPUs newer than
// they are, take seconds for a product.
bool multiplies_with_onednn() {
  static const bool is_fast =
      kHasOnednn && onednn_implementation().find("ref") == std::string::npos;
  return is_fast;
}

enum class Path { kOwn, kOwnBf16, kAmx, kOnednn, kDots, kDotsBf16 };

Path path_of(DType dtype, Compute compute, SumOrder order, int64_t m, int64_t n, int64_t k) {
  const bool in_bf16 = multiplies_bf16(dtype, compute);
  if (order == SumOrder::kByRow)
    return !in_bf16 ? Path::kDots : has_amx() ? Path::kAmx : Path::kDotsBf16;
  if (!in_bf16) return Path::kOwn;
  if (!has_amx() || m <= kDotRows) return Path::kOwnBf16;
  const bool is_large = m > kAmxRows && m * n * k > kSmallProduct;
  return is_large && multiplies_with_onednn() ? Path::kOnednn : Path::kAmx;
}
}  // namespace

bool bf16_compute_supported() { return active_variant().linear_rows_bf16 != nullptr; }
bool bf16_sums_by_row() { return active_variant().same_sum_columns > 0; }

int64_t padded_rows(int64_t m) noexcept {
  return m / kOnednnRows * kOnednnRows + onednn_rows(m % kOnednnRows);
}

void linear(const Activations& x, const void* w, DType dtype, int64_t n, int64_t k,
            const float* bias, float* y, int64_t ldy, Compute compute, std::span<std::byte> scratch,
            SumOrder order) {
  const std::span<std::byte> area = aligned(scratch);
  const int64_t tile_rows = active_variant().tile_rows;
  const auto* bf16 = static_cast<const uint16_t*>(w);
  for (int64_t begin = 0, rows = 0; begin < x.m && n > 0; begin += rows) {
    const Path path = path_of(dtype, compute, order, x.m - begin, n, k);
    switch (path) {
      case Path::kOwn:
        rows = rows_at_a_time(x.m - begin, tile_rows, tile_bytes(Compute::kF32, k));
        break;
      case Path::kOwnBf16:
        rows = rows_at_a_time(x.m - begin, tile_rows, tile_bytes(Compute::kBF16, k));
        break;
      case Path::kAmx: rows = amx_rows(order); break;
      case Path::kOnednn: rows = kOnednnRows; break;
      case Path::kDots:
      case Path::kDotsBf16: rows = x.m;
    }
    const Activations part = slice(x, begin, rows);
    float* to = y + begin * ldy;
    switch (path) {
      case Path::kOwn: own_kernels(part, w, dtype, n, k, bias, to, ldy, area); break;
      case Path::kOwnBf16: own_bf16_kernels(part, bf16, n, k, bias, to, ldy, area); break;
      case Path::kOnednn: onednn_linear(part, w, n, bias, to, ldy, area); break;
      case Path::kDots: dot_kernels(part, w, dtype, n, k, bias, to, ldy); break;
      case Path::kDotsBf16: dot_bf16_kernels(part, bf16, n, k, bias, to, ldy); break;
      case Path::kAmx:
        SLUICE_ASSERT(amx_scratch_bytes(part.m, k) <= static_cast<int64_t>(area.size()),
                      "linear_scratch_bytes says how much");
        amx_kernels(part, bf16, n, k, bias, to, ldy, area.data());
    }
  }
}

int64_t linear_scratch_bytes(DType dtype, int64_t max_m, int64_t n, int64_t k, Compute compute,
                             SumOrder order) {
  if (n == 0) return 0;
  const bool in_bf16 = multiplies_bf16(dtype, compute);
  const Compute with = in_bf16 ? Compute::kBF16 : Compute::kF32;
  int64_t bytes = 0;
  if (in_bf16 && has_amx())
    bytes = amx_scratch_bytes(std::min(max_m, amx_rows(order)), k);
  else if (order == SumOrder::kFastest && max_m > (in_bf16 ? kBf16DotRows : kF32DotRows))
    bytes = tiles_at_a_time(max_m, active_variant().tile_rows, tile_bytes(with, k)) *
            tile_bytes(with, k);
  if (path_of(dtype, compute, order, max_m, n, k) == Path::kOnednn)
    bytes = std::max(bytes, onednn_scratch_bytes(max_m, n, k, processors()));
  return bytes > 0 ? bytes + kLine : 0;
}

std::string describe_linear() {
  const std::string_view f32 = active_variant().name;
  if (!bf16_compute_supported()) return fmt::format("{} (f32 products of all weight types)", f32);
  if (!has_amx()) return fmt::format("bf16: {}; f32: {}", f32, f32);
  return fmt::format("bf16: amx up to {} rows, {} above; f32: {}", kAmxRows,
                     multiplies_with_onednn() ? "oneDNN " + onednn_implementation() : "amx too",
                     f32);
}

}  // namespace sluice::kernels
