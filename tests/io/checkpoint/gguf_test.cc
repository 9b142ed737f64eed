#include "io/checkpoint/gguf.h"

#include "tests/gguf_values.h"
#include "tests/io/checkpoint/files.h"

namespace sluice::io {
namespace {

namespace fs = std::filesystem;

TEST(Gguf, HasTheFilesKeysAndTensors) {
  const GgufHeader header = read_gguf_header(fixture("made/tiny.gguf"));
  EXPECT_EQ(header.metadata.text_or("general.architecture", ""), "tiny");
  EXPECT_EQ(*header.metadata.find("tiny.number"), 7);
  ASSERT_NE(header.metadata.find_array("tiny.list"), nullptr);
  EXPECT_EQ(header.metadata.find_array("tiny.list")->texts(),
            (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(header.metadata.find("tiny.list"), nullptr) << "an array is no value";
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "vector");
  EXPECT_EQ(header.tensors[0].shape, (std::vector<int64_t>{4}));
  EXPECT_EQ(header.tensors[1].shape, (std::vector<int64_t>{2, 3})) << "rows before columns";
  EXPECT_EQ(header.tensors[1].dtype, DType::kF16);
  EXPECT_EQ(header.tensors[2].blocks, BlockType::kQ8_0);
  EXPECT_EQ(header.tensors[2].shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(header.tensors[2].bytes, 68);
  EXPECT_EQ(element_name(header.tensors[2]), "q8_0");

  const std::string bytes = read_all(fixture("made/tiny.gguf"));
  float last = 0;
  std::memcpy(&last, bytes.data() + header.tensors[0].offset + 12, 4);
  EXPECT_EQ(last, 3) << "offsets are from the start of the file";
}

TEST(Gguf, OpensAsACheckpoint) {
  const Checkpoint lone = Checkpoint::open(fixture("made/tiny.gguf"));
  EXPECT_EQ(checkpoint_format_name(lone.format()), "GGUF");
  EXPECT_EQ(*lone.gguf_metadata().find("tiny.number"), 7);
  EXPECT_EQ(summarize(lone).bytes_by_dtype.at("q8_0"), 68);

  TemporaryFolder folder;
  write_all(folder / "one.gguf", read_all(fixture("made/tiny.gguf")));
  EXPECT_EQ(Checkpoint::open(folder.path()).tensors().size(), 3u) << "the only one of a folder";
  write_all(folder / "two.gguf", read_all(fixture("made/tiny.gguf")));
  expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile,
                 {"2 GGUF files", "one.gguf"});
}

TEST(Gguf, ReadsAllPartsOfASplitModelOrSaysWhichIsMissing) {
  TemporaryFolder folder;
  std::string part = read_all(fixture("made/tiny.gguf"));
  write_all(folder / "m-00001-of-00002.gguf", part);
  expect_refusal([&] { Checkpoint::open(folder / "m-00001-of-00002.gguf"); }, ErrorKind::kFile,
                 {"m-00002-of-00002.gguf", "missing"});
  for (const char* name : {"vector", "blocks"})
    part.replace(part.find(name), 6, std::string(1, name[0]) + "other");
  part.replace(part.find("half"), 4, "more");
  write_all(folder / "m-00002-of-00002.gguf", part);
  for (const fs::path& path :
       {folder.path(), folder / "m-00001-of-00002.gguf", folder / "m-00002-of-00002.gguf"}) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    EXPECT_EQ(checkpoint.tensors().size(), 6u) << path;
    ASSERT_NE(checkpoint.find("more"), nullptr);
    EXPECT_EQ(checkpoint.find("more")->file_index, 1);
  }
}

// Which part a file is stands in its keys, whatever its name.
class SplitGguf : public ::testing::Test {
 protected:
  void write_part(const char* name, int number, const char* tensor, int count = 3) {
    nlohmann::json keys{{"split.no", number}, {"split.count", count}, {"split.tensors.count", 3}};
    if (number == 0) keys["general.architecture"] = "tiny";
    write_all(folder_ / name, made::gguf_file(keys, {tensor}));
  }
  void expect_whole(const char* path) {
    SCOPED_TRACE(path);
    const Checkpoint checkpoint = Checkpoint::open(folder_ / path);
    EXPECT_EQ(checkpoint.gguf_metadata().text_or("general.architecture", ""), "tiny");
    ASSERT_NE(checkpoint.find("a"), nullptr);
    EXPECT_EQ(checkpoint.find("a")->file_index, 0);
    ASSERT_NE(checkpoint.find("c"), nullptr);
    EXPECT_EQ(checkpoint.find("c")->file_index, 2);
  }
  void refused(const char* path, std::initializer_list<std::string_view> words) {
    expect_refusal([&] { Checkpoint::open(folder_ / path); }, ErrorKind::kFile, words);
  }
  TemporaryFolder folder_;
};

TEST_F(SplitGguf, IsReadWhateverItsPartsAreCalled) {
  write_part("one.gguf", 2, "c");
  write_part("two.gguf", 0, "a");
  write_part("x-00001-of-00009.gguf", 1, "b");
  for (const char* path : {"one.gguf", "two.gguf", "x-00001-of-00009.gguf", ""}) expect_whole(path);
}

TEST_F(SplitGguf, IsReadWhereNamesAreExchanged) {
  write_part("m-00001-of-00003.gguf", 1, "b");
  write_part("m-00002-of-00003.gguf", 0, "a");
  write_part("m-00003-of-00003.gguf", 2, "c");
  for (const char* path : {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf", ""})
    expect_whole(path);
}

TEST_F(SplitGguf, IsToldFromOthersOfTheFolder) {
  for (const char* name : {"m", "n"}) {
    const std::string begin = name;
    write_part((begin + "-00001-of-00003.gguf").c_str(), 0, "a");
    write_part((begin + "-00002-of-00003.gguf").c_str(), 1, "b");
    write_part((begin + "-00003-of-00003.gguf").c_str(), 2, "c");
  }
  write_all(folder_ / "other.gguf", read_all(fixture("made/tiny.gguf")));
  write_all(folder_ / "begun.gguf", "GGUF");
  for (const char* path : {"m-00001-of-00003.gguf", "n-00002-of-00003.gguf"}) expect_whole(path);
  refused("", {"8 GGUF files"});
}

TEST_F(SplitGguf, SaysWhichPartIsMissingOrThereTwice) {
  write_part("a.gguf", 0, "a");
  refused("a.gguf", {"part 2 of 3 is missing"});
  refused("", {"part 2 of 3 is missing"});
  write_part("b.gguf", 1, "b");
  write_part("c.gguf", 1, "c");
  refused("a.gguf", {"part 2 of 3 is there twice", "b.gguf", "c.gguf"});
  write_part("c.gguf", 3, "c");
  refused("c.gguf", {"part 4 of 3"});
  write_part("c.gguf", 2, "b");
  refused("a.gguf", {"tensor \"b\"", "again"});
}

TEST_F(SplitGguf, SaysWherePartsWereJoined) {
  std::string joined;
  write_part("a.gguf", 0, "a");
  write_part("b.gguf", 1, "b");
  for (const char* name : {"a.gguf", "b.gguf"}) joined += read_all(folder_ / name);
  TemporaryFolder other;
  write_all(other / "joined.gguf", joined);
  expect_refusal(
      [&] { Checkpoint::open(other / "joined.gguf"); }, ErrorKind::kFile,
      {"another GGUF file begins at byte", "joined", "merge them with llama.cpp's gguf-split"});
}

TEST(GgufArrays, AreOfAllTypesAndReadWhenAskedFor) {
  using made::bytes_of_value;
  using made::gguf_key;
  TemporaryFolder folder;
  std::vector<std::string> keys;
  const auto add = [&](const char* key, GgufType type, uint64_t count, const std::string& bytes) {
    keys.push_back(
        gguf_key(key, GgufType::kArray,
                 bytes_of_value(static_cast<uint32_t>(type)) + bytes_of_value(count) + bytes));
  };
  add("u8", GgufType::kU8, 2, "\x01\xff");
  add("i8", GgufType::kI8, 1, "\xff");
  add("u16", GgufType::kU16, 1, bytes_of_value<uint16_t>(65535));
  add("i16", GgufType::kI16, 1, bytes_of_value<int16_t>(-2));
  add("u32", GgufType::kU32, 1, bytes_of_value<uint32_t>(4294967295));
  add("f32", GgufType::kF32, 2, bytes_of_value(1.5f) + bytes_of_value(-2.0f));
  add("bool", GgufType::kBool, 3, std::string("\0\1\2", 3));
  add("u64", GgufType::kU64, 1, bytes_of_value<uint64_t>(UINT64_MAX));
  add("i64", GgufType::kI64, 1, bytes_of_value<int64_t>(-3));
  add("f64", GgufType::kF64, 1, bytes_of_value(0.25));
  const fs::path path = folder / "arrays.gguf";
  write_all(path, made::gguf_file_of(keys));
  const GgufMetadata metadata = read_gguf_header(path).metadata;
  const auto array = [&](const char* key) -> const GgufArray& { return *metadata.find_array(key); };
  using Whole = std::vector<int64_t>;
  EXPECT_EQ(array("u8").integers(), (Whole{1, 255}));
  EXPECT_EQ(array("i8").integers(), (Whole{-1}));
  EXPECT_EQ(array("u16").integers(), (Whole{65535}));
  EXPECT_EQ(array("i16").integers(), (Whole{-2}));
  EXPECT_EQ(array("u32").integers(), (Whole{4294967295}));
  EXPECT_EQ(array("i64").integers(), (Whole{-3}));
  EXPECT_EQ(array("f32").numbers(), (std::vector<double>{1.5, -2}));
  EXPECT_EQ(array("f64").numbers(), (std::vector<double>{0.25}));
  EXPECT_EQ(array("u8").numbers(), (std::vector<double>{1, 255}));
  EXPECT_EQ(array("bool").booleans(), (std::vector<bool>{false, true, true}));
  expect_refusal([&] { array("u64").integers(); }, ErrorKind::kFile, {"too large a number"});
  EXPECT_TRUE(array("bool").is_of_booleans() && !array("bool").is_of_numbers());
  EXPECT_TRUE(array("f32").is_of_numbers() && !array("f32").is_of_integers());
  write_all(path, "GGUF");
  expect_refusal([&] { array("u8").integers(); }, ErrorKind::kFile, {"arrays.gguf"});
}

// A file of any length costs no memory for what nobody asks.
TEST(GgufArrays, OfAnyLengthAreBounded) {
  using made::bytes_of_value;
  using made::gguf_key;
  TemporaryFolder folder;
  for (const GgufType type : {GgufType::kU8, GgufType::kText}) {
    const uint64_t count = type == GgufType::kText ? uint64_t{6} << 20 : uint64_t{48} << 20;
    const auto head = bytes_of_value(static_cast<uint32_t>(type)) + bytes_of_value(count);
    const std::string whole = made::gguf_file_of({gguf_key("long", GgufType::kArray, head)});
    const std::string key_end = "long" + bytes_of_value<uint32_t>(9) + head;
    const size_t at = whole.find(key_end) + key_end.size();
    const fs::path path = folder / "long.gguf";
    write_all(path, whole.substr(0, at));
    fs::resize_file(path, at + (size_t{48} << 20));  // holes, which read as 0
    std::ofstream(path, std::ios::app | std::ios::binary) << whole.substr(at);
    // Where the data begins depends on the header's length.
    fs::resize_file(path, fs::file_size(path) + 64);
    const GgufMetadata metadata = read_gguf_header(path).metadata;
    const GgufArray* array = metadata.find_array("long");
    ASSERT_NE(array, nullptr);
    EXPECT_EQ(array->size(), static_cast<int64_t>(count));
    expect_refusal([&] { array->texts(); }, ErrorKind::kFile, {"longer than any that is read"});
  }
}

TEST(Gguf, TakesAnAlignmentOfAnyIntegerType) {
  using made::bytes_of_value;
  TemporaryFolder folder;
  const auto offset = [&](GgufType type, const std::string& value) {
    write_all(folder / "a.gguf",
              made::gguf_file_of({made::gguf_key("general.alignment", type, value)}, {"v"}, 128));
    return read_gguf_header(folder / "a.gguf").tensors.front().offset;
  };
  EXPECT_EQ(offset(GgufType::kU32, bytes_of_value<uint32_t>(128)), 128);
  EXPECT_EQ(offset(GgufType::kI32, bytes_of_value<int32_t>(128)), 128);
  EXPECT_EQ(offset(GgufType::kU16, bytes_of_value<uint16_t>(128)), 128);
  EXPECT_EQ(offset(GgufType::kU8, bytes_of_value<uint8_t>(128)), 128);
  EXPECT_EQ(offset(GgufType::kU64, bytes_of_value<uint64_t>(128)), 128);
  EXPECT_EQ(offset(GgufType::kI64, bytes_of_value<int64_t>(128)), 128);
  for (const int32_t wrong : {0, -32, 48, 1 << 17})
    expect_refusal([&] { offset(GgufType::kI32, bytes_of_value(wrong)); }, ErrorKind::kFile,
                   {"general.alignment"});
  expect_refusal([&] { offset(GgufType::kU64, bytes_of_value<uint64_t>(UINT64_MAX)); },
                 ErrorKind::kFile, {"general.alignment"});
  expect_refusal([&] { offset(GgufType::kF32, bytes_of_value(32.0f)); }, ErrorKind::kFile,
                 {"general.alignment"});
}

class BrokenGguf : public ::testing::Test {
 protected:
  template <typename T>
  void put(size_t at, T value) {
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  // Where the tensor's description goes on behind its name: dimensions, sizes, type, offset.
  size_t behind(const std::string& name) const { return bytes_.find(name) + name.size(); }
  void refused(std::initializer_list<std::string_view> words) {
    write_all(folder_ / "broken.gguf", bytes_);
    expect_refusal([&] { read_gguf_header(folder_ / "broken.gguf"); }, ErrorKind::kFile, words);
    bytes_ = read_all(fixture("made/tiny.gguf"));
  }

  TemporaryFolder folder_;
  std::string bytes_ = read_all(fixture("made/tiny.gguf"));
};

TEST_F(BrokenGguf, IsRefusedByName) {
  put(0, uint32_t{1});
  refused({"not a GGUF file"});
  put(4, uint32_t{1});
  refused({"version 1"});
  put(8, uint64_t{1} << 40);
  refused({"tensors"});
  put(16, uint64_t{1} << 40);
  refused({"keys"});
  put(24, uint64_t{1} << 60);
  refused({"a string", "more than there is room for"});
  put(behind("tiny.list") + 4 + 4, uint64_t{1} << 61);
  refused({"an array", "more than there is room for"});
  put(behind("tiny.number"), uint32_t{99});
  refused({"tiny.number", "type 99"});
  put(behind("vector"), uint32_t{9});
  refused({"vector", "9 dimensions"});
  put(behind("vector") + 4, uint64_t{1} << 62);
  refused({"vector", "too large"});
  put(behind("vector") + 12, uint32_t{36});
  refused({"vector", "type 36", "Q4_0"});
  put(behind("vector") + 16, uint64_t{1} << 50);
  refused({"vector", "past the end"});
  put(behind("blocks") + 4, uint64_t{33});
  refused({"blocks", "whole blocks of 32"});
  put(behind("half") + 24, uint64_t{0});
  refused({"vector", "half", "overlap"});
  bytes_.resize(200);
  refused({"the header goes on past byte 200"});
}

}  // namespace
}  // namespace sluice::io
