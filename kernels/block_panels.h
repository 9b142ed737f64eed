#pragma once
// Rows in blocks of GGUF's types to panels, as fast as a disk brings them: weights that another
// tool has packed are repacked while they stream. The types' formulas, and the same one row at a
// time: src/model/foreign/ggml_blocks.h. Callers may run it on any thread: nothing is shared.
#include <cstddef>
#include <cstdint>

#include "src/base/block_type.h"
#include "src/base/weight_format.h"

namespace sluice::kernels {

/// Makes one panel of a K type, q4_1, q5_1, int4-g32 or int8-g32 from WeightFormat::kPanelRows
/// rows. Values of q2_k to q6_k, q4_1 and q5_1 are kept as the type of that name. Of the others
/// codes are kept where the type's are of that format (q4_0, q4_1 and q4_k as int4-g32; q5_0, q8_0,
/// iq4_nl, iq4_xs and mxfp4 as int8-g32); q2_k, q3_k, q5_1, q5_k and q6_k are else quantised to
/// int8-g32 as quantise_panel does. False, with the panel undefined: of another type or format, or
/// a value or scale is not finite or past f16.
///   rows   [16] each cols / elements blocks      cols   whole blocks      panel  panel_bytes(cols)
bool repack_blocks(BlockType type, const WeightFormat& format, const std::byte* const* rows,
                   int64_t cols, std::byte* panel) noexcept;

}  // namespace sluice::kernels
