#include "src/engine/stores/foreign_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/quantise.h"
#include "src/base/error.h"
#include "src/engine/stores/pack_rows.h"

namespace sluice {

namespace {
constexpr int64_t kPanelRows = WeightFormat::kPanelRows;

// One panel from its codes; false: some of them do not fit.
bool keep_codes(const ForeignMatrix& matrix, const ForeignDecoder& decoder, int64_t first_row,
                int64_t row_count, std::byte* panel) {
  const WeightFormat& format = matrix.format;
  const int64_t columns = format.group_columns(matrix.cols);
  std::vector<uint8_t> codes(static_cast<size_t>(kPanelRows * columns));
  for (int64_t group = 0; group < format.groups(matrix.cols); ++group) {
    // Codes past the end meet zeros, or have a scale of 0.
    std::fill(codes.begin(), codes.end(), uint8_t{0});
    float scales[kPanelRows] = {}, zeros[kPanelRows] = {};
    for (int64_t r = 0; r < row_count; ++r)
      if (!decoder.codes(first_row + r, group, codes.data() + r * columns, scales[r], zeros[r]))
        return false;
    if (format.encoding == Encoding::kInt4)
      for (int64_t r = 0; r < row_count; ++r)
        if (!(f16_to_f32(f32_to_f16(scales[r])) < std::numeric_limits<float>::infinity()) ||
            !(zeros[r] < 65504 && zeros[r] > -65504))
          return false;
    kernels::pack_group(format, matrix.cols, group, codes.data(), scales, zeros, panel);
  }
  return true;
}
}  // namespace

int64_t imported_bytes(const ForeignMatrix& matrix, const WeightFormat& to) noexcept {
  return to.bytes(matrix.rows, matrix.cols);
}

void import_matrix(const std::string& name, const ForeignMatrix& matrix, const WeightFormat& to,
                   const io::PanelQuantiser& quantise, int threads, const ForeignBytes& parts,
                   std::span<std::byte> out) {
  SLUICE_ASSERT(std::ssize(out) == imported_bytes(matrix, to), "room for the matrix");
  const std::unique_ptr<ForeignDecoder> decoder = matrix.decoder(parts);
  PackedFrom from{matrix.rows, matrix.cols, [&](int64_t first, int64_t count, float* rows) {
                    for (int64_t r = 0; r < count; ++r)
                      decoder->values(first + r, rows + r * matrix.cols);
                  }};
  if (to == matrix.format)
    from.keep = [&](int64_t first, int64_t count, std::byte* panel) {
      return keep_codes(matrix, *decoder, first, count, panel);
    };
  if (pack_rows(from, to, quantise, threads, out)) return;
  if (!to.is_quantised())
    throw Error(ErrorKind::kUser,
                fmt::format("tensor {}: a value is too large for {}", name, format_name(to)),
                "choose a type with a wider range: `weights` bf16 or f32");
  throw Error(ErrorKind::kFile,
              fmt::format("tensor {}: a value is infinite, no number, or too large for {}", name,
                          format_name(to)),
              "the checkpoint is damaged: download it again");
}

}  // namespace sluice
