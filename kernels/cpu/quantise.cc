#include "kernels/quantise.h"

#include <algorithm>

#include "kernels/cpu/k_quantise.h"
#include "kernels/cpu/variant.h"
#include "kernels/quantised_layout.h"

namespace sluice::kernels {

bool quantise_panel(const WeightFormat& format, const QuantiseOptions& options, const float* rows,
                    int64_t ld, int64_t row_count, int64_t cols, std::byte* panel) noexcept {
  if (!can_quantise_to(format)) return false;
  if (format.is_k())
    return quantise_k_panel(format, options.importance, rows, ld, row_count, cols, panel);
  return active_variant().quantise_rows(format, options, rows, ld, row_count, cols, panel);
}

void dequantise_panel(const WeightFormat& format, const std::byte* panel, int64_t row_count,
                      int64_t cols, float* rows, int64_t ld) noexcept {
  constexpr int64_t kColumns = 128;
  constexpr int64_t kRows = WeightFormat::kPanelRows;
  alignas(64) float block[kColumns * kRows];
  for (int64_t begin = 0; begin < cols; begin += kColumns) {
    const int64_t count = std::min(kColumns, cols - begin);
    active_variant().unpack_panel(format, panel, cols, begin, count, block);
    for (int64_t row = 0; row < row_count; ++row)
      for (int64_t i = 0; i < count; ++i) rows[row * ld + begin + i] = block[i * kRows + row];
  }
}

}  // namespace sluice::kernels
