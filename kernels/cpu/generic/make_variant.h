#pragma once
// The table of the inner loops for the instruction set of the variant_*.cc that includes this, but
// for what only some have. Products: of attention on integers (generic/attention.h).
#include "kernels/cpu/generic/attention.h"
#include "kernels/cpu/generic/block_panels.h"
#include "kernels/cpu/generic/compensate.h"
#include "kernels/cpu/generic/delta_rule.h"
#include "kernels/cpu/generic/head_products.h"
#include "kernels/cpu/generic/linear.h"
#include "kernels/cpu/generic/prepared_rows.h"
#include "kernels/cpu/generic/quantise.h"
#include "kernels/cpu/generic/quantised_linear.h"
#include "kernels/cpu/generic/rows.h"
#include "kernels/cpu/generic/word_panels.h"
#include "kernels/cpu/variant.h"

namespace sluice::kernels {
namespace {

template <typename Products>
constexpr Variant make_variant(const char* name) {
  Variant out{};
  out.name = name;
  out.tile_room = kTileRoom;
  out.tile_rows = kTile;
  out.widens_int8 = kWidensInt8;
  out.rms_norm = rms_norm_rows;
  out.layer_norm = layer_norm_rows;
  out.add = add_range;
  out.gate = gate_range;
  out.clamped_gate = clamped_gate_range;
  out.soft_cap = soft_cap_range;
  out.scale = scale_range;
  out.conv_silu_row = conv_silu_row;
  out.recurrent_rule = recurrent_rule;
  out.softmax = softmax_row;
  out.to_f32 = to_f32;
  out.from_f32 = from_f32;
  out.linear_rows = linear_rows;
  out.add_rows = add_rows;
  out.f32_arrange = f32_arrange;
  out.linear_panels = linear_panels;
  out.arrange_f32_codes = arrange_f32_codes;
  out.quantised_f32 = quantised_f32;
  out.quantised_panels_f32 = quantised_panels_f32;
  out.quantised_int8 = quantised_int8;
  out.quantise_activations = quantise_activations;
  out.round_e4m3 = round_e4m3;
  out.sum_groups = sum_groups;
  out.quantise_rows = quantise_rows;
  out.compensate_columns = compensate_columns;
  out.repack_blocks = repack_blocks;
  out.repack_words = repack_words;
  out.unpack_panel = unpack_panel;
  out.attend = attend<Products>;
  out.kv_quantise = kv_quantise;
  return out;
}

}  // namespace
}  // namespace sluice::kernels
