#pragma once
// The weights of a decoder, sublayer by sublayer, with their names in both kinds of files.
#include "src/model/families/decoder.h"

namespace sluice {

/// Of a shape whose sizes are read. A layer is two sublayers, or one where its attention and its
/// MLP have the same input.
void list_decoder_weights(const DecoderTraits& traits, bool is_tied, ModelShape& shape);

}  // namespace sluice
