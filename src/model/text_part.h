#pragma once
// The text part of a model that sees or hears: its config, which releases nest in the model's and
// say something of in both, and the longer names of its tensors. A model of text alone is its own.
// Thread safe.
#include <string>

#include "io/checkpoint/checkpoint.h"
#include "src/model/config.h"
#include "src/shape/model_shape.h"

namespace sluice {

struct TextPart {
  ModelConfig config;        ///< of the part alone, with what the whole says of it
  std::string whole;         ///< model_type of what it is a part of; empty: it is the whole
  bool is_head_said = true;  ///< whether config.json says if the head is the table of tokens
};

/// What config.json has for text. Errors: kFile for a model whose text is not computed as its text
/// part alone would be, and for two quantisations of one model.
TextPart text_part(const ModelConfig& config);

/// The same of a checkpoint: where config.json does not say whether the head is the table of
/// tokens, it is so in checkpoints that have no head.
TextPart text_part(const ModelConfig& config, const io::Checkpoint& checkpoint);

/// Adds the names that tensors have as those of a part of a larger model, of the type `whole`, and
/// has stacks lie as the checkpoint has them.
void name_as_part(const std::string& whole, const io::Checkpoint& checkpoint, ModelShape& shape);

/// The names, without ".weight", that heads have in larger models and alone.
const std::vector<std::string>& head_names();

}  // namespace sluice
