#include "src/app/repeated_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "io/checkpoint/packed_store.h"
#include "io/files/durable_file.h"
#include "src/app/store_layout.h"
#include "src/base/error.h"

namespace sluice::app {

namespace {
std::vector<const SublayerShape*> sublayers_of(const ModelShape& shape, int64_t layer) {
  std::vector<const SublayerShape*> out;
  for (const SublayerShape& sublayer : shape.sublayers)
    if (sublayer.layer_index == layer) out.push_back(&sublayer);
  return out;
}

std::vector<std::string> names_of_layer(const ModelShape& shape, int64_t layer) {
  std::vector<std::string> names;
  for (const SublayerShape* sublayer : sublayers_of(shape, layer))
    for (const WeightShape& weight : sublayer->weights)
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

bool are_layers_alike(const ModelShape& shape, int64_t one, int64_t other) {
  const auto a = sublayers_of(shape, one), b = sublayers_of(shape, other);
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](const SublayerShape* x, const SublayerShape* y) {
        return x->kind == y->kind && std::equal(x->weights.begin(), x->weights.end(),
                                                y->weights.begin(), y->weights.end(), are_alike);
      });
}

// The last of the first `count` layers that has the weights that `layer` has; -1: none.
int64_t like_layer(const ModelShape& shape, int64_t layer, int64_t count) {
  for (int64_t i = count; i-- > 0;)
    if (are_layers_alike(shape, i, layer)) return i;
  return -1;
}
}  // namespace

int64_t layers_of_each_kind(const ModelShape& shape) {
  int64_t first_layers = 0;
  for (int64_t i = 0; i < shape.num_layers; ++i)
    if (like_layer(shape, i, first_layers) < 0) first_layers = i + 1;
  return first_layers;
}

void repeat_layers(const std::filesystem::path& store, const ModelShape& shape,
                   const std::string& config_json) {
  io::PackedIndex index = io::read_packed_index(store);
  const int64_t first_layers = layers_of_each_kind(shape);
  const auto group_of = [&](int64_t layer) {
    const auto at = std::find_if(index.groups.begin(), index.groups.end(), [&](const auto& group) {
      return group.name == layer_group_name(layer);
    });
    SLUICE_ASSERT(at != index.groups.end(), "a store has its layers by number");
    return at;
  };
  std::vector<io::PackedGroup> others;
  for (int64_t i = first_layers; i < shape.num_layers; ++i) {
    const int64_t as = like_layer(shape, i, first_layers);
    const io::PackedGroup& layer = *group_of(as);
    const std::vector<std::string> known = names_of_layer(shape, as);
    const std::vector<std::string> names = names_of_layer(shape, i);
    io::PackedGroup& group = others.emplace_back(layer);
    group.name = layer_group_name(i);
    group.file = group.name + ".safetensors";
    group.repeats = layer.name;
    for (io::TensorEntry& tensor : group.tensors) {
      const auto at = std::find(known.begin(), known.end(), tensor.name);
      SLUICE_ASSERT(at != known.end() && names.size() == known.size(), "layers are alike");
      tensor.name = names[static_cast<size_t>(at - known.begin())];
    }
    link_file(store / layer.file, store / group.file);
  }
  index.groups.insert(group_of(first_layers - 1) + 1, others.begin(), others.end());
  io::sync_folder(store);
  io::write_file_durably(store / "config.json", config_json);
  for (io::PackedSmallFile& file : index.small_files)
    if (file.name == "config.json") file = io::describe_small_file(store / "config.json");
  io::write_file_durably(store / io::kStoreIndexName, io::format_packed_index(index));
}

}  // namespace sluice::app
