#pragma once
// Several models behind one port (src/serve/model_pool.h).
#include <stop_token>
#include <string>
#include <vector>

#include "tools/serve_flags.h"

namespace sluice::tools {

/// A model and what requests call it.
struct ServedPath {
  std::string name, path;
};
/// What the flags name: of a folder that is no model, the models in it. At least one; names differ.
/// Errors: kUser.
std::vector<ServedPath> served_paths(const ServeFlags& flags);

/// Serves them until `stop` asks. Errors: kUser for flags that are for one model.
void serve_several(const ServeFlags& flags, const std::vector<ServedPath>& models,
                   const std::stop_token& stop);

}  // namespace sluice::tools
