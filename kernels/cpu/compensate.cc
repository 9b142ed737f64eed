#include "kernels/compensate.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/cpu/k_quantise.h"
#include "kernels/cpu/variant.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/quantised_layout.h"
#include "src/base/microscaling.h"
#include "src/base/team.h"

namespace sluice::kernels {

namespace {
constexpr int64_t kRows = WeightFormat::kPanelRows;
constexpr int64_t kUsualBlock = 128, kMostBlock = kMostKColumns;
constexpr int64_t kFactorBlock = 64;
constexpr int kAttempts = 6;  // of damping, ten times as much each

// y [m, n] = x [m, k] W^T, row stride of x `ld`: on the team.
class Products {
 public:
  void multiply(const float* x, int64_t ld, int64_t m, const float* w, int64_t n, int64_t k,
                float* y, int64_t ldy) {
    scratch_.resize(static_cast<size_t>(
        std::max<int64_t>(64, linear_scratch_bytes(DType::kF32, m, n, k, Compute::kF32))));
    linear({x, nullptr, m, k, ld}, w, DType::kF32, n, k, nullptr, y, ldy, Compute::kF32, scratch_);
  }

 private:
  std::vector<std::byte> scratch_;
};

// H = V V^T, V upper triangular, block after block from the last: V replaces H's upper triangle.
// False where a pivot is not above 0.
class Factorisation {
 public:
  Factorisation(float* h, int64_t n) : h_(h), n_(n) {}

  bool run() {
    for (int64_t end = n_; end > 0; end -= std::min(end, kFactorBlock)) {
      const int64_t begin = std::max<int64_t>(0, end - kFactorBlock);
      subtract_later(begin, end);
      if (!factor_block(begin, end)) return false;
      solve_above(begin, end);
    }
    return true;
  }

 private:
  float& at(int64_t row, int64_t col) { return h_[row * n_ + col]; }

  // Columns [begin, end) of rows up to `end`, less what columns behind them have explained.
  void subtract_later(int64_t begin, int64_t end) {
    const int64_t later = n_ - end, width = end - begin;
    if (later == 0) return;
    later_.resize(static_cast<size_t>(width * later));
    for (int64_t i = 0; i < width; ++i)
      std::copy_n(h_ + (begin + i) * n_ + end, later, later_.data() + i * later);
    product_.resize(static_cast<size_t>(padded_rows(end) * width));
    // Rows that a kernel reads past `end` are of H itself or, at its end, of the padding.
    products_.multiply(h_ + end, n_, end, later_.data(), width, later, product_.data(), width);
    deal_each(end, 64, [&](int64_t row) {
      for (int64_t i = 0; i < width; ++i)
        if (begin + i >= row) at(row, begin + i) -= product_[static_cast<size_t>(row * width + i)];
    });
  }

  bool factor_block(int64_t begin, int64_t end) {
    const int64_t width = end - begin;
    block_.assign(static_cast<size_t>(width * width), 0);
    const auto own = [&](int64_t row, int64_t col) -> double& {
      return block_[static_cast<size_t>(row * width + col)];
    };
    for (int64_t col = width - 1; col >= 0; --col)
      for (int64_t row = col; row >= 0; --row) {
        double sum = at(begin + row, begin + col);
        for (int64_t k = col + 1; k < width; ++k) sum -= own(row, k) * own(col, k);
        if (row == col) {
          if (!(sum > 0) || !std::isfinite(sum)) return false;
          own(col, col) = std::sqrt(sum);
        } else {
          own(row, col) = sum / own(col, col);
        }
      }
    for (int64_t row = 0; row < width; ++row)
      for (int64_t col = row; col < width; ++col)
        at(begin + row, begin + col) = static_cast<float>(own(row, col));
    return true;
  }

  // Rows above the block: what times the block's transpose is what stands there.
  void solve_above(int64_t begin, int64_t end) {
    const int64_t width = end - begin;
    deal_each(begin, 16, [&](int64_t row) {
      float* values = h_ + row * n_ + begin;
      for (int64_t col = width - 1; col >= 0; --col) {
        double sum = values[col];
        for (int64_t k = col + 1; k < width; ++k)
          sum -= values[k] * block_[static_cast<size_t>(col * width + k)];
        values[col] = static_cast<float>(sum / block_[static_cast<size_t>(col * width + col)]);
      }
    });
  }

  float* h_;
  int64_t n_;
  Products products_;
  std::vector<float> later_, product_;
  std::vector<double> block_;
};

Compensation packed(const float* factor, int64_t cols, int64_t block) {
  Compensation out{cols, block, {}, {}};
  out.importance.resize(static_cast<size_t>(cols));
  out.feedback.assign(static_cast<size_t>(Compensation::values(cols, block)), 0);
  const auto blocks = (cols + block - 1) / block;
  deal_each(blocks, 1, [&](int64_t index) {
    const int64_t begin = index * block, end = std::min(cols, begin + block);
    float* rows = out.feedback.data() + out.rows_at(begin);
    float* triangle = out.feedback.data() + out.triangle_at(begin);
    for (int64_t k = begin; k < end; ++k) {
      const float pivot = factor[k * cols + k];
      out.importance[static_cast<size_t>(k)] = pivot * pivot;
      for (int64_t j = 0; j < k; ++j) {
        const float value = factor[j * cols + k] / pivot;
        if (j < begin)
          rows[(k - begin) * begin + j] = value;
        else
          triangle[(k - begin) * (end - begin) + j - begin] = value;
      }
    }
  });
  return out;
}

// Scales (and zeros) of one group of a panel.
void read_scales(const WeightFormat& format, const std::byte* meta, float* scales, float* zeros) {
  std::fill_n(zeros, kRows, 0.0f);
  if (format.encoding == Encoding::kInt4) {
    convert(DType::kF16, meta, DType::kF32, scales, kRows);
    convert(DType::kF16, meta + 2 * kRows, DType::kF32, zeros, kRows);
  } else if (format.encoding == Encoding::kQ4_0) {
    convert(DType::kF16, meta, DType::kF32, scales, kRows);
    std::fill_n(zeros, kRows, kQ4Zero);
  } else if (format.encoding == Encoding::kMxfp4) {
    for (int64_t i = 0; i < kRows; ++i) scales[i] = e8m0_value(static_cast<uint8_t>(meta[i]));
  } else {
    std::memcpy(scales, meta, kRows * sizeof(float));
  }
}

// One call of quantise_compensated().
class Run {
 public:
  Run(const WeightFormat& format, RangeSearch search, const Compensation& compensation,
      const float* rows, int64_t ld, int64_t row_count, int64_t cols, std::byte* panels)
      : format_(format),
        search_(search),
        compensation_(compensation),
        rows_(rows),
        ld_(ld),
        row_count_(row_count),
        cols_(cols),
        stored_(format.padded_columns(cols)),
        panels_(panels),
        panel_count_((row_count + kRows - 1) / kRows),
        by_row_(format.group == 0) {}

  bool run() {
    const auto room = static_cast<size_t>(padded_rows(panel_count_ * kRows));
    errors_.assign(room * static_cast<size_t>(cols_), 0);
    added_.assign(room * static_cast<size_t>(compensation_.block), 0);
    codes_.assign(static_cast<size_t>(panel_count_ * kRows * stored_), zero_code());
    scales_.resize(static_cast<size_t>(panel_count_ * groups() * kRows));
    zeros_.resize(scales_.size());
    if (by_row_) each_panel([&](int64_t panel) { choose_row_scales(panel); });
    for (int64_t begin = 0; begin < cols_ && good_; begin += compensation_.block) take(begin);
    if (good_ && !format_.is_k()) each_panel([&](int64_t panel) { pack(panel); });
    return good_;
  }

 private:
  int64_t groups() const { return format_.groups(cols_); }
  uint8_t zero_code() const {
    switch (format_.encoding) {
      case Encoding::kInt8: return 128;
      case Encoding::kNf4: return 7;
      case Encoding::kIq4: return 8;  // of what is nearest 0
      default: return 0;
    }
  }
  template <typename Work>
  void each_panel(const Work& work) {
    deal_each(panel_count_, 1, work);
  }
  int64_t rows_of(int64_t panel) const { return std::min(kRows, row_count_ - panel * kRows); }
  float* scales(int64_t panel, int64_t group) {
    return scales_.data() + (panel * groups() + group) * kRows;
  }
  float* zeros(int64_t panel, int64_t group) {
    return zeros_.data() + (panel * groups() + group) * kRows;
  }

  // quantise_panel() of some rows of one group; its scales are what is wanted.
  void choose(int64_t panel, int64_t group, const float* rows, int64_t ld, int64_t columns,
              const float* importance) {
    std::vector<std::byte> bytes(static_cast<size_t>(format_.panel_bytes(columns)));
    if (!quantise_panel(format_, {search_, importance}, rows, ld, rows_of(panel), columns,
                        bytes.data())) {
      good_ = false;
      return;
    }
    read_scales(format_, bytes.data() + format_.group_code_bytes(columns), scales(panel, group),
                zeros(panel, group));
  }

  void choose_row_scales(int64_t panel) {
    choose(panel, 0, rows_ + panel * kRows * ld_, ld_, cols_, nullptr);
  }

  // The block of columns from `begin` on, of all rows.
  void take(int64_t begin) {
    const int64_t count = std::min(compensation_.block, cols_ - begin);
    if (begin > 0)
      products_.multiply(errors_.data(), cols_, row_count_,
                         compensation_.feedback.data() + compensation_.rows_at(begin), count, begin,
                         added_.data(), count);
    each_panel([&](int64_t panel) { take(panel, begin, count); });
  }

  void take(int64_t panel, int64_t begin, int64_t count) {
    alignas(64) float values[kMostBlock * kRows] = {};
    alignas(64) float originals[kMostBlock * kRows] = {};
    alignas(64) float errors[kMostBlock * kRows];
    alignas(64) float scale[kRows] = {}, zero[kRows] = {};
    const int64_t first = panel * kRows, rows = rows_of(panel);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < count; ++i) {
        const float original = rows_[(first + row) * ld_ + begin + i];
        values[i * kRows + row] =
            begin > 0 ? original + added_[static_cast<size_t>((first + row) * count + i)]
                      : original;
        originals[i * kRows + row] = original;
      }
    const int64_t group = by_row_ ? 0 : begin / compensation_.block;
    CompensatedColumns call{format_.encoding,
                            count,
                            values,
                            originals,
                            compensation_.feedback.data() + compensation_.triangle_at(begin),
                            count,
                            scale,
                            zero,
                            errors,
                            codes_.data() + first * stored_ + begin,
                            stored_,
                            nullptr};
    if (format_.is_k()) {
      take_k(panel, begin, call);
    } else {
      choose_and_round(panel, group, begin, call, scale, zero);
    }
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < count; ++i)
        errors_[static_cast<size_t>((first + row) * cols_ + begin + i)] = errors[i * kRows + row];
  }

  void choose_and_round(int64_t panel, int64_t group, int64_t begin, CompensatedColumns& call,
                        float* scale, float* zero) {
    const int64_t count = call.count;
    if (!by_row_) {
      alignas(64) float expected[kMostBlock * kRows];
      float turned[kRows * kMostBlock];
      call.expected = expected;
      active_variant().compensate_columns(call);
      call.expected = nullptr;
      for (int64_t row = 0; row < kRows; ++row)
        for (int64_t i = 0; i < count; ++i) turned[row * count + i] = expected[i * kRows + row];
      choose(panel, group, turned, count, count, compensation_.importance.data() + begin);
    }
    std::copy_n(scales(panel, group), kRows, scale);
    std::copy_n(zeros(panel, group), kRows, zero);
    active_variant().compensate_columns(call);
  }

  // A group of a K type: d and m for what its columns are to be if nothing in it were rounded; each
  // part's small scales again when its turn comes; its lines.
  void take_k(int64_t panel, int64_t begin, const CompensatedColumns& group) {
    const Encoding encoding = format_.encoding;
    const int64_t part_columns = k_layout(encoding).part_columns;
    alignas(64) float expected[kMostBlock * kRows] = {};
    alignas(64) float scale[kRows], minimum[kRows];
    float weights[kMostBlock] = {};
    std::copy_n(compensation_.importance.data() + begin, group.count, weights);
    CompensatedColumns call = group;
    call.expected = expected;
    active_variant().compensate_columns(call);
    KScalesOf16 scales;
    if (!is_finite(expected, group.count) ||
        !choose_k_scales(encoding, expected, weights, scales)) {
      good_ = false;
      return;
    }
    std::vector<float> values(group.values, group.values + group.count * kRows);
    for (int64_t at = 0; at < group.count; at += part_columns) {
      const auto part = static_cast<int>(at / part_columns);
      call = part_of(group, at, std::min(part_columns, group.count - at));
      call.values = values.data() + at * kRows;
      add_earlier(group, at, call.count, values.data());
      call.expected = expected + at * kRows;
      active_variant().compensate_columns(call);
      choose_k_part(encoding, part, expected, weights, scales);
      for (int64_t row = 0; row < kRows; ++row) {
        scale[row] = scales.d[row] * scales.s[part * kRows + row];
        minimum[row] = scales.m[row] * scales.n[part * kRows + row];
      }
      call.expected = nullptr;
      call.scale = scale;
      call.zero = minimum;
      active_variant().compensate_columns(call);
    }
    fill_up_codes(encoding, scales, group);
    pack_k_group(encoding, scales, group.codes, group.code_stride,
                 panels_ + panel * format_.panel_bytes(cols_) +
                     begin / kMostBlock * k_layout(encoding).bytes());
  }

  // Of columns past the last: what is nearest to zeros.
  static void fill_up_codes(Encoding encoding, const KScalesOf16& scales,
                            const CompensatedColumns& group) {
    if (group.count == kMostBlock) return;
    alignas(64) const float zeros[kMostBlock * kRows] = {};
    uint8_t codes[kMostBlock * kRows];
    choose_k_codes(encoding, zeros, scales, codes, kMostBlock);
    for (int64_t row = 0; row < kRows; ++row)
      std::copy(codes + row * kMostBlock + group.count, codes + (row + 1) * kMostBlock,
                group.codes + row * group.code_stride + group.count);
  }

  static bool is_finite(const float* values, int64_t columns) {
    float check = 0;
    for (int64_t i = 0; i < columns * kRows; ++i) check += values[i] * 0.0f;
    return check == 0;
  }

  static CompensatedColumns part_of(const CompensatedColumns& group, int64_t at, int64_t count) {
    CompensatedColumns out = group;
    out.count = count;
    out.originals += at * kRows;
    out.triangle += at * group.stride + at;
    out.errors += at * kRows;
    out.codes += at;
    return out;
  }

  // To the columns [at, at + count) of a group, what the errors before them in it add.
  static void add_earlier(const CompensatedColumns& group, int64_t at, int64_t count,
                          float* values) {
    for (int64_t k = at; k < at + count; ++k)
      for (int64_t j = 0; j < at; ++j) {
        const float feedback = group.triangle[k * group.stride + j];
        for (int64_t row = 0; row < kRows; ++row)
          values[k * kRows + row] += group.errors[j * kRows + row] * feedback;
      }
  }

  void pack(int64_t panel) {
    const int64_t columns = format_.group_columns(cols_);
    std::vector<uint8_t> codes(static_cast<size_t>(kRows * columns));
    for (int64_t group = 0; group < groups(); ++group) {
      // Columns past the last are what the kernels make of zeros.
      const int64_t real = std::min(columns, cols_ - group * columns);
      for (int64_t row = 0; row < kRows; ++row) {
        const uint8_t* from = codes_.data() + (panel * kRows + row) * stored_ + group * columns;
        uint8_t* to = codes.data() + row * columns;
        std::copy_n(from, columns, to);
        if (has_int4_codes(format_.encoding))
          std::fill(to + real, to + columns,
                    static_cast<uint8_t>(
                        std::clamp(std::nearbyint(zeros(panel, group)[row]), 0.0f, 15.0f)));
      }
      pack_group(format_, cols_, group, codes.data(), scales(panel, group), zeros(panel, group),
                 panels_ + panel * format_.panel_bytes(cols_));
    }
  }

  const WeightFormat& format_;
  RangeSearch search_;
  const Compensation& compensation_;
  const float* rows_;
  int64_t ld_, row_count_, cols_, stored_;
  std::byte* panels_;
  int64_t panel_count_;
  bool by_row_;
  std::atomic<bool> good_ = true;
  Products products_;
  std::vector<float> errors_, added_;  // [rows, cols], [rows, block]
  std::vector<uint8_t> codes_;
  std::vector<float> scales_, zeros_;
};
}  // namespace

int64_t Compensation::values(int64_t cols, int64_t block) noexcept {
  int64_t sum = 0;
  for (int64_t begin = 0; begin < cols; begin += block) {
    const int64_t count = std::min(block, cols - begin);
    sum += count * (begin + count);
  }
  return sum;
}

size_t Compensation::rows_at(int64_t begin) const noexcept {
  return static_cast<size_t>(values(begin, block));
}

size_t Compensation::triangle_at(int64_t begin) const noexcept {
  return rows_at(begin) + static_cast<size_t>(std::min(block, cols - begin) * begin);
}

int64_t compensation_block(const WeightFormat& format, int64_t cols) noexcept {
  return format.group > 0 ? format.group_columns(cols) : kUsualBlock;
}

std::optional<Compensation> compensation_of(std::span<float> hessian, int64_t cols, double damping,
                                            const WeightFormat& format) {
  const auto n = static_cast<size_t>(cols);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += hessian[i * n + i];
  if (!std::isfinite(sum)) return std::nullopt;
  const double mean = sum > 0 ? sum / static_cast<double>(cols) : 1;
  // The lower triangle keeps what it was, for another attempt.
  std::vector<float> diagonal(n);
  for (size_t i = 0; i < n; ++i) diagonal[i] = hessian[i * n + i];
  for (int attempt = 0; attempt < kAttempts; ++attempt, damping *= 10) {
    for (size_t i = 0; i < n; ++i) {
      hessian[i * n + i] = static_cast<float>(diagonal[i] + damping * mean);
      if (attempt > 0)
        for (size_t j = i + 1; j < n; ++j) hessian[i * n + j] = hessian[j * n + i];
    }
    if (Factorisation(hessian.data(), cols).run())
      return packed(hessian.data(), cols, compensation_block(format, cols));
  }
  return std::nullopt;
}

bool quantise_compensated(const WeightFormat& format, RangeSearch search,
                          const Compensation& compensation, const float* rows, int64_t ld,
                          int64_t row_count, int64_t cols, std::byte* panels) {
  return Run(format, search, compensation, rows, ld, row_count, cols, panels).run();
}

}  // namespace sluice::kernels
