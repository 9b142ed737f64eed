#include "io/checkpoint/safetensors.h"

#include <fmt/format.h>

#include "tests/io/checkpoint/files.h"

namespace sluice::io {
namespace {

// Parses `header` as that of a file with `data_bytes` bytes of data.
SafetensorsHeader parse(const std::string& header, int64_t data_bytes) {
  const auto offset = static_cast<int64_t>(8 + header.size());
  return parse_safetensors_header(header, offset, offset + data_bytes, "model/x.safetensors");
}

void expect_header_refused(const std::string& header, int64_t data_bytes,
                           std::initializer_list<std::string_view> words) {
  expect_refusal([&] { parse(header, data_bytes); }, ErrorKind::kFile, {"model/x.safetensors"});
  expect_refusal([&] { parse(header, data_bytes); }, ErrorKind::kFile, words);
}

std::string one_tensor(const std::string& description) { return "{\"t\":{" + description + "}}"; }

TEST(Safetensors, PlacesTensorsFromTheStartOfTheFile) {
  const SafetensorsHeader header = parse(
      R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("__metadata__":{"format":"pt"}})",
      20);
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].offset, header.data_offset);
  EXPECT_EQ(header.tensors[1].offset, header.data_offset + 8);
  EXPECT_EQ(header.tensors[1].dtype, DType::kBF16);
  EXPECT_EQ(header.tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.tensors[1].bytes, 12);
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(Safetensors, AcceptsEmptyTensorsAndScalars) {
  const SafetensorsHeader header = parse(
      R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"b":{"dtype":"F16","shape":[0,5],"data_offsets":[4,4]},)"
      R"("c":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},"__metadata__":null})",
      7);
  EXPECT_EQ(header.tensors.size(), 3u);
}

TEST(Safetensors, RefusesBytesThatBelongToNoTensor) {
  const auto two = [](int first, int second) {
    return fmt::format(
        R"({{"a":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}},"b":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}}}})",
        first, first + 2, second, second + 2);
  };
  EXPECT_EQ(parse(two(0, 2), 4).tensors.size(), 2u);
  expect_header_refused(two(0, 3), 5, {"1 bytes before tensor \"b\"", "belong to no tensor"});
  expect_header_refused(two(1, 3), 5, {"1 bytes before tensor \"a\""});
  expect_header_refused(two(0, 2), 5, {"1 bytes after the last tensor"});
  expect_header_refused("{}", 1, {"1 bytes after the last tensor"});
  // An empty tensor has its place too.
  expect_header_refused(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
      2, {"overlap"});
}

TEST(Safetensors, RefusesAHeaderLengthThatIsOffByOne) {
  TemporaryFolder folder;
  const std::filesystem::path path = folder / "x.safetensors";
  const std::string header = format_safetensors_header({{"t", DType::kU8, {4}, 0, 4}}, {}, 512);
  ASSERT_TRUE(header.ends_with("   ")) << "spaces that another length takes or leaves";
  const auto with_length = [&](int change, const std::string& more) {
    std::string bytes = header + "1234" + more;
    const auto length = static_cast<uint64_t>(static_cast<int64_t>(header.size()) - 8 + change);
    std::memcpy(bytes.data(), &length, 8);
    write_all(path, bytes);
  };
  with_length(0, "");
  EXPECT_EQ(read_safetensors_header(path).tensors.front().offset,
            static_cast<int64_t>(header.size()));
  for (const int change : {-2, -1, 1, 2}) {
    with_length(change, "");
    expect_refusal([&] { read_safetensors_header(path); }, ErrorKind::kFile, {"x.safetensors"});
  }
  with_length(0, "\n");
  expect_refusal([&] { read_safetensors_header(path); }, ErrorKind::kFile, {"1 bytes after"});
}

TEST(Safetensors, RefusesOverlaps) {
  expect_header_refused(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
      12, {"\"a\"", "\"b\"", "overlap"});
  // An empty tensor between two that overlap must not hide it, nor a short one inside a long one.
  expect_header_refused(
      R"({"a":{"dtype":"U8","shape":[10],"data_offsets":[0,10]},"m":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},)"
      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[5,7]}})",
      12, {"overlap"});
  expect_header_refused(
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
      12, {"overlap"});
}

TEST(Safetensors, RefusesRangesThatAreNotTheTensors) {
  expect_header_refused(one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 7,
                        {"\"t\"", "0 to 8", "7 bytes"});
  expect_header_refused(one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8,
                        {"\"t\""});
  expect_header_refused(one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 8,
                        {"[2]", "8 bytes", "hold 4"});
  expect_header_refused(one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"), 8,
                        {"data offset"});
  expect_header_refused(one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0.0,8])"), 8,
                        {"data offset"});
  expect_header_refused(
      one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])"), 8,
      {"data offset"});
  expect_header_refused(one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 8, {"pair"});
}

TEST(Safetensors, RefusesShapesThatMakeNoSense) {
  expect_header_refused(one_tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8,
                        {"dimension"});
  expect_header_refused(
      one_tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 8,
      {"too large"});
  expect_header_refused(
      one_tensor(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])"), 8,
      {"too large"});
  expect_header_refused(one_tensor(R"("dtype":"F32","shape":"2","data_offsets":[0,8])"), 8,
                        {"shape"});
  std::string ones = "1";
  for (int i = 0; i < 100; ++i) ones += ",1";
  expect_header_refused(
      one_tensor(fmt::format(R"("dtype":"F32","shape":[{}],"data_offsets":[0,4])", ones)), 8,
      {"shape"});
}

TEST(Safetensors, NamesTheElementTypeThatItCannotRead) {
  for (const char* type : {"F8_E5M2", "U32", "f32", "float32", "BF17", ""})
    expect_header_refused(
        one_tensor(fmt::format(R"("dtype":"{}","shape":[1],"data_offsets":[0,4])", type)), 4,
        {"element type", type, "not supported"});
  expect_header_refused(one_tensor(R"("dtype":4,"shape":[1],"data_offsets":[0,4])"), 4, {"dtype"});
}

TEST(Safetensors, RefusesWhatIsNotAHeader) {
  for (const char* text : {"", "[]", "3", "{", "{\"a\":3}", "{\"a\":{}}", "{} x",
                           "{\"__metadata__\":3}", " {}", "{\"__metadata__\":{\"a\":3}}"})
    expect_header_refused(text, 8, {});
  expect_header_refused(
      R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
      8, {"\"t\"", "twice"});
}

TEST(Safetensors, RefusesHeaderLengthsThatLie) {
  TemporaryFolder folder;
  const std::filesystem::path path = folder / "x.safetensors";
  const auto with_length = [&](uint64_t length) {
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    write_all(path, file + "{}");
  };
  with_length(2);
  EXPECT_EQ(read_safetensors_header(path).tensors.size(), 0u);
  with_length(3);
  expect_refusal([&] { read_safetensors_header(path); }, ErrorKind::kFile,
                 {"x.safetensors", "3 bytes", "only 2"});
  with_length(200 << 20);
  expect_refusal([&] { read_safetensors_header(path); }, ErrorKind::kFile,
                 {"more than a safetensors header"});
  with_length(UINT64_MAX);
  expect_refusal([&] { read_safetensors_header(path); }, ErrorKind::kFile,
                 {"18446744073709551615"});
  write_all(path, "short");
  expect_refusal([&] { read_safetensors_header(path); }, ErrorKind::kFile, {"5 bytes"});
  write_all(path, "");
  expect_refusal([&] { read_safetensors_header(path); }, ErrorKind::kFile, {"empty"});
  write_all(path, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n");
  expect_refusal([&] { read_safetensors_header(path); }, ErrorKind::kFile, {"Git LFS pointer"});
}

TEST(Safetensors, WritesHeadersThatItReads) {
  const std::vector<HeaderTensor> tensors = {{"a \"quoted\" näme", DType::kF16, {3, 2}, 0, 12},
                                             {"empty", DType::kI64, {0}, 12, 12},
                                             {"b", DType::kBool, {5}, 12, 17}};
  for (const int64_t alignment : {8, 4096}) {
    const std::string bytes = format_safetensors_header(tensors, {{"format", "pt"}}, alignment);
    EXPECT_EQ(static_cast<int64_t>(bytes.size()) % alignment, 0);
    const auto size = static_cast<int64_t>(bytes.size());
    const SafetensorsHeader header =
        parse_safetensors_header(std::string_view(bytes).substr(8), size, size + 17, "x");
    ASSERT_EQ(header.tensors.size(), 3u);
    EXPECT_EQ(header.tensors[0].name, tensors[0].name);
    EXPECT_EQ(header.tensors[0].offset, size);
    EXPECT_EQ(header.metadata.at("format"), "pt");
  }
  EXPECT_EQ(format_safetensors_header({}, {}, 8), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  expect_refusal(
      [] {
        format_safetensors_header({{"\xff", DType::kU8, {1}, 0, 1}}, {}, 8);
      },
      ErrorKind::kUser, {"UTF-8"});
}

}  // namespace
}  // namespace sluice::io
