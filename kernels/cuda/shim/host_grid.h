#pragma once
// Runs a grid of blocks on the host, one fiber a thread, for tests of CUDA kernels without a GPU. A
// block's fibers run until they meet a barrier or a warp operation. The order in which they run is
// drawn from a seed, so that a missing barrier shows: either all go in turns, and none is far ahead
// of the others, or warps are greedy, and one goes on until all of it waits for the block. Blocks
// run one after the other, in an order of the seed's too; where one counts up what others count
// too, its warps being greedy, some others go first. Shared memory is filled with NaN before each
// block and is exactly as large as asked for (the address sanitizer sees beyond it). Asynchronous
// copies spoil their destination when issued and land at the wait. Threads that wait for each other
// in vain, or meet at different places, are an error that names both places. One grid at a time.
#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/cuda/types.h"
#include "src/base/dtype.h"

namespace sluice::cuda::host {

/// Where in the source a thread waits.
struct Place {
  const char* file = "";
  int line = 0;
  static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

struct LaunchShape {
  Grid grid;
  int threads = kWarp;  ///< whole warps, at most 1024
  int64_t shared_bytes = 0;
};

struct Block {
  int x, y, z;
  int grid_x, grid_y;
  int threads;
  std::byte* shared;
};

struct Thread {
  int index = 0;
  const Block* block = nullptr;
};

constexpr uint64_t kFirstRandomOrder = 4;

/// Runs `body` once for each thread of the grid. `seed` 0: threads in rising order in turns, 1:
/// falling; 2: rising order, greedy warps, 3: falling; from kFirstRandomOrder on the order is drawn
/// anew whenever they are looked through, of greedy warps where it is odd. Blocks likewise: rising,
/// falling where the seed is odd, drawn. Throws Error(kInternal)
/// naming kernel, block and places when the threads can't go on.
void run_grid(const char* name, const LaunchShape& shape, uint64_t seed,
              const std::function<void()>& body);

/// Queues a kernel on a stream of the host's driver (host_runtime.cc).
void enqueue_kernel(const char* name, const LaunchShape& shape, Stream stream,
                    std::function<void()> body);

/// Throws where an argument of a kernel holds an address of host memory, or of another GPU's.
void check_words(const char* name, const void* argument, size_t bytes);
/// What lies between an argument's members is no part of it. Only where the compiler says where.
template <class Argument>
void check_argument(const char* name, Argument argument) {
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&argument);
  check_words(name, &argument, sizeof(argument));
#else
  static_cast<void>(name);
  static_cast<void>(argument);
#endif
}

/// Whether all of these bytes are one allocation's of the host's driver; asked by kernels.
bool is_on_device(const void* at, int64_t bytes);

/// Queues anything else.
void enqueue_work(Stream stream, std::function<void()> work);

/// Queues what reads timer_seconds(): it takes no time itself.
void enqueue_reading(Stream stream, std::function<void()> reading);
/// What timers read; asked by queued work.
double timer_seconds();

// The running thread's side; only within run_grid().
const Thread& thread();
void block_barrier(Place place);
void warp_sync(Place place);
uint32_t shuffle(uint32_t value, int lane, Place place);
uint32_t ballot(bool value, Place place);
uint32_t count_up(uint32_t* counter);
void copy_async(void* shared, const void* global, bool is_valid);
void copy_async_commit();
void copy_async_wait(int groups_left);
void load_matrix_x4(uint32_t (&out)[4], const void* row, bool is_transposed, Place place);
void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], DType type,
                 Place place);
void mma_16x8x32_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place);
uint32_t fma_half2(uint32_t a, uint32_t b, uint32_t c);
uint32_t fma_bf16_pair(uint32_t a, uint32_t b, uint32_t c);

}  // namespace sluice::cuda::host
