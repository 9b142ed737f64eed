#include "tools/nearest.h"

#include <algorithm>
#include <utility>

namespace sluice::tools {

size_t edit_distance(const std::string& a, const std::string& b) {
  // Rows of the table of distances between beginnings of the words: the last three.
  std::vector<size_t> before_last, last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before_last[j - 2] + 1);
    }
    before_last = std::exchange(last, now);
  }
  return last[b.size()];
}

std::optional<std::string> nearest(const std::string& word,
                                   const std::vector<std::string>& candidates) {
  std::optional<std::string> found;
  size_t least = std::max<size_t>(word.size() / 3, 1) + 1;
  for (const std::string& candidate : candidates)
    if (const size_t distance = edit_distance(word, candidate); distance < least) {
      least = distance;
      found = candidate;
    }
  return found;
}

}  // namespace sluice::tools
