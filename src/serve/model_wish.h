#pragma once
// What a body says of the model that is to answer it, before it is read whole. Pure.
#include <optional>
#include <string>
#include <string_view>

#include "src/serve/keep_time.h"

namespace sluice::serve {

struct ModelWish {
  std::string model;             ///< empty: it names none
  std::optional<KeepTime> keep;  ///< "keep_alive", or LM Studio's "ttl"
  bool asks = false;             ///< there is a prompt, messages or an input that is not empty
};

/// Of a body that is an object of JSON; nothing where it is none. Throws ApiError for a model that
/// is no string, and times that are none.
std::optional<ModelWish> read_wish(std::string_view body);

}  // namespace sluice::serve
