#include "src/layer/layer_program.h"

#include <algorithm>
#include <tuple>

#include "src/base/bytes.h"
#include "src/layer/work_space.h"

namespace sluice {

bool overlap(const View& a, const View& b) noexcept {
  return a.slot >= 0 && a.slot == b.slot && a.begin < b.begin + b.cols &&
         b.begin < a.begin + a.cols;
}

bool covers(const View& outer, const View& inner) noexcept {
  return outer.slot >= 0 && outer.slot == inner.slot && outer.begin <= inner.begin &&
         inner.begin + inner.cols <= outer.begin + outer.cols;
}

bool Operator::is_in_place() const noexcept {
  return kind == Kind::kNorm || kind == Kind::kNormHeads || kind == Kind::kAdd ||
         kind == Kind::kRope || kind == Kind::kActivate || kind == Kind::kScale ||
         kind == Kind::kScaleByPosition || kind == Kind::kClamp || kind == Kind::kTimeSteps ||
         kind == Kind::kScaleColumns || kind == Kind::kAddWeighted;
}

bool AttendSpec::operator==(const AttendSpec& other) const noexcept {
  return scale == other.scale && soft_cap == other.soft_cap &&
         slopes.data() == other.slopes.data() && slopes.size() == other.slopes.size();
}

bool Operator::operator==(const Operator& other) const noexcept {
  const auto plain = [](const Operator& one) {
    return std::tie(one.kind, one.out, one.in, one.weight, one.bias, one.norm, one.activation,
                    one.eps, one.offset, one.heads, one.rope, one.attend, one.factor, one.router,
                    one.up, one.down, one.down_bias, one.clamp, one.work, one.narrow_for,
                    one.codes_for, one.narrow, one.codes, one.weighs_inputs, one.shift, one.low,
                    one.high);
  };
  return plain(*this) == plain(other) && frequencies.data() == other.frequencies.data() &&
         frequencies.size() == other.frequencies.size();
}

int64_t LayerProgram::columns() const noexcept {
  int64_t columns = 0;
  for (size_t slot = 0; slot < slots.size(); ++slot)
    columns = std::max(columns, places[slot] + slots[slot]);
  return round_up(columns, kSlotColumns);
}

const Operator* LayerProgram::experts() const noexcept {
  const auto found = std::find_if(operators.begin(), operators.end(), [](const Operator& op) {
    return op.kind == Operator::Kind::kExperts;
  });
  return found == operators.end() ? nullptr : &*found;
}

std::span<const Operator> LayerProgram::before_experts() const noexcept {
  const Operator* found = experts();
  return found ? std::span(operators.data(), found) : std::span(operators);
}

std::span<const Operator> LayerProgram::after_experts() const noexcept {
  const Operator* found = experts();
  if (!found) return {};
  return {found + 1, operators.data() + operators.size()};
}

std::span<const Operator> LayerProgram::before_cut() const noexcept {
  const std::span<const Operator> all = operators;
  return cut < 0 ? all : all.first(static_cast<size_t>(cut) + 1);
}

std::span<const Operator> LayerProgram::after_cut() const noexcept {
  const std::span<const Operator> all = operators;
  return cut < 0 ? all.last(0) : all.subspan(static_cast<size_t>(cut));
}

}  // namespace sluice
