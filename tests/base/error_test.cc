#include "src/base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

TEST(Error, TellsWhatAndHowToMend) {
  const Error error(ErrorKind::kFile, "model.safetensors is cut short", "download it again");
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_EQ(error.text(), "model.safetensors is cut short");
  EXPECT_EQ(error.mend(), "download it again");
  EXPECT_STREQ(error.what(), "model.safetensors is cut short; download it again");
  EXPECT_STREQ(Error(ErrorKind::kUser, "only this").what(), "only this");
}

TEST(Error, ContextGoesInFrontAndKeepsKindAndMend) {
  const Error error = Error(ErrorKind::kResource, "no room", "raise --cpu-mem")
                          .with_context("layer 3")
                          .with_context("opt-30b");
  EXPECT_EQ(error.text(), "opt-30b: layer 3: no room");
  EXPECT_EQ(error.kind(), ErrorKind::kResource);
  EXPECT_EQ(error.mend(), "raise --cpu-mem");
}

TEST(Error, ExitCodesAreThoseTheCommandLinePromises) {
  EXPECT_EQ(exit_code(ErrorKind::kUser), 2);
  EXPECT_EQ(exit_code(ErrorKind::kFile), 3);
  EXPECT_EQ(exit_code(ErrorKind::kResource), 4);
  EXPECT_EQ(exit_code(ErrorKind::kDevice), 5);
  EXPECT_EQ(exit_code(ErrorKind::kCancelled), 130);
  EXPECT_EQ(exit_code(ErrorKind::kInternal), 70);
}

TEST(Assert, ThrowsAnInternalErrorWithPlaceConditionAndReason) {
  EXPECT_NO_THROW(SLUICE_ASSERT(1 + 1 == 2, "arithmetic holds"));
  try {
    SLUICE_ASSERT(1 + 1 == 3, "arithmetic was expected to fail");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    for (const char* words : {"error_test.cc", "1 + 1 == 3", "arithmetic was expected to fail"})
      EXPECT_NE(error.text().find(words), std::string::npos) << error.text();
  }
}

}  // namespace
}  // namespace sluice
