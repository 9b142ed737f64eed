#pragma once
// JSON from strangers: bounded in depth, in values and in keys of an object, in time by its length;
// no key twice in an object (whichever of its values were taken, the other would be lost in
// silence). Internal to jobs and the server.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace sluice::jobs {

constexpr int64_t kMostKeys = 4096;  ///< of an object; lookups in ordered ones go through all

/// `what` is what messages call the text ("the line"). Json: nlohmann::json or ordered_json (which
/// keeps the order of keys). Throws Refusal (request_fields.h).
template <typename Json>
Json parse_bounded(std::string_view text, int most_depth, const char* what);

}  // namespace sluice::jobs
