#include "io/convert/convert.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "io/checkpoint/convert_journal.h"
#include "io/files/folder_lock.h"
#include "tests/io/checkpoint/store_source.h"

namespace sluice::io {
namespace {

namespace fs = std::filesystem;

constexpr int kLayers = 3;

class Convert : public testing::Test {
 protected:
  void SetUp() override { write_source(folder_ / "source", kLayers, 2500); }
  Checkpoint source() const { return Checkpoint::open(folder_ / "source"); }
  ConvertReport convert(const std::vector<StoreGroup>& groups,
                        const ConvertOptions& options) const {
    return convert_checkpoint(source(), groups, options);
  }

  TemporaryFolder folder_;
};

TEST_F(Convert, KeepsEveryByteWhenNothingIsConverted) {
  const auto groups = make_groups(kLayers);
  const ConvertReport report = convert(groups, {.destination = folder_ / "store"});
  expect_store_holds(folder_ / "store", source(), groups);
  EXPECT_EQ(report.groups, kLayers + 2);
  EXPECT_EQ(report.resumed_groups, 0);
  EXPECT_EQ(report.written_bytes, report.total_bytes);
  EXPECT_EQ(report.total_bytes, packed_store_bytes(source(), groups));
  EXPECT_GT(verify_store(folder_ / "store"), report.total_bytes) << "and the small files";
  EXPECT_FALSE(fs::exists(folder_ / "store" / std::string(kJournalName)));
}

TEST_F(Convert, ConvertsElementTypesAsTheScalarFunctionsDo) {
  for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
    const fs::path destination = folder_ / std::string(dtype_name(to));
    convert(make_groups(kLayers, to), {.destination = destination, .threads = 3});
    expect_store_holds(destination, source(), make_groups(kLayers, to));
  }
}

TEST_F(Convert, TensorsLargerThanAnyBufferStayWhole) {
  write_source(folder_ / "large", 1,
               9'000'001);  // 18 MB as f16, 36 MB as f32: several buffers in and out
  const Checkpoint large = Checkpoint::open(folder_ / "large");
  for (const DType to : {DType::kF16, DType::kF32}) {
    const fs::path destination = folder_ / std::string(dtype_name(to));
    convert_checkpoint(large, make_groups(1, to), {.destination = destination, .threads = 2});
    expect_store_holds(destination, large, make_groups(1, to));
    EXPECT_GT(verify_store(destination), 9'000'001 * dtype_bytes(to));
  }
}

TEST_F(Convert, ReadsPyTorchFilesAndStoresToo) {
  const Checkpoint torch = Checkpoint::open(fixture("made/torch_single"));
  std::vector<StoreGroup> groups = {{"all", {}}};
  for (const TensorEntry& tensor : torch.tensors())
    groups[0].tensors.push_back({tensor.name, tensor.name, DType::kBF16});
  convert_checkpoint(torch, groups, {.destination = folder_ / "one"});
  expect_store_holds(folder_ / "one", torch, groups);
  const Checkpoint store = Checkpoint::open(folder_ / "one");
  convert_checkpoint(store, groups, {.destination = folder_ / "two"});
  expect_store_holds(folder_ / "two", store, groups);
}

TEST_F(Convert, StoresEmptyTensorsAndScalars) {
  const Checkpoint single = Checkpoint::open(fixture("made/single"));
  const std::vector<StoreGroup> groups = {
      {"a", {{"empty", "e", {}}, {"scalar", "s", DType::kF16}, {"mask", "m", {}}}}, {"none", {}}};
  convert_checkpoint(single, groups, {.destination = folder_ / "store"});
  expect_store_holds(folder_ / "store", single, groups);
}

TEST_F(Convert, IsTheSameEveryTime) {
  convert(make_groups(kLayers, DType::kBF16), {.destination = folder_ / "a", .threads = 1});
  convert(make_groups(kLayers, DType::kBF16), {.destination = folder_ / "b", .threads = 4});
  expect_same_folders(folder_ / "a", folder_ / "b");
}

TEST_F(Convert, CopiesTheSmallFilesOfTheModel) {
  write_all(folder_ / "notes.txt", "more");
  convert(make_groups(kLayers),
          {.destination = folder_ / "store", .extra_files = {folder_ / "notes.txt"}});
  for (const char* name : {"config.json", "tokenizer.json"})
    EXPECT_EQ(read_all(folder_ / "store" / name), read_all(folder_ / "source" / name));
  EXPECT_EQ(read_all(folder_ / "store" / "notes.txt"), "more");
  EXPECT_EQ(Checkpoint::open(folder_ / "store").config_text(), source().config_text());
}

TEST_F(Convert, RecordsWhatTheStoreWasMadeOf) {
  convert(make_groups(kLayers), {.destination = folder_ / "store"});
  const PackedIndex index = read_packed_index(folder_ / "store");
  EXPECT_EQ(index.source_name, "source");
  EXPECT_EQ(index.source_format, "safetensors");
  EXPECT_EQ(index.source_identity.size(), 16u);
  ASSERT_EQ(index.groups.size(), static_cast<size_t>(kLayers + 2));
  EXPECT_EQ(index.groups[1].name, "layer-0");
  EXPECT_EQ(index.groups[1].tensors[1].name, "layers.0.w");
  EXPECT_EQ(index.groups[1].bytes % kStoreAlignment, 0);
}

TEST_F(Convert, ValuesTooLargeForTheTypeAreRefused) {
  for (const float large : {65504.0f, 65520.0f, -1e6f}) {
    const fs::path from = folder_ / "large", to = folder_ / "store";
    fs::remove_all(from);
    fs::remove_all(to);
    const std::vector<NewTensor> tensors = {{"w", DType::kF32, {3000}}};
    write_sharded_safetensors(from, tensors,
                              [&](size_t, int64_t first, std::span<std::byte> bytes) {
                                for (size_t i = 0; i < bytes.size() / 4; ++i) {
                                  const float value =
                                      first + static_cast<int64_t>(i) == 2917 ? large : 1.0f;
                                  std::memcpy(bytes.data() + 4 * i, &value, 4);
                                }
                              },
                              {});
    const Checkpoint source = Checkpoint::open(from);
    const auto into = [&](DType type) {
      return [&, type] {
        const std::vector<StoreGroup> groups = {{"g", {{"w", "w", type}}}};
        convert_checkpoint(source, groups, {.destination = to, .overwrite = true});
      };
    };
    if (large == 65504.0f) {
      EXPECT_NO_THROW(into(DType::kF16)());
    } else {
      expect_refusal(into(DType::kF16), ErrorKind::kUser, {"\"w\"", "too large for f16", "bf16"});
      EXPECT_FALSE(is_packed_store(to));
      EXPECT_NO_THROW(into(DType::kBF16)());
    }
  }
}

TEST_F(Convert, OneWriterAFolder) {
  fs::create_directory(folder_ / "store");
  const auto run = [&] { convert(make_groups(kLayers), {.destination = folder_ / "store"}); };
  {
    const FolderLock held(folder_ / "store");
    expect_refusal(run, ErrorKind::kUser, {"store", "another sluice", "another destination"});
    expect_refusal([&] { write_source(folder_ / "store", 1, 10); }, ErrorKind::kUser,
                   {"another sluice"});
    EXPECT_TRUE(fs::is_empty(folder_ / "store"));
  }
  EXPECT_NO_THROW(run());
}

TEST_F(Convert, VerifyingCoversTheSmallFilesToo) {
  const fs::path store = folder_ / "store";
  write_all(folder_ / "source" / "merges.txt", "");
  convert(make_groups(kLayers), {.destination = store, .texts = {{"notes.json", "{}"}}});
  const PackedIndex index = read_packed_index(store);
  std::vector<std::string> names;
  int64_t bytes = 0;
  for (const PackedSmallFile& file : index.small_files) {
    names.push_back(file.name);
    bytes += file.bytes;
  }
  for (const PackedGroup& group : index.groups) bytes += group.bytes;
  EXPECT_EQ(names, (std::vector<std::string>{"config.json", "merges.txt", "notes.json",
                                             "tokenizer.json"}));
  EXPECT_EQ(verify_store(store), bytes);
  for (const char* name : {"config.json", "tokenizer.json", "notes.json"}) {
    const std::string text = read_all(store / name);
    std::string other = text;
    other[1] = static_cast<char>(other[1] ^ 1);
    write_all(store / name, other);
    expect_refusal([&] { verify_store(store); }, ErrorKind::kFile, {name, "checksum"});
    write_all(store / name, text + " ");
    expect_refusal([&] { verify_store(store); }, ErrorKind::kFile, {name, "bytes"});
    write_all(store / name, text);
  }
  fs::remove(store / "merges.txt");
  expect_refusal([&] { verify_store(store); }, ErrorKind::kFile, {"merges.txt"});
  // Stores from before the list: weight files alone.
  PackedIndex older = index;
  older.small_files.clear();
  write_all(store / std::string(kStoreIndexName), format_packed_index(older));
  EXPECT_GT(verify_store(store), 0);
  older.small_files = {{"../config.json", 1, 0}};
  write_all(store / std::string(kStoreIndexName), format_packed_index(older));
  expect_refusal([&] { read_packed_index(store); }, ErrorKind::kFile, {"not the name of a file"});
}

TEST_F(Convert, GeneratedSourcesAreNeverOnDisk) {
  std::vector<TensorEntry> tensors;
  for (const char* name : {"b", "a"})
    tensors.push_back(
        {.name = name, .dtype = DType::kF16, .shape = {5'000'000}, .bytes = 10'000'000});
  const Checkpoint source = Checkpoint::describe(std::move(tensors), "{}");
  const auto element = [](int64_t file, int64_t at) {
    return static_cast<uint16_t>((at * 7 + file) & 0x3bff);
  };
  const std::vector<StoreGroup> groups = {{"first", {{"a", "x", {}}}},
                                          {"second", {{"b", "y", {}}}}};
  convert_checkpoint(source, groups,
                     {.destination = folder_ / "store",
                      .source_bytes = [&](const Piece& piece, std::span<std::byte> to) {
                        for (size_t i = 0; i < to.size() / 2; ++i) {
                          const uint16_t value =
                              element(piece.file_index, piece.offset / 2 + static_cast<int64_t>(i));
                          std::memcpy(to.data() + 2 * i, &value, 2);
                        }
                      }});
  const Checkpoint store = Checkpoint::open(folder_ / "store");
  EXPECT_FALSE(fs::exists(folder_ / "store" / "config.json")) << "nor is anything copied";
  const auto x = read_tensor(store, *store.find("x"));
  for (const int64_t at : {0, 1, 4'194'303, 4'194'304, 4'999'999}) {
    uint16_t value = 0;
    std::memcpy(&value, x.data() + 2 * at, 2);
    EXPECT_EQ(value, element(1, at)) << at;
  }
}

TEST_F(Convert, AGroupMayRepeatAnEarlierOnesFile) {
  const fs::path store = folder_ / "store";
  convert(make_groups(kLayers), {.destination = store});
  PackedIndex index = read_packed_index(store);
  const PackedGroup& first = index.groups[1];
  PackedGroup& second = index.groups[2];
  const auto write = [&](const std::string& repeats) {
    second.repeats = repeats;
    fs::remove(store / second.file);
    fs::create_hard_link(store / first.file, store / second.file);
    second.checksum = first.checksum;
    write_all(store / std::string(kStoreIndexName), format_packed_index(index));
  };
  write(first.name);
  EXPECT_EQ(read_packed_index(store).groups[2].repeats, first.name);
  const Checkpoint opened = Checkpoint::open(store);
  EXPECT_TRUE(read_tensor(opened, *opened.find("layers.1.w")) ==
              read_tensor(opened, *opened.find("layers.0.w")));
  EXPECT_FALSE(read_tensor(opened, *opened.find("layers.2.w")) ==
               read_tensor(opened, *opened.find("layers.0.w")));
  EXPECT_GT(verify_store(store), 0);
  const std::string mended = second.repeats;
  for (const std::string& wrong :
       {std::string("embed"), std::string("none"), second.name, index.groups[3].name}) {
    write(wrong);
    try {
      Checkpoint::open(store);
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("can't repeat"), std::string::npos) << error.what();
    }
  }
  write("");
  EXPECT_THROW(Checkpoint::open(store), Error) << "names of another group";
  write(mended);
  second.tensors[1].shape[0] -= 1;
  write(mended);
  EXPECT_THROW(Checkpoint::open(store), Error) << "another shape";
}

TEST_F(Convert, WeightFilesLeaveNoGapBetweenTensors) {
  convert(make_groups(kLayers), {.destination = folder_ / "store"});
  for (const PackedGroup& group : read_packed_index(folder_ / "store").groups) {
    const SafetensorsHeader header = read_safetensors_header(folder_ / "store" / group.file);
    EXPECT_EQ(header.data_offset % kStoreAlignment, 0);
    int64_t at = header.data_offset;
    for (const TensorEntry& tensor : header.tensors) {
      EXPECT_EQ(tensor.offset, at);
      at += tensor.bytes;
    }
    EXPECT_EQ(at, group.bytes);
  }
}

TEST_F(Convert, ProgressEndsAtTheTotalAndNeverGoesBack) {
  std::vector<ConvertProgress> seen;
  const auto report = convert(
      make_groups(kLayers), {.destination = folder_ / "store",
                             .progress = [&](const ConvertProgress& now) { seen.push_back(now); }});
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back().done_bytes, report.total_bytes);
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].done_bytes, seen[i - 1].done_bytes);
}

TEST_F(Convert, RefusesTheSourceAsDestination) {
  expect_refusal(
      [&] {
        convert(make_groups(kLayers), {.destination = folder_ / "source", .overwrite = true});
      },
      ErrorKind::kUser, {"same folder"});
  fs::create_directory_symlink(folder_ / "source", folder_ / "link");
  expect_refusal(
      [&] { convert(make_groups(kLayers), {.destination = folder_ / "link", .overwrite = true}); },
      ErrorKind::kUser, {"same folder"});
  EXPECT_NO_THROW(source());
}

TEST_F(Convert, RefusesToReplaceUnlessTold) {
  convert(make_groups(kLayers), {.destination = folder_ / "store"});
  expect_refusal([&] { convert(make_groups(kLayers), {.destination = folder_ / "store"}); },
                 ErrorKind::kUser, {"already holds", "`overwrite`"});
  convert(make_groups(kLayers, DType::kF32), {.destination = folder_ / "store", .overwrite = true});
  expect_store_holds(folder_ / "store", source(), make_groups(kLayers, DType::kF32));
  write_all(folder_ / "other" / "thesis.txt", "precious");
  expect_refusal([&] { convert(make_groups(kLayers), {.destination = folder_ / "other"}); },
                 ErrorKind::kUser, {"not empty"});
  convert(make_groups(kLayers), {.destination = folder_ / "other", .overwrite = true});
  EXPECT_EQ(read_all(folder_ / "other" / "thesis.txt"), "precious");
}

TEST_F(Convert, ReplacingRemovesTheOldStoresFiles) {
  convert(make_groups(kLayers), {.destination = folder_ / "store"});
  const std::vector<StoreGroup> other = {{"everything", {{"head", "head", {}}}}};
  convert(other, {.destination = folder_ / "store", .overwrite = true});
  expect_store_holds(folder_ / "store", source(), other);
  EXPECT_FALSE(fs::exists(folder_ / "store" / "layer-0.safetensors"));
}

TEST_F(Convert, RefusesPlansThatMakeNoSense) {
  const auto refused = [&](const std::vector<StoreGroup>& groups,
                           std::initializer_list<std::string_view> words) {
    expect_refusal([&] { convert(groups, {.destination = folder_ / "store"}); }, ErrorKind::kUser,
                   words);
    EXPECT_FALSE(fs::exists(folder_ / "store"));
  };
  refused({}, {"at least one group"});
  refused({{"g", {{"absent", "a", {}}}}}, {"\"absent\"", "g"});
  refused({{"g", {{"head", "a", {}}, {"embed", "a", {}}}}}, {"two tensors", "\"a\""});
  refused({{"g", {{"head", "a", {}}}}, {"g", {}}}, {"two groups"});
  refused({{"../g", {}}}, {"\"../g\""});
  refused({{".hidden", {}}}, {"\".hidden\""});
  refused({{"", {}}}, {"name"});
  refused({{"g", {{"head", "__pad.0", {}}}}}, {"\"__pad.0\""});
  refused({{"g", {{"head", "h", DType::kI8}}}}, {"\"head\"", "bf16", "i8"});
}

TEST_F(Convert, DestinationThatCannotBeAFolderIsNamed) {
  write_all(folder_ / "file", "x");
  expect_refusal([&] { convert(make_groups(kLayers), {.destination = folder_ / "file"}); },
                 ErrorKind::kFile, {"file"});
}

TEST_F(Convert, VerifyNamesTheGroupWhoseChecksumDiffers) {
  convert(make_groups(kLayers), {.destination = folder_ / "store"});
  const fs::path file = folder_ / "store" / "layer-1.safetensors";
  std::string bytes = read_all(file);
  bytes[bytes.size() - 1] =
      static_cast<char>(bytes[bytes.size() - 1] ^ 4);  // in the padding: even that is covered
  write_all(file, bytes);
  expect_refusal([&] { verify_store(folder_ / "store"); }, ErrorKind::kFile,
                 {"layer-1.safetensors", "\"layer-1\"", "checksum"});
  write_all(file, std::string_view(bytes).substr(0, bytes.size() - 1));
  expect_refusal([&] { verify_store(folder_ / "store"); }, ErrorKind::kFile, {"layer-1", "bytes"});
  expect_refusal([&] { Checkpoint::open(folder_ / "store"); }, ErrorKind::kFile,
                 {"layer-1", "bytes"});
  fs::remove(file);
  expect_refusal([&] { verify_store(folder_ / "store"); }, ErrorKind::kFile,
                 {"layer-1", "No such file"});
}

TEST_F(Convert, VerifyReportsProgressAndStops) {
  convert(make_groups(kLayers), {.destination = folder_ / "store"});
  VerifyProgress last;
  const int64_t total =
      verify_store(folder_ / "store", [&](const VerifyProgress& now) { last = now; });
  EXPECT_EQ(last.done_bytes, total);
  EXPECT_EQ(last.total_bytes, total);
  const std::atomic<bool> stop = true;
  expect_refusal([&] { verify_store(folder_ / "store", {}, &stop); }, ErrorKind::kCancelled,
                 {"stopped"});
}

TEST_F(Convert, AStoreWhoseFilesWereSwappedIsRefused) {
  convert(make_groups(kLayers), {.destination = folder_ / "store"});
  fs::rename(folder_ / "store" / "layer-0.safetensors", folder_ / "swap");
  fs::rename(folder_ / "store" / "layer-1.safetensors", folder_ / "store" / "layer-0.safetensors");
  fs::rename(folder_ / "swap", folder_ / "store" / "layer-1.safetensors");
  expect_refusal([&] { Checkpoint::open(folder_ / "store"); }, ErrorKind::kFile,
                 {"layer-0", "index"});
}

TEST_F(Convert, ADamagedIndexIsAnErrorAndNothingElse) {
  convert({{"g", {{"head", "head", {}}}}}, {.destination = folder_ / "store"});
  const fs::path path = folder_ / "store" / std::string(kStoreIndexName);
  const std::string whole = read_all(path);
  for (size_t i = 0; i < whole.size(); ++i)
    for (const int mask : {0x01, 0x10, 0x80}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ mask);
      write_all(path, changed);
      try {
        Checkpoint::open(folder_ / "store");
        verify_store(folder_ / "store");
      } catch (const Error& error) {
        ASSERT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kFile))
            << error.what();
      }
    }
  const auto refused = [&](std::string_view from, std::string_view to,
                           std::initializer_list<std::string_view> words) {
    std::string changed = whole;
    changed.replace(changed.find(from), from.size(), to);
    write_all(path, changed);
    expect_refusal([&] { read_packed_index(folder_ / "store"); }, ErrorKind::kFile, words);
  };
  refused("\"version\": 1", "\"version\": 2", {"version 2"});
  refused("g.safetensors", "../g.safetensors", {"../g.safetensors"});
  refused("crc32c:", "sha999:", {"checksum"});
  refused("sluice-packed-store", "something-else", {"not the index"});
  refused("\"groups\"", "\"troops\"", {"missing"});
}

TEST_F(Convert, AnUnfinishedStoreIsNotTakenForACheckpoint) {
  std::atomic<bool> stop = false;
  const auto after_first_group = [&](const ConvertProgress& now) { stop = now.group != "embed"; };
  expect_refusal(
      [&] {
        convert(make_groups(kLayers),
                {.destination = folder_ / "store", .progress = after_first_group, .stop = &stop});
      },
      ErrorKind::kCancelled, {"again"});
  EXPECT_TRUE(fs::exists(folder_ / "store" / "embed.safetensors"));
  expect_refusal([&] { Checkpoint::open(folder_ / "store"); }, ErrorKind::kFile,
                 {"unfinished conversion"});
}

// A quantiser that stores sums, to see which rows it is given: io knows none of its own.
PanelQuantiser summing_quantiser() {
  return [](const WeightFormat& format, const float*, const float* rows, int64_t row_count,
            int64_t cols, std::byte* panel) {
    float sum = 0;
    for (int64_t i = 0; i < row_count * cols; ++i) sum += rows[i];
    if (!std::isfinite(sum)) return false;
    std::memset(panel, 0, static_cast<size_t>(format.panel_bytes(cols)));
    std::memcpy(panel, &sum, 4);
    std::memcpy(panel + 4, &row_count, 8);
    return true;
  };
}

TEST_F(Convert, QuantisesPanelByPanelWhateverThePieces) {
  constexpr int64_t kRows = 1003, kCols = 4100;
  std::vector<float> values(kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 1009) - 504;
  const NewTensor tensor{"w", DType::kF32, {kRows, kCols}};
  write_sharded_safetensors(
      folder_ / "from", {&tensor, 1}, [&](size_t, int64_t first, std::span<std::byte> to) {
        std::memcpy(to.data(), reinterpret_cast<const std::byte*>(values.data()) + first * 4,
                    to.size());
      });
  const Checkpoint from = Checkpoint::open(folder_ / "from");
  const WeightFormat format = *parse_weight_format("int4-g32");
  const std::vector<StoreGroup> groups = {{"all", {{"w", "w", format, {}}}}};
  for (const int threads : {1, 3}) {
    const fs::path to = folder_ / ("to" + std::to_string(threads));
    ConvertOptions options{.destination = to, .threads = threads};
    options.quantise = summing_quantiser();
    convert_checkpoint(from, groups, options);
    verify_store(to);
    const Checkpoint store = Checkpoint::open(to);
    const TensorEntry* entry = store.find("w");
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->quantised, format);
    EXPECT_EQ(entry->shape, (std::vector<int64_t>{kRows, kCols}));
    EXPECT_EQ(entry->bytes, format.bytes(kRows, kCols));
    const std::vector<std::byte> bytes = read_tensor(store, *entry);
    for (int64_t panel = 0; panel < (kRows + 15) / 16; ++panel) {
      float sum = 0, expected = 0;
      int64_t rows = 0;
      std::memcpy(&sum, bytes.data() + panel * format.panel_bytes(kCols), 4);
      std::memcpy(&rows, bytes.data() + panel * format.panel_bytes(kCols) + 4, 8);
      const int64_t end = std::min(kRows, (panel + 1) * 16);
      for (int64_t i = panel * 16 * kCols; i < end * kCols; ++i)
        expected += values[static_cast<size_t>(i)];
      EXPECT_EQ(rows, end - panel * 16);
      EXPECT_EQ(sum, expected) << "panel " << panel;
    }
  }
}

TEST_F(Convert, NamesTheRowsThatCannotBeQuantised) {
  std::vector<float> values(100 * 64, 1.0f);
  values[50 * 64 + 3] = std::numeric_limits<float>::infinity();
  const NewTensor tensor{"w", DType::kF32, {100, 64}};
  write_sharded_safetensors(
      folder_ / "from", {&tensor, 1}, [&](size_t, int64_t first, std::span<std::byte> to) {
        std::memcpy(to.data(), reinterpret_cast<const std::byte*>(values.data()) + first * 4,
                    to.size());
      });
  const std::vector<StoreGroup> groups = {{"all", {{"w", "w", *parse_weight_format("int4"), {}}}}};
  ConvertOptions options{.destination = folder_ / "to"};
  options.quantise = summing_quantiser();
  try {
    convert_checkpoint(Checkpoint::open(folder_ / "from"), groups, options);
    FAIL() << "an infinity was quantised";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_NE(std::string(error.what()).find("\"w\", rows 48 to 63"), std::string::npos)
        << error.what();
  }
}

TEST_F(Convert, RefusesToQuantiseTwiceAndWhatIsNoMatrix) {
  const std::vector<StoreGroup> vector = {
      {"all", {{"layers.0.bias", "b", *parse_weight_format("int4"), {}}}}};
  EXPECT_THROW(packed_store_bytes(source(), vector), Error);
}

}  // namespace
}  // namespace sluice::io
