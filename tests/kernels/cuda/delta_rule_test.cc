// The operators of recurrent states on the device against the reference.
#include "kernels/cuda/delta_rule.h"

#include <limits>

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

constexpr RecurrentRule kSpace = RecurrentRule::kStateSpace;

// Key heads, value heads, key width, value width, taps.
const RecurrentShape kShapes[] = {
    {1, 1, 1, 1, 1},           {1, 1, 8, 8, 4},         {2, 4, 5, 7, 3},
    {3, 3, 17, 33, 2},         {1, 2, 128, 128, 4},     {2, 6, 32, 65, 4},
    {1, 1, 300, 3, 16},        {1, 1, 512, 17, 2},      {1, 1, 1, 1, 1, kSpace},
    {1, 3, 16, 8, 4, kSpace},  {2, 4, 5, 7, 3, kSpace}, {1, 2, 128, 64, 4, kSpace},
    {1, 1, 512, 17, 2, kSpace}};

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
  const auto bias = random.normal(shape.columns(), 0.5f), skip = random.normal(heads);
  auto learned = random.normal(Runs::kRows * heads), kept = learned;
  for (float& value : learned) value = 0.5f + 0.4f * std::tanh(value);
  for (float& value : kept) value = 1 - 0.3f * std::fabs(std::tanh(value));
  std::vector<float> states = runs.states, convolved(x.size()),
                     out(static_cast<size_t>(Runs::kRows * out_stride));

  DeviceArray<float> in(x), w(weights), l(learned), k(kept), s(runs.states), y(convolved), o(out),
      b(bias), d(skip);
  // A gated delta net has neither a bias nor a skip.
  const bool is_delta = shape.is_delta();
  const std::vector<StateRun> there = runs.of(s.data());
  DeviceArray<StateRun> table(there);
  const StateRuns all{table.data(), std::ssize(there)};
  causal_conv_silu(shape, w.data(), is_delta ? nullptr : b.data(), in.data(), stride, all, y.data(),
                   stride, nullptr);
  recurrent_rule(
      shape, {y.data(), stride, l.data(), heads, k.data(), heads, is_delta ? nullptr : d.data()},
      all, o.data(), out_stride, nullptr);

  const std::vector<StateRun> here = runs.of(states.data());
  reference::causal_conv_silu(shape, weights.data(), is_delta ? nullptr : bias.data(), x.data(),
                              stride, here, convolved.data(), stride);
  reference::recurrent_rule(shape,
                            {convolved.data(), stride, learned.data(), heads, kept.data(), heads,
                             is_delta ? nullptr : skip.data()},
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
  constexpr float kNone = std::numeric_limits<float>::infinity();
  time_steps(y.data(), kStride, b.data(), 0, kNone, kRows, kHeads, nullptr);
  reference::time_steps(x.data(), kStride, bias.data(), 0, kNone, kRows, kHeads);
  expect_near(y.values(), x, 2e-6, 1e-30);  // relative: what is small counts too
  DeviceArray<float> kept(x), in_bounds(x);
  decay_gates(y.data(), kStride, a.data(), kept.data(), kStride, kRows, kHeads, nullptr);
  auto expected = x;
  reference::decay_gates(x.data(), kStride, a_log.data(), expected.data(), kStride, kRows, kHeads);
  expect_near(kept.values(), expected, 1e-5, 2e-6);
  decay_gates(y.data(), kStride, a.data(), y.data(), kStride, kRows, kHeads, nullptr);
  expect_near(y.values(), expected, 1e-5, 2e-6);
  // Steps have bounds.
  time_steps(in_bounds.data(), kStride, b.data(), 0.5f, 1, kRows, kHeads, nullptr);
  reference::time_steps(x.data(), kStride, bias.data(), 0.5f, 1, kRows, kHeads);
  expect_near(in_bounds.values(), x, 1e-5, 1e-6);
}

}  // namespace
}  // namespace sluice::cuda
