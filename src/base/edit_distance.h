#pragma once
// How far two names are from each other, for errors that propose a known name. Thread safe.
#include <cstddef>
#include <string_view>

namespace sluice {

/// Bytes to add, take away or change to make one text of the other (Levenshtein, 1966).
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace sluice
