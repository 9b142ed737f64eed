#include "src/base/kv_format.h"

#include <gtest/gtest.h>

#include <set>

namespace sluice {
namespace {

TEST(KvFormat, NamesAreReadBack) {
  std::set<std::string> names;
  for (const KvFormat& format :
       {KvFormat(DType::kF32), KvFormat(DType::kF16), KvFormat(DType::kBF16), kQuantisedKv[0],
        kQuantisedKv[1], kQuantisedKv[2]}) {
    EXPECT_EQ(parse_kv_format(kv_format_name(format)), format) << kv_format_name(format);
    names.insert(kv_format_name(format));
  }
  EXPECT_EQ(names, (std::set<std::string>{"f32", "f16", "bf16", "int8", "k8v4", "int4"}));
  for (const char* name : {"", "k4v8", "K8V4", "k8v4 ", "i64", "fp8", "q8_0"})
    EXPECT_FALSE(parse_kv_format(name)) << name;
}

TEST(KvFormat, BytesOfATokenAreThoseOfItsKeyAndItsValue) {
  // 128 elements: codes, and a scale and a minimum of 16 bits for each 64.
  EXPECT_EQ(KvFormat(DType::kBF16).pair_bytes(128), 512);
  EXPECT_EQ(KvFormat(KvEncoding::kInt8).pair_bytes(128), 2 * (128 + 8));
  EXPECT_EQ(KvFormat(KvEncoding::kInt4).pair_bytes(128), 2 * (64 + 8));
  EXPECT_EQ(kInt8KeysInt4Values.pair_bytes(128), (128 + 8) + (64 + 8));
  // Rows of codes are whole pieces of 16 bytes.
  EXPECT_EQ(kInt8KeysInt4Values.keys().row_bytes(33), 48 + 4);
  EXPECT_EQ(kInt8KeysInt4Values.values().row_bytes(33), 32 + 4);
  EXPECT_EQ(kInt8KeysInt4Values.keys(), KvFormat(KvEncoding::kInt8).keys());
  EXPECT_EQ(kInt8KeysInt4Values.values(), KvFormat(KvEncoding::kInt4).values());
}

TEST(KvFormat, QuantisedPagesAreLonger) {
  for (const KvFormat& format : kQuantisedKv) {
    EXPECT_TRUE(format.is_quantised());
    EXPECT_EQ(format.page_tokens(), 64);
  }
  EXPECT_FALSE(KvFormat(DType::kF16).is_quantised());
  EXPECT_EQ(KvFormat(DType::kF16).page_tokens(), 16);
}

}  // namespace
}  // namespace sluice
