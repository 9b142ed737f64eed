#pragma once
// Plain types that kernels, the driver and the host's stand-in share.
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace sluice::cuda {

/// A stream of the driver (driver.h); null is the default one.
struct StreamTag;
using Stream = StreamTag*;

/// Blocks of a launch.
struct Grid {
  int x = 1;
  int y = 1;
  int z = 1;
};

constexpr int kWarp = 32;

/// A template's argument as a value: what generic lambdas take to choose a kernel.
template <auto kValue>
using Constant = std::integral_constant<decltype(kValue), kValue>;

/// 8 and 16 bytes that one instruction loads.
struct alignas(8) Words2 {
  uint32_t word[2];
};

/// 16 bytes that are loaded at once.
struct alignas(16) Words4 {
  uint32_t word[4];
};

}  // namespace sluice::cuda
