#include "kernels/head_products.h"

#include <algorithm>
#include <vector>

#include "kernels/elementwise.h"

namespace sluice::kernels::reference {

namespace {
// Calls use(head, i, values) for each of the rows that are meant and that the run has.
template <typename Use>
void for_each_row(const HeadRows& of, const MatrixRun& w, const Use& use) {
  std::vector<float> values(static_cast<size_t>(w.cols));
  for (int64_t head = 0; head < of.heads; ++head)
    for (int64_t i = 0; i < of.count; ++i) {
      const int64_t row = head * of.height + of.first + i;
      if (row < w.begin || row >= w.begin + w.count) continue;
      convert(w.dtype, w.data + (row - w.begin) * w.cols * dtype_bytes(w.dtype), DType::kF32,
              values.data(), w.cols);
      use(head, i, values);
    }
}
}  // namespace

void head_products(const HeadRows& of, const MatrixRun& w, const HeadOperands& operands) {
  for_each_row(of, w, [&](int64_t head, int64_t i, const std::vector<float>& values) {
    for (int64_t row = 0; row < operands.rows; ++row) {
      const float* x = operands.x + row * operands.x_stride + head * operands.x_head;
      double sum = 0;
      for (int64_t c = 0; c < w.cols; ++c) sum += double{x[c]} * values[static_cast<size_t>(c)];
      operands.y[row * operands.y_stride + head * operands.y_head + i] = static_cast<float>(sum);
    }
  });
}

void add_transposed_head_products(const HeadRows& of, const MatrixRun& w,
                                  const HeadOperands& operands) {
  for (int64_t row = 0; row < operands.rows; ++row)
    for (int64_t head = 0; head < of.heads; ++head) {
      std::vector<double> sums(static_cast<size_t>(w.cols));
      const float* x = operands.x + row * operands.x_stride + head * operands.x_head;
      for_each_row(of, w, [&](int64_t at, int64_t i, const std::vector<float>& values) {
        if (at != head) return;
        for (size_t c = 0; c < sums.size(); ++c) sums[c] += double{x[i]} * values[c];
      });
      float* y = operands.y + row * operands.y_stride + head * operands.y_head;
      for (int64_t c = 0; c < w.cols; ++c) y[c] += static_cast<float>(sums[static_cast<size_t>(c)]);
    }
}

}  // namespace sluice::kernels::reference
