#pragma once
// A store whose layers are all one: a model of any size for speed work, on little disk. What is
// loaded, moved and computed is as of a model with layers of its own; what a disk reads is not,
// since it reads the same blocks again and again.
#include <filesystem>
#include <string>

#include "src/shape/model_shape.h"

namespace sluice::app {

/// Errors: kUser where a layer of `shape` differs from the first, as a mixture's do behind its
/// dense ones.
void require_layers_alike(const ModelShape& shape);

/// `store`: a packed store of a model of one layer, otherwise of `shape`, whose layers are alike.
/// Becomes one of `shape`, its further layers hard links to the first's file, with `config_json`.
/// Errors: kFile, also where the file system makes no hard links.
void repeat_layer(const std::filesystem::path& store, const ModelShape& shape,
                  const std::string& config_json);

}  // namespace sluice::app
