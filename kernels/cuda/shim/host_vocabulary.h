#pragma once
// The vocabulary on the host: each word acts on the fiber that runs (host_grid.h), with the meaning
// the PTX manual gives it. Included by vocabulary.h only.
#include <bit>
#include <cmath>
#include <functional>
#include <utility>

#include "kernels/cuda/shim/host_grid.h"
#include "src/base/dtype.h"

#define SLUICE_KERNEL(threads) void
#define SLUICE_KERNEL_OF_BLOCKS(threads, blocks) void
#define SLUICE_DEVICE inline
#define SLUICE_BOTH inline
#define SLUICE_UNROLL

namespace sluice::cuda {

template <class Facts>
void state_budget() {
  static_assert(Facts::kSharedBytes >= 0 && Facts::kTurnBytes > 0 && Facts::kAheadBytes > 0 &&
                Facts::kPlannedBlocks > 0);
}

/// Throws Error(kDevice) when an earlier call left an error with this thread, as the launch of a
/// GPU's kernel would; `kernel` is its name.
void check_launch(const char* kernel);

inline int thread_index() { return host::thread().index; }
inline int block_threads() { return host::thread().block->threads; }
inline int block_x() { return host::thread().block->x; }
inline int block_y() { return host::thread().block->y; }
inline int block_z() { return host::thread().block->z; }
inline int grid_x() { return host::thread().block->grid_x; }
inline int grid_y() { return host::thread().block->grid_y; }
inline std::byte* shared_memory() { return host::thread().block->shared; }

inline void block_sync(host::Place place = host::Place::here()) { host::block_barrier(place); }
inline void warp_sync(host::Place place = host::Place::here()) { host::warp_sync(place); }
inline float shuffle(float value, int lane, host::Place place = host::Place::here()) {
  return std::bit_cast<float>(host::shuffle(std::bit_cast<uint32_t>(value), lane, place));
}
inline int shuffle(int value, int lane, host::Place place = host::Place::here()) {
  return std::bit_cast<int>(host::shuffle(std::bit_cast<uint32_t>(value), lane, place));
}
inline float shuffle_xor(float value, int mask, host::Place place = host::Place::here()) {
  return shuffle(value, (thread_index() ^ mask) % kWarp, place);
}
inline int shuffle_xor(int value, int mask, host::Place place = host::Place::here()) {
  return shuffle(value, (thread_index() ^ mask) % kWarp, place);
}
inline uint32_t ballot(bool value, host::Place place = host::Place::here()) {
  return host::ballot(value, place);
}

inline uint32_t count_up(uint32_t* counter) { return host::count_up(counter); }
inline uint32_t add_shared(uint32_t* word, uint32_t value) {
  return std::exchange(*word, *word + value);
}

inline void copy_async16(void* shared, const void* global, bool is_valid) {
  host::copy_async(shared, global, is_valid);
}
inline void copy_async16_if(bool is_wanted, void* shared, const void* global, bool is_valid) {
  if (is_wanted) copy_async16(shared, global, is_valid);
}
inline void copy_async_commit() { host::copy_async_commit(); }
template <int kGroupsLeft>
void copy_async_wait() {
  host::copy_async_wait(kGroupsLeft);
}

inline void load_matrix_x4(uint32_t (&out)[4], const void* row,
                           host::Place place = host::Place::here()) {
  host::load_matrix_x4(out, row, false, place);
}
inline void load_matrix_x4_transposed(uint32_t (&out)[4], const void* row,
                                      host::Place place = host::Place::here()) {
  host::load_matrix_x4(out, row, true, place);
}
inline void mma_16x8x16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                            host::Place place = host::Place::here()) {
  host::mma_16x8x16(d, a, b, DType::kF16, place);
}
inline void mma_16x8x16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             host::Place place = host::Place::here()) {
  host::mma_16x8x16(d, a, b, DType::kBF16, place);
}
inline void mma_16x8x32_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                           host::Place place = host::Place::here()) {
  host::mma_16x8x32_s8(d, a, b, place);
}

inline int dot4(int a, int b, int sum) {
  for (int byte = 0; byte < 4; ++byte)
    sum += static_cast<int8_t>(static_cast<uint32_t>(a) >> (8 * byte)) *
           static_cast<int8_t>(static_cast<uint32_t>(b) >> (8 * byte));
  return sum;
}
inline uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) { return (a & mask) | bits; }
inline uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = (uint64_t{b} << 32) | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i)
    out |= static_cast<uint32_t>((bytes >> (8 * ((selector >> (4 * i)) & 7))) & 255) << (8 * i);
  return out;
}

inline float half_to_float(uint16_t bits) { return f16_to_f32(bits); }
inline uint16_t float_to_half(float value) { return f32_to_f16(value); }
inline float bf16_to_float(uint16_t bits) { return bf16_to_f32(bits); }
inline uint16_t float_to_bf16(float value) { return f32_to_bf16(value); }
inline float bits_to_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t float_to_bits(float value) { return std::bit_cast<uint32_t>(value); }
inline uint32_t sub_half2(uint32_t a, uint32_t b) { return host::fma_half2(b, 0xbc00bc00u, a); }
inline uint32_t fma_half2(uint32_t a, uint32_t b, uint32_t c) { return host::fma_half2(a, b, c); }

inline uint32_t fma_bf16_pair(uint32_t a, uint32_t b, uint32_t c) {
  return host::fma_bf16_pair(a, b, c);
}
inline uint32_t pair_of_half(float low, float high) {
  return f32_to_f16(low) | (uint32_t{f32_to_f16(high)} << 16);
}
inline uint32_t pair_of_bf16(float low, float high) {
  return f32_to_bf16(low) | (uint32_t{f32_to_bf16(high)} << 16);
}

inline Words4 load_streaming16(const void* from) { return *static_cast<const Words4*>(from); }
inline Words2 load_streaming8(const void* from) { return *static_cast<const Words2*>(from); }

inline float exp2_approx(float x) { return std::exp2(x); }
inline float exp_of(float x) { return std::exp(x); }
inline float log2_of(float x) { return std::log2(x); }
inline float erf_of(float x) { return std::erf(x); }
inline float tanh_of(float x) { return std::tanh(x); }
inline float sqrt_of(float x) { return std::sqrt(x); }
inline float floor_of(float x) { return std::floor(x); }
inline float round_of(float x) { return std::nearbyint(x); }
inline void sin_cos_of(float x, float& sine, float& cosine) {
  sine = std::sin(x);
  cosine = std::cos(x);
}

/// Queues kernel(arguments...) on `stream`; what goes wrong in it is thrown by the next wait.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), Grid grid, int threads,
            int64_t shared_bytes, Stream stream, const Arguments&... arguments) {
  (host::check_argument(name, arguments), ...);
  host::enqueue_kernel(name, {grid, threads, shared_bytes}, stream,
                       [kernel, arguments...] { kernel(arguments...); });
  check_launch(name);
}

}  // namespace sluice::cuda
