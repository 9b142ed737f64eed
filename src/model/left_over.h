#pragma once
// What a checkpoint holds beside the weights that its family uses. Most of it is harmless and only
// counted; what would change the model's answers if it were used is refused, never ignored: a head
// of another kind, an output matrix of its own beside tied embeddings, biases that config.json does
// not speak of. Reads at most some tens of MB. Thread safe; shares nothing.
#include <set>
#include <string>

#include "io/checkpoint/checkpoint.h"
#include "src/model/config.h"
#include "src/shape/model_shape.h"

namespace sluice {

/// `used`: names of the tensors that the family's weights are, or are made of. Returns a note for
/// people about what is not used; empty: nothing. Errors: kFile naming the tensor or key.
std::string judge_left_over(const io::Checkpoint& checkpoint, const ModelConfig& config,
                            const std::string& whole, const ModelShape& shape,
                            const std::set<std::string_view>& used);

}  // namespace sluice
