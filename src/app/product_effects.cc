#include "src/app/product_effects.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "kernels/linear.h"
#include "src/app/weight_sample.h"
#include "src/base/error.h"
#include "src/base/team.h"

namespace sluice::app {

namespace {
constexpr int64_t kPanel = WeightFormat::kPanelRows;
constexpr int64_t kDisturbedRows = 256;  // of a matrix, at a time
constexpr int64_t kCopiesTogether = 32;  // sequences of a block
constexpr double kLeastDivergence = 1e-12;
const WeightFormat kDisturbedAs{Encoding::kInt4, DType::kBF16, 128};

using MatrixPlace = std::pair<size_t, size_t>;

// Adds to a copy's products what quantising their matrix would.
class Disturber {
 public:
  Disturber(const BoundModel& model, std::vector<MatrixPlace> places)
      : model_(model), places_(std::move(places)), squares_(places_.size(), 0) {}

  const std::vector<MatrixPlace>& places() const noexcept { return places_; }
  /// Of a place's copies so far: summed squares of what was added.
  double squares(size_t place) const noexcept { return squares_[place]; }

  void disturb(const SeenProduct& product) {
    const auto found = std::lower_bound(places_.begin(), places_.end(),
                                        MatrixPlace{product.sublayer, product.weight});
    if (found == places_.end() || *found != MatrixPlace{product.sublayer, product.weight}) return;
    const auto place = static_cast<size_t>(found - places_.begin());
    gather(product, place);
    if (ids_.empty()) return;
    const MatrixRows matrix(model_, product.sublayer, product.weight, product.expert);
    for (int64_t first = 0; first < matrix.rows(); first += kDisturbedRows) {
      const int64_t count = std::min(kDisturbedRows, matrix.rows() - first);
      read_errors(matrix, first, count);
      squares_[place] += add(product.out, first, count, matrix.cols());
    }
  }

 private:
  // The copy's rows among the product's.
  void gather(const SeenProduct& product, size_t place) {
    ids_.clear();
    for (const Chunk& chunk : product.batch->chunks) {
      if (chunk.sequence->id != place) continue;
      for (int64_t row = 0; row < product.in.rows; ++row) {
        const int64_t id = product.row_ids ? product.row_ids[row] : row;
        if (id >= chunk.row_begin && id < chunk.row_begin + chunk.count) ids_.push_back(row);
      }
    }
    const int64_t cols = product.in.cols, count = std::ssize(ids_);
    inputs_.assign(static_cast<size_t>(kernels::padded_rows(count) * cols), 0);
    for (int64_t i = 0; i < count; ++i)
      std::copy_n(product.in.data + ids_[static_cast<size_t>(i)] * product.in.stride, cols,
                  inputs_.data() + i * cols);
  }

  void read_errors(const MatrixRows& matrix, int64_t first, int64_t count) {
    const int64_t cols = matrix.cols();
    errors_.resize(static_cast<size_t>(count * cols));
    matrix.read(first, count, errors_.data());
    std::atomic<bool> good = true;
    deal_each((count + kPanel - 1) / kPanel, 1, [&](int64_t index) {
      float* rows = errors_.data() + index * kPanel * cols;
      const int64_t real = std::min(kPanel, count - index * kPanel);
      std::vector<std::byte> panel(static_cast<size_t>(kDisturbedAs.panel_bytes(cols)));
      std::vector<float> back(static_cast<size_t>(real * cols));
      if (!kernels::quantise_panel(kDisturbedAs, {kernels::RangeSearch::kMinMax, nullptr}, rows,
                                   cols, real, cols, panel.data())) {
        good = false;
        return;
      }
      kernels::dequantise_panel(kDisturbedAs, panel.data(), real, cols, back.data(), cols);
      for (size_t i = 0; i < back.size(); ++i) rows[i] = back[i] - rows[i];
    });
    if (!good) std::fill(errors_.begin(), errors_.end(), 0.0f);  // convert will say which and why
  }

  double add(const Rows& out, int64_t first, int64_t count, int64_t cols) {
    const int64_t rows = std::ssize(ids_);
    outputs_.resize(static_cast<size_t>(kernels::padded_rows(rows) * count));
    scratch_.resize(static_cast<size_t>(std::max<int64_t>(
        64,
        kernels::linear_scratch_bytes(DType::kF32, rows, count, cols, kernels::Compute::kF32))));
    kernels::linear({inputs_.data(), nullptr, rows, cols, cols}, errors_.data(), DType::kF32, count,
                    cols, nullptr, outputs_.data(), count, kernels::Compute::kF32, scratch_);
    double squares = 0;
    for (int64_t row = 0; row < rows; ++row) {
      float* to = out.data + ids_[static_cast<size_t>(row)] * out.stride + first;
      const float* from = outputs_.data() + row * count;
      for (int64_t col = 0; col < count; ++col) {
        to[col] += from[col];
        squares += double{from[col]} * from[col];
      }
    }
    return squares;
  }

  const BoundModel& model_;
  std::vector<MatrixPlace> places_;  // rising; the copy's sequence has the same number
  std::vector<double> squares_;
  std::vector<int64_t> ids_;
  std::vector<float> inputs_, errors_, outputs_;
  std::vector<std::byte> scratch_;
};

std::vector<MatrixPlace> places_of(const ModelShape& shape) {
  std::vector<MatrixPlace> out;
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    for (size_t weight = 0; weight < shape.sublayers[i].weights.size(); ++weight)
      if (shape.sublayers[i].weights[weight].may_be_quantised()) out.emplace_back(i, weight);
  return out;
}

std::vector<ScoredSequence> chosen_windows(std::span<const ScoredSequence> windows) {
  const size_t count = std::min(windows.size(), kEffectWindows);
  std::vector<ScoredSequence> out;
  for (size_t i = 0; i < count; ++i) {
    ScoredSequence& window = out.emplace_back(windows[windows.size() * i / count]);
    window.tokens.resize(std::min(window.tokens.size(), kEffectTokens));
    window.first_target = 1;
  }
  std::erase_if(out, [](const ScoredSequence& window) { return window.tokens.size() < 2; });
  return out;
}
}  // namespace

ProductEffects measure_effects(const BoundModel& model, EngineOptions options,
                               std::span<const ScoredSequence> windows,
                               const std::function<void(int64_t, int64_t)>& progress,
                               std::stop_token cancel) {
  Disturber disturber(model, places_of(model.shape()));
  const size_t places = disturber.places().size();
  bool is_disturbed = false;
  options.observe_product = [&](const SeenProduct& product) {
    if (is_disturbed) disturber.disturb(product);
  };
  options.workload.sequences = std::min<int64_t>(static_cast<int64_t>(places), kCopiesTogether);
  const auto engine = Engine::open(model.path(), std::move(options));
  engine->load(cancel);
  const std::vector<ScoredSequence> chosen = chosen_windows(windows);
  std::vector<double> divergence(places, 0);
  int64_t tokens = 0, scored = 0, done = 0;
  for (const ScoredSequence& window : chosen) {
    const int64_t targets = std::ssize(window.tokens) - 1;
    std::vector<std::vector<float>> plain(static_cast<size_t>(targets));
    is_disturbed = false;
    score(
        *engine, {&window, 1},
        [&](const TokenScore& one, std::span<const float> logits) {
          plain[static_cast<size_t>(one.row)].assign(logits.begin(), logits.end());
        },
        {}, cancel);
    is_disturbed = true;
    const std::vector<ScoredSequence> copies(places, window);
    score(
        *engine, copies,
        [&](const TokenScore& one, std::span<const float> logits) {
          divergence[one.sequence] +=
              kl_divergence(plain[static_cast<size_t>(one.row % targets)], logits);
        },
        [&](int64_t, int64_t) {
          if (progress) progress(++done, static_cast<int64_t>(places * chosen.size()));
        },
        cancel);
    tokens += targets + 1;
    scored += targets;
  }
  ProductEffects out;
  for (size_t place = 0; place < places; ++place) {
    const double error =
        disturber.squares(place) / static_cast<double>(std::max<int64_t>(1, tokens));
    const double mean = divergence[place] / static_cast<double>(std::max<int64_t>(1, scored));
    out[disturber.places()[place]] = error > 0 ? std::max(mean, kLeastDivergence) / error : 0;
  }
  return out;
}

}  // namespace sluice::app
