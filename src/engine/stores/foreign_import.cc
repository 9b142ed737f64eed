#include "src/engine/stores/foreign_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "io/checkpoint/element_conversion.h"
#include "io/checkpoint/parallel_ranges.h"
#include "kernels/elementwise.h"
#include "kernels/quantise.h"
#include "src/base/error.h"

namespace sluice {

namespace {
constexpr int64_t kPanelRows = WeightFormat::kPanelRows;

// One panel from its codes; false: some of them do not fit.
bool keep_codes(const ForeignMatrix& matrix, const ForeignDecoder& decoder, int64_t first_row,
                int64_t row_count, std::vector<uint8_t>& codes, std::byte* panel) {
  const WeightFormat& format = matrix.format;
  const int64_t columns = format.group_columns(matrix.cols);
  codes.resize(static_cast<size_t>(kPanelRows * columns));
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
  const int64_t cols = matrix.cols;
  std::atomic<bool> is_bad = false;
  if (!to.is_quantised()) {
    const int64_t row_bytes = cols * dtype_bytes(to.dtype);
    io::parallel_ranges(threads, matrix.rows, 64, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(cols));
      for (int64_t i = begin; i < end; ++i) {
        decoder->values(i, row.data());
        const auto made =
            out.subspan(static_cast<size_t>(i * row_bytes), static_cast<size_t>(row_bytes));
        kernels::convert(DType::kF32, row.data(), to.dtype, made.data(), cols);
        if (io::first_overflow(DType::kF32, std::as_bytes(std::span(row)), to.dtype, made) >= 0)
          is_bad = true;
      }
    });
    if (is_bad)
      throw Error(ErrorKind::kUser,
                  fmt::format("tensor {}: a value is too large for {}", name, format_name(to)),
                  "choose a type with a wider range: `weights` bf16 or f32");
    return;
  }
  const int64_t panel_bytes = to.panel_bytes(cols);
  io::parallel_ranges(
      threads, (matrix.rows + kPanelRows - 1) / kPanelRows, 4, [&](int64_t begin, int64_t end) {
        std::vector<uint8_t> codes;
        std::vector<float> rows(static_cast<size_t>(kPanelRows * cols));
        for (int64_t i = begin; i < end && !is_bad; ++i) {
          std::byte* panel = out.data() + i * panel_bytes;
          const int64_t first = i * kPanelRows;
          const int64_t count = std::min(kPanelRows, matrix.rows - first);
          if (to == matrix.format && keep_codes(matrix, *decoder, first, count, codes, panel))
            continue;
          for (int64_t r = 0; r < count; ++r) decoder->values(first + r, rows.data() + r * cols);
          if (!quantise(to, nullptr, rows.data(), count, cols, panel)) is_bad = true;
        }
      });
  if (is_bad)
    throw Error(ErrorKind::kFile,
                fmt::format("tensor {}: a value is infinite, no number, or too large for {}", name,
                            format_name(to)),
                "the checkpoint is damaged: download it again");
}

}  // namespace sluice
