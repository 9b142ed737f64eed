#include "src/layer/layer_program.h"

#include <numeric>
#include <tuple>

namespace sluice {

bool Operator::operator==(const Operator& other) const noexcept {
  const auto plain = [](const Operator& one) {
    return std::tie(one.kind, one.out, one.in, one.weight, one.bias, one.norm, one.activation,
                    one.eps, one.offset, one.heads, one.factor);
  };
  return plain(*this) == plain(other) && frequencies.data() == other.frequencies.data() &&
         frequencies.size() == other.frequencies.size();
}

int64_t LayerProgram::columns() const noexcept {
  return std::accumulate(slots.begin(), slots.end(), int64_t{0});
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
