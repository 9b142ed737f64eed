#pragma once
// Which weights of a model an adapter changes, and what has to be in memory for it. Reads nothing
// of the model but its shape.
#include <vector>

#include "src/lora/adapter.h"
#include "src/model/bound_model.h"

namespace sluice {

/// Rows [first_row, first_row + the weight's) of one of the adapter's matrices change a weight.
struct AdapterPlace {
  const LoraMatrix* matrix = nullptr;
  size_t sublayer = 0;
  size_t weight = 0;
  int64_t first_row = 0;  ///< of the matrix: more than 0 where the weight is a part of it

  /// Elements as they are kept: DoRA's B is multiplied by factors, which f32 holds.
  DType dtype() const noexcept { return matrix->magnitude.empty() ? matrix->dtype : DType::kF32; }
};

/// Of every matrix of the adapter, by sublayer and weight. Errors: kUser naming what the adapter
/// changes and the model has not, or has in another shape, or what can only be merged: experts,
/// matrices that are multiplied head by head, whole tensors (modules_to_save).
std::vector<AdapterPlace> adapter_places(const BoundModel& model, const LoraAdapter& adapter);

/// Bytes of memory that the adapter takes while it may be used, and its largest rank. Errors as
/// adapter_places().
struct AdapterNeed {
  int64_t bytes = 0;
  int64_t rank = 0;
};
AdapterNeed adapter_need(const BoundModel& model, const LoraAdapter& adapter);
/// Bytes that each part of it is aligned to.
constexpr int64_t kAdapterLine = 64;
/// Of one place, as an AdapterBank lays it out; of PlacedAdapter::table.
int64_t place_bytes(const ModelShape& model, const AdapterPlace& place) noexcept;
int64_t adapter_table_bytes(const ModelShape& model) noexcept;

}  // namespace sluice
