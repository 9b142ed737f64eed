#include "kernels/low_rank.h"

#include <algorithm>
#include <vector>

#include "kernels/elementwise.h"

namespace sluice::kernels::reference {

namespace {
std::vector<float> floats_at(const std::byte* from, DType dtype, int64_t first, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  convert(dtype, from + first * dtype_bytes(dtype), DType::kF32, out.data(), count);
  return out;
}

// scale A x of one row.
std::vector<double> shrunk(const LowRank& of, const LowRankOperands& operands, int64_t row) {
  std::vector<double> out;
  for (int64_t r = 0; r < of.rank; ++r) {
    double sum = 0;
    if (operands.ids) {
      sum = floats_at(of.a, of.dtype, operands.ids[row] * of.rank + r, 1).front();
    } else {
      const auto a = floats_at(of.a, of.dtype, r * operands.cols, operands.cols);
      for (size_t c = 0; c < a.size(); ++c)
        sum += double{a[c]} * operands.x[row * operands.x_stride + static_cast<int64_t>(c)];
    }
    out.push_back(of.scale * sum);
  }
  return out;
}
}  // namespace

void add_low_rank(std::span<const LowRankRun> runs, const LowRankOperands& operands) {
  for (const LowRankRun& run : runs)
    for (int64_t row = run.first; row < run.first + run.rows; ++row) {
      const std::vector<double> h = shrunk(*run.of, operands, row);
      for (int64_t out = 0; out < operands.outputs; ++out) {
        const int64_t begin = out / kLowRankTile * kLowRankTile;
        const int64_t width = std::min(kLowRankTile, operands.outputs - begin);
        float& y = operands.y[row * operands.y_stride + out];
        const double bias = operands.bias ? operands.bias[out] : 0;
        double sum = run.of->factors ? (y - bias) * run.of->factors[out] + bias : y;
        for (int64_t r = 0; r < run.of->rank; ++r)
          sum +=
              h[static_cast<size_t>(r)] *
              floats_at(run.of->b, run.of->dtype, begin * run.of->rank + r * width + out - begin, 1)
                  .front();
        y = static_cast<float>(sum);
      }
    }
}

}  // namespace sluice::kernels::reference
