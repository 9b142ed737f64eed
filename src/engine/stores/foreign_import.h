#pragma once
// Matrices that other tools have packed, as a packed store and the resident weights of a run keep
// them.
#include "io/convert/convert.h"
#include "src/model/bound_model.h"
#include "src/model/foreign/foreign.h"

namespace sluice {

/// Bytes of the matrix as `to`.
int64_t imported_bytes(const ForeignMatrix& matrix, const WeightFormat& to) noexcept;

/// The matrix as `to` into `out`, imported_bytes() of them. Where `to` is matrix.format its codes
/// are kept; elsewhere, and where codes do not fit, its values are converted or quantised anew.
/// Uses several threads (0: all). Errors: kFile naming `name` when a value can't be stored.
void import_matrix(const std::string& name, const ForeignMatrix& matrix, const WeightFormat& to,
                   const io::PanelQuantiser& quantise, int threads, const ForeignBytes& parts,
                   std::span<std::byte> out);

/// Bytes of `rows` rows as matrix.format, from a panel's first on.
int64_t imported_row_bytes(const ForeignMatrix& matrix, int64_t rows) noexcept;

/// Bytes of whole blocks of its files that are read for a run.
int64_t window_bytes(const ForeignMatrix& matrix, const ForeignRun& run);

/// The pieces that rows [first, first + rows) come in, each read by itself: whole panels, or of a
/// matrix that is cut by columns whole groups of all of its rows. No piece takes more than
/// `most_bytes` of window_bytes(), but one that can't be less.
std::vector<ForeignRun> pieces_of(const ForeignMatrix& matrix, int64_t first, int64_t rows,
                                  int64_t most_bytes);

/// Bytes that the smallest piece takes, wherever it lies; the whole matrix where it is not cut.
int64_t smallest_piece_bytes(const ForeignMatrix& matrix);
/// Rows of a piece, at most.
int64_t most_piece_rows(const ForeignMatrix& matrix, int64_t most_bytes);

/// A piece as matrix.format into `out`: imported_row_bytes() of its rows or, of columns, those of
/// the whole matrix, of which the piece's groups are written. `bytes`: matrix.ranges() of
/// matrix.run_of() the piece. Errors as import_matrix().
void import_piece(const std::string& name, const ForeignMatrix& matrix, const ForeignRun& piece,
                  const io::PanelQuantiser& quantise, int threads, const ForeignBytes& bytes,
                  std::span<std::byte> out);

/// Threads that repack rows as they arrive, of so many that compute.
int packed_repack_threads(int threads) noexcept;

/// Bytes a second that the model's matrices become with so many threads: timed on pieces of codes
/// that are zeros, of the first sublayers with any, some milliseconds. 0: nothing comes in pieces.
double measured_repack_rate(const BoundModel& model, int threads);

}  // namespace sluice
