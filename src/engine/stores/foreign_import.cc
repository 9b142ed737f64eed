#include "src/engine/stores/foreign_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "io/async/file_engine.h"
#include "io/checkpoint/parallel_ranges.h"
#include "io/files/input_file.h"
#include "kernels/block_panels.h"
#include "kernels/quantise.h"
#include "kernels/quantised_layout.h"
#include "kernels/word_panels.h"
#include "src/base/error.h"
#include "src/engine/stores/pack_rows.h"
#include "src/engine/stores/panel_quantiser.h"

namespace sluice {

namespace {
constexpr int64_t kPanelRows = WeightFormat::kPanelRows;

// One panel from codes whose parts have whole-number scales; false: they have none.
bool keep_parts(const WeightFormat& format, int64_t cols, const ForeignDecoder& decoder,
                int64_t first_row, int64_t row_count, std::byte* panel) {
  const int64_t columns = format.group_columns(cols), groups = format.groups(cols);
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
                        panel + group * format.panel_bytes(cols) / groups);
  }
  return true;
}

// One panel from its codes; false: some of them do not fit.
bool keep_codes(const WeightFormat& format, int64_t cols, const ForeignDecoder& decoder,
                int64_t first_row, int64_t row_count, std::byte* panel) {
  if (format.is_k()) return keep_parts(format, cols, decoder, first_row, row_count, panel);
  const int64_t columns = format.group_columns(cols);
  std::vector<uint8_t> codes(static_cast<size_t>(kPanelRows * columns));
  for (int64_t group = 0; group < format.groups(cols); ++group) {
    // Codes past the end meet zeros, or have a scale of 0.
    std::fill(codes.begin(), codes.end(), uint8_t{0});
    float scales[kPanelRows] = {}, zeros[kPanelRows] = {};
    for (int64_t r = 0; r < row_count; ++r)
      if (!decoder.codes(first_row + r, group, codes.data() + r * columns, scales[r], zeros[r]))
        return false;
    if (kernels::has_int4_codes(format.encoding))
      for (int64_t r = 0; r < row_count; ++r)
        if (!(f16_to_f32(f32_to_f16(scales[r])) < std::numeric_limits<float>::infinity()) ||
            !(zeros[r] < 65504 && zeros[r] > -65504))
          return false;
    if (format.encoding == Encoding::kIq4 &&
        !std::all_of(scales, scales + row_count, [](float scale) { return std::isfinite(scale); }))
      return false;
    kernels::pack_group(format, cols, group, codes.data(), scales, zeros, panel);
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
    std::memcpy(out + r * matrix.row_bytes(), rows[r], static_cast<size_t>(matrix.row_bytes()));
  return true;
}

// What a matrix becomes, or a run of it: the decoder counts `skipped` rows before the first.
struct Import {
  const std::string& name;
  const ForeignMatrix& matrix;
  const WeightFormat& to;
  const ForeignDecoder& decoder;
  int64_t skipped = 0;
  int64_t rows = 0, cols = 0;
  int threads = 0;
  int64_t panel_step = 0;  // bytes from a panel to the next; 0: they lie together
  int64_t row_step = 0;    // of plain rows, likewise
};

// Panels of codes whose words lie as the kernel takes them: [panel] whether it is made. Some
// neighbours take a group's columns in turn, since where a matrix is turned they share cache lines.
std::vector<char> keep_words(const Import& of, std::byte* out) {
  constexpr int64_t kNeighbours = 8;
  const std::optional<CodeWords> words = of.decoder.words();
  if (!words || !of.to.is_quantised()) return {};
  const int64_t columns = of.to.group_columns(of.cols), groups = of.to.groups(of.cols);
  const int64_t group_bytes = of.to.panel_bytes(of.cols) / groups;
  const int64_t step = of.panel_step > 0 ? of.panel_step : of.to.panel_bytes(of.cols);
  const auto make = [&](int64_t panel, int64_t group) {
    float scales[kPanelRows], zeros[kPanelRows];
    const int64_t first = of.skipped + panel * kPanelRows, column = group * columns;
    for (int64_t r = 0; r < kPanelRows; ++r)
      if (!of.decoder.scale(first + r, group, scales[r], zeros[r])) return false;
    return kernels::repack_words(words->from(first, column), of.to, of.cols,
                                 std::min(columns, of.cols - column), scales, zeros,
                                 out + panel * step + group * group_bytes);
  };
  std::vector<char> kept(static_cast<size_t>(of.rows / kPanelRows), 1);
  io::parallel_ranges(of.threads, std::ssize(kept), kNeighbours, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kNeighbours)
      for (int64_t group = 0; group < groups; ++group)
        for (int64_t panel = first; panel < std::min(first + kNeighbours, end); ++panel)
          if (char& is_kept = kept[static_cast<size_t>(panel)]; is_kept)
            is_kept = make(panel, group);
  });
  return kept;
}

// Elements of so many bytes to plain rows. Squares of them at a time: both sides of one stay in the
// first cache.
template <typename Element>
void copy_spaced(const Import& of, const SpacedElements& from, std::byte* out) {
  constexpr int64_t kSquare = 32;
  const int64_t row_step =
      of.row_step > 0 ? of.row_step : of.cols * static_cast<int64_t>(sizeof(Element));
  const std::byte* const first = from.first + of.skipped * from.row_step;
  io::parallel_ranges(of.threads, of.rows, kSquare, [&](int64_t begin, int64_t end) {
    for (int64_t top = begin; top < end; top += kSquare)
      for (int64_t left = 0; left < of.cols; left += kSquare)
        for (int64_t row = top; row < std::min(top + kSquare, end); ++row)
          for (int64_t col = left; col < std::min(left + kSquare, of.cols); ++col)
            std::memcpy(out + row * row_step + col * static_cast<int64_t>(sizeof(Element)),
                        first + row * from.row_step + col * from.col_step, sizeof(Element));
  });
}

// False: the elements do not lie so.
bool keep_elements(const Import& of, std::byte* out) {
  if (of.to.is_quantised() || of.to != of.matrix.format) return false;
  const std::optional<SpacedElements> from = of.decoder.elements();
  if (!from) return false;
  if (dtype_bytes(of.to.dtype) == 2)
    copy_spaced<uint16_t>(of, *from, out);
  else
    copy_spaced<uint32_t>(of, *from, out);
  return true;
}

void import_run(const Import& of, const io::PanelQuantiser& quantise, std::span<std::byte> out) {
  if (keep_elements(of, out.data())) return;
  PackedFrom from{of.rows, of.cols, [&](int64_t first, int64_t count, float* rows) {
                    for (int64_t r = 0; r < count; ++r)
                      of.decoder.values(of.skipped + first + r, rows + r * of.cols);
                  }};
  from.panel_step = of.panel_step;
  if (of.to == of.matrix.format) {
    const std::vector<char> kept = keep_words(of, out.data());
    const bool are_all = std::all_of(kept.begin(), kept.end(), [](char one) { return one; });
    if (!kept.empty() && are_all && of.rows % kPanelRows == 0) return;
    from.keep = [&, kept](int64_t first, int64_t count, std::byte* place) {
      const auto panel = static_cast<size_t>(first / kPanelRows);
      return (panel < kept.size() && kept[panel]) ||
             keep_rows(of.matrix, of.decoder, of.skipped + first, count, place) ||
             (of.to.is_quantised() &&
              keep_codes(of.to, of.cols, of.decoder, of.skipped + first, count, place));
    };
  }
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

// What a piece is counted in.
int64_t piece_unit(const ForeignMatrix& matrix) {
  return matrix.cut == ForeignMatrix::Cut::kRows ? kPanelRows : matrix.multiple;
}

// Most bytes of a run of so many rows (columns), wherever it begins: parts begin and end anywhere
// in a block.
int64_t most_bytes_of(const ForeignMatrix& matrix, int64_t count) {
  int64_t bytes = 0;
  for (size_t i = 0; i < matrix.parts.size(); ++i) {
    const int64_t all = matrix.parts[i]->bytes;
    const bool is_cut = matrix.cut != ForeignMatrix::Cut::kWhole && matrix.steps[i].step > 0;
    const int64_t around = 2 * (matrix.multiple - 1);
    bytes +=
        (is_cut
             ? std::min(all, ((count + around) / matrix.steps[i].step + 2) * matrix.steps[i].bytes)
             : all) +
        2 * io::kDirectAlignment;
  }
  return bytes;
}

// Rows (columns) of a piece, at most.
int64_t piece_count(const ForeignMatrix& matrix, int64_t most_bytes) {
  const bool by_rows = matrix.cut == ForeignMatrix::Cut::kRows;
  const int64_t all = by_rows ? matrix.rows : matrix.cols;
  if (matrix.cut == ForeignMatrix::Cut::kWhole) return all;
  double unit_bytes = 0;  // of one
  int64_t fixed = 0;
  for (size_t i = 0; i < matrix.parts.size(); ++i) {
    fixed += 2 * io::kDirectAlignment + (matrix.steps[i].step > 0 ? 0 : matrix.parts[i]->bytes);
    if (matrix.steps[i].step > 0)
      unit_bytes +=
          static_cast<double>(matrix.steps[i].bytes) / static_cast<double>(matrix.steps[i].step);
  }
  const int64_t unit = piece_unit(matrix);
  const auto count = static_cast<int64_t>(static_cast<double>(most_bytes - fixed) / unit_bytes);
  return std::max(count / unit * unit, unit);
}
}  // namespace

int64_t imported_bytes(const ForeignMatrix& matrix, const WeightFormat& to) noexcept {
  return to.bytes(matrix.rows, matrix.cols);
}

void import_matrix(const std::string& name, const ForeignMatrix& matrix, const WeightFormat& to,
                   const io::PanelQuantiser& quantise, int threads, const ForeignBytes& parts,
                   std::span<std::byte> out) {
  const ForeignBytes bytes = matrix.within(parts, matrix.whole());
  const std::unique_ptr<ForeignDecoder> decoder = matrix.decoder(bytes, matrix.whole());
  SLUICE_ASSERT(std::ssize(out) == imported_bytes(matrix, to), "room for the rows");
  import_run({name, matrix, to, *decoder, 0, matrix.rows, matrix.cols, threads}, quantise, out);
}

int64_t imported_row_bytes(const ForeignMatrix& matrix, int64_t rows) noexcept {
  return matrix.format.bytes(rows, matrix.cols);
}

int64_t window_bytes(const ForeignMatrix& matrix, const ForeignRun& run) {
  int64_t bytes = 0;
  for (const auto& [offset, range_bytes] : matrix.ranges(run))
    bytes += io::aligned_window(offset, range_bytes).bytes;
  return bytes;
}

int64_t smallest_piece_bytes(const ForeignMatrix& matrix) {
  return most_bytes_of(matrix, piece_unit(matrix));
}

int64_t most_piece_rows(const ForeignMatrix& matrix, int64_t most_bytes) {
  if (matrix.cut != ForeignMatrix::Cut::kRows) return matrix.rows;
  return std::min(matrix.rows, piece_count(matrix, most_bytes));
}

std::vector<ForeignRun> pieces_of(const ForeignMatrix& matrix, int64_t first, int64_t rows,
                                  int64_t most_bytes) {
  if (matrix.cut == ForeignMatrix::Cut::kWhole) return {matrix.whole()};
  const bool by_rows = matrix.cut == ForeignMatrix::Cut::kRows;
  SLUICE_ASSERT(by_rows || (first == 0 && rows == matrix.rows), "columns are of all rows");
  const int64_t most = piece_count(matrix, most_bytes), unit = piece_unit(matrix);
  const int64_t end = by_rows ? first + rows : matrix.cols;
  std::vector<ForeignRun> out;
  for (int64_t at = by_rows ? first : 0; at < end;) {
    ForeignRun piece = matrix.whole();
    int64_t count = std::min(most, end - at);
    (by_rows ? piece.first_row : piece.first_col) = at;
    int64_t& size = by_rows ? piece.rows : piece.cols;
    for (size = count; count > unit && window_bytes(matrix, matrix.run_of(piece)) > most_bytes;)
      size = count = (count - 1) / unit * unit;
    out.push_back(piece);
    at += count;
  }
  return out;
}

void import_piece(const std::string& name, const ForeignMatrix& matrix, const ForeignRun& piece,
                  const io::PanelQuantiser& quantise, int threads, const ForeignBytes& bytes,
                  std::span<std::byte> out) {
  const ForeignRun run = matrix.run_of(piece);
  const std::unique_ptr<ForeignDecoder> decoder = matrix.decoder(bytes, run);
  const WeightFormat& to = matrix.format;
  Import import{name,       matrix,     to,     *decoder, piece.first_row - run.first_row,
                piece.rows, piece.cols, threads};
  if (matrix.cut == ForeignMatrix::Cut::kColumns) {
    SLUICE_ASSERT(std::ssize(out) == imported_bytes(matrix, to), "room for all columns");
    int64_t place = 0;
    if (to.is_quantised()) {
      import.panel_step = to.panel_bytes(matrix.cols);
      place = piece.first_col / to.group_columns(matrix.cols) *
              (import.panel_step / to.groups(matrix.cols));
    } else {
      import.row_step = matrix.cols * dtype_bytes(to.dtype);
      place = piece.first_col * dtype_bytes(to.dtype);
    }
    out = out.subspan(static_cast<size_t>(place));
  } else {
    SLUICE_ASSERT(std::ssize(out) == imported_row_bytes(matrix, piece.rows), "room for the rows");
  }
  import_run(import, quantise, out);
}

namespace {
// Seconds for a piece of the matrix from its first row on, and bytes that it becomes: as if it were
// all of its columns. Codes are zeros, the rest is the file's.
struct Timed {
  double seconds = 0;
  int64_t made_bytes = 0;
};

Timed time_piece(const BoundModel& model, const ForeignMatrix& matrix, int threads) {
  constexpr int64_t kBytes = 2 << 20;
  using Clock = std::chrono::steady_clock;
  const ForeignRun piece = pieces_of(matrix, 0, matrix.rows, kBytes).front();
  const ForeignRun run = matrix.run_of(piece);
  const std::vector<ForeignMatrix::Range> ranges = matrix.ranges(run);
  std::vector<std::vector<std::byte>> bytes;
  for (size_t i = 0; i < ranges.size(); ++i) {
    bytes.emplace_back(static_cast<size_t>(ranges[i].bytes));
    if (i == 0) continue;
    const auto file = static_cast<size_t>(matrix.parts[i]->file_index);
    io::InputFile(model.checkpoint().files()[file].path)
        .read(ranges[i].offset, bytes.back(), "scales of a weight");
  }
  std::vector<std::byte> made(static_cast<size_t>(matrix.format.bytes(piece.rows, piece.cols)));
  const Clock::time_point started = Clock::now();
  const ForeignBytes parts(bytes.begin(), bytes.end());
  const std::unique_ptr<ForeignDecoder> decoder = matrix.decoder(parts, run);
  import_run({"zeros", matrix, matrix.format, *decoder, piece.first_row - run.first_row, piece.rows,
              piece.cols, threads},
             panel_quantiser(kernels::RangeSearch::kClip), made);
  return {std::chrono::duration<double>(Clock::now() - started).count(), std::ssize(made)};
}
}  // namespace

int packed_repack_threads(int threads) noexcept { return std::max(1, threads / 2); }

double measured_repack_rate(const BoundModel& model, int threads) {
  double seconds = 0, made_bytes = 0;
  const auto& sublayers = model.shape().sublayers;
  int measured = 0;
  for (size_t i = 0; i < sublayers.size() && measured < 2; ++i) {
    bool is_any = false;
    for (size_t w = 0; w < sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = sublayers[i].weights[w];
      const ForeignMatrix* matrix = model.foreign(i, w);
      if (!matrix || weight.kind != WeightKind::kMatrix ||
          matrix->cut == ForeignMatrix::Cut::kWhole)
        continue;
      is_any = true;
      const Timed timed = time_piece(model, *matrix, threads);
      const double all = static_cast<double>(weight.tensors()) *
                         static_cast<double>(imported_bytes(*matrix, matrix->format));
      seconds += all / static_cast<double>(timed.made_bytes) * timed.seconds;
      made_bytes += all;
    }
    measured += is_any;
  }
  return seconds > 0 ? made_bytes / seconds : 0;
}

}  // namespace sluice
