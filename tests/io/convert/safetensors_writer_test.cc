#include "io/convert/safetensors_writer.h"

#include <atomic>
#include <nlohmann/json.hpp>

#include "tests/io/checkpoint/files.h"

namespace sluice::io {
namespace {

namespace fs = std::filesystem;

std::byte byte_at(size_t tensor, int64_t position) {
  return static_cast<std::byte>(position * 7 + (position >> 11) + static_cast<int64_t>(tensor));
}

// Fills from the byte's own position, so that any wrong place shows.
TensorGenerator positional(std::span<const NewTensor> tensors) {
  return [tensors](size_t tensor, int64_t first, std::span<std::byte> to) {
    const int64_t begin = first * dtype_bytes(tensors[tensor].dtype);
    for (size_t i = 0; i < to.size(); ++i) to[i] = byte_at(tensor, begin + static_cast<int64_t>(i));
  };
}

void expect_contents(const fs::path& folder, std::span<const NewTensor> tensors) {
  const Checkpoint checkpoint = Checkpoint::open(folder);
  ASSERT_EQ(checkpoint.tensors().size(), tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorEntry* entry = checkpoint.find(tensors[t].name);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->shape, tensors[t].shape);
    EXPECT_EQ(entry->dtype, tensors[t].dtype);
    std::vector<std::byte> bytes(static_cast<size_t>(entry->bytes));
    InputFile(checkpoint.files()[static_cast<size_t>(entry->file_index)].path)
        .read(entry->offset, bytes, "tensor");
    for (size_t i = 0; i < bytes.size(); ++i)
      ASSERT_EQ(bytes[i], byte_at(t, static_cast<int64_t>(i))) << t << " " << i;
  }
}

TEST(SafetensorsWriter, WritesOneFileWhenItFits) {
  TemporaryFolder folder;
  const std::vector<NewTensor> tensors = {{"a", DType::kF32, {3, 4}},
                                          {"empty", DType::kF16, {0, 7}},
                                          {"b", DType::kBF16, {5}},
                                          {"s", DType::kI64, {}}};
  EXPECT_EQ(write_sharded_safetensors(folder / "m", tensors, positional(tensors)),
            (std::vector<std::string>{"model.safetensors"}));
  expect_contents(folder / "m", tensors);
  EXPECT_EQ(Checkpoint::open(folder / "m").metadata().at("format"), "pt");
}

TEST(SafetensorsWriter, ShardsLikeHuggingFace) {
  TemporaryFolder folder;
  std::vector<NewTensor> tensors;
  for (int i = 0; i < 7; ++i)
    tensors.push_back({"t" + std::to_string(i), DType::kF32, {i == 3 ? 1000 : 100}});
  const auto names = write_sharded_safetensors(folder / "m", tensors, positional(tensors),
                                               {.max_shard_bytes = 1000});
  // 400 bytes each but t3 with 4000: t0 t1 | t2 | t3 (a shard of its own) | t4 t5 | t6.
  EXPECT_EQ(names, (std::vector<std::string>{
                       "model-00001-of-00005.safetensors", "model-00002-of-00005.safetensors",
                       "model-00003-of-00005.safetensors", "model-00004-of-00005.safetensors",
                       "model-00005-of-00005.safetensors"}));
  expect_contents(folder / "m", tensors);
  const auto index = nlohmann::json::parse(read_all(folder / "m" / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 1600 * 4);
  EXPECT_EQ(index["weight_map"]["t3"], "model-00003-of-00005.safetensors");
}

TEST(SafetensorsWriter, LargeTensorsCrossBuffersEvenAtOddPlaces) {
  TemporaryFolder folder;
  const std::vector<NewTensor> tensors = {
      {"odd", DType::kBool, {3}}, {"large", DType::kF64, {3'000'001}}, {"tail", DType::kI8, {5}}};
  for (const int threads : {1, 3}) {
    write_sharded_safetensors(folder / "m", tensors, positional(tensors),
                              {.overwrite = true, .threads = threads});
    expect_contents(folder / "m", tensors);
  }
}

TEST(SafetensorsWriter, GeneratesEveryElementOnce) {
  TemporaryFolder folder;
  const std::vector<NewTensor> tensors = {{"large", DType::kF32, {5'000'000}}};
  std::atomic<int64_t> elements = 0;
  write_sharded_safetensors(folder / "m", tensors,
                            [&](size_t, int64_t, std::span<std::byte> to) {
                              elements += static_cast<int64_t>(to.size()) / 4;
                            },
                            {.threads = 4});
  EXPECT_EQ(elements, 5'000'000);
}

TEST(SafetensorsWriter, ReplacesAModelOnlyWhenTold) {
  TemporaryFolder folder;
  const std::vector<NewTensor> large = {{"a", DType::kF32, {100}}, {"b", DType::kF32, {100}}};
  const std::vector<NewTensor> small = {{"c", DType::kF32, {4}}};
  write_sharded_safetensors(folder / "m", large, positional(large), {.max_shard_bytes = 400});
  expect_refusal([&] { write_sharded_safetensors(folder / "m", small, positional(small)); },
                 ErrorKind::kUser, {"already holds a model", "`overwrite`"});
  write_sharded_safetensors(folder / "m", small, positional(small), {.overwrite = true});
  expect_contents(folder / "m", small);
  EXPECT_FALSE(fs::exists(folder / "m" / "model-00001-of-00002.safetensors"));
}

TEST(SafetensorsWriter, StopsCleanly) {
  TemporaryFolder folder;
  const std::vector<NewTensor> tensors = {{"a", DType::kF32, {100}}, {"b", DType::kF32, {100}}};
  std::atomic<bool> stop = false;
  const auto progress = [&](const WriteProgress& now) {
    stop = now.file == "model-00002-of-00002.safetensors";
  };
  expect_refusal(
      [&] {
        write_sharded_safetensors(folder / "m", tensors, positional(tensors),
                                  {.max_shard_bytes = 400, .progress = progress, .stop = &stop});
      },
      ErrorKind::kCancelled, {"stopped"});
  // The flag is read before each piece; the one that was begun is written, and then everything goes
  // away.
  EXPECT_TRUE(fs::is_empty(folder / "m"));
}

TEST(SafetensorsWriter, AGeneratorsErrorComesThroughAndLeavesNothing) {
  TemporaryFolder folder;
  const std::vector<NewTensor> tensors = {{"a", DType::kF32, {1'000'000}}};
  expect_refusal(
      [&] {
        write_sharded_safetensors(folder / "m", tensors,
                                  [](size_t, int64_t, std::span<std::byte>) {
                                    throw Error(ErrorKind::kInternal, "no numbers today");
                                  },
                                  {.threads = 3});
      },
      ErrorKind::kInternal, {"no numbers today"});
  EXPECT_TRUE(fs::is_empty(folder / "m"));
}

TEST(SafetensorsWriter, RefusesWhatCannotBeWritten) {
  TemporaryFolder folder;
  const auto refused = [&](const std::vector<NewTensor>& tensors, ErrorKind kind,
                           std::initializer_list<std::string_view> words) {
    expect_refusal([&] { write_sharded_safetensors(folder / "m", tensors, positional(tensors)); },
                   kind, words);
  };
  refused({}, ErrorKind::kUser, {"at least one"});
  refused({{"a", DType::kF32, {-1}}}, ErrorKind::kUser, {"\"a\"", "[-1]"});
  refused({{"a", DType::kF32, {INT64_MAX}}}, ErrorKind::kUser, {"\"a\""});
  refused({{"a", DType::kI8, {INT64_MAX}}, {"b", DType::kI8, {1}}}, ErrorKind::kUser, {"\"b\""});
  refused({{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}}, ErrorKind::kUser, {"repeated"});
  refused({{"__metadata__", DType::kF32, {1}}}, ErrorKind::kUser, {"__metadata__"});
  refused({{"a", DType::kF32, {int64_t{1} << 55}}}, ErrorKind::kResource, {"needed", "short"});
  EXPECT_TRUE(fs::is_empty(folder / "m"));
}

TEST(SafetensorsWriter, ProgressEndsAtTheTotal) {
  TemporaryFolder folder;
  const std::vector<NewTensor> tensors = {{"a", DType::kF32, {5'000'000}},
                                          {"b", DType::kF32, {10}}};
  WriteProgress last;
  std::string file;
  write_sharded_safetensors(folder / "m", tensors, positional(tensors),
                            {.progress = [&](const WriteProgress& now) {
                              last = now;
                              file = now.file;
                            }});
  EXPECT_EQ(last.done_bytes, last.total_bytes);
  EXPECT_EQ(last.total_bytes,
            static_cast<int64_t>(fs::file_size(folder / "m" / "model.safetensors")));
  EXPECT_EQ(file, "model.safetensors");
}

}  // namespace
}  // namespace sluice::io
