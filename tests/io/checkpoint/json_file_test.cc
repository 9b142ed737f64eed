#include "io/checkpoint/json_file.h"

#include <nlohmann/json.hpp>

#include "src/base/files.h"
#include "tests/io/checkpoint/files.h"

namespace sluice::io {
namespace {

TEST(JsonFile, ReadsEveryKindOfValue) {
  const auto root =
      parse_json(R"({"a":[1,-2,2.5,"x",true,null,{}],"b":{"c":18446744073709551615}})", "here");
  EXPECT_EQ(root["a"].size(), 7u);
  EXPECT_EQ(root["a"][1], -2);
  EXPECT_EQ(root["a"][3], "x");
  EXPECT_TRUE(root["a"][6].is_object());
  EXPECT_EQ(root["b"]["c"].get<uint64_t>(), UINT64_MAX);
}

TEST(JsonFile, NamesTheRepeatedKey) {
  expect_refusal([] { parse_json(R"({"a":1,"b":{"c":1,"c":2}})", "some/path"); }, ErrorKind::kFile,
                 {"some/path", "\"c\"", "twice"});
}

TEST(JsonFile, SaysWhereItIsNoJson) {
  for (const char* text :
       {"", "{", "{\"a\":}", "[1,]", "nul", "{} {}", "\"\xff\"", "{\"a\":1", "\x01"})
    expect_refusal([&] { parse_json(text, "some/path"); }, ErrorKind::kFile, {"some/path", "byte"});
}

TEST(JsonFile, RefusesDeepNestingWithoutDeepRecursion) {
  expect_refusal([] { parse_json(std::string(1000000, '['), "deep"); }, ErrorKind::kFile,
                 {"deep", "nested"});
  std::string alternating;
  for (int i = 0; i < 100000; ++i) alternating += "[{\"\":";
  expect_refusal([&] { parse_json(alternating, "deep"); }, ErrorKind::kFile, {"nested"});
}

TEST(JsonFile, HoldsItsLimits) {
  EXPECT_NO_THROW(parse_json("[1,2,3]", "p", {.max_values = 4}));
  expect_refusal([] { parse_json("[1,2,3,4]", "p", {.max_values = 4}); }, ErrorKind::kFile,
                 {"more than 4 values"});
  expect_refusal([] { parse_json("[1,2,3,4]", "p", {.max_bytes = 8}); }, ErrorKind::kFile,
                 {"more than"});
}

TEST(JsonFile, FileErrorsNamePathAndCause) {
  TemporaryFolder folder;
  expect_refusal([&] { sluice::read_file(folder / "absent.json", 100); }, ErrorKind::kFile,
                 {"absent.json", "No such file"});
  expect_refusal([&] { sluice::read_file(folder.path(), 100); }, ErrorKind::kFile,
                 {"Is a directory"});
  write_all(folder / "large.json", std::string(100, ' '));
  expect_refusal([&] { sluice::read_file(folder / "large.json", 99); }, ErrorKind::kFile,
                 {"large.json", "more than"});
  write_all(folder / "lfs.json",
            "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n");
  expect_refusal([&] { read_json_file(folder / "lfs.json"); }, ErrorKind::kFile,
                 {"Git LFS", "git lfs pull"});
  write_all(folder / "fine.json", "{\"x\": 3}");
  EXPECT_EQ(read_json_file(folder / "fine.json")["x"], 3);
}

}  // namespace
}  // namespace sluice::io
