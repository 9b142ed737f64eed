#include "src/engine/stores/panel_quantiser.h"

namespace sluice {

io::PanelQuantiser panel_quantiser(kernels::RangeSearch search) {
  return [search](const WeightFormat& format, const float* importance, const float* rows,
                  int64_t row_count, int64_t cols, std::byte* panel) {
    return kernels::quantise_panel(format, {search, importance}, rows, cols, row_count, cols,
                                   panel);
  };
}

}  // namespace sluice
