#include "src/app/requantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "kernels/elementwise.h"
#include "src/base/error.h"
#include "src/base/team.h"
#include "src/model/bound_model.h"

namespace sluice::app {

namespace {
struct Requantised {
  std::string name;
  WeightFormat from, to;
  int64_t rows, cols;
  kernels::RangeSearch search;

  // Rows [16 panel, ...) of the matrix; false where they do not fit the format.
  bool make_panel(int64_t panel, const std::byte* stored, std::byte* out) const {
    constexpr int64_t kRows = WeightFormat::kPanelRows;
    const int64_t count = std::min(kRows, rows - panel * kRows);
    std::vector<float> values(static_cast<size_t>(count * cols));
    kernels::dequantise_panel(from, stored + panel * from.panel_bytes(cols), count, cols,
                              values.data(), cols);
    if (!to.is_quantised()) {
      kernels::convert(DType::kF32, values.data(), to.dtype,
                       out + panel * kRows * cols * dtype_bytes(to.dtype), count * cols);
      return true;
    }
    kernels::QuantiseOptions options;
    options.search = search;
    return kernels::quantise_panel(to, options, values.data(), cols, count, cols,
                                   out + panel * to.panel_bytes(cols));
  }

  std::vector<std::byte> operator()(const std::vector<std::vector<std::byte>>& bytes) const {
    std::vector<std::byte> out(static_cast<size_t>(to.bytes(rows, cols)));
    const int64_t panels = (rows + WeightFormat::kPanelRows - 1) / WeightFormat::kPanelRows;
    std::atomic<int64_t> wrong = -1;
    deal_each(panels, 1, [&](int64_t panel) {
      if (!make_panel(panel, bytes.front().data(), out.data())) wrong = panel;
    });
    if (wrong >= 0)
      throw Error(
          ErrorKind::kFile,
          fmt::format("{}: rows {} to {} have no place in {}", name,
                      wrong * WeightFormat::kPanelRows,
                      std::min(rows, (wrong + 1) * WeightFormat::kPanelRows) - 1, format_name(to)),
          "choose another format");
    return out;
  }
};
}  // namespace

io::StoreTensor requantised_tensor(const io::TensorEntry& tensor, const WeightShape& weight,
                                   const WeightFormat& to, kernels::RangeSearch search) {
  return {made_tensor(tensor.name, weight, to),
          {tensor.name},
          Requantised{tensor.name, tensor.quantised, to, weight.rows, weight.cols, search}};
}

}  // namespace sluice::app
