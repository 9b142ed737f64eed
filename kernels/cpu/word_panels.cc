#include "kernels/word_panels.h"

#include "kernels/cpu/variant.h"
#include "kernels/quantised_layout.h"

namespace sluice::kernels {

bool repack_words(const CodeWords& words, const WeightFormat& format, int64_t cols, int64_t columns,
                  const float* scales, const float* zeros, std::byte* group) noexcept {
  const int64_t of_line = line_columns(format.encoding);
  if (format.is_k() || !format.is_quantised() || columns % of_line != 0) return false;
  return active_variant().repack_words({words, format.encoding, columns / of_line,
                                        format.group_code_bytes(cols) / kQuantLine, scales, zeros},
                                       group);
}

}  // namespace sluice::kernels
