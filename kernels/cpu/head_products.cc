#include "kernels/head_products.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/variant.h"
#include "src/base/team.h"

namespace sluice::kernels {

namespace {
// Rows of x that meet a head's rows of W at a time: these stay in the cache meanwhile.
constexpr int64_t kRows = 64;
// Products that a thread takes at a time, at least.
constexpr int64_t kShareProducts = int64_t{1} << 17;

// The rows of a head that are meant and in the run: where they lie, and which they are.
struct RowsOfHead {
  const std::byte* data;
  int64_t first;  // of those that are meant
  int64_t count;  // 0: none
};

RowsOfHead rows_of(const HeadRows& of, const MatrixRun& w, int64_t head) noexcept {
  const int64_t own = head * of.height + of.first;
  const int64_t begin = std::max(own, w.begin);
  const int64_t end = std::min(own + of.count, w.begin + w.count);
  return {w.data + (begin - w.begin) * w.cols * dtype_bytes(w.dtype), begin - own,
          std::max<int64_t>(end - begin, 0)};
}

// Calls work(head, first row of x, rows of x).
template <typename Work>
void over_heads(const HeadRows& of, const MatrixRun& w, int64_t rows, const Work& work) noexcept {
  const int64_t first_head = w.begin / of.height;
  const int64_t heads = std::min(of.heads, (w.begin + w.count + of.height - 1) / of.height) -
                        std::min(of.heads, first_head);
  const int64_t blocks = (rows + kRows - 1) / kRows;
  const int64_t products = std::max<int64_t>(of.count * w.cols * std::min(rows, kRows), 1);
  deal_each(heads * blocks, kShareProducts / products, [&](int64_t i) {
    const int64_t begin = i / heads * kRows;
    work(first_head + i % heads, begin, std::min(kRows, rows - begin));
  });
}
}  // namespace

void head_products(const HeadRows& of, const MatrixRun& w, const HeadOperands& operands) noexcept {
  const Variant& variant = active_variant();
  over_heads(of, w, operands.rows, [&](int64_t head, int64_t begin, int64_t rows) {
    const RowsOfHead own = rows_of(of, w, head);
    if (own.count == 0) return;
    variant.linear_rows(own.data, w.dtype, 0, own.count, w.cols,
                        operands.x + begin * operands.x_stride + head * operands.x_head,
                        operands.x_stride, rows, nullptr,
                        operands.y + begin * operands.y_stride + head * operands.y_head + own.first,
                        operands.y_stride, SumOrder::kByRow);
  });
}

void add_transposed_head_products(const HeadRows& of, const MatrixRun& w,
                                  const HeadOperands& operands) noexcept {
  const Variant& variant = active_variant();
  over_heads(of, w, operands.rows, [&](int64_t head, int64_t begin, int64_t rows) {
    const RowsOfHead own = rows_of(of, w, head);
    if (own.count == 0) return;
    variant.add_rows(own.data, w.dtype, own.count, w.cols,
                     operands.x + begin * operands.x_stride + head * operands.x_head + own.first,
                     operands.x_stride, rows,
                     operands.y + begin * operands.y_stride + head * operands.y_head,
                     operands.y_stride);
  });
}

void begin_head_products(int64_t heads, int64_t moved, int64_t cols,
                         const HeadOperands& operands) noexcept {
  constexpr int64_t kShareFloats = int64_t{1} << 15;
  deal_each(operands.rows, kShareFloats / std::max<int64_t>(heads * (moved + cols), 1),
            [&](int64_t row) {
              for (int64_t head = 0; head < heads; ++head) {
                float* y = operands.y + row * operands.y_stride + head * operands.y_head;
                std::memcpy(y, operands.x + row * operands.x_stride + head * operands.x_head,
                            static_cast<size_t>(moved) * sizeof(float));
                std::memset(y + moved, 0, static_cast<size_t>(cols) * sizeof(float));
              }
            });
}

}  // namespace sluice::kernels
