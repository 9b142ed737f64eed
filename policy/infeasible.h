#pragma once
// Why no policy fits, and the smallest change that would.
#include <optional>

#include "policy/search.h"

namespace sluice::policy {

/// The fastest-looking of the least blocks that fit, as far as the constraints leave it: weights
/// and KV as high as they go whole. For where a search finds nothing; nothing: there is none.
std::optional<Policy> least_that_fits(const SearchRequest& request);

/// Throws kResource: the tier that is short, by how much, and the least budget (verified by
/// planning again with it) or the shorter context that fits. Errors: that one.
[[noreturn]] void explain_infeasible(const SearchRequest& request);

}  // namespace sluice::policy
