#pragma once
// Reads a grammar byte by byte. A state is the set of all points that the network may be at, each
// with the calls that it has to return to; sets are numbered as they are met, and where each byte
// leads from them is remembered, so that what was read once costs one look. One thread.
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "src/guide/grammar.h"

namespace sluice::guide {

class Automaton {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;  ///< no text goes on from here

  /// Errors: kUser when a rule calls itself before it has read anything.
  explicit Automaton(Grammar::Network network);

  State start() const noexcept { return start_; }
  /// Where `byte` leads. Errors: kUser when the grammar has led to more than 60 000 states.
  State after(State state, uint8_t byte);
  /// Whether the text may end here.
  bool is_accepting(State state) const noexcept { return at(state).is_accepting; }
  /// Whether nothing may follow.
  bool is_final(State state) const noexcept { return at(state).points.empty(); }
  size_t states() const noexcept { return states_.size(); }

 private:
  // A node and the calls it returns to, a chain in calls_; 0: none.
  struct Point {
    int32_t node = 0;
    int32_t calls = 0;
    auto operator<=>(const Point&) const = default;
  };
  struct Call {
    int32_t node = 0;  // to go on with
    int32_t outer = 0;
    int32_t depth = 0;
  };
  struct Set {
    std::vector<Point> points;  // at nodes that read, rising
    bool is_accepting = false;
    std::unique_ptr<std::vector<State>> next;  // by byte; kUnknown where not looked at
  };

  const Set& at(State state) const { return *states_[static_cast<size_t>(state)]; }
  State intern(std::vector<Point> from);
  int32_t push(int32_t node, int32_t outer);

  std::vector<Node> nodes_;
  std::vector<Call> calls_{{}};
  std::map<std::pair<int32_t, int32_t>, int32_t> call_ids_;
  std::vector<std::unique_ptr<Set>> states_;
  std::map<std::pair<bool, std::vector<Point>>, State> ids_;
  State start_ = 0;
};

}  // namespace sluice::guide
