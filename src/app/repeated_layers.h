#pragma once
// A store whose layers of a kind are all one: a model of any size for speed work, on little disk.
// What is loaded, moved and computed is as of a model with layers of its own; what a disk reads is
// not, since it reads the same blocks again and again.
#include <filesystem>
#include <string>

#include "src/shape/model_shape.h"

namespace sluice::app {

/// The first layers of `shape` among which is one of each kind: 1 where all are alike, those up to
/// the first with experts where some before have none.
int64_t layers_of_each_kind(const ModelShape& shape);

/// `store`: a packed store of a model of the first layers_of_each_kind(shape) layers, otherwise of
/// `shape`. Becomes one of `shape`, each further layer a hard link to the file of the last of its
/// kind among those, with `config_json`. Errors: kFile, also where the file system makes no hard
/// links.
void repeat_layers(const std::filesystem::path& store, const ModelShape& shape,
                   const std::string& config_json);

}  // namespace sluice::app
