#pragma once
// Which tokens end a model's answers, and which of its files says so.
#include <vector>

#include "src/model/bound_model.h"
#include "src/model/foreign/gguf_ends.h"

namespace sluice::app {

/// Of all that the model has (BoundModel::eos_token_ids); texts are there where a GGUF file has
/// them. Errors: kFile.
std::vector<EndToken> end_tokens(const BoundModel& model);

}  // namespace sluice::app
