#include "benchmarks/kernels/weight_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace sluice::bench {

namespace {
constexpr int64_t kPoolBytes = int64_t{2} << 30;
constexpr int64_t kChunk = 1 << 20;
constexpr double kRateSeconds =
    4;  // Google Benchmark calls a case several times: one probe serves them all

// 1 to 1.12, of either sign.
uint16_t random_half(uint64_t i) {
  const uint64_t bits = i * 0x9e3779b97f4a7c15u >> 48;
  return static_cast<uint16_t>(0x3c00 | (bits & 0x7f) | (bits & 0x80) << 8);
}

// Folds one chunk through eight independent vectors of the smallest size, so that only the memory
// limits it.
uint64_t read_chunk(const std::byte* p) {
  typedef uint64_t Vector __attribute__((vector_size(16), aligned(8)));
  Vector sums[8] = {};
  for (int64_t i = 0; i < kChunk; i += 128) {
    __builtin_prefetch(p + i + 4096);
    __builtin_prefetch(p + i + 4096 + 64);
    for (int v = 0; v < 8; ++v) sums[v] ^= *reinterpret_cast<const Vector*>(p + i + 16 * v);
  }
  const Vector all =
      ((sums[0] ^ sums[1]) ^ (sums[2] ^ sums[3])) ^ ((sums[4] ^ sums[5]) ^ (sums[6] ^ sums[7]));
  return all[0] ^ all[1];
}
}  // namespace

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

WeightPool& WeightPool::instance() {
  static WeightPool pool;
  return pool;
}

WeightPool::WeightPool() {
  const int64_t ram = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  bytes_ = std::min(kPoolBytes, ram / 4) / kChunk * kChunk;
  void* memory = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("sluice_kernel_bench: mmap");
    std::exit(1);
  }
  madvise(memory, static_cast<size_t>(bytes_), MADV_HUGEPAGE);
  memory_ = static_cast<std::byte*>(memory);
  auto* halves = reinterpret_cast<uint16_t*>(memory_);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < bytes_ / 2; ++i) halves[i] = random_half(static_cast<uint64_t>(i));
}

WeightPool::~WeightPool() { munmap(memory_, static_cast<size_t>(bytes_)); }

std::byte* WeightPool::next(int64_t bytes) {
  if (at_ + bytes > bytes_) at_ = 0;
  std::byte* result = memory_ + at_;
  at_ += (bytes + 63) / 64 * 64;
  return result;
}

double WeightPool::read_rate() {
  if (measured_rate_ > 0 && now_seconds() - measured_at_ < kRateSeconds) return measured_rate_;
  double best = 0;
  const int64_t chunks = bytes_ / 4 / kChunk;
  for (int run = 0; run < 3; ++run) {
    const std::byte* from = next(chunks * kChunk);
    uint64_t sum = 0;
    const double start = now_seconds();
#pragma omp parallel for schedule(static) reduction(^ : sum)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum ^= read_chunk(from + chunk * kChunk);
    const double seconds = now_seconds() - start;
    volatile uint64_t keep = sum;
    static_cast<void>(keep);
    best = std::max(best, static_cast<double>(chunks * kChunk) / seconds);
  }
  measured_rate_ = best;
  measured_at_ = now_seconds();
  return best;
}

}  // namespace sluice::bench
