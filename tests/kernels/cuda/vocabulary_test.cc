// What each word of kernels/cuda/vocabulary.h means. On a GPU this is the first thing to run: where
// it passes, what the host's stand-in says of kernels holds there too.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>

#include "src/base/error.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/vocabulary_kernels.h"
#include "tests/kernels/kernel_testing.h"
#ifdef SLUICE_CUDA_ON_HOST
#include "kernels/cuda/shim/host_driver.h"
#endif

namespace sluice::cuda {
namespace {
using kernels::Random;

// Runs `test` with several orders of threads where there is an order to choose.
void in_any_order(const std::function<void()>& test) {
#ifdef SLUICE_CUDA_ON_HOST
  for (const uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    SCOPED_TRACE("order of threads " + std::to_string(seed));
    host::set_seed(seed);
    test();
  }
  host::set_seed(0);
#else
  test();
#endif
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

std::vector<uint32_t> random_words(Random& random, size_t n) {
  std::vector<uint32_t> out(n);
  for (uint32_t& word : out) word = static_cast<uint32_t>(random.engine()());
  return out;
}

TEST(CudaVocabulary, ReadsEvery16BitFloat) {
  DeviceArray<float> halves(65536), bf16s(65536);
  all_halves(halves.data(), bf16s.data());
  const auto half = halves.values();
  const auto bf16 = bf16s.values();
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    ASSERT_TRUE(same(half[bits], f16_to_f32(static_cast<uint16_t>(bits)))) << bits;
    ASSERT_TRUE(same(bf16[bits], bf16_to_f32(static_cast<uint16_t>(bits)))) << bits;
  }
}

TEST(CudaVocabulary, RoundsTo16BitsToNearestEven) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    const float next = f16_to_f32(static_cast<uint16_t>(bits + 1));
    for (const float near : {value, (value + next) / 2, std::nextafter((value + next) / 2, value)})
      if (!std::isnan(near)) values.push_back(near);
  }
  Random random(1);
  for (const uint32_t word : random_words(random, 100000)) {
    const auto value = std::bit_cast<float>(word);
    if (!std::isnan(value)) values.push_back(value);
  }
  DeviceArray<float> in(values);
  DeviceArray<uint16_t> half(values.size()), bf16(values.size());
  to_16_bit(in.data(), static_cast<int>(values.size()), half.data(), bf16.data());
  const auto halves = half.values();
  const auto bf16s = bf16.values();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(halves[i], f32_to_f16(values[i])) << values[i];
    ASSERT_EQ(bf16s[i], f32_to_bf16(values[i])) << values[i];
  }
}

// a * b + c is the 16-bit float nearest to it: no neighbour lies closer.
template <float (*kValue)(uint16_t)>
void expect_nearest(uint32_t a, uint32_t b, uint32_t c, uint32_t got, int part) {
  const auto value = [&](uint32_t pair) {
    return static_cast<double>(kValue(static_cast<uint16_t>(pair >> (16 * part))));
  };
  const double exact = value(a) * value(b) + value(c);
  const double fused = value(got);
  if (std::isnan(exact)) {
    EXPECT_TRUE(std::isnan(fused));
    return;
  }
  if (!std::isfinite(fused)) return;
  for (const int step : {-1, 1}) {
    const double other = double{kValue(static_cast<uint16_t>((got >> (16 * part)) + step))};
    if (!std::isfinite(other)) continue;
    // In f32's steps: bf16 products may lie too far apart for f64 to keep all of them.
    EXPECT_LE(static_cast<float>(std::fabs(fused - exact)),
              static_cast<float>(std::fabs(other - exact)))
        << exact;
  }
}

TEST(CudaVocabulary, WorksOnBytesAndPairs) {
  Random random(2);
  constexpr size_t kCount = 20000;
  auto a = random_words(random, kCount);
  auto b = random_words(random, kCount);
  auto c = random_words(random, kCount);
  // Every pair of nibbles with every mask that kernels use.
  for (uint32_t i = 0; i < 256; ++i) {
    a[i] = i * 0x01010101u;
    b[i] = i % 2 ? 0x000f000fu : 0x00f000f0u;
    c[i] = 0x64006400u;
  }
  DeviceArray<uint32_t> da(a), db(b), dc(c), out(kCount * 8);
  const bool has_bf16 = first_device().has_bf16;
  words(da.data(), db.data(), dc.data(), kCount, has_bf16, out.data());
  const auto got = out.values();
  const auto half = [](uint32_t pair, int i) {
    return static_cast<double>(f16_to_f32(static_cast<uint16_t>(pair >> (16 * i))));
  };
  uint64_t hash = 1469598103934665603u;
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(got[i * 8], (a[i] & b[i]) | c[i]);
    uint32_t permuted = 0;
    int dot = static_cast<int>(c[i] >> 8);
    for (int byte = 0; byte < 4; ++byte) {
      const uint32_t pick = (c[i] >> (4 * byte)) & 7u;
      const uint32_t from = pick < 4 ? a[i] : b[i];
      permuted |= ((from >> (8 * (pick % 4))) & 255u) << (8 * byte);
      dot += static_cast<int8_t>(a[i] >> (8 * byte)) * static_cast<int8_t>(b[i] >> (8 * byte));
    }
    ASSERT_EQ(got[i * 8 + 1], permuted);
    ASSERT_EQ(static_cast<int>(got[i * 8 + 2]), dot);
    for (int part = 0; part < 2; ++part) {
      expect_nearest<f16_to_f32>(a[i], b[i], c[i], got[i * 8 + 3], part);
      if (has_bf16) expect_nearest<bf16_to_f32>(a[i], b[i], c[i], got[i * 8 + 5], part);
      const double difference = half(a[i], part) - half(b[i], part);
      const auto expected = f32_to_f16(static_cast<float>(difference));
      ASSERT_TRUE(same(static_cast<float>(half(got[i * 8 + 4], part)), f16_to_f32(expected)));
      const auto source = std::bit_cast<float>(part == 0 ? a[i] : b[i]);
      if (std::isnan(source)) continue;
      ASSERT_EQ(static_cast<uint16_t>(got[i * 8 + 6] >> (16 * part)), f32_to_f16(source));
      ASSERT_EQ(static_cast<uint16_t>(got[i * 8 + 7] >> (16 * part)), f32_to_bf16(source));
    }
    for (int k = 0; k < 3; ++k)
      hash = (hash ^ got[i * 8 + static_cast<size_t>(k)]) * 1099511628211u;
  }
  std::printf("vocabulary hash %016llx\n", static_cast<unsigned long long>(hash));
}

TEST(CudaVocabulary, LanesAndWarpsHearEachOther) {
  in_any_order([] {
    for (const int threads : {32, 64, 256, 1024}) {
      Random random(static_cast<uint32_t>(threads));
      std::vector<int> values;
      for (int i = 0; i < threads; ++i) values.push_back(static_cast<int>(random.between(0, 1000)));
      DeviceArray<int> in(values);
      DeviceArray<float> out(values.size() * 6);
      across(in.data(), threads, out.data());
      const auto got = out.values();
      const int total = std::accumulate(values.begin(), values.end(), 0);
      const int largest = *std::max_element(values.begin(), values.end());
      for (int i = 0; i < threads; ++i) {
        const auto warp = values.begin() + i / 32 * 32;
        uint32_t votes = 0;
        for (int lane = 0; lane < 32; ++lane)
          votes |= static_cast<uint32_t>(warp[lane] & 1) << lane;
        const int expected[6] = {warp[values[static_cast<size_t>(i)] % 32],
                                 warp[(i % 32) ^ 5],
                                 static_cast<int>(votes % 65521u),
                                 std::accumulate(warp, warp + 32, 0),
                                 total,
                                 largest};
        for (int k = 0; k < 6; ++k)
          ASSERT_EQ(got[static_cast<size_t>(i * 6 + k)], static_cast<float>(expected[k]))
              << "thread " << i << " of " << threads << ", word " << k;
      }
    }
  });
}

TEST(CudaVocabulary, LoadsMatricesAsTheManualSays) {
  in_any_order([] {
    std::vector<uint16_t> rows(32 * 8);
    std::iota(rows.begin(), rows.end(), uint16_t{1});
    DeviceArray<uint16_t> in(rows);
    DeviceArray<uint32_t> out(2 * 32 * 4);
    matrices(in.data(), out.data());
    const auto got = out.values();
    for (size_t lane = 0; lane < 32; ++lane)
      for (size_t matrix = 0; matrix < 4; ++matrix) {
        const auto at = [&](size_t row, size_t col) {
          return uint32_t{rows[(matrix * 8 + row) * 8 + col]};
        };
        const size_t group = lane / 4;
        const size_t place = lane % 4 * 2;
        ASSERT_EQ(got[lane * 4 + matrix], at(group, place) | at(group, place + 1) << 16);
        ASSERT_EQ(got[(32 + lane) * 4 + matrix], at(place, group) | at(place + 1, group) << 16);
      }
  });
}

void try_product_16_bit(MmaType type, Random& random, bool is_special) {
  const DType dtype = type == MmaType::kF16 ? DType::kF16 : DType::kBF16;
  const auto bits_of = [&](float value) {
    return dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
  };
  const auto value_of = [&](uint16_t bits) {
    return double{dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits)};
  };
  std::vector<uint16_t> a(16 * 16), b(8 * 16);
  for (uint16_t& x : a) x = bits_of(random.normal(1, 2)[0]);
  for (uint16_t& x : b) x = bits_of(random.normal(1, 2)[0]);
  auto c = random.normal(16 * 8);
  if (is_special) {
    a[5 * 16 + 3] = bits_of(std::numeric_limits<float>::infinity());
    b[2 * 16 + 7] = bits_of(std::numeric_limits<float>::quiet_NaN());
    a[9] = 1;  // subnormal
    c[11] = -std::numeric_limits<float>::infinity();
  }
  DeviceArray<uint16_t> da(a), db(b);
  DeviceArray<float> dc(c), out(16 * 8);
  multiply(type, da.data(), db.data(), dc.data(), out.data());
  const auto got = out.values();
  for (size_t row = 0; row < 16; ++row)
    for (size_t col = 0; col < 8; ++col) {
      double exact = double{c[row * 8 + col]};
      double magnitude = std::fabs(exact);
      for (size_t k = 0; k < 16; ++k) {
        const double term = value_of(a[row * 16 + k]) * value_of(b[col * 16 + k]);
        exact += term;
        magnitude += std::fabs(term);
      }
      const float result = got[row * 8 + col];
      if (!std::isfinite(exact)) {
        ASSERT_TRUE(same(result, static_cast<float>(exact))) << row << " " << col;
      } else {
        // Tensor cores cut off instead of rounding: two units in the last place a term.
        ASSERT_NEAR(result, exact, 17 * 2 * 0x1p-23 * magnitude) << row << " " << col;
      }
    }
}

TEST(CudaVocabulary, MultipliesTiles) {
  in_any_order([] {
    Random random(7);
    for (int round = 0; round < 10; ++round) {
      try_product_16_bit(MmaType::kF16, random, round % 2 == 1);
      if (first_device().has_bf16) try_product_16_bit(MmaType::kBF16, random, round % 2 == 1);
      std::vector<uint8_t> a(16 * 32), b(8 * 32);
      for (uint8_t& x : a) x = static_cast<uint8_t>(random.between(0, 255));
      for (uint8_t& x : b) x = static_cast<uint8_t>(random.between(0, 255));
      std::vector<int> c(16 * 8);
      for (int& x : c) x = static_cast<int>(random.between(-100000, 100000));
      DeviceArray<uint8_t> da(a), db(b);
      DeviceArray<int> dc(c), out(16 * 8);
      multiply(MmaType::kS8, da.data(), db.data(), dc.data(), out.data());
      const auto got = out.values();
      for (size_t row = 0; row < 16; ++row)
        for (size_t col = 0; col < 8; ++col) {
          int sum = c[row * 8 + col];
          for (size_t k = 0; k < 32; ++k)
            sum += static_cast<int8_t>(a[row * 32 + k]) * static_cast<int8_t>(b[col * 32 + k]);
          ASSERT_EQ(got[row * 8 + col], sum) << row << " " << col;
        }
    }
  });
}

TEST(CudaVocabulary, AsynchronousCopiesLandAtTheWait) {
  in_any_order([] {
    for (const int lines : {1, 255, 256, 1000, 5001}) {
      Random random(static_cast<uint32_t>(lines));
      std::vector<Words4> values(static_cast<size_t>(lines));
      for (Words4& line : values)
        for (uint32_t& word : line.word) word = static_cast<uint32_t>(random.engine()());
      DeviceArray<Words4> in(values), out(values.size());
      pipeline(in.data(), lines, out.data());
      const auto got = out.values();
      for (size_t i = 0; i < values.size(); ++i) {
        const Words4 expected = i % 7 == 6 ? Words4{} : values[i];
        // The last line has no neighbour to write it when their number is odd.
        if ((i ^ 1) / 256 * 256 + (i ^ 1) % 256 >= values.size() && i % 256 != 0) continue;
        ASSERT_EQ(std::memcmp(&got[i], &expected, 16), 0) << "line " << i << " of " << lines;
      }
    }
  });
}

TEST(CudaVocabulary, FunctionsAreCloseToTheirs) {
  Random random(9);
  auto x = random.normal(5000, 4);
  x.insert(x.end(), {0.0f, 1.0f, -1.0f, 80.0f, -80.0f, 1e-20f, 30.5f});
  DeviceArray<float> in(x), out(x.size() * 8);
  functions(in.data(), static_cast<int>(x.size()), out.data());
  const auto got = out.values();
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = double{x[i]};
    const double magnitude = std::fabs(v);
    const double expected[8] = {std::exp2(v), std::exp(v),  std::log2(magnitude),
                                std::erf(v),  std::tanh(v), std::sqrt(magnitude),
                                std::sin(v),  std::cos(v)};
    for (size_t k = 0; k < 8; ++k) {
      if (k == 2 && magnitude == 0) continue;
      // exp2 flushes subnormals; the others are within 4 units in the last place.
      const double allowed = std::fabs(expected[k]) * 4 * 0x1p-23 + (k == 0 ? 0x1p-126 : 1e-38) +
                             (k == 2 || k > 5 ? 2 * 0x1p-23 : 0);
      ASSERT_NEAR(double{got[i * 8 + k]}, expected[k], allowed) << "function " << k << " of " << v;
    }
  }
}

// What the last of some blocks makes of what all have left.
std::vector<float> summed_in_last_block(const std::vector<float>& values, int blocks) {
  DeviceArray<float> in(values), out(std::vector<float>(64));
  DeviceArray<float> left(
      std::vector<float>(values.size(), std::numeric_limits<float>::quiet_NaN()));
  DeviceArray<uint32_t> counter(std::vector<uint32_t>{0});
  sum_in_last_block(in.data(), blocks, left.data(), counter.data(), out.data());
  EXPECT_EQ(counter.values().front(), 0u);
  return out.values();
}

TEST(CudaVocabulary, TheLastBlockSeesWhatAllHaveWritten) {
  for (const int blocks : {1, 2, 5, 23}) {
    std::vector<float> values(static_cast<size_t>(64 * blocks));
    std::iota(values.begin(), values.end(), 1.0f);
    std::vector<float> expected(64, 0.0f);
    for (size_t i = 0; i < values.size(); ++i) expected[i % 64] += values[i];
    in_any_order([&] { EXPECT_EQ(summed_in_last_block(values, blocks), expected) << blocks; });
  }
}

#ifdef SLUICE_CUDA_ON_HOST
// Greedy warps count up before others of their block have written: that shows.
TEST(CudaOnHost, ABarrierMissingBeforeCountingShows) {
  const std::vector<float> values(64 * 3, 1.0f);
  host::set_seed(2);
  DeviceArray<float> in(values), out(std::vector<float>(64));
  DeviceArray<float> left(
      std::vector<float>(values.size(), std::numeric_limits<float>::quiet_NaN()));
  DeviceArray<uint32_t> counter(std::vector<uint32_t>{0});
  sum_in_last_block(in.data(), 3, left.data(), counter.data(), out.data(), false);
  EXPECT_NE(out.values(), std::vector<float>(64, 3.0f));
  host::set_seed(0);
}

// What the wrong kernel leaves, or the error that stops it.
std::string outcome(Mistake mistake, uint64_t seed) {
  std::vector<float> values(64), mirrored(64);
  std::iota(values.begin(), values.end(), 1.0f);
  std::reverse_copy(values.begin(), values.end(), mirrored.begin());
  host::set_seed(seed);
  DeviceArray<float> in(values), out(values.size());
  try {
    wrong(mistake, in.data(), out.data());
    return out.values() == mirrored ? "right" : "wrong";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(CudaOnHost, AMissingBarrierShowsInEveryOrder) {
  for (uint64_t seed = 0; seed < 6; ++seed) EXPECT_EQ(outcome(Mistake::kNoBarrier, seed), "wrong");
}

TEST(CudaOnHost, AMissingWaitAndUnwrittenSharedMemoryShow) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    EXPECT_EQ(outcome(Mistake::kNoWait, seed), "wrong");
    EXPECT_EQ(outcome(Mistake::kUnwrittenShared, seed), "wrong");
  }
}

TEST(CudaOnHost, ThreadsThatWaitInVainAreNamed) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const std::string text = outcome(Mistake::kHalfABarrier, seed);
    EXPECT_NE(text.find("kernel wrong, block (0, 0, 0): no thread can go on: thread 0 waits for "
                        "its block at vocabulary_kernels.cu:"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("thread 32 has ended"), std::string::npos) << text;
  }
}

TEST(CudaOnHost, LanesThatPartAreNamed) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const std::string text = outcome(Mistake::kSplitWarp, seed);
    EXPECT_NE(text.find("others of its warp at vocabulary_kernels.cu:"), std::string::npos) << text;
  }
}

TEST(CudaOnHost, StreamsKeepTheOrderThatEventsAskFor) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    host::set_seed(seed);
    std::vector<int> first(8, 1), second(8, 2), got(8, 0);
    const DeviceMemory memory(32);
    const OwnedStream a, b;
    Event copied;
    copy_to_device(memory.data(), first.data(), 32, a.get());
    copy_to_device(memory.data(), second.data(), 32, a.get());
    copied.record(a.get());
    copied.make_wait(b.get());
    copy_to_host(got.data(), memory.data(), 32, b.get());
    synchronize(b.get());
    EXPECT_EQ(got, second);
  }
}

TEST(CudaOnHost, AMissingEventShowsInSomeOrder) {
  bool has_shown = false;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    host::set_seed(seed);
    std::vector<int> values(8, 1), got(8, 0);
    const DeviceMemory memory(32);
    const OwnedStream a, b;
    copy_to_device(memory.data(), values.data(), 32, a.get());
    copy_to_host(got.data(), memory.data(), 32, b.get());
    synchronize(b.get());
    has_shown |= got != values;
  }
  host::set_seed(0);
  EXPECT_TRUE(has_shown);
}
#endif

}  // namespace
}  // namespace sluice::cuda
