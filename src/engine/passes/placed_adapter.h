#pragma once
// A low-rank adapter where the engine computes with it: what it adds to which weight of the model.
// Immutable. Shared by the bank that knows it by name, requests and sequences: its memory is free
// again when the last of them lets go (src/engine/stores/adapter_bank.h).
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/low_rank.h"

namespace sluice {

struct PlacedAdapter {
  std::string name;
  /// Of no other adapter that this engine has ever had, those of the same name too; above 0. What
  /// is computed with one id is never taken for what is computed with another.
  int64_t id = 0;
  int64_t bytes = 0;  ///< of the bank's memory
  int64_t rank = 0;   ///< the largest
  /// [sublayer][weight]; rank 0: nothing is added. Empty: to none of the sublayer.
  std::vector<std::vector<kernels::LowRank>> changes;
  /// The same of all weights, sublayer by sublayer, where what computes with it reads it.
  const kernels::LowRank* table = nullptr;
  std::vector<int64_t> before;   ///< [sublayer] how many of the table are of those before it
  std::shared_ptr<void> memory;  ///< that these point into

  /// Null: nothing is added to that weight.
  const kernels::LowRank* find(size_t sublayer, size_t weight) const noexcept {
    const auto& of = changes[sublayer];
    return of.empty() || of[weight].rank == 0 ? nullptr : &of[weight];
  }
};
using AdapterPtr = std::shared_ptr<const PlacedAdapter>;

/// 0 for none.
inline int64_t adapter_id(const AdapterPtr& adapter) noexcept { return adapter ? adapter->id : 0; }

}  // namespace sluice
