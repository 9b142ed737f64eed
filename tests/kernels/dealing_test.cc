// What kernels compute does not depend on who computes which share, nor on how many threads there
// are: the same bits on teams of any size, and with a helper that stalls. Attention cuts long
// contexts by the size of the team, so its bits are those of that size.
#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels/attention.h"
#include "kernels/cpu/onednn_matmul.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/quantise.h"
#include "kernels/quantised_linear.h"
#include "kernels/rope.h"
#include "kernels/softmax.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

using Values = std::vector<float>;

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Loops are the same for all instruction sets, and generic ones slow under ThreadSanitizer.
void for_some_isa(const std::function<void()>& test) {
#ifdef __SANITIZE_THREAD__
  test();
#else
  for_each_isa(test);
#endif
}

// compute() gives the values of a kernel; the same ones on every team.
void expect_same_bits(const std::function<Values()>& compute) {
  Values alone;
  {
    Team one(1);
    const Team::Use use(one);
    alone = compute();
  }
  for (const int threads : {2, 7}) {
    Team team(threads);
    const Team::Use use(team);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(same_bits(compute(), alone)) << threads << " threads";
  }
}

struct Shape {
  int64_t m, n, k;
};
constexpr Shape kShapes[] = {{1, 700, 512}, {3, 257, 96}, {50, 260, 512}};

TEST(Dealing, GivesTheSameProducts) {
  for_some_isa([] {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32})
      for (const Compute compute : {Compute::kF32, Compute::kBF16})
        for (const auto& [m, n, k] : kShapes) {
          Random random(1);
          const Values x = random.normal(padded_rows(m) * k);
          const auto rounded = stored_as(DType::kBF16, x);
          const auto w = stored_as(dtype, random.normal(n * k));
          expect_same_bits([&, m = m, n = n, k = k] {
            Values y(static_cast<size_t>(padded_rows(m) * n));
            std::vector<std::byte> scratch(
                static_cast<size_t>(linear_scratch_bytes(dtype, m, n, k, compute)));
            linear({x.data(), reinterpret_cast<const uint16_t*>(rounded.data()), m, k, k}, w.data(),
                   dtype, n, k, nullptr, y.data(), n, compute, scratch);
            y.resize(static_cast<size_t>(m * n));
            return y;
          });
        }
  });
}

TEST(Dealing, GivesTheSameQuantisedProducts) {
  for_some_isa([] {
    for (const char* name : {"int4-g64", "int8", "nf4-g64", "fp8", "mxfp4", "q4_0", "iq4"})
      for (const auto activations : {ActivationFormat::k16Bit, ActivationFormat::kInt8})
        for (const float outliers : {0.0f, 3.0f})
          for (const auto& [m, n, k] : kShapes) {
            const WeightFormat format = *parse_weight_format(name);
            const bool takes_int8 = takes_int8_activations(format);
            if (activations == ActivationFormat::kInt8 ? !takes_int8 : outliers > 0) continue;
            Random random(2);
            const Values x = random.normal(m * k);
            const auto rounded = stored_as(DType::kBF16, x);
            const Values weights = random.normal(n * k, 0.1f);
            std::vector<std::byte> w(static_cast<size_t>(format.bytes(n, k)));
            for (int64_t row = 0; row < n; row += 16)
              ASSERT_TRUE(quantise_panel(format, {}, weights.data() + row * k, k,
                                         std::min<int64_t>(16, n - row), k,
                                         w.data() + row * format.row_bytes(k)));
            const QuantisedOptions options{
                bf16_compute_supported() ? Compute::kBF16 : Compute::kF32, activations, outliers};
            expect_same_bits([&, m = m, n = n, k = k] {
              Values y(static_cast<size_t>(m * n));
              std::vector<std::byte> scratch(
                  static_cast<size_t>(quantised_scratch_bytes(format, m, k, options)));
              linear_quantised(
                  {x.data(), reinterpret_cast<const uint16_t*>(rounded.data()), m, k, k}, w.data(),
                  format, n, nullptr, y.data(), n, options, scratch);
              return y;
            });
          }
  });
}

TEST(Dealing, GivesTheSameRows) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 70001}, {7, 9001}, {300, 257}}) {
    Random random(3);
    const Values x = random.normal(rows * cols), gain = random.normal(cols);
    const auto on_copy = [&](const auto& change) {
      expect_same_bits([&] {
        Values y = x;
        change(y);
        return y;
      });
    };
    on_copy([&, c = cols, r = rows](Values& y) {
      rms_norm(x.data(), gain.data(), 1e-5f, y.data(), r, c);
    });
    on_copy([&, c = cols, r = rows](Values& y) {
      layer_norm(x.data(), gain.data(), gain.data(), 1e-5f, y.data(), r, c);
    });
    on_copy([&, c = cols, r = rows](Values& y) { softmax(y.data(), r, c); });
    on_copy([&, c = cols, r = rows](Values& y) {
      gated(Activation::kSilu, x.data(), c, x.data(), c, y.data(), c, r, c);
    });
    on_copy([&, n = rows * cols](Values& y) { add_inplace(y.data(), x.data(), n); });
    on_copy([&, n = rows * cols](Values& y) { activate(Activation::kGeluTanh, y.data(), n); });
    on_copy([&, n = rows * cols](Values& y) {
      convert(DType::kF32, x.data(), DType::kBF16, y.data(), n);
    });
  }
  Random random(4);
  constexpr int kHeads = 4, kHeadDim = 64, kTokens = 203;
  const Values x = random.normal(int64_t{kTokens} * kHeads * kHeadDim);
  const Values frequencies(kHeadDim / 2, 0.01f);
  std::vector<int32_t> positions(kTokens);
  for (int32_t i = 0; i < kTokens; ++i) positions[static_cast<size_t>(i)] = 3 * i;
  expect_same_bits([&] {
    Values y = x;
    rope_inplace(y.data(), kTokens, int64_t{kHeads} * kHeadDim, kHeads, kHeadDim, kHeadDim,
                 positions.data(), frequencies.data(), 1);
    return y;
  });
}

struct Attention {
  explicit Attention(KvFormat kv_dtype) {
    shape.num_heads = 4;
    shape.num_kv_heads = 2;
    shape.head_dim = 64;
    shape.page_tokens = 16;
    shape.scale = 0.125f;
    shape.kv_dtype = kv_dtype;
    Random random(5);
    k = random.normal(int64_t{kContext} * 128);
    v = random.normal(int64_t{kContext} * 128);
    q = random.normal(int64_t{kContext} * 256);
    memory.resize(static_cast<size_t>(kContext / 16 * 2 * 16 * kv_dtype.pair_bytes(64)));
    for (int64_t page = 0; page < kContext / 16; ++page)
      pages.push_back(memory.data() + page * 2 * 16 * kv_dtype.pair_bytes(64));
  }
  // KV written, then one new token and a prompt of the context's length.
  Values compute(int64_t scratch_floats) {
    std::fill(memory.begin(), memory.end(), std::byte{0});
    kv_write(shape, k.data(), v.data(), 128, 0, kContext, pages.data());
    Values out(static_cast<size_t>((kContext + 1) * 256));
    const std::vector<const std::byte*> read(pages.begin(), pages.end());
    const auto sequence = [&](int32_t first, int32_t count, float* to) {
      AttentionSequence one;
      one.q = q.data();
      one.q_stride = one.out_stride = 256;
      one.first_position = first;
      one.count = count;
      one.pages = read.data();
      one.out = to;
      return one;
    };
    const std::vector<AttentionSequence> decode{sequence(kContext - 1, 1, out.data())};
    const std::vector<AttentionSequence> prompt{sequence(0, kContext, out.data() + 256)};
    Values scratch(static_cast<size_t>(scratch_floats));
    attention(shape, decode, scratch.data(), scratch_floats);
    attention(shape, prompt, scratch.data(), scratch_floats);
    return out;
  }

  static constexpr int32_t kContext = 528;
  AttentionShape shape;
  Values q, k, v;
  std::vector<std::byte> memory;
  std::vector<std::byte*> pages;
};

TEST(Dealing, GivesTheSameAttention) {
  for_some_isa([] {
    for (const KvFormat format : {KvFormat(DType::kF32), KvFormat(DType::kBF16),
                                  KvFormat(KvEncoding::kInt8), kInt8KeysInt4Values}) {
      Attention attention(format);
      for (const int threads : {2, 7}) {
        Team team(threads);
        const Team::Use use(team);
        const int64_t scratch = attention_scratch_floats(attention.shape, threads);
        const Values first = attention.compute(scratch);
        for (int i = 0; i < 2; ++i) ASSERT_TRUE(same_bits(attention.compute(scratch), first));
      }
    }
  });
}

TEST(Dealing, GivesTheSameOnednnProducts) {
  // On ARM it is never asked for any.
  if (!bf16_compute_supported() || supports_isa(Isa::kNeon) ||
      onednn_implementation().starts_with("("))
    GTEST_SKIP() << "no bf16 products of oneDNN here";
  for (const auto& [m, n, k] : {Shape{65, 700, 256}, {100, 128, 64}, {512, 100, 96}, {1, 130, 64}})
    for (const bool has_bias : {false, true}) {
      Random random(6);
      const Values x = random.normal(onednn_rows(m) * k), bias = random.normal(n);
      const auto rounded = stored_as(DType::kBF16, x);
      const auto w = stored_as(DType::kBF16, random.normal(n * k));
      const Activations activations{x.data(), reinterpret_cast<const uint16_t*>(rounded.data()), m,
                                    k, k};
      const auto product = [&, m = m, n = n, k = k](int scratch_threads) {
        Values y(static_cast<size_t>(onednn_rows(m) * n));
        std::vector<std::byte> memory(
            static_cast<size_t>(onednn_scratch_bytes(m, n, k, scratch_threads)) + 64);
        const auto skip = 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
        onednn_linear(activations, w.data(), n, has_bias ? bias.data() : nullptr, y.data(), n,
                      std::span(memory).subspan(skip));
        y.resize(static_cast<size_t>(m * n));
        return y;
      };
      expect_same_bits([&] { return product(loop_threads()); });
      expect_same_bits([&] { return product(1); });  // no scratch for helpers
      Values expected(static_cast<size_t>(m * n));
      reference::linear(activations, w.data(), DType::kBF16, n, k, has_bias ? bias.data() : nullptr,
                        expected.data(), n, Compute::kBF16);
      expect_close(product(2), expected, [k = k](size_t) {
        return sum_error(k) * 8 * std::sqrt(static_cast<double>(k));
      });
    }
}

TEST(Dealing, ServesTwoTeamsAtOnce) {
  // As two models in one process have them.
  Attention attention(DType::kF32);
  Values expected;
  {
    Team team(2);
    const Team::Use use(team);
    expected = attention.compute(attention_scratch_floats(attention.shape, 2));
  }
  std::vector<std::thread> models;
  for (int model = 0; model < 3; ++model)
    models.emplace_back([&expected] {
      Attention own(DType::kF32);
      Team team(2);
      const Team::Use use(team);
      for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(same_bits(own.compute(attention_scratch_floats(own.shape, 2)), expected));
    });
  for (std::thread& model : models) model.join();
}

}  // namespace
}  // namespace sluice::kernels
