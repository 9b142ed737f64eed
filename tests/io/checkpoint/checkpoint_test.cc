#include "io/checkpoint/checkpoint.h"

#include <algorithm>

#include "tests/io/checkpoint/expected_tensors.h"
#include "tests/io/checkpoint/files.h"

namespace sluice::io {
namespace {

namespace fs = std::filesystem;

void copy_fixture(const std::string& name, const TemporaryFolder& folder) {
  fs::copy(fixture(name), folder.path(),
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  for (const auto& entry : fs::directory_iterator(folder.path()))
    fs::permissions(entry, fs::perms::owner_write, fs::perm_options::add);
}

TEST(Checkpoint, ReadsWhatTheRealLibrariesWrote) {
  const ExpectedFiles expected = read_expected(fixture("made/expected.json"));
  EXPECT_EQ(expected.size(), 10u);
  for (const auto& [name, tensors] : expected) {
    SCOPED_TRACE(name);
    expect_tensors(Checkpoint::open(fixture("made") / name), tensors);
  }
}

TEST(Checkpoint, KnowsFormatFilesAndTexts) {
  const Checkpoint single = Checkpoint::open(fixture("made/single"));
  EXPECT_EQ(single.format(), CheckpointFormat::kSafetensors);
  EXPECT_EQ(single.files().size(), 1u);
  EXPECT_EQ(single.files()[0].bytes,
            static_cast<int64_t>(fs::file_size(fixture("made/single/model.safetensors"))));
  EXPECT_NE(single.config_text().find("\"hidden_size\": 6"), std::string::npos);
  EXPECT_NE(single.generation_config_text().find("eos_token_id"), std::string::npos);
  EXPECT_EQ(single.metadata().at("note"), "fixture");
  EXPECT_EQ(single.find("no such tensor"), nullptr);
  EXPECT_EQ(single.folder(), fixture("made/single"));
  const Checkpoint torch = Checkpoint::open(fixture("made/torch_sharded"));
  EXPECT_EQ(torch.format(), CheckpointFormat::kTorchBin);
  EXPECT_EQ(torch.files().size(), 2u);
  const Checkpoint lone = Checkpoint::open(fixture("made/single/model.safetensors"));
  EXPECT_EQ(lone.tensors().size(), single.tensors().size());
  EXPECT_TRUE(lone.config_text().empty());
}

TEST(Checkpoint, RowsOfAMatrixAreTensorsOfTheirOwn) {
  Checkpoint checkpoint = Checkpoint::open(fixture("made/single"));
  const TensorEntry whole = *checkpoint.find("embed.weight");  // [7, 6] f32
  const size_t before = checkpoint.tensors().size();
  checkpoint.add_rows({{"q", "embed.weight", 0, 3}, {"a v", "embed.weight", 5, 2}});
  ASSERT_EQ(checkpoint.tensors().size(), before + 2);
  EXPECT_EQ(checkpoint.find("q")->offset, whole.offset);
  EXPECT_EQ(checkpoint.find("q")->bytes, 3 * 6 * 4);
  EXPECT_EQ(checkpoint.find("a v")->offset, whole.offset + 5 * 6 * 4);
  EXPECT_EQ(checkpoint.find("a v")->shape, (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(checkpoint.find("embed.weight")->bytes, whole.bytes);
  for (const TensorEntry& tensor : checkpoint.tensors())
    EXPECT_EQ(checkpoint.find(tensor.name), &tensor);
  EXPECT_TRUE(std::is_sorted(
      checkpoint.tensors().begin(), checkpoint.tensors().end(), [](const auto& a, const auto& b) {
        return std::pair(a.file_index, a.offset) < std::pair(b.file_index, b.offset);
      }));
  const TensorRows wrong[] = {{"w", "embed.weight", 5, 3},
                              {"w", "embed.weight", -1, 3},
                              {"w", "embed.weight", 0, 0},
                              {"w", "nowhere", 0, 1},
                              {"w", "scalar", 0, 1},
                              {"scalar", "embed.weight", 0, 1},
                              {"w", "embed.weight", 1, INT64_MAX}};
  for (const TensorRows& rows : wrong) EXPECT_THROW(checkpoint.add_rows({rows}), Error);
}

TEST(Checkpoint, OrdersTensorsByFileAndOffset) {
  for (const char* name :
       {"made/sharded", "made/single", "made/torch_tied.pt", "made/torch_types.pt"}) {
    const Checkpoint checkpoint = Checkpoint::open(fixture(name));
    EXPECT_TRUE(std::is_sorted(
        checkpoint.tensors().begin(), checkpoint.tensors().end(), [](const auto& a, const auto& b) {
          return std::pair(a.file_index, a.offset) < std::pair(b.file_index, b.offset);
        }));
    for (const TensorEntry& tensor : checkpoint.tensors())
      EXPECT_EQ(checkpoint.find(tensor.name), &tensor);
  }
}

TEST(Checkpoint, TiedTensorsShareTheirBytesAndCountOnce) {
  const Checkpoint tied = Checkpoint::open(fixture("made/torch_tied.pt"));
  const TensorEntry& embed = *tied.find("embed.weight");
  EXPECT_EQ(tied.find("head.weight")->offset, embed.offset);
  EXPECT_EQ(tied.find("parameter")->offset, embed.offset);
  EXPECT_EQ(tied.find("rows")->offset, embed.offset + 2 * 4 * 2);
  const CheckpointSummary summary = summarize(tied);
  EXPECT_EQ(summary.tied_tensor_count, 2);
  EXPECT_EQ(summary.parameters, 6 * 4 + 3 * 4);
  EXPECT_EQ(summary.tensor_bytes, tied.total_bytes());
  EXPECT_EQ(summary.bytes_by_dtype.at("f16"), (6 * 4 + 3 * 4) * 2);
}

TEST(Checkpoint, SummarizesByElementType) {
  const CheckpointSummary summary = summarize(Checkpoint::open(fixture("made/sharded")));
  EXPECT_EQ(summary.file_count, 2);
  EXPECT_EQ(summary.tensor_count, 4);
  EXPECT_EQ(summary.parameters, 20 + 9 + 16 + 9);
  EXPECT_EQ(summary.bytes_by_dtype,
            (std::map<std::string, int64_t>{{"f32", 29 * 4}, {"f16", 32}, {"bf16", 18}}));
}

TEST(Checkpoint, CopiesAndMovesKeepTheNames) {
  Checkpoint first = Checkpoint::open(fixture("made/single"));
  const Checkpoint copy = first;
  const Checkpoint moved = std::move(first);
  EXPECT_EQ(copy.find("scalar"),
            &copy.tensors()[static_cast<size_t>(copy.find("scalar") - copy.tensors().data())]);
  EXPECT_EQ(moved.find("scalar")->name, "scalar");
}

TEST(Checkpoint, SaysHowManyShardsAreMissing) {
  TemporaryFolder folder;
  copy_fixture("made/sharded", folder);
  fs::remove(folder / "model-00002-of-00002.safetensors");
  expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile,
                 {"1 of 2 shards", "model-00002-of-00002.safetensors", "re-download"});
}

TEST(Checkpoint, SaysWhichPromiseOfTheIndexIsBroken) {
  TemporaryFolder folder;
  copy_fixture("made/sharded", folder);
  std::string index = read_all(folder / "model.safetensors.index.json");
  index.replace(index.find("\"a.weight\""), 10, "\"z.weight\"");
  write_all(folder / "model.safetensors.index.json", index);
  expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile,
                 {"\"z.weight\"", "model-00001-of-00002.safetensors", "re-download"});
}

TEST(Checkpoint, RefusesShardNamesThatLeaveTheFolder) {
  TemporaryFolder folder;
  for (const char* name :
       {"../x.safetensors", "/etc/passwd", "a/../../x", "", "a/", "./x", "..", "x\\u0000y"}) {
    write_all(folder / "model.safetensors.index.json",
              std::string(R"({"weight_map":{"t":")") + name + R"("}})");
    expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile,
                   {"\"t\"", "inside the folder"});
  }
}

TEST(Checkpoint, RefusesIndicesThatAreNone) {
  TemporaryFolder folder;
  for (const char* text : {"", "[]", "{}", R"({"weight_map":3})", R"({"weight_map":{}})",
                           R"({"weight_map":{"t":3}})", "{\"weight_map\":{"}) {
    write_all(folder / "model.safetensors.index.json", text);
    expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile,
                   {"model.safetensors.index.json"});
  }
}

// Its weight files would be taken for shards without an index.
TEST(Checkpoint, AStoreWhoseIndexIsADanglingLinkIsRefused) {
  TemporaryFolder folder;
  copy_fixture("made/store", folder);
  std::filesystem::remove(folder / "sluice-store.json");
  std::filesystem::create_symlink("nowhere", folder / "sluice-store.json");
  expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile, {"sluice-store.json"});
}

TEST(Checkpoint, ShardsMayBeLinksToFilesElsewhere) {
  TemporaryFolder elsewhere;
  TemporaryFolder folder;
  copy_fixture("made/sharded", elsewhere);
  for (const auto& entry : fs::directory_iterator(elsewhere.path()))
    fs::create_symlink(entry.path(), folder.path() / entry.path().filename());
  EXPECT_EQ(Checkpoint::open(folder.path()).tensors().size(), 4u);
  fs::remove(elsewhere / "model-00001-of-00002.safetensors");
  expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile,
                 {"model-00001-of-00002.safetensors", "No such file"});
}

TEST(Checkpoint, ReadsShardsWithoutAnIndexWhenAllAreThere) {
  TemporaryFolder folder;
  copy_fixture("made/sharded", folder);
  fs::remove(folder / "model.safetensors.index.json");
  EXPECT_EQ(Checkpoint::open(folder.path()).tensors().size(), 4u);
  fs::remove(folder / "model-00001-of-00002.safetensors");
  expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile, {"1 of 2 shards"});
}

TEST(Checkpoint, RefusesOneNameInTwoFiles) {
  TemporaryFolder folder;
  copy_fixture("made/single", folder);
  fs::rename(folder / "model.safetensors", folder / "one.safetensors");
  fs::copy_file(folder / "one.safetensors", folder / "two.safetensors");
  expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile,
                 {"one.safetensors", "again in", "two.safetensors"});
}

TEST(Checkpoint, NamesPointersAndEmptyFilesForWhatTheyAre) {
  TemporaryFolder folder;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 4400\n";
  for (const char* file : {"model.safetensors", "pytorch_model.bin"}) {
    TemporaryFolder fresh;
    write_all(fresh / file, pointer);
    expect_refusal([&] { Checkpoint::open(fresh.path()); }, ErrorKind::kFile,
                   {file, "Git LFS pointer", "git lfs pull"});
    write_all(fresh / file, "");
    expect_refusal([&] { Checkpoint::open(fresh.path()); }, ErrorKind::kFile, {file, "empty"});
  }
  write_all(folder / "config.json", pointer);
  expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile,
                 {"config.json", "Git LFS pointer"});
}

TEST(Checkpoint, SaysWhatItLookedFor) {
  TemporaryFolder folder;
  expect_refusal([&] { Checkpoint::open(folder / "absent"); }, ErrorKind::kFile,
                 {"absent", "no such file"});
  expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile,
                 {"no model weights", "pytorch_model.bin"});
  write_all(folder / "model.gguf", "GGUF");
  expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile, {"GGUF"});
  write_all(folder / "notes.txt", "x");
  expect_refusal([&] { Checkpoint::open(folder / "notes.txt"); }, ErrorKind::kFile,
                 {"notes.txt", "not a kind"});
  write_all(folder / "model.safetensors.index.json", "{}");
  expect_refusal([&] { Checkpoint::open(folder / "model.safetensors.index.json"); },
                 ErrorKind::kFile, {"an index", "give its folder"});
}

TEST(Checkpoint, RefusesAFileWithoutTensors) {
  TemporaryFolder folder;
  write_all(folder / "model.safetensors", safetensors_bytes("{}", 0));
  expect_refusal([&] { Checkpoint::open(folder.path()); }, ErrorKind::kFile, {"no tensors"});
}

}  // namespace
}  // namespace sluice::io
