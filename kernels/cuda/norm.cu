#include "kernels/cuda/norm.h"
#include "kernels/cuda/row_block.h"

namespace sluice::cuda {

namespace {
// A block a row; a thread has the same columns in every walk over it.
class NormBlock {
 public:
  SLUICE_DEVICE explicit NormBlock(const NormRows& rows)
      : rows_(rows),
        scratch_(reinterpret_cast<float*>(shared_memory())),
        row_(block_x()),
        x_(rows.x + row_ * rows.shape.stride),
        y_(rows.y + row_ * rows.shape.stride) {}

  /// Adds the addend. Sum of the row's values, or of their squares.
  template <bool kOfSquares>
  SLUICE_DEVICE float first_sum() const {
    const float* addend = rows_.addend ? rows_.addend + row_ * rows_.shape.stride : nullptr;
    float sum = 0;
    for (int64_t col = thread_index(); col < rows_.shape.cols; col += block_threads()) {
      float value = x_[col];
      if (addend) {
        value += addend[col];
        x_[col] = value;
      }
      sum += kOfSquares ? value * value : value;
    }
    return block_sum(sum, scratch_);
  }

  SLUICE_DEVICE float squares_about(float mean) const {
    float sum = 0;
    for (int64_t col = thread_index(); col < rows_.shape.cols; col += block_threads())
      sum += (x_[col] - mean) * (x_[col] - mean);
    return block_sum(sum, scratch_);
  }

  SLUICE_DEVICE void write(float mean, float scale, const float* gain, const float* bias) const {
    for (int64_t col = thread_index(); col < rows_.shape.cols; col += block_threads()) {
      const float value =
          (x_[col] - mean) * scale * (gain ? gain[col] : 1.0f) + (bias ? bias[col] : 0.0f);
      y_[col] = value;
      keep_rounded(rows_.copies.narrow, row_, col, value);
    }
    clear_padding(rows_.copies.narrow, row_, rows_.shape.cols);
    if (!rows_.copies.int8.codes) return;
    block_sync();  // the quantiser reads what other threads wrote
    RowQuantiser(y_, rows_.shape.cols, rows_.copies.int8, row_, scratch_).run();
  }

 private:
  const NormRows& rows_;
  float* scratch_;
  int64_t row_;
  float* x_;
  float* y_;
};

SLUICE_KERNEL(kMostRowThreads) rms_norm_kernel(NormRows rows, const float* gain, float eps) {
  const NormBlock block(rows);
  const float squares = block.first_sum<true>() / static_cast<float>(rows.shape.cols);
  block.write(0, 1.0f / sqrt_of(squares + eps), gain, nullptr);
}

SLUICE_KERNEL(kMostRowThreads)
layer_norm_kernel(NormRows rows, const float* gain, const float* bias, float eps) {
  const NormBlock block(rows);
  const auto cols = static_cast<float>(rows.shape.cols);
  const float mean = block.first_sum<false>() / cols;
  const float squares = block.squares_about(mean) / cols;
  block.write(mean, 1.0f / sqrt_of(squares + eps), gain, bias);
}
}  // namespace

void rms_norm(const NormRows& rows, const float* gain, float eps, Stream stream) {
  if (rows.shape.rows == 0) return;
  launch("rms_norm", rms_norm_kernel, {static_cast<int>(rows.shape.rows)},
         row_threads(rows.shape.cols), kRowScratchBytes, stream, rows, gain, eps);
}

void layer_norm(const NormRows& rows, const float* gain, const float* bias, float eps,
                Stream stream) {
  if (rows.shape.rows == 0) return;
  launch("layer_norm", layer_norm_kernel, {static_cast<int>(rows.shape.rows)},
         row_threads(rows.shape.cols), kRowScratchBytes, stream, rows, gain, bias, eps);
}

}  // namespace sluice::cuda
