#pragma once
// The only words a CUDA kernel of ours may use for what is not plain C++: thread and block numbers,
// barriers, shuffles, atomic additions, asynchronous copies, matrix instructions, packed halves.
// Compiled by nvcc they are PTX; compiled by any C++ compiler they run on the host, a fiber a
// thread (shim/host_grid.h), so that every kernel is checked without a GPU. Kernels take no other
// way to the device: scripts/check.sh refuses inline assembly and intrinsics outside shim/.
//
// Rules that both sides keep: blocks are one-dimensional and whole warps; warp operations are met
// by all 32 lanes; all shared memory is the dynamic block of shared_memory(); no thread waits for
// another block, but the last of some to come may use what they left (is_last_block); an
// asynchronous copy that is not valid (it writes zeros) still names memory that there is. 16-bit
// floats travel as their bits (uint16_t), pairs as uint32_t, first in the low half.
// copy_async16_if() is a predicated instruction where an if would be a branch.
// SLUICE_KERNEL_OF_BLOCKS(threads, blocks): so many blocks must fit a multiprocessor.
// state_budget<Facts>() costs nothing and tells scripts/kernel_budget.py of a kernel that streams:
// shared memory of a block, bytes that a warp takes in one turn of its loop, bytes of a warp that
// are under way at a time, blocks a multiprocessor that the host plans for.
#include "kernels/cuda/types.h"

#ifdef __CUDACC__
#include "kernels/cuda/shim/device_vocabulary.h"
#else
#include "kernels/cuda/shim/host_vocabulary.h"
#endif

namespace sluice::cuda {

// Made of the words above, the same on both sides.

SLUICE_DEVICE int lane_index() { return thread_index() % kWarp; }
SLUICE_DEVICE int warp_index() { return thread_index() / kWarp; }

SLUICE_DEVICE float warp_sum(float value) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}

SLUICE_DEVICE float warp_max(float value) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const float other = shuffle_xor(value, mask);
    value = other > value ? other : value;
  }
  return value;
}

/// Sum over the block; `scratch` is shared memory of a float a warp. All threads get it; a barrier
/// before it and two in it, so that `scratch` may be used again.
SLUICE_DEVICE float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  block_sync();
  if (lane_index() == 0) scratch[warp_index()] = value;
  block_sync();
  const int warps = block_threads() / kWarp;
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += scratch[i];
  return sum;
}

/// True for all threads of the last of `blocks` blocks to come here with `counter`, which is 0
/// again then: what they had written is there. `flag`: shared memory that may be in use until now;
/// a barrier before it and one behind.
SLUICE_DEVICE bool is_last_block(uint32_t* counter, int blocks, int* flag) {
  block_sync();
  if (thread_index() == 0) {
    const bool is_last = count_up(counter) + 1 == static_cast<uint32_t>(blocks);
    if (is_last) *counter = 0;
    *flag = is_last ? 1 : 0;
  }
  block_sync();
  return *flag != 0;
}

SLUICE_DEVICE float block_max(float value, float* scratch) {
  value = warp_max(value);
  block_sync();
  if (lane_index() == 0) scratch[warp_index()] = value;
  block_sync();
  const int warps = block_threads() / kWarp;
  float largest = scratch[0];
  for (int i = 1; i < warps; ++i) largest = scratch[i] > largest ? scratch[i] : largest;
  return largest;
}

}  // namespace sluice::cuda
