#include "kernels/cuda/vocabulary.h"
#include "tests/kernels/cuda/vocabulary_kernels.h"

namespace sluice::cuda {

namespace {
constexpr int kThreads = 256;

SLUICE_KERNEL(kThreads) all_halves_kernel(float* of_half, float* of_bf16) {
  const int i = block_x() * block_threads() + thread_index();
  of_half[i] = half_to_float(static_cast<uint16_t>(i));
  of_bf16[i] = bf16_to_float(static_cast<uint16_t>(i));
}

SLUICE_KERNEL(kThreads) to_16_bit_kernel(const float* in, int n, uint16_t* half, uint16_t* bf16) {
  const int i = block_x() * block_threads() + thread_index();
  if (i >= n) return;
  half[i] = float_to_half(in[i]);
  bf16[i] = float_to_bf16(in[i]);
}

SLUICE_KERNEL(kThreads)
words_kernel(const uint32_t* a, const uint32_t* b, const uint32_t* c, int n, bool has_bf16,
             uint32_t* out) {
  const int i = block_x() * block_threads() + thread_index();
  if (i >= n) return;
  out[i * 8] = and_or(a[i], b[i], c[i]);
  out[i * 8 + 1] = byte_permute(a[i], b[i], c[i] & 0x7777u);
  out[i * 8 + 2] = static_cast<uint32_t>(
      dot4(static_cast<int>(a[i]), static_cast<int>(b[i]), static_cast<int>(c[i] >> 8)));
  out[i * 8 + 3] = fma_half2(a[i], b[i], c[i]);
  out[i * 8 + 4] = sub_half2(a[i], b[i]);
  if (has_bf16) out[i * 8 + 5] = fma_bf16_pair(a[i], b[i], c[i]);
  const float low = bits_to_float(a[i]);
  const float high = bits_to_float(b[i]);
  out[i * 8 + 6] = pair_of_half(low, high);
  out[i * 8 + 7] = pair_of_bf16(low, high);
}

SLUICE_KERNEL(1024) across_kernel(const int* in, float* out) {
  const int i = thread_index();
  auto* scratch = reinterpret_cast<float*>(shared_memory());
  const auto value = static_cast<float>(in[i]);
  out[i * 6] = static_cast<float>(shuffle(in[i], in[i] % kWarp));
  out[i * 6 + 1] = shuffle_xor(value, 5);
  out[i * 6 + 2] = static_cast<float>(ballot((in[i] & 1) != 0) % 65521u);
  out[i * 6 + 3] = warp_sum(value);
  out[i * 6 + 4] = block_sum(value, scratch);
  out[i * 6 + 5] = block_max(value, scratch);
}

SLUICE_KERNEL(kWarp) matrices_kernel(const Words4* rows, uint32_t* out) {
  auto* shared = reinterpret_cast<Words4*>(shared_memory());
  const int lane = thread_index();
  shared[lane] = rows[lane];
  warp_sync();
  uint32_t plain[4], transposed[4];
  load_matrix_x4(plain, shared + lane);
  load_matrix_x4_transposed(transposed, shared + lane);
  for (int i = 0; i < 4; ++i) {
    out[lane * 4 + i] = plain[i];
    out[(kWarp + lane) * 4 + i] = transposed[i];
  }
}

// Fragments as the PTX manual numbers them, elements of `bits` bits.
template <class Element, class Sum,
          void (*kMultiply)(Sum (&)[4], const uint32_t (&)[4], const uint32_t (&)[2])>
SLUICE_DEVICE void multiply_one(const Element* a, const Element* b, const Sum* c, Sum* d) {
  constexpr int kEach = 4 / static_cast<int>(sizeof(Element));  // elements of a register
  constexpr int kDepth = 8 * kEach;
  const int group = thread_index() / 4;
  const int place = thread_index() % 4;
  const auto load = [&](const Element* row, int k) {
    uint32_t word = 0;
    for (int i = 0; i < kEach; ++i) word |= static_cast<uint32_t>(row[k + i]) << (i * 32 / kEach);
    return word;
  };
  uint32_t fa[4], fb[2];
  for (int r = 0; r < 4; ++r)
    fa[r] = load(a + (group + r % 2 * 8) * kDepth, place * kEach + r / 2 * (kDepth / 2));
  for (int r = 0; r < 2; ++r) fb[r] = load(b + group * kDepth, place * kEach + r * (kDepth / 2));
  Sum sums[4];
  for (int r = 0; r < 4; ++r) sums[r] = c[(group + r / 2 * 8) * 8 + place * 2 + r % 2];
  kMultiply(sums, fa, fb);
  for (int r = 0; r < 4; ++r) d[(group + r / 2 * 8) * 8 + place * 2 + r % 2] = sums[r];
}

SLUICE_DEVICE void product_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_16x8x16_f16(d, a, b);
}
SLUICE_DEVICE void product_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_16x8x16_bf16(d, a, b);
}
SLUICE_DEVICE void product_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_16x8x32_s8(d, a, b);
}

SLUICE_KERNEL(kWarp)
multiply_f16_kernel(const uint16_t* a, const uint16_t* b, const float* c, float* d) {
  multiply_one<uint16_t, float, product_f16>(a, b, c, d);
}
SLUICE_KERNEL(kWarp)
multiply_bf16_kernel(const uint16_t* a, const uint16_t* b, const float* c, float* d) {
  multiply_one<uint16_t, float, product_bf16>(a, b, c, d);
}
SLUICE_KERNEL(kWarp)
multiply_s8_kernel(const uint8_t* a, const uint8_t* b, const int* c, int* d) {
  multiply_one<uint8_t, int, product_s8>(a, b, c, d);
}

constexpr int kStages = 4;

SLUICE_KERNEL(kThreads) pipeline_kernel(const Words4* in, int lines, Words4* out) {
  auto* stages = reinterpret_cast<Words4*>(shared_memory());  // [kStages][threads]
  const int threads = block_threads();
  const int steps = (lines + threads - 1) / threads;
  const auto start = [&](int step) {
    const int line = step * threads + thread_index();
    Words4* to = stages + step % kStages * threads + thread_index();
    if (step % 2 == 0) {
      if (line < lines) copy_async16(to, in + line, line % 7 != 6);
    } else {
      copy_async16_if(line < lines, to, in + line, line % 7 != 6);
      copy_async16_if(line < 0, to, in, true);  // never
    }
    copy_async_commit();
  };
  for (int step = 0; step < kStages - 1; ++step) start(step);
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<kStages - 2>();
    block_sync();
    // A neighbour's line, so that the barrier matters.
    const int line = step * threads + (thread_index() ^ 1);
    if (line < lines) out[line] = stages[step % kStages * threads + (thread_index() ^ 1)];
    start(step + kStages - 1);
  }
  copy_async_wait<0>();
}

SLUICE_KERNEL(kThreads) functions_kernel(const float* x, int n, float* out) {
  const int i = block_x() * block_threads() + thread_index();
  if (i >= n) return;
  out[i * 8] = exp2_approx(x[i]);
  out[i * 8 + 1] = exp_of(x[i]);
  out[i * 8 + 2] = log2_of(x[i] < 0 ? -x[i] : x[i]);
  out[i * 8 + 3] = erf_of(x[i]);
  out[i * 8 + 4] = tanh_of(x[i]);
  out[i * 8 + 5] = sqrt_of(x[i] < 0 ? -x[i] : x[i]);
  sin_cos_of(x[i], out[i * 8 + 6], out[i * 8 + 7]);
}

#ifndef __CUDACC__
SLUICE_KERNEL(64) wrong_kernel(Mistake mistake, const float* in, float* out) {
  auto* shared = reinterpret_cast<float*>(shared_memory());
  const int i = thread_index();
  switch (mistake) {
    case Mistake::kNoBarrier:
      shared[i] = in[i];
      out[i] = shared[63 - i];
      return;
    case Mistake::kNoWait:
      if (i < 16) copy_async16(shared + 4 * i, in + 4 * i, true);
      copy_async_commit();
      block_sync();
      out[i] = shared[63 - i];
      block_sync();
      copy_async_wait<0>();
      return;
    case Mistake::kHalfABarrier:
      if (i < 32) block_sync();
      return;
    case Mistake::kSplitWarp:
      if (i % 32 < 16)
        shuffle(i, 0);
      else
        ballot(true);
      return;
    case Mistake::kUnwrittenShared: out[i] = shared[63 - i]; return;
  }
}
#endif

int blocks_for(int n) { return (n + kThreads - 1) / kThreads; }

SLUICE_KERNEL(64)
sum_in_last_block_kernel(const float* in, float* left, uint32_t* counter, float* out,
                         bool has_barrier) {
  auto* flag = reinterpret_cast<int*>(shared_memory());
  const int threads = block_threads();
  left[block_x() * threads + thread_index()] = in[block_x() * threads + thread_index()];
  if (has_barrier) {
    if (!is_last_block(counter, grid_x(), flag)) return;
  } else {
    if (thread_index() == 0)
      *flag = count_up(counter) + 1 == static_cast<uint32_t>(grid_x()) ? 1 : 0;
    block_sync();
    if (*flag == 0) return;
  }
  float sum = 0;
  for (int block = 0; block < grid_x(); ++block) sum += left[block * threads + thread_index()];
  out[thread_index()] += sum;
}

}  // namespace

void all_halves(float* of_half, float* of_bf16) {
  launch("all_halves", all_halves_kernel, {65536 / kThreads}, kThreads, 0, nullptr, of_half,
         of_bf16);
}
void to_16_bit(const float* in, int n, uint16_t* half, uint16_t* bf16) {
  launch("to_16_bit", to_16_bit_kernel, {blocks_for(n)}, kThreads, 0, nullptr, in, n, half, bf16);
}
void words(const uint32_t* a, const uint32_t* b, const uint32_t* c, int n, bool has_bf16,
           uint32_t* out) {
  launch("words", words_kernel, {blocks_for(n)}, kThreads, 0, nullptr, a, b, c, n, has_bf16, out);
}
void across(const int* in, int threads, float* out) {
  launch("across", across_kernel, {1}, threads, 128, nullptr, in, out);
}
void matrices(const uint16_t* rows, uint32_t* out) {
  launch("matrices", matrices_kernel, {1}, kWarp, kWarp * 16, nullptr,
         reinterpret_cast<const Words4*>(rows), out);
}
void multiply(MmaType type, const void* a, const void* b, const void* c, void* d) {
  if (type == MmaType::kS8)
    launch("multiply_s8", multiply_s8_kernel, {1}, kWarp, 0, nullptr,
           static_cast<const uint8_t*>(a), static_cast<const uint8_t*>(b),
           static_cast<const int*>(c), static_cast<int*>(d));
  else
    launch("multiply", type == MmaType::kF16 ? multiply_f16_kernel : multiply_bf16_kernel, {1},
           kWarp, 0, nullptr, static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b),
           static_cast<const float*>(c), static_cast<float*>(d));
}
void pipeline(const Words4* in, int lines, Words4* out) {
  launch("pipeline", pipeline_kernel, {1}, kThreads, kStages * kThreads * 16, nullptr, in, lines,
         out);
}
void functions(const float* x, int n, float* out) {
  launch("functions", functions_kernel, {blocks_for(n)}, kThreads, 0, nullptr, x, n, out);
}
void sum_in_last_block(const float* in, int blocks, float* left, uint32_t* counter, float* out,
                       bool has_barrier) {
  launch("sum_in_last_block", sum_in_last_block_kernel, {blocks}, 64, 4, nullptr, in, left, counter,
         out, has_barrier);
}
#ifndef __CUDACC__
void wrong(Mistake mistake, const float* in, float* out) {
  launch("wrong", wrong_kernel, {1}, 64, 256, nullptr, mistake, in, out);
}
#endif

}  // namespace sluice::cuda
