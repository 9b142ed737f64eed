#pragma once
// A matrix whose rows are made as they are asked for, as a packed store keeps it. No more than a
// panel a thread is in f32.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "io/convert/convert.h"
#include "src/base/weight_format.h"

namespace sluice {

/// How pack_rows gets what it packs; both are called from several threads.
struct PackedFrom {
  int64_t rows = 0;
  int64_t cols = 0;
  /// Rows [first, first + count) as f32 [count, cols]; at most WeightFormat::kPanelRows.
  std::function<void(int64_t first, int64_t count, float* rows)> values;
  /// Fills the panel of these rows, or puts the plain rows there, from what lies there already;
  /// false: it can't, so values() are quantised or converted. May be empty.
  std::function<bool(int64_t first, int64_t count, std::byte* place)> keep = nullptr;
  int64_t panel_step = 0;  ///< bytes from a panel to the next; 0: they lie together
};

/// The matrix as `to` into `out`, to.bytes() of it or plain elements. Uses several threads (0:
/// all). False: a value can't be stored as `to`.
bool pack_rows(const PackedFrom& from, const WeightFormat& to, const io::PanelQuantiser& quantise,
               int threads, std::span<std::byte> out);

}  // namespace sluice
