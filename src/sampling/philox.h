#pragma once
// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw (SC 2011): a pure
// function from (key, counter) to 128 random bits. No state, so any position of any sequence can be
// drawn at any time, on any thread.
#include <array>
#include <cstdint>

namespace sluice::sampling {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

/// Ten rounds.
PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) noexcept;

/// Uniform in [0, 1) with 53 random bits; independent over both arguments.
double uniform(uint64_t seed, uint64_t position) noexcept;

}  // namespace sluice::sampling
