#pragma once
// The vocabulary as nvcc compiles it: built-ins and PTX. Included by vocabulary.h only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define SLUICE_KERNEL(threads) __global__ void __launch_bounds__(threads)
#define SLUICE_KERNEL_OF_BLOCKS(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define SLUICE_DEVICE __device__ __forceinline__
#define SLUICE_BOTH __host__ __device__ __forceinline__
#define SLUICE_UNROLL _Pragma("unroll")

namespace sluice::cuda {

/// Throws Error(kDevice) when the launch just made was refused; `kernel` is its name.
void check_launch(const char* kernel);

template <class Facts>
SLUICE_DEVICE void state_budget() {
  asm volatile("// budget: shared %0 turn %1 ahead %2 blocks %3" ::"n"(Facts::kSharedBytes),
               "n"(Facts::kTurnBytes), "n"(Facts::kAheadBytes), "n"(Facts::kPlannedBlocks));
}

SLUICE_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
SLUICE_DEVICE int block_threads() { return static_cast<int>(blockDim.x); }
SLUICE_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
SLUICE_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
SLUICE_DEVICE int block_z() { return static_cast<int>(blockIdx.z); }
SLUICE_DEVICE int grid_x() { return static_cast<int>(gridDim.x); }
SLUICE_DEVICE int grid_y() { return static_cast<int>(gridDim.y); }

extern __shared__ __align__(128) std::byte sluice_dynamic_shared[];
SLUICE_DEVICE std::byte* shared_memory() { return sluice_dynamic_shared; }

SLUICE_DEVICE void block_sync() { __syncthreads(); }
SLUICE_DEVICE void warp_sync() { __syncwarp(); }
SLUICE_DEVICE float shuffle(float value, int lane) { return __shfl_sync(~0u, value, lane); }
SLUICE_DEVICE int shuffle(int value, int lane) { return __shfl_sync(~0u, value, lane); }
SLUICE_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
SLUICE_DEVICE int shuffle_xor(int value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
SLUICE_DEVICE uint32_t ballot(bool value) { return __ballot_sync(~0u, value); }

/// Adds one to a counter of all blocks; what it was. What the block had written before its last
/// barrier is there for whoever counts up later.
SLUICE_DEVICE uint32_t count_up(uint32_t* counter) {
  __threadfence();
  const uint32_t before = atomicAdd(counter, 1u);
  __threadfence();
  return before;
}

/// Adds to a word of shared memory; what it was.
SLUICE_DEVICE uint32_t add_shared(uint32_t* word, uint32_t value) { return atomicAdd(word, value); }

SLUICE_DEVICE uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

SLUICE_DEVICE void copy_async16(void* shared, const void* global, bool is_valid) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(is_valid ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(shared) =
      is_valid ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
#endif
}
SLUICE_DEVICE void copy_async16_if(bool is_wanted, void* shared, const void* global,
                                   bool is_valid) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{\n .reg .pred wanted;\n setp.ne.s32 wanted, %3, 0;\n"
      " @wanted cp.async.cg.shared.global [%0], [%1], 16, %2;\n}" ::"r"(shared_address(shared)),
      "l"(global), "r"(is_valid ? 16 : 0), "r"(static_cast<int>(is_wanted))
      : "memory");
#else
  if (is_wanted) copy_async16(shared, global, is_valid);
#endif
}
SLUICE_DEVICE void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kGroupsLeft>
SLUICE_DEVICE void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
#endif
}

SLUICE_DEVICE void load_matrix_x4(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
SLUICE_DEVICE void load_matrix_x4_transposed(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

SLUICE_DEVICE void mma_16x8x16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  // Turing has half the depth: the fragments are those of two products.
  for (int half = 0; half < 2; ++half)
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}

/// Not on Turing, which has no bf16: there the host never launches kernels that use it.
SLUICE_DEVICE void mma_16x8x16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  asm volatile("trap;");
#endif
}

SLUICE_DEVICE void mma_16x8x32_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  for (int part = 0; part < 4; ++part)
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(d[part % 2 * 2]), "+r"(d[part % 2 * 2 + 1])
                 : "r"(a[part]), "r"(b[part / 2]));
#endif
}

SLUICE_DEVICE int dot4(int a, int b, int sum) { return __dp4a(a, b, sum); }
/// (a & mask) | bits, one instruction.
SLUICE_DEVICE uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(a), "r"(mask), "r"(bits));
  return out;
}
SLUICE_DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}

SLUICE_DEVICE float half_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
SLUICE_DEVICE uint16_t float_to_half(float value) {
  return __half_as_ushort(__float2half_rn(value));
}
SLUICE_DEVICE float bf16_to_float(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
SLUICE_DEVICE uint16_t float_to_bf16(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
SLUICE_DEVICE float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }
SLUICE_DEVICE uint32_t float_to_bits(float value) { return __float_as_uint(value); }

SLUICE_DEVICE __half2 as_half2(uint32_t bits) { return reinterpret_cast<const __half2&>(bits); }
SLUICE_DEVICE uint32_t bits_of(__half2 value) { return reinterpret_cast<const uint32_t&>(value); }
/// Pairs: a - b and a * b + c, one rounding each.
SLUICE_DEVICE uint32_t sub_half2(uint32_t a, uint32_t b) {
  return bits_of(__hsub2(as_half2(a), as_half2(b)));
}
SLUICE_DEVICE uint32_t fma_half2(uint32_t a, uint32_t b, uint32_t c) {
  return bits_of(__hfma2(as_half2(a), as_half2(b), as_half2(c)));
}

/// a * b + c of bf16 pairs; not on Turing.
SLUICE_DEVICE uint32_t fma_bf16_pair(uint32_t a, uint32_t b, uint32_t c) {
#if __CUDA_ARCH__ >= 800
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
#else
  asm volatile("trap;");
  return 0;
#endif
}
SLUICE_DEVICE uint32_t pair_of_half(float low, float high) {
  return bits_of(__floats2half2_rn(low, high));
}
SLUICE_DEVICE uint32_t pair_of_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

/// Bytes that are used once: they should not push others out of the caches.
SLUICE_DEVICE Words4 load_streaming16(const void* from) {
  Words4 out;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.word[0]), "=r"(out.word[1]), "=r"(out.word[2]), "=r"(out.word[3])
               : "l"(from));
  return out;
}
SLUICE_DEVICE Words2 load_streaming8(const void* from) {
  Words2 out;
  asm volatile("ld.global.cs.v2.u32 {%0, %1}, [%2];"
               : "=r"(out.word[0]), "=r"(out.word[1])
               : "l"(from));
  return out;
}

/// Within 2 ulp of 2^x; the others as CUDA rounds them (within 2 ulp).
SLUICE_DEVICE float exp2_approx(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
SLUICE_DEVICE float exp_of(float x) { return expf(x); }
SLUICE_DEVICE float log2_of(float x) { return log2f(x); }
SLUICE_DEVICE float erf_of(float x) { return erff(x); }
SLUICE_DEVICE float tanh_of(float x) { return tanhf(x); }
SLUICE_DEVICE float sqrt_of(float x) { return __fsqrt_rn(x); }
SLUICE_DEVICE float floor_of(float x) { return floorf(x); }
SLUICE_DEVICE float round_of(float x) { return rintf(x); }
SLUICE_DEVICE void sin_cos_of(float x, float& sine, float& cosine) { sincosf(x, &sine, &cosine); }

/// Launches kernel(arguments...) on `stream`.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), Grid grid, int threads,
            int64_t shared_bytes, Stream stream, const Arguments&... arguments) {
  constexpr int64_t kWithoutAsking = 48 << 10;  // more has to be asked for
  if (shared_bytes > kWithoutAsking)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared_bytes));
  kernel<<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                static_cast<unsigned>(grid.z)),
           static_cast<unsigned>(threads), static_cast<size_t>(shared_bytes),
           reinterpret_cast<cudaStream_t>(stream)>>>(arguments...);
  check_launch(name);
}

}  // namespace sluice::cuda
