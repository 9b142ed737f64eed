#pragma once
// What a search for a policy goes through: sizes of blocks, and ways to load experts. Pure.
#include <cstdint>
#include <vector>

#include "policy/search.h"

namespace sluice::policy {

/// 1, 2, 3, 4, 6, 8, 12, ... up to `most`, and `most`.
std::vector<int64_t> counts_up_to(int64_t most);

/// Block sizes that split the job evenly over rounds, where no round is nearly empty, and sizes
/// apart by powers of two.
std::vector<int64_t> even_blocks(int64_t sequences, int64_t most);

/// Policy::demand_tokens that are worth trying, best guess first.
std::vector<int64_t> demands_of(const SearchRequest& request);

}  // namespace sluice::policy
