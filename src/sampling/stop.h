#pragma once
// Finds stop strings in text that arrives in pieces. Text that may be the beginning of a stop
// string is held back until it is decided, so no part of the stop string that ends the output is
// ever given out. Works on bytes: valid UTF-8 stop strings match whole characters only. The outcome
// does not depend on how the text was cut. Used by one sequence.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::sampling {

/// Watches a text for stop strings as it grows.
class StopMatcher {
 public:
  struct Outcome {
    std::string emit;      // text that is decided now
    bool stopped = false;  // a stop string is complete; later pieces give nothing
    int which = -1;        // its index in the list
  };

  /// `stops`: none empty (validate() checks); an empty list never stops and holds nothing back.
  explicit StopMatcher(const std::vector<std::string>& stops);

  /// Takes the next piece. The stop string that ends first wins; of those that end together, the
  /// longest.
  Outcome push(std::string_view piece);

  /// The end of the text: what was held back, which no stop string will claim any more.
  std::string flush();

  bool stopped() const noexcept { return which_ >= 0; }
  /// Index of the stop string that was found, or -1.
  int which() const noexcept { return which_; }
  /// Text held back now.
  std::string_view held() const noexcept { return held_; }

 private:
  // A node of the automaton (Aho and Corasick, 1975): the text read so far ends with the node's
  // path, and no longer ending of it begins a stop string.
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> children;
    int32_t shorter = 0;  // node of the longest proper ending that begins a stop string
    int32_t depth = 0;    // bytes of the path
    int32_t found = -1;   // stop string that ends here, the longest; -1 none
  };

  int32_t child(int32_t node, unsigned char byte) const noexcept;
  void insert(std::string_view stop, int32_t index);
  void link();

  std::vector<Node> nodes_;
  std::vector<int32_t> stop_bytes_;  // length of each stop string
  int32_t node_ = 0;
  std::string held_;
  int which_ = -1;
};

}  // namespace sluice::sampling
