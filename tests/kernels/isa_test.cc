#include "kernels/cpu/isa.h"

#include "kernels/linear.h"
#include "src/base/error.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

TEST(Isa, NamesAreReadBack) {
  for (const Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx,
                        Isa::kNeon, Isa::kNeonBf16})
    EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  EXPECT_EQ(parse_isa("sse9"), std::nullopt);
  EXPECT_EQ(parse_isa(""), std::nullopt);
}

TEST(Isa, HasAllThatItSaysItHas) {
  EXPECT_TRUE(supports_isa(Isa::kGeneric));
  EXPECT_TRUE(supports_isa(detected_isa()));
  // Who has products of bf16 has the variant without them, and nobody has both processors'.
  EXPECT_TRUE(supports_isa(Isa::kNeon) || !supports_isa(Isa::kNeonBf16));
  EXPECT_FALSE(supports_isa(Isa::kNeon) && supports_isa(Isa::kAvx2));
  for_each_isa([] {
    const std::string name(isa_name(active_isa()));
    EXPECT_NE(describe_kernels().find("cpu: " + name + " "), std::string::npos);
    const bool has_bf16 = active_isa() == Isa::kAvx512Bf16 || active_isa() == Isa::kAmx ||
                          active_isa() == Isa::kNeonBf16;
    EXPECT_EQ(bf16_compute_supported(), has_bf16) << name;
    const std::string expected = "bf16: " + name + "; f32: " + name;
    EXPECT_EQ(describe_linear() == expected, has_bf16 && active_isa() != Isa::kAmx);
  });
}

TEST(Isa, IsLoweredOnly) {
  force_isa(Isa::kGeneric);
  EXPECT_EQ(active_isa(), Isa::kGeneric);
  EXPECT_NE(describe_kernels().find("generic"), std::string::npos);
  force_isa(detected_isa());
  EXPECT_EQ(active_isa(), detected_isa());
  // No machine has both.
  const Isa missing = supports_isa(Isa::kNeon) ? Isa::kAvx2 : Isa::kNeon;
  EXPECT_FALSE(supports_isa(missing));
  try {
    force_isa(missing);
    FAIL() << "took an instruction set that the CPU lacks";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    EXPECT_NE(error.text().find(isa_name(missing)), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::kernels
