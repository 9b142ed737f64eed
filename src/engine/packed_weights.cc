#include "src/engine/packed_weights.h"

#include <algorithm>

#include "src/base/bytes.h"
#include "src/engine/stores/foreign_import.h"

namespace sluice {

namespace {
bool comes_in_pieces(const ForeignMatrix& matrix) {
  return matrix.cut != ForeignMatrix::Cut::kWhole;
}

// Of a piece: of a wide matrix some columns may be more than is usual.
int64_t most_arrival_bytes(const BoundModel& model) {
  int64_t most = policy::kArrivalBytes;
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i)
    for (size_t w = 0; w < model.shape().sublayers[i].weights.size(); ++w)
      if (const ForeignMatrix* matrix = model.foreign(i, w); matrix && comes_in_pieces(*matrix))
        most = std::max(most, round_up(smallest_piece_bytes(*matrix), policy::kDiskBlock));
  return most;
}

// Bytes that are read for some rows; of several parts with what is read around each.
int64_t arriving_bytes(const ForeignMatrix& matrix, int64_t row, int64_t rows) {
  const int64_t parts = std::ssize(matrix.parts);
  return matrix.bytes(matrix.run_of({row, rows, 0, matrix.cols})) +
         (parts > 1 ? 2 * parts * policy::kDiskBlock : 0);
}

// PlanInput's: of experts' matrices for whole ones or for some rows of one, all of one type.
int64_t packed_bytes(const BoundModel& model, size_t sublayer, size_t weight, int64_t row,
                     int64_t rows) {
  const ForeignMatrix* matrix = model.foreign(sublayer, weight);
  if (!matrix) return 0;
  const int64_t of_one = model.shape().sublayers[sublayer].weights[weight].expert_rows();
  const bool is_whole = row % of_one == 0 && rows % of_one == 0;
  if (!comes_in_pieces(*matrix) || (matrix->cut == ForeignMatrix::Cut::kColumns && !is_whole))
    return -1;
  if (rows % of_one > 0) return arriving_bytes(*matrix, row % of_one, rows);
  return rows / of_one * arriving_bytes(*matrix, 0, of_one);
}
}  // namespace

// Whether every matrix comes in pieces, but those that are multiplied head by head: a model of
// which only these can't keeps these in memory.
bool streams_as_it_lies(const BoundModel& model) {
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i)
    for (size_t w = 0; w < model.shape().sublayers[i].weights.size(); ++w)
      if (const ForeignMatrix* matrix = model.foreign(i, w);
          matrix && model.shape().sublayers[i].weights[w].kind != WeightKind::kVector &&
          !model.shape().sublayers[i].weights[w].is_by_head && !comes_in_pieces(*matrix))
        return false;
  return true;
}

void set_packed_weights(const BoundModel& model, int threads, policy::PlanInput& input) {
  if (model.foreign_method().empty()) return;
  input.disk_reaches_device = false;
  if (!streams_as_it_lies(model)) {
    input.has_disk = false;
    return;
  }
  input.packed_bytes = [&model](size_t sublayer, size_t weight, int64_t row, int64_t rows) {
    return packed_bytes(model, sublayer, weight, row, rows);
  };
  input.arrival_bytes = most_arrival_bytes(model);
  const int repacking = packed_repack_threads(threads);
  input.repacked_bytes_per_second = measured_repack_rate(model, repacking);
  input.repack_core_share = static_cast<double>(repacking) / threads;
}

}  // namespace sluice
