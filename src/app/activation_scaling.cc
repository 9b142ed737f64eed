#include "src/app/activation_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/checkpoint/parallel_ranges.h"
#include "src/app/weight_sample.h"
#include "src/layer/scaling_places.h"

namespace sluice::app {

namespace {
constexpr int kPowers = 20;  // tried: 0, 1/20 .. 1
constexpr float kLargestScale = 1e4f;

// Magnitudes to the power, brought to where the largest and the smallest are as far from 1.
std::vector<float> scales_of(const InputStatistics& inputs, double power) {
  std::vector<float> scales(inputs.magnitude.size());
  double mean = 0;
  for (size_t i = 0; i < scales.size(); ++i) mean += inputs.mean_magnitude(i);
  mean /= static_cast<double>(scales.size());
  if (!(mean > 0)) return std::vector<float>(scales.size(), 1.0f);
  double low = INFINITY, high = 0;
  for (size_t i = 0; i < scales.size(); ++i) {
    const double value = std::pow(std::max(inputs.mean_magnitude(i) / mean, 1e-4), power);
    scales[i] = static_cast<float>(value);
    low = std::min(low, value);
    high = std::max(high, value);
  }
  const double middle = std::sqrt(low * high);
  for (float& scale : scales)
    scale = std::clamp(static_cast<float>(scale / middle), 1 / kLargestScale, kLargestScale);
  return scales;
}

// How much an error of a scaled column counts.
std::vector<float> importance_of(const InputStatistics& inputs, const std::vector<float>& scales) {
  std::vector<float> out(scales.size());
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(inputs.mean_square(i) / (double{scales[i]} * scales[i]));
  // A column that was never used still has some weight, else a group may have none.
  const float largest = *std::max_element(out.begin(), out.end());
  for (float& value : out) value = std::max(value, 1e-8f * largest) + 1e-30f;
  return out;
}

double squared_error(const WeightSample& sample, const InputStatistics& inputs,
                     const std::vector<float>& scales, const WeightFormat& format,
                     kernels::RangeSearch search) {
  constexpr int64_t kPanelRows = WeightFormat::kPanelRows;
  const std::vector<float> importance = importance_of(inputs, scales);
  const int64_t cols = sample.cols;
  std::vector<float> scaled(static_cast<size_t>(kPanelRows * cols)), back(scaled.size());
  std::vector<std::byte> panel(static_cast<size_t>(format.panel_bytes(cols)));
  double error = 0;
  for (int64_t first = 0; first < sample.rows; first += kPanelRows) {
    const int64_t count = std::min(kPanelRows, sample.rows - first);
    const float* rows = sample.values.data() + first * cols;
    for (int64_t i = 0; i < count * cols; ++i)
      scaled[static_cast<size_t>(i)] = rows[i] * scales[static_cast<size_t>(i % cols)];
    if (!kernels::quantise_panel(format, {search, importance.data()}, scaled.data(), cols, count,
                                 cols, panel.data()))
      return INFINITY;
    kernels::dequantise_panel(format, panel.data(), count, cols, back.data(), cols);
    for (int64_t i = 0; i < count * cols; ++i) {
      const auto col = static_cast<size_t>(i % cols);
      const double difference = double{back[static_cast<size_t>(i)]} / scales[col] - rows[i];
      error += inputs.mean_square(col) * difference * difference;
    }
  }
  return error;
}

// Each head attends with values of its own.
bool has_its_own_values(const ModelShape& model) { return model.num_heads == model.num_kv_heads; }

class Chooser {
 public:
  Chooser(const BoundModel& model, const Calibration& calibration, const FormatOf& format_of,
          kernels::RangeSearch search)
      : model_(model), calibration_(calibration), format_of_(format_of), search_(search) {}

  Scalings choose() {
    for (size_t i = 0; i < model_.shape().sublayers.size(); ++i) {
      for (const ScalingPlace& place :
           scaling_places(model_.family().program(i), has_its_own_values(model_.shape())))
        scale(i, place);
      weigh_the_rest(i);
    }
    return std::move(out_);
  }

 private:
  const InputStatistics* inputs_of(size_t sublayer, size_t weight, size_t expert = 0) const {
    const auto found = calibration_.find({sublayer, weight, expert});
    return found == calibration_.end() || found->second.rows == 0 ? nullptr : &found->second;
  }

  // Only quantised matrices are multiplied with anything as they are written.
  bool has_plain(size_t sublayer, const ScalingPlace& place) const {
    const auto is_plain = [&](int32_t weight) {
      return weight >= 0 && !format_of_(sublayer, static_cast<size_t>(weight)).is_quantised();
    };
    const auto& weights = model_.shape().sublayers[sublayer].weights;
    return std::any_of(place.consumers.begin(), place.consumers.end(), is_plain) ||
           (weights[static_cast<size_t>(place.producer)].kind == WeightKind::kMatrix &&
            is_plain(place.producer));
  }

  void scale(size_t sublayer, const ScalingPlace& place) {
    const InputStatistics* inputs =
        inputs_of(sublayer, static_cast<size_t>(place.consumers.front()));
    if (!inputs || has_plain(sublayer, place)) return;
    std::vector<WeightSample> samples;
    std::vector<WeightFormat> formats;
    for (const int32_t weight : place.consumers) {
      samples.push_back(sample_rows(model_, sublayer, static_cast<size_t>(weight)));
      formats.push_back(format_of_(sublayer, static_cast<size_t>(weight)));
    }
    std::vector<double> errors(kPowers + 1);
    io::parallel_ranges(0, kPowers + 1, 1, [&](int64_t begin, int64_t end) {
      for (int64_t power = begin; power < end; ++power) {
        const auto scales = scales_of(*inputs, static_cast<double>(power) / kPowers);
        for (size_t i = 0; i < samples.size(); ++i)
          errors[static_cast<size_t>(power)] +=
              squared_error(samples[i], *inputs, scales, formats[i], search_);
      }
    });
    const auto best = std::min_element(errors.begin(), errors.end());
    const std::vector<float> scales =
        scales_of(*inputs, static_cast<double>(best - errors.begin()) / kPowers);
    for (const int32_t weight : place.consumers) {
      WeightScaling& consumer = out_[{sublayer, static_cast<size_t>(weight)}];
      consumer.columns = scales;
      consumer.importance = importance_of(*inputs, scales);
    }
    std::vector<float> inverse(scales.size());
    for (size_t i = 0; i < scales.size(); ++i) inverse[i] = 1 / scales[i];
    for (const int32_t weight : {place.producer, place.bias})
      if (weight >= 0) out_[{sublayer, static_cast<size_t>(weight)}].rows = inverse;
  }

  // Linear layers whose inputs nothing can scale still know which columns matter.
  void weigh_the_rest(size_t sublayer) {
    const SublayerShape& shape = model_.shape().sublayers[sublayer];
    for (size_t weight = 0; weight < shape.weights.size(); ++weight) {
      if (shape.weights[weight].experts > 0) {
        weigh_experts(sublayer, weight);
        continue;
      }
      const InputStatistics* inputs = inputs_of(sublayer, weight);
      if (!inputs || shape.weights[weight].kind != WeightKind::kMatrix ||
          !format_of_(sublayer, weight).is_quantised())
        continue;
      WeightScaling& scaling = out_[{sublayer, weight}];
      if (scaling.importance.empty())
        scaling.importance =
            importance_of(*inputs, std::vector<float>(inputs->magnitude.size(), 1.0f));
    }
  }

  // Each by its own rows, and as kSharedRows of what all got: few rows say little.
  void weigh_experts(size_t sublayer, size_t weight) {
    const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
    if (!format_of_(sublayer, weight).is_quantised()) return;
    InputStatistics all;
    all.square.assign(static_cast<size_t>(shape.cols), 0);
    for (int64_t expert = 0; expert < shape.experts; ++expert)
      if (const InputStatistics* own = inputs_of(sublayer, weight, static_cast<size_t>(expert))) {
        for (size_t col = 0; col < all.square.size(); ++col) all.square[col] += own->square[col];
        all.rows += own->rows;
      }
    if (all.rows == 0) return;
    const std::vector<float> ones(all.square.size(), 1.0f);
    for (int64_t expert = 0; expert < shape.experts; ++expert) {
      const auto number = static_cast<size_t>(expert);
      const InputStatistics* own = inputs_of(sublayer, weight, number);
      InputStatistics mixed{{}, std::vector<double>(all.square.size()), kSharedRows};
      if (own) mixed.rows += own->rows;
      for (size_t col = 0; col < all.square.size(); ++col)
        mixed.square[col] = kSharedRows * all.mean_square(col) + (own ? own->square[col] : 0);
      out_[{sublayer, weight, number}].importance = importance_of(mixed, ones);
    }
  }

  const BoundModel& model_;
  const Calibration& calibration_;
  const FormatOf& format_of_;
  kernels::RangeSearch search_;
  Scalings out_;
};
}  // namespace

Calibration calibrate(const std::filesystem::path& model, EngineOptions options,
                      std::span<const ScoredSequence> windows,
                      const std::function<void(int64_t, int64_t)>& progress,
                      std::stop_token cancel) {
  Calibration out;
  options.observe_product = [&](const SeenProduct& product) {
    const Rows& in = product.in;
    InputStatistics& sums = out[{product.sublayer, product.weight, product.expert}];
    sums.magnitude.resize(static_cast<size_t>(in.cols));
    sums.square.resize(static_cast<size_t>(in.cols));
    for (int64_t row = 0; row < in.rows; ++row)
      for (int64_t col = 0; col < in.cols; ++col) {
        const double value = in.data[row * in.stride + col];
        sums.magnitude[static_cast<size_t>(col)] += std::abs(value);
        sums.square[static_cast<size_t>(col)] += value * value;
      }
    sums.rows += in.rows;
  };
  const auto engine = Engine::open(model, std::move(options));
  engine->load(cancel);
  score(
      *engine, windows, [](const TokenScore&, std::span<const float>) {}, progress, cancel);
  return out;
}

Scalings choose_scalings(const BoundModel& model, const Calibration& calibration,
                         const FormatOf& format_of, kernels::RangeSearch search) {
  return Chooser(model, calibration, format_of, search).choose();
}

uint64_t fingerprint(const Scalings& scalings) noexcept {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001b3u; };
  for (const auto& [where, scaling] : scalings) {
    add(where.sublayer);
    add(where.weight);
    if (where.expert > 0) add(where.expert);
    for (const auto* values : {&scaling.importance, &scaling.columns, &scaling.rows})
      for (const float value : *values) {
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        add(bits);
      }
  }
  return hash;
}

}  // namespace sluice::app
