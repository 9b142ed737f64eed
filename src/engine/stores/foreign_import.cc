#include "src/engine/stores/foreign_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "kernels/block_panels.h"
#include "kernels/quantise.h"
#include "src/base/error.h"
#include "src/engine/stores/pack_rows.h"
#include "src/engine/stores/panel_quantiser.h"

namespace sluice {

namespace {
constexpr int64_t kPanelRows = WeightFormat::kPanelRows;

// One panel from codes whose parts have whole-number scales; false: they have none.
bool keep_parts(const ForeignMatrix& matrix, const ForeignDecoder& decoder, int64_t first_row,
                int64_t row_count, std::byte* panel) {
  const WeightFormat& format = matrix.format;
  const int64_t columns = format.group_columns(matrix.cols), groups = format.groups(matrix.cols);
  const int64_t parts = columns / 16;
  std::vector<uint8_t> codes(static_cast<size_t>(kPanelRows * columns));
  std::vector<int8_t> scales(static_cast<size_t>(kPanelRows * parts));
  for (int64_t group = 0; group < groups; ++group) {
    float d[kPanelRows] = {};
    for (int64_t r = 0; r < row_count; ++r)
      if (!decoder.parts(first_row + r, group, codes.data() + r * columns,
                         scales.data() + r * parts, d[r]))
        return false;
    kernels::pack_parts(format, codes.data(), scales.data(), d,
                        panel + group * format.panel_bytes(matrix.cols) / groups);
  }
  return true;
}

// One panel from its codes; false: some of them do not fit.
bool keep_codes(const ForeignMatrix& matrix, const ForeignDecoder& decoder, int64_t first_row,
                int64_t row_count, std::byte* panel) {
  const WeightFormat& format = matrix.format;
  if (format.is_k()) return keep_parts(matrix, decoder, first_row, row_count, panel);
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

// The same rows, or plain ones, from where they lie: what most of a file's bytes take. False: they
// lie otherwise, or are few, or hold what keep_codes or values() must see.
bool keep_rows(const ForeignMatrix& matrix, const ForeignDecoder& decoder, int64_t first_row,
               int64_t row_count, std::byte* out) {
  const std::byte* rows[kPanelRows];
  for (int64_t r = 0; r < row_count; ++r)
    if (!(rows[r] = decoder.row_bytes(first_row + r))) return false;
  if (matrix.format.is_k())  // rows past the end are of no meaning
    for (int64_t r = row_count; r < kPanelRows; ++r) rows[r] = rows[0];
  if (matrix.format.is_quantised())
    return (row_count == kPanelRows || matrix.format.is_k()) &&
           kernels::repack_blocks(matrix.parts.front()->blocks, matrix.format, rows, matrix.cols,
                                  out);
  const io::TensorEntry& part = *matrix.parts.front();
  if (part.blocks != BlockType::kNone || part.dtype != matrix.format.dtype) return false;
  for (int64_t r = 0; r < row_count; ++r)
    std::memcpy(out + r * matrix.file_row_bytes, rows[r],
                static_cast<size_t>(matrix.file_row_bytes));
  return true;
}

// What a matrix becomes, or some of its rows: those that the decoder counts from 0 are `skipped`
// before the first of `rows`.
struct Import {
  const std::string& name;
  const ForeignMatrix& matrix;
  const WeightFormat& to;
  const ForeignDecoder& decoder;
  int64_t skipped = 0;
  int64_t rows = 0;
  int threads = 0;
};

void import_run(const Import& of, const io::PanelQuantiser& quantise, std::span<std::byte> out) {
  const ForeignMatrix& matrix = of.matrix;
  SLUICE_ASSERT(std::ssize(out) == of.to.bytes(of.rows, matrix.cols), "room for the rows");
  PackedFrom from{of.rows, matrix.cols, [&](int64_t first, int64_t count, float* rows) {
                    for (int64_t r = 0; r < count; ++r)
                      of.decoder.values(of.skipped + first + r, rows + r * matrix.cols);
                  }};
  if (of.to == matrix.format)
    from.keep = [&](int64_t first, int64_t count, std::byte* place) {
      return keep_rows(matrix, of.decoder, of.skipped + first, count, place) ||
             (of.to.is_quantised() &&
              keep_codes(matrix, of.decoder, of.skipped + first, count, place));
    };
  if (pack_rows(from, of.to, quantise, of.threads, out)) return;
  if (!of.to.is_quantised())
    throw Error(ErrorKind::kUser,
                fmt::format("tensor {}: a value is too large for {}", of.name, format_name(of.to)),
                "choose a type with a wider range: `weights` bf16 or f32");
  throw Error(ErrorKind::kFile,
              fmt::format("tensor {}: a value is infinite, no number, or too large for {}", of.name,
                          format_name(of.to)),
              "the checkpoint is damaged: download it again");
}
}  // namespace

int64_t imported_bytes(const ForeignMatrix& matrix, const WeightFormat& to) noexcept {
  return to.bytes(matrix.rows, matrix.cols);
}

void import_matrix(const std::string& name, const ForeignMatrix& matrix, const WeightFormat& to,
                   const io::PanelQuantiser& quantise, int threads, const ForeignBytes& parts,
                   std::span<std::byte> out) {
  const std::unique_ptr<ForeignDecoder> decoder = matrix.decoder(parts);
  import_run({name, matrix, to, *decoder, 0, matrix.rows, threads}, quantise, out);
}

int64_t imported_row_bytes(const ForeignMatrix& matrix, int64_t rows) noexcept {
  return matrix.format.bytes(rows, matrix.cols);
}

void import_rows(const std::string& name, const ForeignMatrix& matrix, int64_t first, int64_t rows,
                 const io::PanelQuantiser& quantise, int threads, std::span<const std::byte> bytes,
                 std::span<std::byte> out) {
  const std::unique_ptr<ForeignDecoder> decoder = matrix.decoder({bytes});
  const int64_t skipped = first - matrix.run_of(first, rows).first;
  import_run({name, matrix, matrix.format, *decoder, skipped, rows, threads}, quantise, out);
}

int packed_repack_threads(int threads) noexcept { return std::max(1, threads / 2); }

double measured_repack_rate(const BoundModel& model, int threads) {
  constexpr int64_t kRows = 256;  // most; what a file of zeros holds decodes as fast as any
  constexpr int64_t kBytes = 2 << 20;
  using Clock = std::chrono::steady_clock;
  double seconds = 0, made_bytes = 0;
  const auto& sublayers = model.shape().sublayers;
  int measured = 0;
  for (size_t i = 0; i < sublayers.size() && measured < 2; ++i) {
    bool is_any = false;
    for (size_t w = 0; w < sublayers[i].weights.size(); ++w) {
      const ForeignMatrix* matrix = model.foreign(i, w);
      if (!matrix || sublayers[i].weights[w].kind != WeightKind::kMatrix ||
          matrix->file_row_bytes == 0)
        continue;
      is_any = true;
      const int64_t rows =
          std::clamp(kBytes / matrix->file_row_bytes, std::min<int64_t>(16, matrix->rows),
                     std::min(kRows, matrix->rows));
      const ForeignMatrix::Run run = matrix->run_of(0, rows);
      const std::vector<std::byte> packed(static_cast<size_t>(run.bytes));
      std::vector<std::byte> made(static_cast<size_t>(imported_row_bytes(*matrix, rows)));
      const Clock::time_point started = Clock::now();
      import_rows("zeros", *matrix, 0, rows, panel_quantiser(kernels::RangeSearch::kClip), threads,
                  packed, made);
      const double scale =
          static_cast<double>(sublayers[i].weights[w].rows) / static_cast<double>(rows);
      seconds += scale * std::chrono::duration<double>(Clock::now() - started).count();
      made_bytes += scale * static_cast<double>(made.size());
    }
    measured += is_any;
  }
  return seconds > 0 ? made_bytes / seconds : 0;
}

}  // namespace sluice
