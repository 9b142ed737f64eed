// Every byte of every small checkpoint file is changed in turn, and every length cut short: the
// outcome is an Error or a checkpoint whose ranges lie inside its files, never a crash. Meant to
// run under the sanitizers.
#include <array>

#include "tests/io/checkpoint/files.h"
#include "tests/rounds.h"

namespace sluice::io {
namespace {

namespace fs = std::filesystem;

// Opens and, when that works, checks what every user of a Checkpoint relies on.
void open_and_check(const fs::path& path) {
  try {
    const Checkpoint checkpoint = Checkpoint::open(path);
    for (const TensorEntry& tensor : checkpoint.tensors()) {
      const CheckpointFile& file = checkpoint.files().at(static_cast<size_t>(tensor.file_index));
      ASSERT_GE(tensor.offset, 0);
      ASSERT_LE(tensor.offset + tensor.bytes, file.bytes);
      if (tensor.blocks == BlockType::kNone) {
        ASSERT_EQ(tensor_bytes(tensor.shape, tensor.dtype), tensor.bytes);
      }
      ASSERT_EQ(checkpoint.find(tensor.name), &tensor);
    }
  } catch (const Error& error) {
    ASSERT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kFile)) << error.what();
    ASSERT_FALSE(error.text().empty());
  }
}

class ByteFlip : public testing::TestWithParam<const char*> {
 protected:
  // The fixture's folder (or lone file) copied, so that `file` in it can be changed.
  void SetUp() override {
    const fs::path source = fixture(GetParam());
    file_ = folder_.path() / source.filename();
    if (fs::exists(source.parent_path() / "config.json")) {
      for (const auto& entry : fs::directory_iterator(source.parent_path()))
        write_all(folder_.path() / entry.path().filename(), read_all(entry.path()));
      opened_ = folder_.path();
    } else {
      write_all(file_, read_all(source));
      opened_ = file_;
    }
    whole_ = read_all(source);
  }

  TemporaryFolder folder_;
  fs::path file_;
  fs::path opened_;
  std::string whole_;
};

TEST_P(ByteFlip, AnyByteMayBeWrong) {
  const auto masks = std::to_array<unsigned char>({0x01, 0x80, 0xff});
  for (size_t i = 0; i < whole_.size(); ++i)
    for (const unsigned char mask : masks) {
      if (is_sanitized() && mask != masks[i % masks.size()]) continue;  // the release tests try all
      std::string changed = whole_;
      changed[i] = static_cast<char>(static_cast<unsigned char>(changed[i]) ^ mask);
      write_all(file_, changed);
      open_and_check(opened_);
      if (HasFatalFailure()) FAIL() << "byte " << i << " mask " << int{mask};
    }
}

TEST_P(ByteFlip, AnyLengthMayBeMissing) {
  for (size_t size = 0; size < whole_.size(); ++size) {
    write_all(file_, std::string_view(whole_).substr(0, size));
    open_and_check(opened_);
    if (HasFatalFailure()) FAIL() << "length " << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ByteFlip,
                         testing::Values("made/single/model.safetensors", "made/single/config.json",
                                         "made/sharded/model-00002-of-00002.safetensors",
                                         "made/sharded/model.safetensors.index.json",
                                         "made/torch_model_key.pt",
                                         "made/torch_single/pytorch_model.bin",
                                         "made/torch_types.pt", "made/torch_protocol4.pt",
                                         "made/refused/hostile.pt", "made/refused/legacy.pt",
                                         "third_party/burn/mixed_types.pt", "made/tiny.gguf"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace sluice::io
