#pragma once
// Matrices that other tools have packed, as a packed store keeps them.
#include "io/convert/convert.h"
#include "src/model/foreign/foreign.h"

namespace sluice::app {

/// The matrix's bytes as `to`. Where that is matrix.format its codes are kept; elsewhere, and where
/// codes do not fit, its values are converted or quantised anew. Uses several threads (0: all).
/// Errors: kFile naming `name` when a value can't be stored.
std::vector<std::byte> import_matrix(const std::string& name, const ForeignMatrix& matrix,
                                     const WeightFormat& to, const io::PanelQuantiser& quantise,
                                     int threads, const ForeignBytes& parts);

}  // namespace sluice::app
