#include "src/app/store_layout.h"

#include <fmt/format.h>

#include <set>

#include "kernels/elementwise.h"
#include "src/base/error.h"
#include "src/engine/stores/foreign_import.h"
#include "src/engine/stores/pack_rows.h"
#include "src/engine/stores/panel_quantiser.h"

namespace sluice::app {

namespace {
io::StoreTensor foreign_tensor(const io::TensorEntry& tensor, const ForeignMatrix& matrix,
                               const WeightShape& weight, std::optional<WeightFormat> asked,
                               kernels::RangeSearch search) {
  const WeightFormat to = asked.value_or(matrix.format);
  std::vector<std::string> parts;
  for (const io::TensorEntry* part : matrix.parts) parts.push_back(part->name);
  return {made_tensor(tensor.name, weight, to), std::move(parts),
          [&matrix, to, name = tensor.name, quantise = panel_quantiser(search)](const auto& bytes) {
            std::vector<std::byte> out(static_cast<size_t>(imported_bytes(matrix, to)));
            import_matrix(name, matrix, to, quantise, 0, ForeignBytes(bytes.begin(), bytes.end()),
                          out);
            return out;
          }};
}

// A matrix that a packed store has quantised, from the values that it has there. Errors, when it is
// made: kFile where one of them has no place in the format.
io::StoreTensor requantised_tensor(const io::TensorEntry& tensor, const WeightShape& weight,
                                   const WeightFormat& to, kernels::RangeSearch search) {
  return {
      made_tensor(tensor.name, weight, to),
      {tensor.name},
      [from = tensor.quantised, to, rows = weight.rows, cols = weight.cols, name = tensor.name,
       quantise = panel_quantiser(search)](const std::vector<std::vector<std::byte>>& bytes) {
        const PackedFrom values{rows, cols, [&](int64_t first, int64_t count, float* to_rows) {
                                  const int64_t panel = first / WeightFormat::kPanelRows;
                                  kernels::dequantise_panel(
                                      from, bytes.front().data() + panel * from.panel_bytes(cols),
                                      count, cols, to_rows, cols);
                                }};
        std::vector<std::byte> out(static_cast<size_t>(to.bytes(rows, cols)));
        if (!pack_rows(values, to, quantise, 0, out))
          throw Error(ErrorKind::kFile,
                      fmt::format("tensor {}: a value has no place in {}", name, format_name(to)),
                      "choose another format");
        return out;
      }};
}

// A vector's scaled elements are kept in f32: they have no bits to spare.
io::StoreTensor scaled_tensor(const io::TensorEntry& tensor, const WeightShape& weight,
                              std::optional<WeightFormat> to, const WeightScaling& scaling) {
  if (weight.kind == WeightKind::kVector)
    return {made_tensor(tensor.name, weight, WeightFormat::plain(DType::kF32)),
            {tensor.name},
            [dtype = tensor.dtype, factors = scaling.rows,
             added = weight.added](const std::vector<std::vector<std::byte>>& bytes) {
              std::vector<float> values(factors.size());
              kernels::convert(dtype, bytes.front().data(), DType::kF32, values.data(),
                               static_cast<int64_t>(values.size()));
              for (size_t i = 0; i < values.size(); ++i)
                values[i] = (values[i] + added) * factors[i] - added;
              const auto* begin = reinterpret_cast<const std::byte*>(values.data());
              return std::vector<std::byte>(begin, begin + values.size() * sizeof(float));
            }};
  io::StoreTensor out(tensor.name, tensor.name, to, scaling.importance);
  out.row_scale = scaling.rows;
  out.column_scale = scaling.columns;
  return out;
}
struct Place {
  size_t sublayer, weight, expert;
};

io::StoreTensor store_tensor(const BoundModel& model, const Place& at,
                             std::optional<WeightFormat> to, kernels::RangeSearch search,
                             const Scalings* scalings, Compensator* compensator,
                             const Formats* formats, bool requantises) {
  if (formats)
    if (const auto found = formats->find({at.sublayer, at.weight}); found != formats->end())
      to = found->second;
  const ModelShape& shape = model.shape();
  const WeightShape weight =
      shape.sublayers[at.sublayer].weights[at.weight].of_expert(static_cast<int64_t>(at.expert));
  const io::TensorEntry& tensor = model.tensor(at.sublayer, at.weight, at.expert);
  // What is not multiplied stays as it is: tables are read by the row, vectors are small.
  const bool applies = to && (!to->is_quantised() || weight.may_be_quantised());
  if (const ForeignMatrix* matrix = model.foreign(at.sublayer, at.weight, at.expert))
    return foreign_tensor(tensor, *matrix, weight, applies ? to : std::nullopt, search);
  const std::optional<WeightFormat> wanted = applies ? to : std::nullopt;
  if (requantises && wanted && tensor.quantised.is_quantised() && tensor.quantised != *wanted)
    return requantised_tensor(tensor, weight, *wanted, search);
  const auto scaling =
      scalings ? scalings->find({at.sublayer, at.weight, at.expert}) : Scalings::const_iterator{};
  if (!scalings || scaling == scalings->end()) return {tensor.name, tensor.name, wanted, {}};
  io::StoreTensor out = scaled_tensor(tensor, weight, wanted, scaling->second);
  if (compensator && wanted && wanted->is_quantised() &&
      compensator->is_for(at.sublayer, at.weight))
    out.prepare = [compensator, at, format = *wanted] {
      return compensator->quantiser({at.sublayer, at.weight, at.expert}, format);
    };
  return out;
}
}  // namespace

std::string layer_group_name(int64_t layer) { return fmt::format("layer-{:05}", layer); }

std::vector<io::StoreGroup> store_groups(const BoundModel& model, std::optional<WeightFormat> to,
                                         kernels::RangeSearch search, const Scalings* scalings,
                                         Compensator* compensator, const Formats* formats,
                                         bool requantises) {
  if (!to && !formats) model.require_one_type();
  std::vector<io::StoreGroup> groups;
  std::set<std::string> placed;  // a tied table is stored once, where a pass needs it first
  const ModelShape& shape = model.shape();
  for (size_t i = 0; i < shape.sublayers.size(); ++i) {
    const SublayerShape& sublayer = shape.sublayers[i];
    const std::string name = sublayer.kind == SublayerKind::kEmbed ? "embed"
                             : sublayer.kind == SublayerKind::kHead
                                 ? "head"
                                 : layer_group_name(sublayer.layer_index);
    if (groups.empty() || groups.back().name != name) groups.push_back({name, {}});
    for (size_t w = 0; w < sublayer.weights.size(); ++w)
      for (int64_t expert = 0; expert < sublayer.weights[w].tensors(); ++expert) {
        const Place place{i, w, static_cast<size_t>(expert)};
        if (placed.insert(model.tensor(i, w, place.expert).name).second)
          groups.back().tensors.push_back(
              store_tensor(model, place, to, search, scalings, compensator, formats, requantises));
      }
  }
  std::erase_if(groups, [](const io::StoreGroup& group) { return group.tensors.empty(); });
  return groups;
}

}  // namespace sluice::app
