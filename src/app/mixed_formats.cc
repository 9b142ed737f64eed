#include "src/app/mixed_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/app/format_choice.h"
#include "src/app/weight_sample.h"
#include "src/base/error.h"
#include "src/base/team.h"

namespace sluice::app {

namespace {
constexpr int64_t kPanel = WeightFormat::kPanelRows;
// Shares of outputs say little of errors as large as those of 2 and 3 bits: without a text such
// types are for where nothing else fits (docs/perf/quantisation.md, "By bits a weight").
constexpr double kCoarse = 16;
constexpr double kSlack = 1e-9;  // of bits, for how they are written: 4.3 asked for is 4.3 had

template <typename Visit>
void for_each_quantisable(const ModelShape& shape, const Visit& visit) {
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    for (size_t weight = 0; weight < shape.sublayers[i].weights.size(); ++weight)
      if (const WeightShape& matrix = shape.sublayers[i].weights[weight]; matrix.may_be_quantised())
        visit(std::pair{i, weight}, matrix);
}

// As a store has it: experts are matrices of their own.
int64_t stored_bytes(const WeightShape& matrix, const WeightFormat& format) {
  return matrix.tensors() * format.bytes(matrix.expert_rows(), matrix.cols);
}

double bits_of(int64_t bytes, int64_t weights) {
  return weights > 0 ? 8 * static_cast<double>(bytes) / static_cast<double>(weights) : 0;
}

// Summed over rows and columns, an error of a column counting by `importance` (null: all alike);
// infinite where a value can't be quantised.
double squared_error_of(const WeightSample& sample, const float* importance,
                        const WeightFormat& format, kernels::RangeSearch search) {
  const int64_t cols = sample.cols, panels = (sample.rows + kPanel - 1) / kPanel;
  std::vector<double> sums(static_cast<size_t>(panels), 0);
  deal_each(panels, 1, [&](int64_t index) {
    const int64_t count = std::min(kPanel, sample.rows - index * kPanel);
    const float* rows = sample.values.data() + index * kPanel * cols;
    std::vector<std::byte> panel(static_cast<size_t>(format.panel_bytes(cols)));
    std::vector<float> back(static_cast<size_t>(count * cols));
    double& sum = sums[static_cast<size_t>(index)];
    if (!kernels::quantise_panel(format, {search, importance}, rows, cols, count, cols,
                                 panel.data())) {
      sum = INFINITY;
      return;
    }
    kernels::dequantise_panel(format, panel.data(), count, cols, back.data(), cols);
    for (int64_t i = 0; i < count * cols; ++i) {
      const double difference = double{back[static_cast<size_t>(i)]} - rows[i];
      sum += (importance ? importance[i % cols] : 1) * difference * difference;
    }
  });
  double sum = 0;
  for (const double one : sums) sum += one;
  return sum;
}

// Of values, a column's counting by `importance` (null: all alike).
double sum_of_squares(const WeightSample& sample, const float* importance) {
  double sum = 0;
  for (size_t i = 0; i < sample.values.size(); ++i) {
    const double weight = importance ? importance[static_cast<int64_t>(i) % sample.cols] : 1;
    sum += weight * sample.values[i] * sample.values[i];
  }
  return sum;
}

class DamageEstimate {
 public:
  DamageEstimate(const BoundModel& model, const CalibratedModel* calibrated,
                 kernels::RangeSearch search)
      : model_(model),
        calibrated_(calibrated),
        search_(search),
        formats_(mixable_formats(model.shape())) {}

  std::vector<double> of(std::pair<size_t, size_t> place, const WeightShape& matrix) const {
    const WeightSample sample = sample_rows(model_, place.first, place.second);
    std::vector<double> out;
    const std::vector<float> importance = importance_of(place, matrix);
    const float* columns = importance.empty() ? nullptr : importance.data();
    if (calibrated_ && calibrated_->effects) {
      out = on_text(place, matrix, sample, columns);
    } else {
      for (const WeightFormat& format : formats_)
        out.push_back(format.is_quantised() ? by_share(sample, columns, format) *
                                                  (format.code_bits() < 4 ? kCoarse : 1)
                                            : 0);
    }
    // What can't be quantised is for convert to refuse, with the rows' numbers.
    for (double& damage : out)
      if (!std::isfinite(damage)) damage = 0;
    return out;
  }

 private:
  // Sums over rows, of experts over all of them; empty where nothing is known.
  std::vector<float> importance_of(std::pair<size_t, size_t> place,
                                   const WeightShape& matrix) const {
    std::vector<float> out;
    if (!calibrated_) return out;
    for (int64_t expert = 0; expert < matrix.tensors(); ++expert) {
      const auto found =
          calibrated_->calibration.find({place.first, place.second, static_cast<size_t>(expert)});
      if (found == calibrated_->calibration.end() || found->second.rows == 0) continue;
      out.resize(static_cast<size_t>(matrix.cols), 0.0f);
      for (size_t col = 0; col < out.size(); ++col)
        out[col] += static_cast<float>(found->second.square[col]);
    }
    return out;
  }

  // The share of what a matrix adds that is wrong: small matrices change the model as much.
  double by_share(const WeightSample& sample, const float* columns,
                  const WeightFormat& format) const {
    const double squares = sum_of_squares(sample, columns);
    return squares > 0 ? squared_error_of(sample, columns, format, search_) / squares : 0;
  }

  std::vector<double> on_text(std::pair<size_t, size_t> place, const WeightShape& matrix,
                              const WeightSample& sample, const float* columns) const {
    std::vector<double> out(formats_.size(), 0);
    const auto effect = calibrated_->effects->find(place);
    if (!columns || effect == calibrated_->effects->end()) return out;
    Compensator& compensator = *calibrated_->compensator;
    // A row's, summed over the text's rows: of experts of one, or of what all get.
    double experts = 1;
    if (compensator.is_for(place.first, place.second)) {
      out = compensator.expected_errors(place.first, place.second, formats_, sample);
      experts = static_cast<double>(matrix.tensors());
    } else {
      for (size_t i = 0; i < formats_.size(); ++i)
        if (formats_[i].is_quantised())
          out[i] = squared_error_of(sample, columns, formats_[i], search_) /
                   static_cast<double>(sample.rows);
    }
    const double factor = effect->second * experts * static_cast<double>(matrix.expert_rows()) /
                          static_cast<double>(calibrated_->calibration.begin()->second.rows);
    for (double& damage : out) damage *= factor;
    return out;
  }

  const BoundModel& model_;
  const CalibratedModel* calibrated_;
  kernels::RangeSearch search_;
  std::vector<WeightFormat> formats_;
};
}  // namespace

std::vector<WeightFormat> mixable_formats(const ModelShape& shape) {
  std::vector<WeightFormat> out;
  for (const char* name :
       {"q2_k", "q3_k", "int4-g128", "int4-g64", "q4_k", "int4-g32", "q5_k", "q6_k", "int8"})
    out.push_back(parse_weight_format(name).value());
  out.push_back(WeightFormat::plain(shape.weight_dtype));
  return out;
}

BitRange bit_range(const ModelShape& shape) {
  const std::vector<WeightFormat> formats = mixable_formats(shape);
  int64_t least = 0, most = 0, weights = 0;
  for_each_quantisable(shape, [&](const auto&, const WeightShape& matrix) {
    int64_t smallest = stored_bytes(matrix, formats.front());
    for (const WeightFormat& format : formats)
      smallest = std::min(smallest, stored_bytes(matrix, format));
    least += smallest;
    most += stored_bytes(matrix, formats.back());
    weights += matrix.rows * matrix.cols;
  });
  if (weights == 0)
    throw Error(ErrorKind::kUser, "the model has no matrix that may be quantised",
                "leave `bits` out");
  return {bits_of(least, weights), bits_of(most, weights)};
}

double bits_a_weight(const ModelShape& shape, const Formats& formats) {
  int64_t bytes = 0, weights = 0;
  for_each_quantisable(shape, [&](const auto& place, const WeightShape& matrix) {
    const auto found = formats.find(place);
    bytes += stored_bytes(matrix, found == formats.end() ? shape.format_of(matrix) : found->second);
    weights += matrix.rows * matrix.cols;
  });
  return bits_of(bytes, weights);
}

Damages expected_damages(const BoundModel& model, const CalibratedModel* calibrated,
                         kernels::RangeSearch search,
                         const std::function<void(int64_t, int64_t)>& progress) {
  const DamageEstimate estimate(model, calibrated, search);
  Damages out;
  int64_t total = 0, done = 0;
  for_each_quantisable(model.shape(), [&](const auto&, const WeightShape&) { ++total; });
  for_each_quantisable(model.shape(), [&](const auto& place, const WeightShape& matrix) {
    out[place] = estimate.of(place, matrix);
    if (progress) progress(++done, total);
  });
  return out;
}

void check_bits(const ModelShape& shape, double bits) {
  const BitRange range = bit_range(shape);
  if (!(bits >= range.least * (1 - kSlack)) || bits > range.most * (1 + kSlack))
    throw Error(ErrorKind::kUser,
                fmt::format("{:g} bits a weight: this model's matrices take {:.4g} to {:.4g}", bits,
                            range.least, range.most),
                "give `bits` between them, or `weights`");
}

std::string mix_of(const ModelShape& shape, const Formats& formats) {
  struct Of {
    std::string name;
    int64_t matrices = 0, bytes = 0;
  };
  std::vector<Of> mix;
  for_each_quantisable(shape, [&](const auto& place, const WeightShape& matrix) {
    const auto found = formats.find(place);
    const WeightFormat format = found == formats.end() ? shape.format_of(matrix) : found->second;
    const std::string name = format_name(format);
    auto of = std::find_if(mix.begin(), mix.end(), [&](const Of& one) { return one.name == name; });
    if (of == mix.end()) of = mix.insert(mix.end(), {name, 0, 0});
    ++of->matrices;
    of->bytes += stored_bytes(matrix, format);
  });
  std::stable_sort(mix.begin(), mix.end(),
                   [](const Of& a, const Of& b) { return a.bytes > b.bytes; });
  std::string out;
  for (const Of& of : mix)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", of.name, of.matrices);
  return out;
}

Formats choose_formats(const ModelShape& shape, const Damages& damages, double bits) {
  check_bits(shape, bits);
  const std::vector<WeightFormat> formats = mixable_formats(shape);
  std::vector<std::vector<FormatOption>> items;
  std::vector<std::pair<size_t, size_t>> places;
  int64_t weights = 0;
  for_each_quantisable(shape, [&](const auto& place, const WeightShape& matrix) {
    std::vector<FormatOption>& options = items.emplace_back();
    for (size_t i = 0; i < formats.size(); ++i)
      options.push_back({stored_bytes(matrix, formats[i]), damages.at(place)[i]});
    places.push_back(place);
    weights += matrix.rows * matrix.cols;
  });
  const auto most =
      static_cast<int64_t>(std::floor(bits * (1 + kSlack) / 8 * static_cast<double>(weights)));
  const auto chosen = choose_options(items, most);
  SLUICE_ASSERT(chosen.has_value(), "the least fits");
  Formats out;
  for (size_t i = 0; i < places.size(); ++i) out[places[i]] = formats[(*chosen)[i]];
  return out;
}

}  // namespace sluice::app
