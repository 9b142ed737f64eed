#pragma once
// Where the codes of a quantised matrix lie that another tool has packed: in words of 32 bits, at
// equal distances. For readers of checkpoints and for kernels.
#include <cstddef>
#include <cstdint>

namespace sluice {

/// Which codes a word holds. Of one row, but of kRowNibbles:
enum class WordOrder : uint8_t {
  kNibbles,           ///< 8 columns, the first lowest
  kHighNibblesFirst,  ///< 8 columns, two a byte, the earlier one high
  kRowNibbles,        ///< 8 rows of a column: from the lowest on rows 0, 2, 4, 6, 1, 3, 5 and 7
  kBytes,             ///< 4 columns
  kSignedBytes        ///< the same, each minus 128
};

/// The word of row r and columns [n w, n w + n), n of them in a word, is at first + r row_bytes +
/// w word_bytes; of kRowNibbles that of rows [8 r, 8 r + 8) and column w.
struct CodeWords {
  const std::byte* first = nullptr;
  int64_t row_bytes = 0;
  int64_t word_bytes = 0;
  WordOrder order = WordOrder::kNibbles;

  /// The same from a row and a column on, both at the first of a word.
  CodeWords from(int64_t row, int64_t col) const noexcept {
    const bool has_rows = order == WordOrder::kRowNibbles;
    const bool has_bytes = order == WordOrder::kBytes || order == WordOrder::kSignedBytes;
    CodeWords out = *this;
    out.first += row / (has_rows ? 8 : 1) * row_bytes + col /
                                                            (has_rows    ? 1
                                                             : has_bytes ? 4
                                                                         : 8) *
                                                            word_bytes;
    return out;
  }
};

}  // namespace sluice
