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

/// What a random number is for: numbers of one seed and position differ by it.
enum class Draw : uint32_t {
  kToken = 0,
  kExclusion = 0x0C7C  ///< whether XTC excludes; any number but that of derive_seed()
};

/// Uniform in [0, 1) with 53 random bits; independent over all arguments.
double uniform(uint64_t seed, uint64_t position, Draw draw = Draw::kToken) noexcept;

}  // namespace sluice::sampling
