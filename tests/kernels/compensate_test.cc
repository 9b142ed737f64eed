#include "kernels/compensate.h"

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/quantised_layout.h"
#include "src/base/team.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

using Matrix = std::vector<double>;

struct Layer {
  int64_t rows, cols;
  std::vector<float> weights, hessian;
};

// Inputs that follow each other, some columns large.
Layer layer_of(int64_t rows, int64_t cols, uint32_t seed, int64_t tokens) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Layer out{rows, cols, std::vector<float>(static_cast<size_t>(rows * cols)),
            std::vector<float>(static_cast<size_t>(cols * cols))};
  for (float& value : out.weights) value = normal(random);
  std::vector<float> sizes(static_cast<size_t>(cols)), x(sizes.size());
  for (float& size : sizes) size = std::exp(normal(random));
  for (int64_t token = 0; token < tokens; ++token) {
    float before = normal(random);
    for (size_t i = 0; i < x.size(); ++i) {
      before = 0.8f * before + 0.6f * normal(random);
      x[i] = sizes[i] * before;
    }
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t j = 0; j < x.size(); ++j) out.hessian[i * x.size() + j] += x[i] * x[j];
  }
  return out;
}

std::vector<float> identity(int64_t cols) {
  std::vector<float> out(static_cast<size_t>(cols * cols));
  for (int64_t i = 0; i < cols; ++i) out[static_cast<size_t>(i * cols + i)] = 1;
  return out;
}

std::vector<float> values_of(const WeightFormat& format, const std::vector<std::byte>& panels,
                             int64_t rows, int64_t cols) {
  std::vector<float> out;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col)
      out.push_back(reference::quantised_value(
          format, panels.data() + row / 16 * format.panel_bytes(cols), cols, row % 16, col));
  return out;
}

double cost(const Layer& layer, const std::vector<float>& quantised) {
  double sum = 0;
  const auto n = static_cast<size_t>(layer.cols);
  for (size_t row = 0; row < static_cast<size_t>(layer.rows); ++row)
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) {
        const auto off = [&](size_t col) {
          return double{layer.weights[row * n + col]} - quantised[row * n + col];
        };
        sum += off(i) * layer.hessian[i * n + j] * off(j);
      }
  return sum;
}

std::vector<std::byte> nearest(const WeightFormat& format, const Layer& layer,
                               const float* importance) {
  const int64_t panels = (layer.rows + 15) / 16;
  std::vector<std::byte> out(static_cast<size_t>(panels * format.panel_bytes(layer.cols)));
  for (int64_t panel = 0; panel < panels; ++panel)
    EXPECT_TRUE(quantise_panel(format, {RangeSearch::kClip, importance},
                               layer.weights.data() + panel * 16 * layer.cols, layer.cols,
                               std::min<int64_t>(16, layer.rows - panel * 16), layer.cols,
                               out.data() + panel * format.panel_bytes(layer.cols)));
  return out;
}

std::vector<std::byte> compensated(const WeightFormat& format, const Layer& layer,
                                   std::vector<float> hessian, double damping = 0.01) {
  const auto compensation = compensation_of(hessian, layer.cols, damping, format);
  EXPECT_TRUE(compensation);
  std::vector<std::byte> out(
      static_cast<size_t>((layer.rows + 15) / 16 * format.panel_bytes(layer.cols)));
  EXPECT_TRUE(quantise_compensated(format, RangeSearch::kClip, *compensation, layer.weights.data(),
                                   layer.cols, layer.rows, layer.cols, out.data()));
  return out;
}

class Compensated : public ::testing::TestWithParam<const char*> {
 protected:
  WeightFormat format_ = parse_weight_format(GetParam()).value();
};

TEST_P(Compensated, IsNearestWhereInputsAreIndependent) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {16, 32}, {17, 100}, {33, 257}, {5, 640}}) {
    const Layer layer = layer_of(rows, cols, 1, 0);
    std::vector<float> ones(static_cast<size_t>(cols), 1.01f);
    EXPECT_EQ(compensated(format_, layer, identity(cols)), nearest(format_, layer, ones.data()))
        << rows << " x " << cols;
  }
}

TEST_P(Compensated, CostsLessThanNearest) {
  for (const auto& [rows, cols] : {std::pair{16, 64}, {17, 200}, {40, 384}}) {
    const Layer layer = layer_of(rows, cols, 2, 2 * cols);
    const auto good = values_of(format_, compensated(format_, layer, layer.hessian), rows, cols);
    const auto plain = values_of(format_, nearest(format_, layer, nullptr), rows, cols);
    EXPECT_LT(cost(layer, good), 0.7 * cost(layer, plain)) << rows << " x " << cols;
  }
}

TEST_P(Compensated, IsTheSameOnATeam) {
  const Layer layer = layer_of(50, 300, 3, 100);
  const auto alone = values_of(format_, compensated(format_, layer, layer.hessian), 50, 300);
  Team team(4);
  const Team::Use use(team);
  EXPECT_EQ(values_of(format_, compensated(format_, layer, layer.hessian), 50, 300), alone);
}

INSTANTIATE_TEST_SUITE_P(Formats, Compensated,
                         ::testing::Values("int4-g32", "int4", "int4-g128", "int8", "int8-g64",
                                           "nf4", "fp8", "fp8-g32", "mxfp4", "q4_0", "iq4", "q2_k",
                                           "q3_k", "q4_k", "q5_k", "q6_k"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The paper's own form: the inverse of H, errors carried to the columns behind (algorithm 1), all
// in f64, with int4's rounding.
class Plainest {
 public:
  Plainest(const WeightFormat& format, const Layer& layer, double damping)
      : format_(format),
        layer_(layer),
        n_(static_cast<size_t>(layer.cols)),
        rows_(static_cast<size_t>(layer.rows)),
        work_(layer.weights.begin(), layer.weights.end()) {
    invert(damping);
  }

  std::vector<float> run() {
    std::vector<float> out(layer_.weights.size());
    for (size_t col = 0; col < n_; ++col) {
      if (col % static_cast<size_t>(format_.group) == 0) choose_scales(col);
      for (size_t row = 0; row < rows_; ++row) {
        const double x = work_[row * n_ + col], scale = scale_[row], zero = zero_[row];
        const double code = scale > 0 ? std::clamp(std::nearbyint(x / scale + zero), 0.0, 15.0) : 0;
        out[row * n_ + col] = static_cast<float>((code - zero) * scale);
        const double error = (x - (code - zero) * scale) / inverse_[col * n_ + col];
        for (size_t j = col; j < n_; ++j) work_[row * n_ + j] -= error * inverse_[col * n_ + j];
      }
      eliminate(inverse_, col);
    }
    return out;
  }

 private:
  void invert(double damping) {
    Matrix h(layer_.hessian.begin(), layer_.hessian.end());
    double mean = 0;
    for (size_t i = 0; i < n_; ++i) mean += h[i * n_ + i] / static_cast<double>(n_);
    inverse_.assign(n_ * n_, 0);
    for (size_t i = 0; i < n_; ++i) h[i * n_ + i] += damping * mean, inverse_[i * n_ + i] = 1;
    for (size_t i = 0; i < n_; ++i) {
      const double pivot = h[i * n_ + i];
      for (size_t j = 0; j < n_; ++j) h[i * n_ + j] /= pivot, inverse_[i * n_ + j] /= pivot;
      for (size_t row = 0; row < n_; ++row) {
        const double factor = h[row * n_ + i];
        if (row == i) continue;
        for (size_t j = 0; j < n_; ++j) {
          h[row * n_ + j] -= factor * h[i * n_ + j];
          inverse_[row * n_ + j] -= factor * inverse_[i * n_ + j];
        }
      }
    }
  }

  // The inverse of what is left of H without this column.
  void eliminate(Matrix& inverse, size_t col) const {
    for (size_t a = col + 1; a < n_; ++a)
      for (size_t b = col + 1; b < n_; ++b)
        inverse[a * n_ + b] -=
            inverse[a * n_ + col] * inverse[col * n_ + b] / inverse[col * n_ + col];
  }

  // As quantise_panel() chooses them of what is there now.
  void choose_scales(size_t col) {
    const auto group = static_cast<size_t>(format_.group);
    Layer part{layer_.rows, format_.group, {}, {}};
    std::vector<float> importance;
    Matrix left = inverse_;
    for (size_t i = col; i < col + group; ++i) {
      importance.push_back(static_cast<float>(1 / left[i * n_ + i]));
      eliminate(left, i);
    }
    for (size_t row = 0; row < rows_; ++row)
      for (size_t i = col; i < col + group; ++i)
        part.weights.push_back(static_cast<float>(work_[row * n_ + i]));
    const auto panels = nearest(format_, part, importance.data());
    scale_.clear(), zero_.clear();
    for (size_t row = 0; row < rows_; ++row) {
      const std::byte* meta = panels.data() +
                              static_cast<int64_t>(row / 16) * format_.panel_bytes(format_.group) +
                              format_.group_code_bytes(format_.group) + 2 * (row % 16);
      uint16_t half[2];
      std::memcpy(&half[0], meta, 2);
      std::memcpy(&half[1], meta + 32, 2);
      scale_.push_back(f16_to_f32(half[0]));
      zero_.push_back(f16_to_f32(half[1]));
    }
  }

  WeightFormat format_;
  const Layer& layer_;
  size_t n_, rows_;
  Matrix work_, inverse_;
  std::vector<double> scale_, zero_;
};

TEST(CompensatedInt4, IsThePapersAlgorithm) {
  const WeightFormat format = parse_weight_format("int4-g32").value();
  const Layer layer = layer_of(20, 96, 5, 300);
  const auto ours =
      values_of(format, compensated(format, layer, layer.hessian), layer.rows, layer.cols);
  const auto theirs = Plainest(format, layer, 0.01).run();
  int64_t different = 0;
  for (size_t i = 0; i < ours.size(); ++i) different += std::abs(ours[i] - theirs[i]) > 1e-3f;
  // Where f32 and f64 round to different codes the rest of the row may go another way.
  EXPECT_LT(different, 60) << "of " << ours.size();
  EXPECT_NEAR(cost(layer, ours) / cost(layer, theirs), 1, 0.02);
}

TEST(CompensationFactor, ExplainsTheInputs) {
  for (const int64_t cols : {1, 2, 63, 64, 65, 200, 300}) {
    Layer layer = layer_of(1, cols, 7, 2 * cols + 3);
    const std::vector<float> before = layer.hessian;
    const WeightFormat format = parse_weight_format("int4-g32").value();
    const auto found = compensation_of(layer.hessian, cols, 0.01, format);
    ASSERT_TRUE(found);
    const auto n = static_cast<size_t>(cols);
    Matrix u(n * n);
    for (size_t k = 0; k < n; ++k) {
      const int64_t begin = static_cast<int64_t>(k) / 32 * 32;
      const int64_t count = std::min<int64_t>(32, cols - begin);
      const auto row = static_cast<int64_t>(k) - begin;
      u[k * n + k] = 1;
      for (size_t j = 0; j < k; ++j)
        u[j * n + k] =
            static_cast<int64_t>(j) < begin
                ? found->feedback[found->rows_at(begin) + static_cast<size_t>(row * begin) + j]
                : found->feedback[found->triangle_at(begin) + static_cast<size_t>(row * count) + j -
                                  static_cast<size_t>(begin)];
    }
    double mean = 0;
    for (size_t i = 0; i < n; ++i) mean += before[i * n + i] / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) {
        double sum = 0;
        for (size_t k = 0; k < n; ++k) sum += u[i * n + k] * found->importance[k] * u[j * n + k];
        const double wanted = before[i * n + j] + (i == j ? 0.01 * mean : 0);
        EXPECT_NEAR(sum, wanted, 1e-4 * mean + 1e-4 * std::abs(wanted)) << cols;
      }
  }
}

TEST(CompensationFactor, SurvivesWhatHasNoInverse) {
  const WeightFormat format = parse_weight_format("int4").value();
  // Two columns that are one, columns that never saw anything, and nothing at all.
  for (const int64_t tokens : {0, 1, 5}) {
    Layer layer = layer_of(4, 150, 9, tokens);
    for (size_t i = 0; i < 150; ++i) layer.hessian[7 * 150 + i] = layer.hessian[i * 150 + 7] = 0;
    EXPECT_EQ(compensated(format, layer, layer.hessian).size(),
              static_cast<size_t>(format.panel_bytes(150)));
  }
  std::vector<float> bad(4, NAN);
  EXPECT_FALSE(compensation_of(bad, 2, 0.01, format));
}

}  // namespace
}  // namespace sluice::kernels
