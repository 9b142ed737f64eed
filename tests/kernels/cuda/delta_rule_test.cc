// The gated delta net's operators on the device against the reference.
#include "kernels/cuda/delta_rule.h"

#include "kernels/delta_rule.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/row_testing.h"
#ifdef SLUICE_CUDA_ON_HOST
#include "kernels/cuda/shim/host_driver.h"
#endif

namespace sluice::cuda {
namespace {
using kernels::Random;
using kernels::StateRun;
namespace reference = kernels::reference;

// Key heads, value heads, key width, value width, taps.
const RecurrentShape kShapes[] = {{1, 1, 1, 1, 1},    {1, 1, 8, 8, 4},     {2, 4, 5, 7, 3},
                                  {3, 3, 17, 33, 2},  {1, 2, 128, 128, 4}, {2, 6, 32, 65, 4},
                                  {1, 1, 300, 3, 16}, {1, 1, 512, 17, 2}};

// Three sequences: a new one, one that goes on where it was, one that keeps a state on the way in
// the place that it came from.
struct Runs {
  explicit Runs(const RecurrentShape& shape, Random& random)
      : floats(shape.floats()), states(random.normal(5 * floats)) {}
  std::vector<StateRun> of(float* base) const {
    const auto at = [&](int64_t i) { return base + i * floats; };
    return {{0, 6, nullptr, at(0)},
            {6, 1, at(1), at(1)},
            {7, 12, at(2), at(3), 5, at(2)},
            {19, 3, nullptr, at(4)}};
  }
  static constexpr int64_t kRows = 22;
  int64_t floats;
  std::vector<float> states;
};

void expect_as_reference(const RecurrentShape& shape) {
  Random random(static_cast<uint32_t>(shape.floats()));
  SCOPED_TRACE(random.trace());
  const Runs runs(shape, random);
  const int64_t stride = shape.columns() + 3, heads = shape.value_heads;
  const int64_t out_stride = shape.value_columns() + 2;
  const auto x = random.normal(Runs::kRows * stride);
  const auto weights = random.normal(shape.columns() * shape.taps, 0.5f);
  auto learned = random.normal(Runs::kRows * heads), kept = learned;
  for (float& value : learned) value = 0.5f + 0.4f * std::tanh(value);
  for (float& value : kept) value = 1 - 0.3f * std::fabs(std::tanh(value));
  std::vector<float> states = runs.states, convolved(x.size()),
                     out(static_cast<size_t>(Runs::kRows * out_stride));

  DeviceArray<float> in(x), w(weights), l(learned), k(kept), s(runs.states), y(convolved), o(out);
  const std::vector<StateRun> there = runs.of(s.data());
  DeviceArray<StateRun> table(there);
  const StateRuns all{table.data(), std::ssize(there)};
  causal_conv_silu(shape, w.data(), in.data(), stride, all, y.data(), stride, nullptr);
  gated_delta_rule(shape, {y.data(), stride, l.data(), heads, k.data(), heads}, all, o.data(),
                   out_stride, nullptr);

  const std::vector<StateRun> here = runs.of(states.data());
  reference::causal_conv_silu(shape, weights.data(), x.data(), stride, here, convolved.data(),
                              stride);
  reference::gated_delta_rule(shape,
                              {convolved.data(), stride, learned.data(), heads, kept.data(), heads},
                              here, out.data(), out_stride);
  expect_near(y.values(), convolved, 1e-5, 1e-5);
  expect_near(o.values(), out, 1e-4, 1e-4);
  expect_near(s.values(), states, 1e-4, 1e-4);
}

TEST(CudaDeltaRule, AgreesWithTheReference) {
  for (const RecurrentShape& shape : kShapes) expect_as_reference(shape);
}

#ifdef SLUICE_CUDA_ON_HOST
// 466 keys of 32 columns are what 64 KiB hold.
TEST(CudaDeltaRule, WideKeysFitTheLeastGpu) {
  host::set_capability(7, 5);
  for (const int64_t keys : {int64_t{466}, int64_t{467}, RecurrentShape::kMostKeyWidth})
    expect_as_reference({1, 2, keys, 33, 2});
  host::set_capability(9, 0);
}
#endif

TEST(CudaDeltaRule, DecaysAsTheReference) {
  Random random(7);
  constexpr int64_t kRows = 9, kHeads = 13, kStride = 15;
  auto x = random.normal(kRows * kStride, 8);
  x[0] = 30, x[1] = -90, x[2] = 19.9f;
  auto a_log = random.normal(kHeads);
  const auto bias = random.normal(kHeads);
  x[3] = 100, a_log[3] = -6;  // e^x overflows, the gate is near 1
  DeviceArray<float> y(x), a(a_log), b(bias);
  decay_gates(y.data(), kStride, a.data(), b.data(), kRows, kHeads, nullptr);
  reference::decay_gates(x.data(), kStride, a_log.data(), bias.data(), kRows, kHeads);
  expect_near(y.values(), x, 1e-5, 2e-6);
}

}  // namespace
}  // namespace sluice::cuda
