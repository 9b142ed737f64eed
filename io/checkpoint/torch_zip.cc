#include "io/checkpoint/torch_zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "io/checkpoint/json_file.h"
#include "io/checkpoint/pickle.h"
#include "io/files/input_file.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice::io {

namespace {

// The zip format (PKWARE APPNOTE.TXT): numbers are little-endian, records start with a signature.
constexpr std::string_view kLocalSignature("PK\x03\x04", 4);
constexpr std::string_view kDirectorySignature("PK\x01\x02", 4);
constexpr std::string_view kEndSignature("PK\x05\x06", 4);
constexpr std::string_view kEnd64Signature("PK\x06\x06", 4);
constexpr std::string_view kLocator64Signature("PK\x06\x07", 4);
constexpr int64_t kLocalBytes = 30;
constexpr int64_t kDirectoryBytes = 46;
constexpr int64_t kEndBytes = 22;
constexpr int64_t kEnd64Bytes = 56;
constexpr int64_t kLocator64Bytes = 20;
constexpr int64_t kMaxComment = 65535;
constexpr int64_t kMaxDirectoryBytes = 256 << 20;
constexpr uint64_t kIn64 = 0xffffffff;  // "see the zip64 field"

constexpr const char* kLegacyMend =
    "re-save it: torch.save(torch.load(path), path, _use_new_zipfile_serialization=True), or "
    "convert it to safetensors";

// A fixed-size little-endian number at `at`; callers have checked that it is inside.
uint64_t number_at(std::string_view bytes, size_t at, size_t size) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, size);
  return value;
}

struct Directory {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t entries = 0;
};

class ZipReader {
 public:
  explicit ZipReader(const InputFile& file) : file_(file) {}

  std::vector<ZipRecord> read() const {
    const Directory where = find_directory();
    if (where.bytes > static_cast<uint64_t>(kMaxDirectoryBytes))
      fail(fmt::format("a directory of {} bytes is not read", where.bytes));
    if (where.offset > static_cast<uint64_t>(file_.size()))
      fail("the directory starts past the end of the file");
    const std::string directory = file_.read_text(
        static_cast<int64_t>(where.offset), static_cast<int64_t>(where.bytes), "zip directory");
    std::vector<ZipRecord> records;
    size_t at = 0;
    while (at < directory.size()) records.push_back(read_entry(directory, at));
    if (records.size() != where.entries)
      fail(fmt::format("the directory promises {} records and has {}", where.entries,
                       records.size()));
    refuse_duplicates(records);
    return records;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", file_.path().string(), problem),
                "the file is cut short or damaged: download it again");
  }

  Directory find_directory() const {
    const int64_t tail_bytes = std::min(file_.size(), kEndBytes + kMaxComment);
    const std::string tail =
        file_.read_text(file_.size() - tail_bytes, tail_bytes, "end of the zip archive");
    if (tail_bytes < kEndBytes) fail("too short for a zip archive");
    size_t end = tail.rfind(kEndSignature, tail.size() - static_cast<size_t>(kEndBytes));
    // The last signature whose comment reaches exactly to the end of the file; a comment may
    // contain a signature.
    while (end != std::string::npos &&
           number_at(tail, end + 20, 2) != tail.size() - end - static_cast<size_t>(kEndBytes))
      end = end == 0 ? std::string::npos : tail.rfind(kEndSignature, end - 1);
    if (end == std::string::npos) fail("the zip archive has no directory");
    const Directory small{.offset = number_at(tail, end + 16, 4),
                          .bytes = number_at(tail, end + 12, 4),
                          .entries = number_at(tail, end + 10, 2)};
    const int64_t locator = file_.size() - tail_bytes + static_cast<int64_t>(end) - kLocator64Bytes;
    return find_directory64(locator).value_or(small);
  }

  std::optional<Directory> find_directory64(int64_t locator_offset) const {
    if (locator_offset < 0) return std::nullopt;
    const std::string locator = file_.read_text(locator_offset, kLocator64Bytes, "zip64 locator");
    if (!locator.starts_with(kLocator64Signature)) return std::nullopt;
    const uint64_t offset = number_at(locator, 8, 8);
    if (offset > static_cast<uint64_t>(file_.size()))
      fail("the zip64 directory is past the end of the file");
    const std::string end =
        file_.read_text(static_cast<int64_t>(offset), kEnd64Bytes, "zip64 directory");
    if (!end.starts_with(kEnd64Signature)) fail("the zip64 directory is not where it should be");
    return Directory{.offset = number_at(end, 48, 8),
                     .bytes = number_at(end, 40, 8),
                     .entries = number_at(end, 32, 8)};
  }

  // Reads the entry at `at` and moves `at` past it.
  ZipRecord read_entry(std::string_view directory, size_t& at) const {
    const std::string_view entry = directory.substr(at);
    if (entry.size() < static_cast<size_t>(kDirectoryBytes) ||
        !entry.starts_with(kDirectorySignature))
      fail("the zip directory is damaged");
    const size_t name_bytes = number_at(entry, 28, 2);
    const size_t extra_bytes = number_at(entry, 30, 2);
    const size_t whole =
        static_cast<size_t>(kDirectoryBytes) + name_bytes + extra_bytes + number_at(entry, 32, 2);
    if (whole > entry.size()) fail("the zip directory is damaged");
    at += whole;
    ZipRecord record{.name = std::string(entry.substr(kDirectoryBytes, name_bytes))};
    uint64_t stored_bytes = number_at(entry, 20, 4);
    uint64_t bytes = number_at(entry, 24, 4);
    uint64_t offset = number_at(entry, 42, 4);
    const std::string_view extra =
        entry.substr(static_cast<size_t>(kDirectoryBytes) + name_bytes, extra_bytes);
    read_zip64_extra(extra, record.name, {&bytes, &stored_bytes, &offset});
    if ((number_at(entry, 8, 2) & 1u) != 0)
      fail(fmt::format("record {} is encrypted", in_quotes(record.name)));
    if (number_at(entry, 10, 2) != 0 || bytes != stored_bytes)
      throw Error(
          ErrorKind::kFile,
          fmt::format("{}: record {} is compressed; PyTorch stores records as they are, and only "
                      "such files can "
                      "be read in place",
                      file_.path().string(), in_quotes(record.name)),
          "load it with PyTorch and save it again with torch.save, or convert it to safetensors");
    locate(record, offset, bytes);
    return record;
  }

  // The zip64 field holds 8 bytes for each of the values that did not fit, in this order.
  void read_zip64_extra(std::string_view extra, const std::string& name,
                        std::initializer_list<uint64_t*> values) const {
    while (extra.size() >= 4) {
      const uint64_t id = number_at(extra, 0, 2);
      const size_t bytes = number_at(extra, 2, 2);
      if (bytes > extra.size() - 4) return;
      std::string_view field = extra.substr(4, bytes);
      extra.remove_prefix(4 + bytes);
      if (id != 1) continue;
      for (uint64_t* value : values) {
        if (*value != kIn64) continue;
        if (field.size() < 8)
          fail(fmt::format("record {} has a damaged zip64 field", in_quotes(name)));
        *value = number_at(field, 0, 8);
        field.remove_prefix(8);
      }
      return;
    }
  }

  void locate(ZipRecord& record, uint64_t offset, uint64_t bytes) const {
    const auto size = static_cast<uint64_t>(file_.size());
    if (offset > size || bytes > size)
      fail(fmt::format("record {} ({} bytes at offset {}) lies past the end of the file ({} bytes)",
                       in_quotes(record.name), bytes, offset, size));
    const std::string local =
        file_.read_text(static_cast<int64_t>(offset), kLocalBytes, "zip record");
    if (!local.starts_with(kLocalSignature))
      fail(fmt::format("record {} is not at offset {}", in_quotes(record.name), offset));
    const uint64_t data = offset + static_cast<uint64_t>(kLocalBytes) + number_at(local, 26, 2) +
                          number_at(local, 28, 2);
    if (data > size || bytes > size - data)
      fail(fmt::format("record {} ({} bytes at offset {}) lies past the end of the file ({} bytes)",
                       in_quotes(record.name), bytes, data, size));
    record.data_offset = static_cast<int64_t>(data);
    record.bytes = static_cast<int64_t>(bytes);
  }

  void refuse_duplicates(const std::vector<ZipRecord>& records) const {
    std::unordered_map<std::string_view, int> seen;
    for (const ZipRecord& record : records)
      if (++seen[record.name] > 1)
        fail(fmt::format("two records are called {}", in_quotes(record.name)));
  }

  const InputFile& file_;
};

// Says what a file is that is no zip archive, as far as its first bytes tell.
[[noreturn]] void refuse_other_format(const InputFile& file) {
  const std::string path = file.path().string();
  if (file.size() == 0)
    throw Error(ErrorKind::kFile, path + ": the file is empty", "download it again");
  const std::string start = file.read_text(0, std::min<int64_t>(file.size(), 512), "first bytes");
  refuse_lfs_pointer(start, file.path());
  // 0x1950a86a20f9469cfc6c as a pickled long: the magic number of torch.save before PyTorch 1.6.
  constexpr std::string_view kLegacyMagic("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12);
  const bool is_legacy =
      std::string_view(start).substr(0, 32).find(kLegacyMagic) != std::string_view::npos;
  const bool is_tar = start.size() > 262 && start.compare(257, 5, "ustar") == 0;
  if (is_legacy || is_tar)
    throw Error(ErrorKind::kFile,
                path + ": written in a format of PyTorch before 1.6, which cannot be read in place",
                kLegacyMend);
  throw Error(ErrorKind::kFile, path + ": not a PyTorch checkpoint (no zip archive)",
              "check that the file is what its name says, and download it again");
}

bool is_zip(const InputFile& file) {
  return file.size() >= 4 && file.read_text(0, 4, "first bytes") == kLocalSignature;
}

// PyTorch's records lie in one folder inside the archive: "<name>/data.pkl", "<name>/data/0", ...
struct TorchArchive {
  std::unordered_map<std::string_view, const ZipRecord*> by_name;
  std::string prefix;
  const ZipRecord* find(const std::string& name) const {
    const auto found = by_name.find(prefix + name);
    return found == by_name.end() ? nullptr : found->second;
  }
};

TorchArchive index_archive(const std::vector<ZipRecord>& records, const std::string& path) {
  constexpr std::string_view kPickle = "data.pkl";
  TorchArchive archive;
  bool has_pickle = false;
  for (const ZipRecord& record : records) {
    archive.by_name[record.name] = &record;
    const std::string_view name = record.name;
    if (name != kPickle && !name.ends_with("/data.pkl")) continue;
    const std::string_view prefix = name.substr(0, name.size() - kPickle.size());
    if (!has_pickle || prefix.size() < archive.prefix.size()) archive.prefix = prefix;
    has_pickle = true;
  }
  if (!has_pickle)
    throw Error(ErrorKind::kFile,
                path + ": a zip archive, but no PyTorch checkpoint (it has no data.pkl)",
                "check that the file is what its name says");
  if (archive.find("constants.pkl") != nullptr)
    throw Error(ErrorKind::kFile, path + ": a TorchScript program, not a checkpoint",
                "save the model's state dict: torch.save(model.state_dict(), path)");
  return archive;
}

void refuse_big_endian(const InputFile& file, const TorchArchive& archive) {
  const ZipRecord* order = archive.find("byteorder");
  if (order == nullptr) return;
  const std::string text =
      file.read_text(order->data_offset, std::min<int64_t>(order->bytes, 16), "byteorder");
  if (text != "little")
    throw Error(ErrorKind::kFile,
                fmt::format("{}: its byte order is {}, only little-endian files are read",
                            file.path().string(), in_quotes(text)),
                "save it again on a little-endian machine, or convert it to safetensors");
}

TensorEntry place(const PickledTensor& tensor, const TorchArchive& archive,
                  const std::string& path) {
  const ZipRecord* record = archive.find("data/" + tensor.storage_key);
  if (record == nullptr)
    throw Error(ErrorKind::kFile,
                fmt::format("{}: tensor {} needs record {}, which is not in the archive", path,
                            in_quotes(tensor.name), in_quotes("data/" + tensor.storage_key)),
                "the file is damaged: download it again");
  const int64_t element = dtype_bytes(tensor.dtype);
  TensorEntry entry{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape};
  entry.bytes = tensor_bytes(tensor.shape, tensor.dtype).value();
  // Both factors are at most 2^63 / element: read_torch_pickle has checked the range against the
  // storage's size.
  const int64_t room = record->bytes / element;
  if (tensor.storage_offset > room || entry.bytes / element > room - tensor.storage_offset)
    throw Error(
        ErrorKind::kFile,
        fmt::format("{}: tensor {} needs {} bytes from element {} on, but its record has {} bytes",
                    path, in_quotes(tensor.name), entry.bytes, tensor.storage_offset,
                    record->bytes),
        "the file is damaged: download it again");
  entry.offset = record->data_offset + tensor.storage_offset * element;
  return entry;
}

}  // namespace

std::vector<ZipRecord> read_zip_directory(const std::filesystem::path& path) {
  const InputFile file(path);
  if (!is_zip(file)) refuse_other_format(file);
  return ZipReader(file).read();
}

std::vector<TensorEntry> read_torch_file(const std::filesystem::path& path) {
  const InputFile file(path);
  if (!is_zip(file)) refuse_other_format(file);
  const std::vector<ZipRecord> records = ZipReader(file).read();
  const std::string name = path.string();
  const TorchArchive archive = index_archive(records, name);
  refuse_big_endian(file, archive);
  const ZipRecord& pickle = *archive.find("data.pkl");
  if (pickle.bytes > kMaxPickleBytes)
    throw Error(ErrorKind::kFile,
                fmt::format("{}: its pickle has {}, more than {} are not read", name,
                            format_bytes(pickle.bytes), format_bytes(kMaxPickleBytes)),
                "convert the checkpoint to safetensors");
  const std::string bytes = file.read_text(pickle.data_offset, pickle.bytes, "pickle");
  std::vector<TensorEntry> entries;
  for (const PickledTensor& tensor : read_torch_pickle(std::as_bytes(std::span(bytes)), name))
    entries.push_back(place(tensor, archive, name));
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.offset, a.name) < std::tie(b.offset, b.name);
  });
  return entries;
}

}  // namespace sluice::io
