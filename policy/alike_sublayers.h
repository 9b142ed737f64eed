#pragma once
// Which sublayers of a plan cost the same, so that the cost model and the simulator ask for each
// kind of them once.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/shape/model_shape.h"

namespace sluice::policy {

/// [sublayer][weight] rows that the CPU multiplies in place.
using InplaceRows = std::vector<std::vector<int64_t>>;

/// In passes of one class.
struct AlikeSublayers {
  struct Distinct {
    size_t sublayer;  ///< the first of them
    double count;     ///< with it
  };
  std::vector<Distinct> distinct;  ///< by rising sublayer
  std::vector<size_t> kind;        ///< [sublayer] a place in `distinct`: its tasks cost the same
};

/// [sublayer] the first one of its kind, with weights of the same shapes and formats.
std::vector<size_t> shaped_alike(const ModelShape& model);

/// Of those shaped alike, the ones with as many rows in place. `shapes`: shaped_alike().
AlikeSublayers alike_sublayers(std::span<const size_t> shapes, const InplaceRows& inplace);

}  // namespace sluice::policy
