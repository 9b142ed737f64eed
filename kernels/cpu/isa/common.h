#pragma once
// What the headers of all instruction sets share: single values, and what compilers say
// differently. Everything in isa/, generic/ and the folders of single instruction sets is in an
// unnamed namespace, since each of those variant_*.cc that include it has flags of its own: the
// linker must not take the copy of one file for another's.
#include <cstddef>
#include <cstdint>

#include "src/base/dtype.h"

namespace sluice::kernels {
namespace {

// Asks for a cache line that is needed soon: in the first level of cache where that takes many
// misses at once (kernels/cpu/isa.h), in the second elsewhere. (The compiler takes a function that
// only prefetches for one without effects, and its calls away.)
[[gnu::always_inline]] inline void fetch_line_at(const void* line, bool first_level) {
  if (first_level)
    __builtin_prefetch(line, 0, 3);
  else
    __builtin_prefetch(line, 0, 2);
}

// Single values at any address: scalar_f32, scalar_bf16 and scalar_f16 as f32, load_word 32 bits.
inline float scalar_f32(const void* p) {
  float value;
  __builtin_memcpy(&value, p, 4);
  return value;
}

inline float scalar_bf16(const void* p) {
  uint16_t bits;
  __builtin_memcpy(&bits, p, 2);
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  __builtin_memcpy(&value, &wide, 4);
  return value;
}

inline float scalar_f16(const void* p) {
  uint16_t bits;
  __builtin_memcpy(&bits, p, 2);
  return f16_to_f32(bits);
}

inline int32_t load_word(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return word;
}

// The elements of a vector in another order.
template <typename Values, typename Order>
inline Values shuffled(Values values, Order order) {
#if defined(__clang__)
  Values out;
  for (size_t i = 0; i < sizeof values / sizeof values[0]; ++i) out[i] = values[order[i]];
  return out;
#else
  return __builtin_shuffle(values, order);
#endif
}

// For e^x (generic/vector.h): where it counts as 0, and what rounds to the nearest whole number
// when it is added, 1.5 * 2^23.
constexpr float kLowestExponent = -87;
constexpr float kToWhole = 12582912;

}  // namespace
}  // namespace sluice::kernels
