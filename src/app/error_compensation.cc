#include "src/app/error_compensation.h"

#include <algorithm>

#include "kernels/linear.h"
#include "src/base/error.h"
#include "src/engine/engine.h"
#include "src/layer/layer_program.h"
#include "src/profile/other_load.h"

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
    for (const View& view : {op.out, op.work})
      if (view.slot >= 0) ++written[static_cast<size_t>(view.slot)];
  }
  return out;
}

void add_hessians(const std::filesystem::path& model, EngineOptions options,
                  std::span<const ScoredSequence> windows, Hessians& sums, std::stop_token cancel) {
  HessianSum sum;
  options.observe_product = [&](const SeenProduct& product) {
    if (const auto found = sums.find({product.sublayer, product.weight}); found != sums.end())
      sum.add(product.in, found->second.data());
  };
  const auto engine = Engine::open(model, std::move(options));
  engine->load(cancel);
  score(
      *engine, windows, [](const TokenScore&, std::span<const float>) {}, {}, cancel);
  for (auto& [place, values] : sums) {
    const int64_t cols = engine->model().shape().sublayers[place.first].weights[place.second].cols;
    for (int64_t row = 0; row < cols; ++row)
      for (int64_t col = 0; col < row; ++col)
        values[static_cast<size_t>(row * cols + col)] =
            values[static_cast<size_t>(col * cols + row)];
  }
}

Compensator::Compensator(CompensatorParts parts)
    : parts_(std::move(parts)), team_(parts_.threads > 0 ? parts_.threads : usable_processors()) {
  const auto& sublayers = parts_.model.shape().sublayers;
  for (size_t i = 0; i < sublayers.size(); ++i)
    sources_.push_back(
        input_sources(parts_.model.family().program(i), sublayers[i].weights.size()));
  int64_t bytes = 0;
  for (size_t i = 0; i < sources_.size(); ++i)
    for (size_t weight = 0; weight < sources_[i].size(); ++weight)
      if (sublayers[i].weights[weight].shares_table)
        sources_[i][weight] = -1;  // stays with its table
      else if (sources_[i][weight] == static_cast<int32_t>(weight) && is_for(i, weight))
        bytes += bytes_of({i, weight});
  keeps_all_ = bytes <= parts_.most_bytes;
}

int64_t Compensator::bytes_of(const Place& source) const {
  const int64_t cols = parts_.model.shape().sublayers[source.first].weights[source.second].cols;
  return kernels::padded_rows(cols) * cols * 4;
}

std::optional<Compensator::Place> Compensator::source_of(size_t sublayer, size_t weight) const {
  const int32_t source = sources_[sublayer][weight];
  if (source < 0) return std::nullopt;
  return Place{sublayer, static_cast<size_t>(source)};
}

bool Compensator::is_for(size_t sublayer, size_t weight) const {
  const auto source = source_of(sublayer, weight);
  return source && bytes_of(*source) <= parts_.most_bytes;
}

int64_t Compensator::too_wide() const {
  int64_t count = 0;
  for (size_t i = 0; i < sources_.size(); ++i)
    for (size_t weight = 0; weight < sources_[i].size(); ++weight)
      count += source_of(i, weight) && !is_for(i, weight) ? 1 : 0;
  return count;
}

// H from this source on, of as many as fit.
void Compensator::collect_from(const Place& source) {
  hessians_.clear();
  int64_t bytes = 0;
  for (size_t i = source.first; i < sources_.size(); ++i)
    for (size_t weight = i == source.first ? source.second : 0; weight < sources_[i].size();
         ++weight) {
      const Place place{i, weight};
      if (sources_[i][weight] != static_cast<int32_t>(weight) || !is_for(i, weight)) continue;
      bytes += bytes_of(place);
      if (bytes > parts_.most_bytes) {
        i = sources_.size() - 1;
        break;
      }
      hessians_[place].assign(static_cast<size_t>(bytes_of(place) / 4), 0);
    }
  add_hessians(parts_.path, parts_.options, parts_.windows, hessians_, parts_.cancel);
}

// That of the source, its columns multiplied with these (empty: with nothing); null where H could
// not be factored. Good until another source or other columns are asked for.
const kernels::Compensation* Compensator::of_source(const Place& source,
                                                    const std::vector<float>& columns,
                                                    const WeightFormat& format) {
  const int64_t cols = parts_.model.shape().sublayers[source.first].weights[source.second].cols;
  const int64_t block = kernels::compensation_block(format, cols);
  if (current_source_ != source || current_columns_ != columns) current_.clear();
  current_source_ = source;
  current_columns_ = columns;
  if (const auto found = current_.find(block); found != current_.end())
    return found->second ? &*found->second : nullptr;
  if (!hessians_.contains(source)) collect_from(source);
  if (!keeps_all_) hessians_.erase(hessians_.begin(), hessians_.find(source));  // those are done
  std::vector<float> values = hessians_.at(source);
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

double Compensator::expected_error(size_t sublayer, size_t weight, const WeightFormat& format,
                                   const WeightSample& sample) {
  const Team::Use use(team_);
  const Place source = source_of(sublayer, weight).value();
  const kernels::Compensation* compensation = of_source(source, {}, format);
  const int64_t cols = sample.cols, rows = sample.rows;
  std::vector<std::byte> panels(static_cast<size_t>(format.bytes(rows, cols)));
  if (!compensation ||
      !kernels::quantise_compensated(format, parts_.search, *compensation, sample.values.data(),
                                     cols, rows, cols, panels.data()))
    return 0;
  std::vector<float> errors(static_cast<size_t>(kernels::padded_rows(rows) * cols), 0);
  for (int64_t first = 0; first < rows; first += WeightFormat::kPanelRows)
    kernels::dequantise_panel(
        format, panels.data() + first / WeightFormat::kPanelRows * format.panel_bytes(cols),
        std::min(WeightFormat::kPanelRows, rows - first), cols, errors.data() + first * cols, cols);
  for (size_t i = 0; i < sample.values.size(); ++i) errors[i] -= sample.values[i];
  std::vector<float> weighted(errors.size());
  std::vector<std::byte> scratch(static_cast<size_t>(std::max<int64_t>(
      64, kernels::linear_scratch_bytes(DType::kF32, rows, cols, cols, kernels::Compute::kF32))));
  kernels::linear({errors.data(), nullptr, rows, cols, cols}, hessians_.at(source).data(),
                  DType::kF32, cols, cols, nullptr, weighted.data(), cols, kernels::Compute::kF32,
                  scratch);
  double sum = 0;
  for (size_t i = 0; i < sample.values.size(); ++i) sum += double{errors[i]} * weighted[i];
  return std::max(sum, 0.0) / static_cast<double>(rows);
}

io::RowsQuantiser Compensator::quantiser(size_t sublayer, size_t weight,
                                         const WeightFormat& format) {
  const Team::Use use(team_);
  const auto scaling = parts_.scalings.find({sublayer, weight});
  const kernels::Compensation* compensation = of_source(
      source_of(sublayer, weight).value(),
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
