#include "src/app/repeated_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "io/checkpoint/packed_store.h"
#include "io/files/durable_file.h"
#include "src/base/error.h"

namespace sluice::app {

namespace {
std::vector<std::string> names_of_layer(const ModelShape& shape, int64_t layer) {
  std::vector<std::string> names;
  for (const SublayerShape& sublayer : shape.sublayers)
    if (sublayer.layer_index == layer)
      for (const WeightShape& weight : sublayer.weights)
        for (int64_t expert = 0; expert < weight.tensors(); ++expert)
          names.push_back(weight.of_expert(expert).names.front());
  return names;
}

void link_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::remove(to, error);
  std::filesystem::create_hard_link(from, to, error);
  if (error)
    throw Error(
        ErrorKind::kFile,
        fmt::format("{}: can't be linked to {} ({})", to.string(), from.string(), error.message()),
        "write to a file system with hard links, or without `repeat_layers`");
}
bool are_alike(const WeightShape& one, const WeightShape& other) {
  return one.role == other.role && one.rows == other.rows && one.cols == other.cols &&
         one.experts == other.experts;
}
}  // namespace

void require_layers_alike(const ModelShape& shape) {
  std::vector<const SublayerShape*> first;
  for (const SublayerShape& sublayer : shape.sublayers)
    if (sublayer.layer_index == 0) first.push_back(&sublayer);
  size_t at = 0;
  for (const SublayerShape& sublayer : shape.sublayers) {
    if (sublayer.layer_index < 0) continue;
    const SublayerShape& as = *first[at++ % first.size()];
    if (sublayer.kind == as.kind && std::equal(sublayer.weights.begin(), sublayer.weights.end(),
                                               as.weights.begin(), as.weights.end(), are_alike))
      continue;
    throw Error(
        ErrorKind::kUser,
        fmt::format("layer {} of this model differs from layer 0: one layer can't stand for "
                    "all with `repeat_layers`",
                    sublayer.layer_index),
        "leave it out; fewer layers (`layers`) take less disk");
  }
}

void repeat_layer(const std::filesystem::path& store, const ModelShape& shape,
                  const std::string& config_json) {
  io::PackedIndex index = io::read_packed_index(store);
  const auto first = std::find_if(index.groups.begin(), index.groups.end(),
                                  [](const auto& group) { return group.name == "layer-00000"; });
  SLUICE_ASSERT(first != index.groups.end(), "a store has its layers by number");
  const io::PackedGroup layer = *first;
  const std::vector<std::string> known = names_of_layer(shape, 0);
  std::vector<io::PackedGroup> others;
  for (int64_t i = 1; i < shape.num_layers; ++i) {
    const std::vector<std::string> names = names_of_layer(shape, i);
    io::PackedGroup& group = others.emplace_back(layer);
    group.name = fmt::format("layer-{:05}", i);
    group.file = group.name + ".safetensors";
    group.repeats = layer.name;
    for (io::TensorEntry& tensor : group.tensors) {
      const auto at = std::find(known.begin(), known.end(), tensor.name);
      SLUICE_ASSERT(at != known.end() && names.size() == known.size(), "layers are alike");
      tensor.name = names[static_cast<size_t>(at - known.begin())];
    }
    link_file(store / layer.file, store / group.file);
  }
  index.groups.insert(first + 1, others.begin(), others.end());
  io::sync_folder(store);
  io::write_file_durably(store / "config.json", config_json);
  for (io::PackedSmallFile& file : index.small_files)
    if (file.name == "config.json") file = io::describe_small_file(store / "config.json");
  io::write_file_durably(store / io::kStoreIndexName, io::format_packed_index(index));
}

}  // namespace sluice::app
