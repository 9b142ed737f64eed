#include "io/checkpoint/torch_zip.h"

#include "tests/io/checkpoint/files.h"
#include "tests/io/checkpoint/zip_archive.h"

namespace sluice::io {
namespace {

class Zip : public testing::Test {
 protected:
  std::filesystem::path save(const std::string& bytes) {
    write_all(folder_ / "x.bin", bytes);
    return folder_ / "x.bin";
  }
  std::vector<ZipRecord> directory(const std::string& bytes) {
    return read_zip_directory(save(bytes));
  }
  void expect_zip_refused(const std::string& bytes, std::initializer_list<std::string_view> words) {
    expect_refusal([&] { directory(bytes); }, ErrorKind::kFile, {"x.bin"});
    expect_refusal([&] { directory(bytes); }, ErrorKind::kFile, words);
  }

  TemporaryFolder folder_;
};

TEST_F(Zip, FindsTheBytesOfEveryRecord) {
  const std::vector<ZipEntry> entries = {
      {.name = "m/data.pkl", .data = "pickle"},
      {.name = "m/data/0", .data = "elements", .local_extra = std::string(37, 'x')},
      {.name = "m/empty", .data = ""}};
  for (const bool is_zip64 : {false, true}) {
    std::vector<ZipEntry> varied = entries;
    for (ZipEntry& entry : varied) entry.is_zip64 = is_zip64;
    const std::string bytes =
        make_zip(varied, {.comment = "PK\x05\x06 in the comment", .is_zip64 = is_zip64});
    const std::vector<ZipRecord> records = directory(bytes);
    ASSERT_EQ(records.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(records[i].name, entries[i].name);
      EXPECT_EQ(bytes.substr(static_cast<size_t>(records[i].data_offset),
                             static_cast<size_t>(records[i].bytes)),
                entries[i].data);
    }
  }
}

TEST_F(Zip, RefusesRecordsThatCannotBeReadInPlace) {
  expect_zip_refused(make_zip({{.name = "a", .data = "x", .method = 8}}),
                     {"\"a\"", "compressed", "torch.save"});
  expect_zip_refused(make_zip({{.name = "a", .data = "x", .flags = 1}}), {"\"a\"", "encrypted"});
}

TEST_F(Zip, RefusesNumbersThatLie) {
  const auto one = [](ZipEntry entry) {
    entry.name = "a";
    entry.data = "xyz";
    return make_zip({entry});
  };
  expect_zip_refused(one({.claimed_bytes = 4000}), {"\"a\"", "past the end"});
  expect_zip_refused(one({.claimed_bytes = UINT64_MAX, .is_zip64 = true}), {"past the end"});
  expect_zip_refused(one({.claimed_offset = 4000}), {"past the end"});
  expect_zip_refused(one({.claimed_offset = UINT64_MAX - 3, .is_zip64 = true}), {"past the end"});
  expect_zip_refused(one({.claimed_offset = 1}), {"not at offset 1"});
  const std::vector<ZipEntry> fine = {{.name = "a", .data = "xyz"}};
  for (const bool is_zip64 : {false, true}) {
    expect_zip_refused(make_zip(fine, {.is_zip64 = is_zip64, .claimed_entries = 2}),
                       {"promises 2"});
    expect_zip_refused(make_zip(fine, {.is_zip64 = is_zip64, .claimed_directory_offset = 1u << 30}),
                       {"past the end"});
    expect_zip_refused(make_zip(fine, {.is_zip64 = is_zip64, .claimed_directory_bytes = 1 << 20}),
                       {"zip directory"});
    expect_zip_refused(make_zip(fine, {.is_zip64 = is_zip64, .claimed_directory_bytes = 20}),
                       {"damaged"});
  }
  expect_zip_refused(make_zip(fine, {.is_zip64 = true, .claimed_directory_bytes = UINT64_MAX}),
                     {"not read"});
  expect_zip_refused(make_zip({{.name = "a", .data = "1"}, {.name = "a", .data = "2"}}),
                     {"two records", "\"a\""});
}

TEST_F(Zip, RefusesEveryTruncation) {
  const std::string whole = make_zip(
      {{.name = "m/data.pkl", .data = "pickle"}, {.name = "m/data/0", .data = "elements"}});
  for (size_t size = 0; size < whole.size(); ++size) expect_zip_refused(whole.substr(0, size), {});
}

TEST_F(Zip, SaysWhatAFileIsThatIsNoArchive) {
  expect_zip_refused("", {"empty"});
  expect_zip_refused("version https://git-lfs.github.com/spec/v1\n", {"Git LFS"});
  expect_zip_refused("just some text that is long enough", {"not a PyTorch checkpoint"});
  expect_refusal([] { read_torch_file(fixture("made/refused/legacy.pt")); }, ErrorKind::kFile,
                 {"before 1.6", "_use_new_zipfile_serialization=True"});
  expect_zip_refused(read_all(fixture("third_party/burn/tar_weight_bias.tar")), {"before 1.6"});
}

TEST_F(Zip, PyTorchFilesNeedTheirRecords) {
  const auto refused = [&](const std::vector<ZipEntry>& entries,
                           std::initializer_list<std::string_view> words) {
    save(make_zip(entries));
    expect_refusal([&] { read_torch_file(folder_ / "x.bin"); }, ErrorKind::kFile, words);
  };
  refused({{.name = "m/readme", .data = ""}}, {"no data.pkl"});
  refused({{.name = "m/data.pkl", .data = "N."}, {.name = "m/constants.pkl", .data = ""}},
          {"TorchScript"});
  refused({{.name = "m/data.pkl", .data = "}."}, {.name = "m/byteorder", .data = "big"}},
          {"byte order", "\"big\""});
  refused({{.name = "m/data.pkl", .data = "}."}}, {"no tensors"});
  const std::string whole = read_all(fixture("made/torch_model_key.pt"));
  std::string renamed = whole;
  for (size_t at = 0; (at = renamed.find("data/0", at)) != std::string::npos;)
    renamed[at + 5] = '9';
  save(renamed);
  expect_refusal([&] { read_torch_file(folder_ / "x.bin"); }, ErrorKind::kFile,
                 {"\"w\"", "data/0", "not in the archive"});
}

struct RefusedFile {
  const char* file;
  const char* words;
};

class RefusedTorchFile : public testing::TestWithParam<RefusedFile> {};

TEST_P(RefusedTorchFile, IsRefusedWithItsReason) {
  expect_refusal([] { read_torch_file(fixture("made/refused/") / GetParam().file); },
                 ErrorKind::kFile, {GetParam().file, GetParam().words});
  EXPECT_FALSE(std::filesystem::exists("hostile_pickle_ran"));
}

INSTANTIATE_TEST_SUITE_P(Made, RefusedTorchFile,
                         testing::Values(RefusedFile{"hostile.pt", "posix.system"},
                                         RefusedFile{"hostile_protocol4.pt", "posix.system"},
                                         RefusedFile{"not_contiguous.pt", "\"turned\""},
                                         RefusedFile{"uint16.pt", "torch.uint16"},
                                         RefusedFile{"complex.pt", "torch.ComplexFloatStorage"},
                                         RefusedFile{"lone_tensor.pt", "no dict"},
                                         RefusedFile{"no_tensors.pt", "no tensors"},
                                         RefusedFile{"whole_module.pt", "Linear"},
                                         RefusedFile{"compressed.pt", "compressed"},
                                         RefusedFile{"big_endian.pt", "byte order"},
                                         RefusedFile{"short_storage.pt", "20 bytes"},
                                         RefusedFile{"other_zip.pt", "no data.pkl"},
                                         RefusedFile{"torchscript.pt", "torchscript"}));

}  // namespace
}  // namespace sluice::io
