#include "tests/io/checkpoint/expected_tensors.h"

namespace sluice::io {
namespace {

TEST(ThirdParty, TorchAndSafetensorsAgreeWithUs) {
  const ExpectedFiles expected = read_expected(fixture("third_party/expected.json"));
  EXPECT_EQ(expected.size(), 10u);
  for (const auto& [name, tensors] : expected) {
    SCOPED_TRACE(name);
    expect_tensors(Checkpoint::open(fixture("third_party") / name), tensors);
  }
}

// The official library refuses it as well.
TEST(ThirdParty, BytesAfterTheDataAreRefused) {
  expect_refusal([] { Checkpoint::open(fixture("third_party/weight_inspect")); }, ErrorKind::kFile,
                 {"after the last tensor"});
}

TEST(ThirdParty, OtherProgramsQuantisedWeightsAreNamed) {
  expect_refusal([] { Checkpoint::open(fixture("third_party/mlxd_qwen3")); }, ErrorKind::kFile,
                 {"U32", "not supported", "quantised"});
}

TEST(ThirdParty, EmptyShardsAreNamed) {
  expect_refusal([] { Checkpoint::open(fixture("third_party/mlxd_empty_shards")); },
                 ErrorKind::kFile, {"model-00001-of-00002.safetensors", "empty"});
}

TEST(ThirdParty, FortranOrderIsRefusedByName) {
  expect_refusal([] { Checkpoint::open(fixture("third_party/candle/fortran_tensor_3d.pth")); },
                 ErrorKind::kFile, {"\"tensor_fortran\"", "not contiguous"});
}

TEST(ThirdParty, LegacyFilesAndNestedTreesSayWhatToDo) {
  expect_refusal([] { Checkpoint::open(fixture("third_party/burn/simple_legacy.pt")); },
                 ErrorKind::kFile, {"before 1.6", "re-save"});
  expect_refusal([] { Checkpoint::open(fixture("third_party/burn/complex_structure.pt")); },
                 ErrorKind::kFile, {"no tensors by name"});
}

}  // namespace
}  // namespace sluice::io
