#pragma once
// Why no policy fits, and the smallest change that would.
#include "policy/search.h"

namespace sluice::policy {

/// Throws kResource: the tier that is short, by how much, and the least budget (verified by
/// planning again with it) or the shorter context that fits. Errors: that one.
[[noreturn]] void explain_infeasible(const SearchRequest& request);

}  // namespace sluice::policy
