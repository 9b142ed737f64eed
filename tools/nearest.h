#pragma once
// Which known word somebody meant who typed another one.
#include <optional>
#include <string>
#include <vector>

namespace sluice::tools {

/// Letters to change, add, leave out or swap with their neighbour to make `b` of `a`.
size_t edit_distance(const std::string& a, const std::string& b);
/// The candidate fewest letters away, where that is at most a third of the word (and at least one);
/// nothing where none is near. Among equals the first.
std::optional<std::string> nearest(const std::string& word,
                                   const std::vector<std::string>& candidates);

}  // namespace sluice::tools
