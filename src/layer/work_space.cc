#include "src/layer/work_space.h"

#include <algorithm>
#include <numeric>

#include "src/base/bytes.h"

namespace sluice {

using Kind = Operator::Kind;

namespace {
int64_t place_columns(const LayerProgram& program, size_t slot) {
  return round_up(program.slots[slot], kSlotColumns);
}

template <class Use>
void for_each_view(Operator& op, const Use& use) {
  for (View& in : op.in)
    if (in.slot >= 0) use(in);
  if (op.work.slot >= 0) use(op.work);
  if (op.out.slot >= 0) use(op.out);
}

bool begins_life(const LayerProgram& program, const Operator& op) {
  if (op.out.slot < 0 || op.is_in_place() ||
      op.out.cols < program.slots[static_cast<size_t>(op.out.slot)])
    return false;
  return std::none_of(op.in.begin(), op.in.end(),
                      [&](const View& in) { return in.slot == op.out.slot; });
}

// Places slots one by one, each as near to the beginning as those that live with it leave room.
class Placing {
 public:
  Placing(const LayerProgram& program, const std::vector<SlotLife>& lives)
      : program_(&program), lives_(&lives), places_(program.slots.size(), kNone) {}

  void put(size_t slot) {
    int64_t at = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t other = 0; other < places_.size(); ++other) {
        if (places_[other] == kNone || !(*lives_)[slot].meets((*lives_)[other])) continue;
        const int64_t end = places_[other] + place_columns(*program_, other);
        if (at < end && places_[other] < at + place_columns(*program_, slot)) {
          at = end;
          moved = true;
        }
      }
    }
    places_[slot] = at;
    columns_ = std::max(columns_, at + place_columns(*program_, slot));
  }
  void put(const std::vector<size_t>& slots) {
    for (const size_t slot : slots) put(slot);
  }
  int64_t columns() const noexcept { return columns_; }
  std::vector<int64_t> places() && { return std::move(places_); }

 private:
  static constexpr int64_t kNone = -1;
  const LayerProgram* program_;
  const std::vector<SlotLife>* lives_;
  std::vector<int64_t> places_;
  int64_t columns_ = 0;
};

// What a first norm writes, and the last addition reads.
std::vector<size_t> handed_over(const LayerProgram& program, const std::vector<SlotLife>& lives) {
  std::vector<size_t> out;
  const auto add = [&](const View& view) {
    const auto slot = static_cast<size_t>(view.slot);
    const auto is_in_the_way = [&](size_t other) {
      return other == slot || lives[other].meets(lives[slot]);
    };
    if (std::none_of(out.begin(), out.end(), is_in_the_way)) out.push_back(slot);
  };
  for (const Operator& op : program.operators)
    if (op.kind == Kind::kNormHidden || op.kind == Kind::kReadHidden) add(op.out);
  for (auto op = program.operators.rbegin(); op != program.operators.rend(); ++op)
    if (op->kind == Kind::kAddToHidden) add(op->in[0]);
  return out;
}
}  // namespace

std::vector<SlotLife> slot_lives(const LayerProgram& program) {
  std::vector<SlotLife> lives(program.slots.size());
  for (size_t i = 0; i < program.operators.size(); ++i) {
    Operator op = program.operators[i];
    for_each_view(op, [&](View& view) {
      SlotLife& life = lives[static_cast<size_t>(view.slot)];
      if (life.first < 0) life.first = static_cast<int32_t>(i);
      life.last = static_cast<int32_t>(i);
    });
  }
  return lives;
}

int64_t most_live_columns(const LayerProgram& program) {
  const std::vector<SlotLife> lives = slot_lives(program);
  int64_t most = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(program.operators.size()); ++i) {
    int64_t live = 0;
    for (size_t slot = 0; slot < lives.size(); ++slot)
      if (lives[slot].meets({i, i})) live += place_columns(program, slot);
    most = std::max(most, live);
  }
  return most;
}

void split_slots(LayerProgram& program) {
  std::vector<int64_t> slots;
  std::vector<int32_t> now(program.slots.size(), -1);  // which new slot an old one is
  for (Operator& op : program.operators) {
    const bool begins = begins_life(program, op);
    for_each_view(op, [&](View& view) {
      int32_t& slot = now[static_cast<size_t>(view.slot)];
      if (slot < 0 || (begins && &view == &op.out)) {
        slots.push_back(program.slots[static_cast<size_t>(view.slot)]);
        slot = static_cast<int32_t>(slots.size()) - 1;
      }
    });
    for_each_view(op, [&](View& view) { view.slot = now[static_cast<size_t>(view.slot)]; });
  }
  program.slots = std::move(slots);
}

void place_slots(LayerProgram& program) {
  const std::vector<SlotLife> lives = slot_lives(program);
  Placing begun(program, lives);
  const std::vector<size_t> first = handed_over(program, lives);
  begun.put(first);
  std::vector<size_t> rest;
  for (size_t slot = 0; slot < program.slots.size(); ++slot)
    if (std::find(first.begin(), first.end(), slot) == first.end()) rest.push_back(slot);
  Placing best = begun;
  best.put(rest);
  const auto try_order = [&] {
    Placing other = begun;
    other.put(rest);
    if (other.columns() < best.columns()) best = other;
  };
  const int64_t least = most_live_columns(program);
  std::stable_sort(rest.begin(), rest.end(),
                   [&](size_t a, size_t b) { return program.slots[a] > program.slots[b]; });
  try_order();
  std::sort(rest.begin(), rest.end());
  if (rest.size() <= kTriedSlots)
    while (best.columns() > least && std::next_permutation(rest.begin(), rest.end())) try_order();
  program.places = std::move(best).places();
}

}  // namespace sluice
