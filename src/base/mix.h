#pragma once
// Bits of an index and a key that look random, for weights and routing that are made up.
#include <cstdint>

namespace sluice {

/// A bijection with good avalanche (multiply, xor-shift).
constexpr uint32_t mix(uint32_t x) noexcept {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

}  // namespace sluice
