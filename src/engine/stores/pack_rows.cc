#include "src/engine/stores/pack_rows.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "io/checkpoint/element_conversion.h"
#include "io/checkpoint/parallel_ranges.h"
#include "kernels/elementwise.h"

namespace sluice {

bool pack_rows(const PackedFrom& from, const WeightFormat& to, const io::PanelQuantiser& quantise,
               int threads, std::span<std::byte> out) {
  constexpr int64_t kRows = WeightFormat::kPanelRows;
  const int64_t cols = from.cols;
  const int64_t panel_bytes =
      to.is_quantised() ? to.panel_bytes(cols) : kRows * cols * dtype_bytes(to.dtype);
  std::atomic<bool> is_bad = false;
  const auto pack = [&](int64_t panel, std::span<float> rows) {
    const int64_t first = panel * kRows;
    const int64_t count = std::min(kRows, from.rows - first);
    std::byte* place = out.data() + panel * (from.panel_step > 0 ? from.panel_step : panel_bytes);
    if (from.keep && from.keep(first, count, place)) return true;
    if (to.is_quantised()) {
      from.values(first, count, rows.data());
      return quantise(to, nullptr, rows.data(), count, cols, place);
    }
    from.values(first, count, rows.data());
    const auto values = rows.first(static_cast<size_t>(count * cols));
    const std::span made(place, values.size() * static_cast<size_t>(dtype_bytes(to.dtype)));
    kernels::convert(DType::kF32, values.data(), to.dtype, place, std::ssize(values));
    return io::first_overflow(DType::kF32, std::as_bytes(values), to.dtype, made) < 0;
  };
  io::parallel_ranges(threads, (from.rows + kRows - 1) / kRows, 4, [&](int64_t begin, int64_t end) {
    std::vector<float> rows(static_cast<size_t>(kRows * cols));
    for (int64_t panel = begin; panel < end && !is_bad; ++panel)
      if (!pack(panel, rows)) is_bad = true;
  });
  return !is_bad;
}

}  // namespace sluice
