#include "src/app/error_compensation.h"

#include <algorithm>

#include "kernels/linear.h"
#include "src/base/error.h"
#include "src/base/side_by_side.h"
#include "src/engine/engine.h"
#include "src/layer/layer_program.h"

namespace sluice::app {

namespace {
constexpr int64_t kHessianRows = 256;  // that are added up at a time

// The upper triangle, and some of the lower one: sums += x^T x.
class HessianSum {
 public:
  void add(const Rows& in, float* sums) {
    const int64_t rows = in.rows, cols = in.cols;
    const int64_t room = kernels::padded_rows(cols);
    turned_.resize(static_cast<size_t>(room * rows));
    deal_each(cols, 16, [&](int64_t col) {
      for (int64_t row = 0; row < rows; ++row)
        turned_[static_cast<size_t>(col * rows + row)] = in.data[row * in.stride + col];
    });
    for (int64_t begin = 0; begin < cols; begin += kHessianRows) {
      const int64_t count = std::min(kHessianRows, cols - begin), width = cols - begin;
      product_.resize(static_cast<size_t>(kernels::padded_rows(count) * width));
      const auto bytes =
          kernels::linear_scratch_bytes(DType::kF32, count, width, rows, kernels::Compute::kF32);
      scratch_.resize(std::max(scratch_.size(), static_cast<size_t>(bytes)));
      const float* from = turned_.data() + begin * rows;
      kernels::linear({from, nullptr, count, rows, rows}, from, DType::kF32, width, rows, nullptr,
                      product_.data(), width, kernels::Compute::kF32, scratch_);
      deal_each(count, 8, [&](int64_t row) {
        float* to = sums + (begin + row) * cols + begin;
        const float* of = product_.data() + row * width;
        for (int64_t col = 0; col < width; ++col) to[col] += of[col];
      });
    }
  }

 private:
  std::vector<float> turned_, product_;
  std::vector<std::byte> scratch_;
};
}  // namespace

std::vector<int32_t> input_sources(const LayerProgram& program, size_t weights) {
  struct Product {
    View in;
    int64_t written;
    int32_t weight;
  };
  std::vector<int32_t> out(weights, -1);
  std::vector<int64_t> written(program.slots.size());  // how often, by slot
  std::vector<Product> products;
  for (const Operator& op : program.operators) {
    if (op.is_product()) {
      const Product product{op.in[0], written[static_cast<size_t>(op.in[0].slot)], op.weight};
      const auto same = std::find_if(products.begin(), products.end(), [&](const Product& other) {
        return other.in == product.in && other.written == product.written;
      });
      int32_t& source = out[static_cast<size_t>(op.weight)];
      source = same == products.end() ? op.weight : same->weight;
      if (same == products.end()) products.push_back(product);
    }
    // Rows of their own, each expert's.
    if (op.kind == Operator::Kind::kExperts) {
      out[static_cast<size_t>(op.weight)] = out[static_cast<size_t>(op.up)] = op.weight;
      out[static_cast<size_t>(op.down)] = op.down;
    }
    for (const View& view : {op.out, op.work})
      if (view.slot >= 0) ++written[static_cast<size_t>(view.slot)];
  }
  return out;
}

void add_hessians(const std::filesystem::path& model, EngineOptions options,
                  std::span<const ScoredSequence> windows, Hessians& sums, std::stop_token cancel) {
  HessianSum sum;
  options.observe_product = [&](const SeenProduct& product) {
    const WeightPlace place{product.sublayer, product.weight, product.expert};
    if (const auto found = sums.find(place); found != sums.end())
      sum.add(product.in, found->second.data());
  };
  const auto engine = Engine::open(model, std::move(options));
  engine->load(cancel);
  score(
      *engine, windows, [](const TokenScore&, std::span<const float>) {}, {}, cancel);
  for (auto& [place, values] : sums) {
    const int64_t cols =
        engine->model().shape().sublayers[place.sublayer].weights[place.weight].cols;
    for (int64_t row = 0; row < cols; ++row)
      for (int64_t col = 0; col < row; ++col)
        values[static_cast<size_t>(row * cols + col)] =
            values[static_cast<size_t>(col * cols + row)];
  }
}

Compensator::Compensator(CompensatorParts parts)
    : parts_(std::move(parts)), team_(parts_.threads > 0 ? parts_.threads : usable_processors()) {
  const auto& sublayers = parts_.model.shape().sublayers;
  for (size_t i = 0; i < sublayers.size(); ++i) {
    sources_.push_back(
        input_sources(parts_.model.family().program(i), sublayers[i].weights.size()));
    for (size_t weight = 0; weight < sources_[i].size(); ++weight)
      if (sublayers[i].weights[weight].shares_table)
        sources_[i][weight] = -1;  // stays with its table
  }
  int64_t bytes = 0;
  for (const WeightPlace& source : sources_from({}))
    bytes += bytes_of(source.sublayer, source.weight);
  keeps_all_ = bytes <= parts_.most_bytes;
}

int64_t Compensator::bytes_of(size_t sublayer, size_t weight) const {
  const int64_t cols = parts_.model.shape().sublayers[sublayer].weights[weight].cols;
  return kernels::padded_rows(cols) * cols * 4;
}

std::optional<WeightPlace> Compensator::source_of(const WeightPlace& place) const {
  const int32_t source = sources_[place.sublayer][place.weight];
  if (source < 0) return std::nullopt;
  return WeightPlace{place.sublayer, static_cast<size_t>(source), place.expert};
}

// Those that fit the limit, in the order in which they are stored: of a layer's experts all of one
// weight before the next weight's.
std::vector<WeightPlace> Compensator::sources_from(const WeightPlace& first) const {
  std::vector<WeightPlace> out;
  for (size_t i = first.sublayer; i < sources_.size(); ++i)
    for (size_t weight = 0; weight < sources_[i].size(); ++weight) {
      if (sources_[i][weight] != static_cast<int32_t>(weight) || !is_for(i, weight)) continue;
      const WeightShape& shape = parts_.model.shape().sublayers[i].weights[weight];
      for (int64_t expert = 0; expert < shape.tensors(); ++expert)
        if (const WeightPlace place{i, weight, static_cast<size_t>(expert)}; !(place < first))
          out.push_back(place);
    }
  return out;
}

bool Compensator::is_for(size_t sublayer, size_t weight) const {
  const auto source = source_of({sublayer, weight});
  return source && bytes_of(source->sublayer, source->weight) <= parts_.most_bytes;
}

int64_t Compensator::too_wide() const {
  int64_t count = 0;
  for (size_t i = 0; i < sources_.size(); ++i)
    for (size_t weight = 0; weight < sources_[i].size(); ++weight)
      count += source_of({i, weight}) && !is_for(i, weight) ? 1 : 0;
  return count;
}

// H from this source on, of as many as fit.
void Compensator::collect_from(const WeightPlace& source) {
  hessians_.clear();
  int64_t bytes = 0;
  for (const WeightPlace& place : sources_from(source)) {
    bytes += bytes_of(place.sublayer, place.weight);
    if (bytes > parts_.most_bytes) break;
    hessians_[place].assign(static_cast<size_t>(bytes_of(place.sublayer, place.weight) / 4), 0);
  }
  add_hessians(parts_.path, parts_.options, parts_.windows, hessians_, parts_.cancel);
}

// That of the source, its columns multiplied with these (empty: with nothing); null where H could
// not be factored. Good until another source or other columns are asked for.
const kernels::Compensation* Compensator::of_source(const WeightPlace& source,
                                                    const std::vector<float>& columns,
                                                    const WeightFormat& format) {
  const int64_t cols = parts_.model.shape().sublayers[source.sublayer].weights[source.weight].cols;
  const int64_t block = kernels::compensation_block(format, cols);
  if (current_source_ != source || current_columns_ != columns) current_.clear();
  current_source_ = source;
  current_columns_ = columns;
  if (const auto found = current_.find(block); found != current_.end())
    return found->second ? &*found->second : nullptr;
  if (!hessians_.contains(source)) collect_from(source);
  // Those of weights before are done; another weight may share those of this one's experts.
  if (!keeps_all_)
    hessians_.erase(hessians_.begin(), hessians_.lower_bound({source.sublayer, source.weight, 0}));
  std::vector<float> values = hessians_.at(source);
  add_shared_rows(source, values);
  // Inputs are divided by what columns are multiplied with.
  if (!columns.empty())
    deal_each(cols, 16, [&](int64_t row) {
      for (int64_t col = 0; col < cols; ++col)
        values[static_cast<size_t>(row * cols + col)] /=
            columns[static_cast<size_t>(row)] * columns[static_cast<size_t>(col)];
    });
  auto& made = current_[block] = kernels::compensation_of(values, cols, kDamping, format);
  return made ? &*made : nullptr;
}

// What an expert's importance says, as if so many rows had said it: it may have got few or none.
void Compensator::add_shared_rows(const WeightPlace& source, std::vector<float>& values) const {
  const auto scaling = parts_.scalings.find(source);
  if (scaling == parts_.scalings.end() ||
      parts_.model.shape().sublayers[source.sublayer].weights[source.weight].experts == 0)
    return;
  const std::vector<float>& importance = scaling->second.importance;
  for (size_t i = 0; i < importance.size(); ++i)
    values[i * (importance.size() + 1)] += kSharedRows * importance[i];
}

// Of E H E^T, E the errors of rows in that format.
double Compensator::summed_error(const WeightPlace& source, const WeightFormat& format,
                                 std::span<const float> values, int64_t rows) {
  const kernels::Compensation* compensation = of_source(source, {}, format);
  const int64_t cols = std::ssize(values) / rows;
  std::vector<std::byte> panels(static_cast<size_t>(format.bytes(rows, cols)));
  if (!compensation ||
      !kernels::quantise_compensated(format, parts_.search, *compensation, values.data(), cols,
                                     rows, cols, panels.data()))
    return 0;
  std::vector<float> errors(static_cast<size_t>(kernels::padded_rows(rows) * cols), 0);
  for (int64_t first = 0; first < rows; first += WeightFormat::kPanelRows)
    kernels::dequantise_panel(
        format, panels.data() + first / WeightFormat::kPanelRows * format.panel_bytes(cols),
        std::min(WeightFormat::kPanelRows, rows - first), cols, errors.data() + first * cols, cols);
  for (size_t i = 0; i < values.size(); ++i) errors[i] -= values[i];
  std::vector<float> weighted(errors.size());
  std::vector<std::byte> scratch(static_cast<size_t>(std::max<int64_t>(
      64, kernels::linear_scratch_bytes(DType::kF32, rows, cols, cols, kernels::Compute::kF32))));
  kernels::linear({errors.data(), nullptr, rows, cols, cols}, hessians_.at(source).data(),
                  DType::kF32, cols, cols, nullptr, weighted.data(), cols, kernels::Compute::kF32,
                  scratch);
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += double{errors[i]} * weighted[i];
  return std::max(sum, 0.0);
}

std::vector<double> Compensator::expected_errors(size_t sublayer, size_t weight,
                                                 std::span<const WeightFormat> formats,
                                                 const WeightSample& sample) {
  const Team::Use use(team_);
  std::vector<double> out(formats.size(), 0);
  size_t at = 0;
  for (const WeightSample::Part& part : sample.parts) {
    const WeightPlace source = source_of({sublayer, weight, part.expert}).value();
    const auto count = static_cast<size_t>(part.rows * sample.cols);
    for (size_t i = 0; i < formats.size(); ++i)
      if (formats[i].is_quantised())
        out[i] += summed_error(source, formats[i], std::span(sample.values).subspan(at, count),
                               part.rows) /
                  static_cast<double>(sample.rows);
    at += count;
  }
  return out;
}

io::RowsQuantiser Compensator::quantiser(const WeightPlace& place, const WeightFormat& format) {
  const Team::Use use(team_);
  const auto scaling = parts_.scalings.find(place);
  const kernels::Compensation* compensation = of_source(
      source_of(place).value(),
      scaling == parts_.scalings.end() ? std::vector<float>{} : scaling->second.columns, format);
  if (!compensation) return {};
  return [this, compensation, format](const float* rows, int64_t count, int64_t width,
                                      std::byte* panels) {
    const Team::Use on(team_);
    return kernels::quantise_compensated(format, parts_.search, *compensation, rows, width, count,
                                         width, panels);
  };
}

}  // namespace sluice::app
