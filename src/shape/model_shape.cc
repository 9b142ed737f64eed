#include "src/shape/model_shape.h"

#include <algorithm>
#include <map>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

WeightShape WeightShape::of_expert(int64_t expert) const {
  WeightShape one = *this;
  if (experts == 0) return one;
  constexpr std::string_view kNumber = "{e}";
  const auto number = [&](std::string& name) {
    if (const size_t at = name.find(kNumber); at != std::string::npos)
      name.replace(at, kNumber.size(), std::to_string(expert));
  };
  for (std::string& name : one.names) number(name);
  number(one.gguf.name);
  one.rows = expert_rows();
  one.experts = 0;
  one.fused.first_row += expert * fused.tensor_rows;
  one.fused.tensor_rows *= experts;
  return one;
}

const WeightShape* SublayerShape::find(std::string_view role) const noexcept {
  for (const WeightShape& weight : weights)
    if (weight.role == role) return &weight;
  return nullptr;
}

namespace {
void add_reader(StateGroup& group, int64_t layer) {
  ++group.num_readers;
  const auto at = std::lower_bound(group.read_layers.begin(), group.read_layers.end(), layer);
  if (at == group.read_layers.end() || *at != layer) group.read_layers.insert(at, layer);
}
}  // namespace

void ModelShape::set_states(std::span<const LayerState> of_layers,
                            std::span<const int64_t> sources) {
  state_groups.clear();
  std::vector<StatePlace> places(of_layers.size());
  for (SublayerShape& sublayer : sublayers) {
    if (sublayer.kind != SublayerKind::kAttention) continue;
    const auto index = static_cast<size_t>(sublayer.layer_index);
    const LayerState& state = of_layers[index];
    if (!sources.empty() && sources[index] >= 0) {
      SLUICE_ASSERT(sources[index] < sublayer.layer_index && !state.is_recurrent() &&
                        state == of_layers[static_cast<size_t>(sources[index])],
                    "a layer reads what an earlier one keeps of each token, as its own");
      sublayer.state = places[static_cast<size_t>(sources[index])];
      SLUICE_ASSERT(!sublayer.state.is_reader, "what is read is kept");
      sublayer.state.is_reader = true;
      places[index] = sublayer.state;
      add_reader(state_groups[static_cast<size_t>(sublayer.state.group)], sublayer.state.layer);
      continue;
    }
    const auto found = std::find_if(state_groups.begin(), state_groups.end(),
                                    [&](const StateGroup& group) { return group.state == state; });
    sublayer.state.group = static_cast<int32_t>(found - state_groups.begin());
    if (found == state_groups.end()) state_groups.push_back({state, 0, 0, {}});
    sublayer.state.layer = state_groups[static_cast<size_t>(sublayer.state.group)].num_layers++;
    places[index] = sublayer.state;
  }
}

void ModelShape::set_states(const LayerState& of_each) {
  set_states(std::vector<LayerState>(static_cast<size_t>(num_layers), of_each));
}

bool ModelShape::has_readers() const noexcept {
  return std::any_of(state_groups.begin(), state_groups.end(),
                     [](const StateGroup& group) { return group.num_readers > 0; });
}

int64_t ModelShape::state_elements_per_token() const noexcept {
  int64_t elements = 0;
  for (const StateGroup& group : state_groups)
    elements += group.num_layers * group.state.elements_per_token();
  return elements;
}

int64_t ModelShape::state_token_bytes(const KvFormat& format) const noexcept {
  int64_t bytes = 0;
  for (const StateGroup& group : state_groups)
    bytes += group.num_layers * group.state.token_bytes(format);
  return bytes;
}

int64_t ModelShape::fixed_state_bytes() const noexcept {
  int64_t bytes = 0;
  for (const StateGroup& group : state_groups)
    bytes += group.num_layers * 4 * group.state.recurrent.floats();
  return bytes;
}

int64_t ModelShape::num_parameters() const noexcept {
  int64_t count = 0;
  for (const SublayerShape& sublayer : sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (!weight.shares_table) count += weight.rows * weight.cols;
  return count;
}

int64_t ModelShape::weight_bytes() const noexcept {
  int64_t bytes = 0;
  for (const SublayerShape& sublayer : sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (!weight.shares_table) bytes += rows_bytes(weight, weight.rows);
  return bytes;
}

int64_t ModelShape::expert_bytes(const WeightShape& weight) const noexcept {
  return round_up(format_of(weight).bytes(weight.expert_rows(), weight.cols), kExpertAlignment);
}

int64_t ModelShape::rows_bytes(const WeightShape& weight, int64_t rows) const noexcept {
  if (rows == 0) return 0;
  const WeightFormat format = format_of(weight);
  if (weight.experts == 0) return format.bytes(rows, weight.cols);
  const int64_t whole = rows / weight.expert_rows();
  return whole * expert_bytes(weight) + format.bytes(rows % weight.expert_rows(), weight.cols);
}

bool ModelShape::is_quantised() const noexcept {
  for (const SublayerShape& sublayer : sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.quantised.is_quantised()) return true;
  return false;
}

std::string ModelShape::weights_name() const {
  std::map<std::string, int64_t> bytes;
  for (const SublayerShape& sublayer : sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.quantised.is_quantised())
        bytes[format_name(weight.quantised)] += rows_bytes(weight, weight.rows);
  std::string name(dtype_name(weight_dtype));
  int64_t most = 0;
  for (const auto& [format, size] : bytes)
    if (size > most) {
      most = size;
      name = format;
    }
  return name;
}

bool ModelShape::has_plain(DType dtype) const noexcept {
  for (const SublayerShape& sublayer : sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.kind != WeightKind::kVector && format_of(weight) == WeightFormat::plain(dtype))
        return true;
  return false;
}

void ModelShape::set_weights(const WeightFormat& format) {
  if (!format.is_quantised()) weight_dtype = format.dtype;
  for (SublayerShape& sublayer : sublayers)
    for (WeightShape& weight : sublayer.weights) {
      if (!format.is_quantised()) weight.dtype.reset();
      if (weight.may_be_quantised())
        weight.quantised = format.is_quantised() ? format : WeightFormat{};
    }
}

double ModelShape::matmul_flops_per_token() const noexcept {
  double flops = 0;
  for (const SublayerShape& sublayer : sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.kind == WeightKind::kMatrix) {
        const double active = weight.experts > 0 ? static_cast<double>(experts_per_token) /
                                                       static_cast<double>(num_experts)
                                                 : 1;
        flops += 2.0 * active * static_cast<double>(weight.rows) * static_cast<double>(weight.cols);
      }
  return flops;
}

}  // namespace sluice
