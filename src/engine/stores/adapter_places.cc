#include "src/engine/stores/adapter_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "io/checkpoint/checkpoint.h"
#include "kernels/low_rank.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

namespace {
[[noreturn]] void refuse(const LoraAdapter& adapter, const std::string& tensor,
                         const std::string& why, const std::string& mend) {
  throw Error(ErrorKind::kUser, fmt::format("adapter {} changes {}: {}", adapter.name, tensor, why),
              mend);
}
constexpr const char* kMerge =
    "merge it: sluice convert MODEL STORE --merge-lora ADAPTER, then run STORE";

// Where a model has the tensors that adapters name.
class Targets {
 public:
  explicit Targets(const BoundModel& model) {
    const ModelShape& shape = model.shape();
    for (size_t i = 0; i < shape.sublayers.size(); ++i)
      for (size_t w = 0; w < shape.sublayers[i].weights.size(); ++w) add(shape, i, w);
  }

  struct Target {
    size_t sublayer, weight;
    int64_t first_row, rows;  // of the tensor by that name
  };
  /// All weights that are rows of it; empty: there are none.
  std::vector<Target> find(const std::string& name) const {
    if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second;
    // Where the model lies inside another (a vision wrapper), or the adapter was made of one that
    // did: the only one with that end.
    const std::vector<Target>* only = nullptr;
    for (const auto& [other, targets] : by_name_) {
      const std::string_view whole = other.size() > name.size() ? other : name;
      const std::string_view end = other.size() > name.size() ? name : other;
      if (!whole.ends_with(end) || whole.size() == end.size() ||
          whole[whole.size() - end.size() - 1] != '.')
        continue;
      if (only && !are_same(*only, targets)) return {};
      only = &targets;
    }
    return only ? *only : std::vector<Target>{};
  }

 private:
  static bool are_same(const std::vector<Target>& a, const std::vector<Target>& b) {
    return a.size() == b.size() && a.front().sublayer == b.front().sublayer &&
           a.front().weight == b.front().weight;
  }
  void add(const ModelShape& shape, size_t sublayer, size_t index) {
    const WeightShape& weight = shape.sublayers[sublayer].weights[index];
    if (weight.kind == WeightKind::kVector || weight.experts > 0) return;
    // A head that is the table of tokens has the table's name, which an adapter means by it.
    if (weight.shares_table)
      for (const char* head : {"lm_head.weight", "embed_out.weight", "output.weight"})
        by_name_[head].push_back({sublayer, index, 0, weight.rows});
    else
      for (const std::string& name : weight.names)
        by_name_[name].push_back({sublayer, index, 0, weight.rows});
    for (const std::string& whole : weight.fused.tensors)
      by_name_[whole].push_back(
          {sublayer, index, weight.fused.first_row, weight.fused.tensor_rows});
  }

  std::map<std::string, std::vector<Target>> by_name_;
};

void check_place(const BoundModel& model, const LoraAdapter& adapter, const std::string& name,
                 const LoraMatrix& matrix, const Targets::Target& target) {
  const SublayerShape& sublayer = model.shape().sublayers[target.sublayer];
  const WeightShape& weight = sublayer.weights[target.weight];
  if (matrix.rows != target.rows || matrix.cols != weight.cols)
    refuse(adapter, name,
           fmt::format("it is [{}, {}], the adapter is for [{}, {}]", target.rows, weight.cols,
                       matrix.rows, matrix.cols),
           "give the adapter's own base model");
  if (weight.is_by_head)
    refuse(adapter, name, "the model multiplies it head by head, where no adapter can be beside it",
           kMerge);
  if (matrix.is_table != (weight.kind == WeightKind::kTable))
    refuse(adapter, name,
           matrix.is_table ? "the adapter is for an embedding, it is a linear layer"
                           : "the adapter is for a linear layer, it is an embedding",
           "give the adapter's own base model");
  if (weight.kind == WeightKind::kTable && weight.role == "positions")
    refuse(adapter, name, "embeddings of positions have no adapters here", kMerge);
  if (!matrix.magnitude.empty() &&
      (weight.quantised.is_quantised() || model.foreign(target.sublayer, target.weight)))
    refuse(
        adapter, name,
        "DoRA takes the lengths of the model's own rows, and here they are quantised or repacked",
        "run the plain checkpoint with it, or merge it before quantising "
        "(sluice convert MODEL STORE --merge-lora ADAPTER --weights int4)");
}

// Whole tensors can't differ from request to request; copies of the model's own may be there.
void check_saved(const BoundModel& model, const LoraAdapter& adapter) {
  const Targets targets(model);
  for (const auto& [name, saved] : adapter.saved) {
    const std::vector<Targets::Target> found = targets.find(name);
    const bool is_alike =
        !found.empty() && saved.shape.size() == 2 && saved.shape[0] == found.front().rows;
    if (saved.is_copy && is_alike) continue;
    refuse(adapter, name,
           saved.is_copy ? fmt::format("it brings {} of its own, as of a model with more tokens",
                                       io::format_shape(saved.shape))
                         : "it replaces the whole tensor (modules_to_save), for which requests "
                           "can't choose",
           kMerge);
  }
}
}  // namespace

std::vector<AdapterPlace> adapter_places(const BoundModel& model, const LoraAdapter& adapter) {
  check_saved(model, adapter);
  const Targets targets(model);
  std::vector<AdapterPlace> places;
  for (const auto& [name, matrix] : adapter.matrices) {
    const std::vector<Targets::Target> found = targets.find(name);
    if (found.empty() && name.find(".experts.") != std::string::npos)
      refuse(adapter, name, "experts have no adapters here, attention and shared experts do",
             kMerge);
    if (found.empty())
      refuse(adapter, name, "the model has no such matrix", "give the adapter's own base model");
    for (const Targets::Target& target : found) {
      check_place(model, adapter, name, matrix, target);
      places.push_back({&matrix, target.sublayer, target.weight, target.first_row});
    }
  }
  const auto order = [](const AdapterPlace& a) { return std::pair(a.sublayer, a.weight); };
  std::sort(places.begin(), places.end(),
            [&](const AdapterPlace& a, const AdapterPlace& b) { return order(a) < order(b); });
  for (size_t i = 1; i < places.size(); ++i)
    if (order(places[i]) == order(places[i - 1]))
      refuse(adapter, model.shape().sublayers[places[i].sublayer].weights[places[i].weight].role,
             "two of its matrices are for the same weight",
             "give the folder that PEFT has written");
  return places;
}

int64_t place_bytes(const ModelShape& model, const AdapterPlace& place) noexcept {
  const WeightShape& weight = model.sublayers[place.sublayer].weights[place.weight];
  const LoraMatrix& matrix = *place.matrix;
  const int64_t element = dtype_bytes(place.dtype());
  // Of a table: a row of factors for each of its rows, and what they multiply.
  const int64_t a = (matrix.is_table ? weight.rows : weight.cols) * matrix.rank * element;
  const int64_t b = (matrix.is_table ? weight.cols : weight.rows) * matrix.rank * element;
  const int64_t factors = matrix.magnitude.empty() ? 0 : weight.rows * 4;
  return round_up(a, kAdapterLine) + round_up(b, kAdapterLine) + round_up(factors, kAdapterLine);
}

int64_t adapter_table_bytes(const ModelShape& model) noexcept {
  int64_t weights = 0;
  for (const SublayerShape& sublayer : model.sublayers) weights += std::ssize(sublayer.weights);
  return round_up(weights * static_cast<int64_t>(sizeof(kernels::LowRank)), kAdapterLine);
}

AdapterNeed adapter_need(const BoundModel& model, const LoraAdapter& adapter) {
  AdapterNeed need{adapter_table_bytes(model.shape()), 0};
  for (const AdapterPlace& place : adapter_places(model, adapter)) {
    need.bytes += place_bytes(model.shape(), place);
    need.rank = std::max(need.rank, place.matrix->rank);
  }
  return need;
}

}  // namespace sluice
