#pragma once
// Kernels that try each word of the vocabulary; vocabulary_test.cc says what must come.
#include "kernels/cuda/types.h"

namespace sluice::cuda {

/// values [65536] f32: of every half (bf16) by its bits.
void all_halves(float* of_half, float* of_bf16);
/// out [n] halves, bf16 of f32 values.
void to_16_bit(const float* in, int n, uint16_t* half, uint16_t* bf16);
/// out [n][8]: and_or(a, b, c), byte_permute(a, b, c), dot4(a, b, c), fma_half2, sub_half2(a, b),
/// fma_bf16_pair, pair_of_half(a, b), pair_of_bf16(a, b).
void words(const uint32_t* a, const uint32_t* b, const uint32_t* c, int n, bool has_bf16,
           uint32_t* out);
/// One block of `threads`: out [threads][6]: shuffle from lane in[i] % 32, shuffle_xor 5, ballot of
/// in[i] & 1, warp_sum, block_sum, block_max of float(in[i]).
void across(const int* in, int threads, float* out);
/// rows [32][8] 16-bit elements: out [2][32][4], plain and transposed.
void matrices(const uint16_t* rows, uint32_t* out);
enum class MmaType { kF16, kBF16, kS8 };
/// d [16, 8] = a [16, k] b^T [8, k] + c [16, 8]; k 16 (kS8: 32, int32 c and d).
void multiply(MmaType type, const void* a, const void* b, const void* c, void* d);
/// Copies `lines` lines of 16 bytes through shared memory with a pipeline of 3 groups; every
/// seventh line is not valid: zeros.
void pipeline(const Words4* in, int lines, Words4* out);
/// out [n][8]: exp2_approx, exp, log2, erf, tanh, sqrt, sin, cos of x.
void functions(const float* x, int n, float* out);

/// `blocks` blocks of 64 threads leave in[64 b + i] in `left`, the last to come adds the sum over
/// the blocks to out[i], i < 64; `counter` is 0. `has_barrier` false, on the host only: it forgets
/// that the others may not have written yet.
void sum_in_last_block(const float* in, int blocks, float* left, uint32_t* counter, float* out,
                       bool has_barrier = true);

// On the host only: what a wrong kernel does.
enum class Mistake {
  kNoBarrier,       ///< reads what a neighbour writes
  kNoWait,          ///< reads an asynchronous copy that nobody waited for
  kHalfABarrier,    ///< half the threads go to a barrier
  kSplitWarp,       ///< half a warp shuffles, the other half votes
  kUnwrittenShared  ///< reads shared memory that nobody wrote
};
/// One block of 64 threads; out [64] should become in [63 - i].
void wrong(Mistake mistake, const float* in, float* out);

}  // namespace sluice::cuda
