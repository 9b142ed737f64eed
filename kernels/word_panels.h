#pragma once
// Codes that another tool has packed, in words that lie at equal distances, to groups of panels, as
// fast as a disk brings them (src/base/code_words.h; GGUF's blocks: kernels/block_panels.h).
// Callers may run it on any thread: nothing is shared.
#include <cstddef>
#include <cstdint>

#include "src/base/code_words.h"
#include "src/base/weight_format.h"

namespace sluice::kernels {

/// Makes one group of a panel, the bytes that pack_group() would make of the codes. False, with
/// the group undefined: codes of fp8 are no number, scale or zero of int4 are past f16, or columns
/// are no whole words.
///   words    of row 0 and the group's first column on; 16 rows
///   columns  of the group; of the last one fewer than format.group_columns() may be there
///   scales, zeros   [16]; zeros of int4 alone
///   group    format.group_code_bytes(cols) and its scales
bool repack_words(const CodeWords& words, const WeightFormat& format, int64_t cols, int64_t columns,
                  const float* scales, const float* zeros, std::byte* group) noexcept;

}  // namespace sluice::kernels
