#pragma once
// Calls of tools as guides: free text until a trigger comes, then calls as the model's format and
// the tools' schemas have them. So what a model begins as a call is one. Pure.
#include <string>
#include <string_view>
#include <vector>

#include "src/guide/grammar.h"
#include "src/guide/json_schema.h"

namespace sluice::guide {

struct CallGuide {
  Grammar::Network network;  ///< of what follows the trigger
  std::string trigger;       ///< text is free up to it
  /// Without one: text that begins with none of these is free. Both empty: calls from the start.
  std::vector<std::string> beginnings;
  bool repeats = false;            ///< free text and more calls may follow
  std::vector<std::string> marks;  ///< texts of the format: special tokens in them are allowed
  Relaxed relaxed;                 ///< what of the tools' schemas is not held
};

/// `spec` as chat::tool_guide() writes it. Arguments match their tool's schema, but for what guides
/// don't know of it, unless the tool is strict. Errors: kUser naming the tool and the place in its
/// schema.
CallGuide call_guide(std::string_view spec);

}  // namespace sluice::guide
