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

/// Rows [first, first + rows) as matrix.format into `out`, imported_row_bytes() of them; `first` at
/// a panel. `bytes` are those of matrix.run_of() the rows. Errors as import_matrix().
void import_rows(const std::string& name, const ForeignMatrix& matrix, int64_t first, int64_t rows,
                 const io::PanelQuantiser& quantise, int threads, std::span<const std::byte> bytes,
                 std::span<std::byte> out);

/// Threads that repack rows as they arrive, of so many that compute.
int packed_repack_threads(int threads) noexcept;

/// Bytes a second that rows of the model's matrices become with so many threads: timed on rows of
/// zeros of the first sublayers with any, some milliseconds. 0: nothing is repacked by rows.
double measured_repack_rate(const BoundModel& model, int threads);

}  // namespace sluice
