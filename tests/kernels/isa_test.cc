#include "kernels/cpu/isa.h"

#include "src/base/error.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

TEST(Isa, NamesAreReadBack) {
  for (const Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx})
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
  if (detected_isa() == Isa::kAmx)
    GTEST_SKIP() << "this CPU has everything, so nothing can be refused";
  try {
    force_isa(Isa::kAmx);
    FAIL() << "took an instruction set that the CPU lacks";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    EXPECT_NE(error.text().find("amx"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::kernels
