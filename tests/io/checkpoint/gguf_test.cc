#include "io/checkpoint/gguf.h"

#include "tests/io/checkpoint/files.h"

namespace sluice::io {
namespace {

namespace fs = std::filesystem;

TEST(Gguf, HasTheFilesKeysAndTensors) {
  const GgufHeader header = read_gguf_header(fixture("made/tiny.gguf"));
  EXPECT_EQ(header.metadata.at("general.architecture"), "tiny");
  EXPECT_EQ(header.metadata.at("tiny.number"), 7);
  EXPECT_EQ(header.metadata.at("tiny.list"), (std::vector<std::string>{"a", "bc"}));
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
  EXPECT_EQ(lone.gguf_metadata().at("tiny.number"), 7);
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

class BrokenGguf : public testing::Test {
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
