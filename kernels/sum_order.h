#pragma once
// In what order kernels add a row's products up, and whether the other rows have a say in it.
#include <cstdint>

namespace sluice::kernels {

enum class SumOrder : uint8_t {
  kFastest,  ///< of whichever kernel is fastest for so many rows: their number moves roundings
  /// The same for any number of rows: what comes of a row is the same bits beside any others, and
  /// on any number of threads. On the CPU.
  kByRow
};

}  // namespace sluice::kernels
