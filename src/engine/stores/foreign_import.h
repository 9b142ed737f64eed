#pragma once
// Matrices that other tools have packed, as a packed store and the resident weights of a run keep
// them.
#include "io/convert/convert.h"
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

}  // namespace sluice
