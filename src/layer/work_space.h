#pragma once
// Where a program's slots lie in a row of work space: slots whose lives do not meet share columns.
#include <vector>

#include "src/layer/layer_program.h"

namespace sluice {

/// Columns that a slot's place and width are multiples of: a line of 64 bytes, however many rows
/// there are.
constexpr int64_t kSlotColumns = 16;

/// Operators [first, last] of the program: from the first that writes a slot to the last that reads
/// it. An operator's inputs and output live together.
struct SlotLife {
  int32_t first = -1;
  int32_t last = -1;

  bool meets(const SlotLife& other) const noexcept {
    return first <= other.last && other.first <= last;
  }
};
/// [slot], from its first writer to its last reader.
std::vector<SlotLife> slot_lives(const LayerProgram& program);
/// The widest sum of slots that live at one operator, each as wide as its place: no placing needs
/// less.
int64_t most_live_columns(const LayerProgram& program);

/// A slot that is written whole without being read begins a new life: it becomes a slot of its own.
/// Slots that nothing uses go.
void split_slots(LayerProgram& program);

/// Gives every slot its place (LayerProgram::places). What a first norm writes and what a last
/// addition to the residual stream reads lie at the beginning: so a runner may put off the addition
/// until the next sublayer's norm. For up to kTriedSlots of the others the narrowest of all
/// placings; for more, of two.
void place_slots(LayerProgram& program);
constexpr size_t kTriedSlots = 6;

}  // namespace sluice
