#pragma once
// What the kernel tests share: random operands that name their seed, every instruction set of this
// machine, and a comparison that names the worst element.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/elementwise.h"
#include "src/base/dtype.h"
#include "src/base/team.h"

namespace sluice::kernels {

/// Half the distance of 1 to the next f32: the relative error of one rounding.
constexpr double kRounding = 0x1p-24;

/// Error of an n-term f32 sum in any order, relative to the sum of magnitudes: sqrt(n) roundings
/// that are as good as independent (Higham and Mary, 2019), times 6, so that a chance failure has a
/// probability below 1e-7.
inline double sum_error(int64_t n) {
  return 6 * std::sqrt(static_cast<double>(n) + 16) * kRounding;
}

/// All tests of kernels run on a few threads.
class OnTeam : public ::testing::Environment {
 public:
  void SetUp() override {
    team_.emplace(3);
    use_.emplace(*team_);
  }
  void TearDown() override {
    use_.reset();
    team_.reset();
  }

 private:
  std::optional<Team> team_;
  std::optional<Team::Use> use_;
};
inline ::testing::Environment* const on_team = ::testing::AddGlobalTestEnvironment(new OnTeam);

/// Runs `test` once for each instruction set that this machine has, best first: oneDNN keeps what
/// it sees first.
inline void for_each_isa(const std::function<void()>& test) {
  for (int isa = static_cast<int>(detected_isa()); isa >= 0; --isa) {
    if (!supports_isa(static_cast<Isa>(isa))) continue;
    force_isa(static_cast<Isa>(isa));
    SCOPED_TRACE("instruction set " + std::string(isa_name(static_cast<Isa>(isa))));
    test();
  }
  force_isa(detected_isa());
}

/// Random operands. Tests put `trace()` into a SCOPED_TRACE.
class Random {
 public:
  explicit Random(uint32_t seed) : seed_(seed), engine_(seed) {}
  std::string trace() const { return "seed " + std::to_string(seed_); }

  std::vector<float> normal(int64_t n, float deviation = 1) {
    std::normal_distribution<float> distribution(0, deviation);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = distribution(engine_);
    return values;
  }
  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  std::mt19937& engine() { return engine_; }

 private:
  uint32_t seed_;
  std::mt19937 engine_;
};

/// `values` rounded to `type`, as bytes, `skip` elements into the result (for misaligned operands).
inline std::vector<std::byte> stored_as(DType type, const std::vector<float>& values,
                                        int64_t skip_bytes = 0) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(type)) +
                               static_cast<size_t>(skip_bytes));
  reference::convert(DType::kF32, values.data(), type, bytes.data() + skip_bytes,
                     static_cast<int64_t>(values.size()));
  return bytes;
}

/// The values that `type` keeps of `values`.
inline std::vector<float> rounded_to(DType type, const std::vector<float>& values) {
  std::vector<float> result(values.size());
  const std::vector<std::byte> bytes = stored_as(type, values);
  reference::convert(type, bytes.data(), DType::kF32, result.data(),
                     static_cast<int64_t>(values.size()));
  return result;
}

/// Every actual[i] within tolerance(i) of expected[i]; a failure names the worst element.
inline void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                         const std::function<double(size_t)>& tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    if (actual[i] == expected[i]) continue;
    const double ratio = std::fabs(double{actual[i]} - expected[i]) / tolerance(i);
    if (!(ratio <= worst)) {  // NaN too
      worst = ratio;
      at = i;
      if (std::isnan(ratio)) break;
    }
  }
  EXPECT_LE(worst, 1) << "element " << at << " of " << actual.size() << " is "
                      << (actual.empty() ? 0 : actual[at]) << ", not "
                      << (actual.empty() ? 0 : expected[at]) << "; allowed are "
                      << (actual.empty() ? 0 : tolerance(at));
}

}  // namespace sluice::kernels
