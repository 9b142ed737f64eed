#pragma once
// What families with Mamba-2's state spaces (arXiv:2405.21060) read from config.json alike: sizes
// and bounds.
#include "src/model/families/decoder.h"

namespace sluice {

/// What config.json calls a state space's sizes.
struct StateSpaceKeys {
  const char* heads = "mamba_n_heads";
  const char* width = "mamba_d_head";  ///< of a head's values
  const char* groups = "mamba_n_groups";
  const char* state = "mamba_d_state";
  const char* taps = "mamba_d_conv";
  const char* expand = "mamba_expand";
  const char* bias = "mamba_proj_bias";
  const char* conv_bias = "mamba_conv_bias";
};
/// Where config.json says nothing.
struct StateSpaceSizes {
  int64_t heads = 128;
  int64_t width = 0;  ///< 0: "expand" times the hidden size, over the heads
  int64_t groups = 1;
  int64_t state = 256;
};

/// Sets `traits.recurrent` and `traits.space`. Errors: kFile for fields that don't fit together or
/// are not run.
void read_state_space(const ModelConfig& config, const StateSpaceKeys& keys,
                      const StateSpaceSizes& usual, DecoderTraits& traits);

}  // namespace sluice
