#include "src/app/store_layout.h"

#include <fmt/format.h>

#include <set>

#include "kernels/quantise.h"
#include "src/base/error.h"

namespace sluice::app {

std::vector<io::StoreGroup> store_groups(const BoundModel& model, std::optional<WeightFormat> to) {
  std::vector<io::StoreGroup> groups;
  std::set<std::string> placed;  // a tied table is stored once, where a pass needs it first
  const ModelShape& shape = model.shape();
  for (size_t i = 0; i < shape.sublayers.size(); ++i) {
    const SublayerShape& sublayer = shape.sublayers[i];
    const std::string name = sublayer.kind == SublayerKind::kEmbed ? "embed"
                             : sublayer.kind == SublayerKind::kHead
                                 ? "head"
                                 : fmt::format("layer-{:05}", sublayer.layer_index);
    if (groups.empty() || groups.back().name != name) groups.push_back({name, {}});
    for (size_t w = 0; w < sublayer.weights.size(); ++w) {
      const std::string& tensor = model.tensor(i, w).name;
      if (!placed.insert(tensor).second) continue;
      if (const ForeignMatrix* matrix = model.foreign(i, w)) {
        if (to)
          throw Error(ErrorKind::kUser,
                      fmt::format("{} is quantised already, by {}", tensor, model.foreign_method()),
                      "leave --weights out: it is repacked exactly");
        std::vector<std::string> parts;
        for (const io::TensorEntry* part : matrix->parts) parts.push_back(part->name);
        groups.back().tensors.push_back(
            {model.tensor(i, w), std::move(parts),
             [matrix](const auto& bytes) { return repack(*matrix, bytes, &kernels::pack_group); }});
        continue;
      }
      // What is not multiplied stays as it is: tables are read by the row, vectors are small.
      const bool is_matrix = sublayer.weights[w].kind == WeightKind::kMatrix;
      const bool applies = !to || !to->is_quantised() || is_matrix;
      groups.back().tensors.push_back({tensor, tensor, applies ? to : std::nullopt, {}});
    }
  }
  std::erase_if(groups, [](const io::StoreGroup& group) { return group.tensors.empty(); });
  return groups;
}

}  // namespace sluice::app
