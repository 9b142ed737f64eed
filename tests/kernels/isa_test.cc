#include "kernels/cpu/isa.h"

#include "src/base/error.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

TEST(Isa, NamesAreReadBack) {
  for (const Isa isa :
       {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx, Isa::kNeon})
    EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  EXPECT_EQ(parse_isa("sse9"), std::nullopt);
  EXPECT_EQ(parse_isa(""), std::nullopt);
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
