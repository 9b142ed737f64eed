#pragma once
// The names that requests and lines of batches may call the model by.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::serve {

struct ServedNames {
  std::string model_name;            ///< of answers
  std::vector<std::string> aliases;  ///< names that requests may use as well
  bool takes_any_name = false;       ///< whatever names no adapter is the model's

  /// Whether the model goes by this name.
  bool names(std::string_view model) const {
    return model == model_name || std::find(aliases.begin(), aliases.end(), model) != aliases.end();
  }
};

}  // namespace sluice::serve
