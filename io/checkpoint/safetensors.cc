#include "io/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "io/checkpoint/json_file.h"
#include "io/files/input_file.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian and read in place");

namespace sluice::io {

namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kDamagedMend = "the file is cut short or damaged: download it again";

[[noreturn]] void refuse(const std::string& path, const std::string& problem,
                         const char* mend = kDamagedMend) {
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", path, problem), mend);
}

// "BF16": the format spells types in upper case.
std::string format_name(DType type) {
  std::string name(dtype_name(type));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return name;
}

// One tensor's description on its way from JSON to TensorEntry; `path` and `name` are for errors.
struct TensorParser {
  const std::string& path;
  const std::string& name;

  [[noreturn]] void fail(const std::string& problem, const char* mend = kDamagedMend) const {
    refuse(path, fmt::format("tensor {}: {}", in_quotes(name), problem), mend);
  }

  int64_t whole_number(const json& value, const char* what) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
      fail(fmt::format("{} is not a whole number from 0 to 2^63-1", what));
    return value.get<int64_t>();
  }

  const json& member(const json& tensor, const char* key) const {
    const auto found = tensor.find(key);
    if (found == tensor.end()) fail(fmt::format("has no \"{}\"", key));
    return *found;
  }

  DType dtype(const json& value) const {
    if (!value.is_string()) fail("\"dtype\" is not a string");
    const auto& text = value.get_ref<const std::string&>();
    if (text == "F8_E8M0") return DType::kU8;  // exponents, as scales that are written as bytes
    const std::optional<DType> type = parse_dtype(text);
    if (!type || format_name(*type) != text)  // parse_dtype also knows other people's spellings
      fail(fmt::format("element type {} is not supported", in_quotes(text)),
           "use a checkpoint with F32, F16 or BF16 weights (one already quantised for another "
           "program cannot be read)");
    return *type;
  }

  std::vector<int64_t> shape(const json& value) const {
    if (!value.is_array() || value.size() > kMaxTensorDimensions)
      fail("\"shape\" is not an array of dimensions");
    std::vector<int64_t> sizes;
    for (const json& size : value) sizes.push_back(whole_number(size, "a dimension"));
    return sizes;
  }

  TensorEntry parse(const json& value, int64_t data_offset, int64_t data_bytes) const {
    if (!value.is_object()) fail("is not described by an object");
    TensorEntry entry{.name = name,
                      .dtype = dtype(member(value, "dtype")),
                      .shape = shape(member(value, "shape"))};
    const json& offsets = member(value, "data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) fail("\"data_offsets\" is not a pair");
    const int64_t begin = whole_number(offsets[0], "a data offset");
    const int64_t end = whole_number(offsets[1], "a data offset");
    if (begin > end || end > data_bytes)
      fail(fmt::format("data offsets {} to {} do not lie in the file's {} bytes of data", begin,
                       end, data_bytes));
    const std::optional<int64_t> needed = tensor_bytes(entry.shape, entry.dtype);
    if (!needed) fail(fmt::format("shape {} is too large", format_shape(entry.shape)));
    if (*needed != end - begin)
      fail(fmt::format("shape {} of {} needs {} bytes, but data offsets {} to {} hold {}",
                       format_shape(entry.shape), dtype_name(entry.dtype), *needed, begin, end,
                       end - begin));
    entry.offset = data_offset + begin;
    entry.bytes = *needed;
    return entry;
  }
};

std::map<std::string, std::string> parse_metadata(const json& value, const std::string& path) {
  if (value.is_null()) return {};  // as some writers spell "none"
  if (!value.is_object()) refuse(path, "\"__metadata__\" is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      refuse(path, fmt::format("__metadata__ {} is not a string", in_quotes(key)));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// The format's rule: tensors follow each other without gaps from the first byte of the data to the
// file's last. A header of another length, or data put in or cut out, would otherwise give every
// tensor bytes that are not its own.
void require_whole_cover(const std::vector<TensorEntry>& by_offset, int64_t data_offset,
                         int64_t file_bytes, const std::string& path) {
  int64_t at = data_offset;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& tensor : by_offset) {
    if (tensor.offset < at)
      refuse(path, fmt::format("tensors {} and {} overlap at offset {}", in_quotes(before->name),
                               in_quotes(tensor.name), tensor.offset));
    if (tensor.offset > at)
      refuse(path, fmt::format("{} bytes before tensor {} at offset {} belong to no tensor",
                               tensor.offset - at, in_quotes(tensor.name), tensor.offset));
    at += tensor.bytes;
    before = &tensor;
  }
  if (at != file_bytes)
    refuse(path, fmt::format("{} bytes after the last tensor, from offset {} on, belong to none",
                             file_bytes - at, at));
}

json describe(const HeaderTensor& tensor) {
  return {{"dtype", format_name(tensor.dtype)},
          {"shape", tensor.shape},
          {"data_offsets", {tensor.begin, tensor.end}}};
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_offset,
                                           int64_t file_bytes, const std::string& path) {
  if (!text.starts_with('{'))
    refuse(path, "the header is not a JSON object", "check that this is a safetensors file");
  const json root = parse_json(text, path + ": header", {.max_bytes = kMaxSafetensorsHeader});
  if (!root.is_object()) refuse(path, "the header is not a JSON object");
  SafetensorsHeader header{.data_offset = data_offset};
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadataKey) {
      header.metadata = parse_metadata(value, path);
    } else {
      header.tensors.push_back(
          TensorParser{path, name}.parse(value, data_offset, file_bytes - data_offset));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
            });
  require_whole_cover(header.tensors, data_offset, file_bytes, path);
  return header;
}

SafetensorsHeader read_safetensors_header(const std::filesystem::path& path) {
  const InputFile file(path);
  const std::string name = path.string();
  if (file.size() == 0) refuse(name, "the file is empty", "download it again");
  refuse_lfs_pointer(file.read_text(0, std::min<int64_t>(file.size(), 64), "first bytes"), path);
  if (file.size() < static_cast<int64_t>(kLengthBytes))
    refuse(name, fmt::format("{} bytes are too few for a safetensors file", file.size()));
  uint64_t length = 0;
  file.read(0, std::as_writable_bytes(std::span(&length, 1)), "header length");
  const auto room = static_cast<uint64_t>(file.size()) - kLengthBytes;
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader))
    refuse(name,
           fmt::format("the header claims {} bytes, more than a safetensors header may have ({})",
                       length, format_bytes(kMaxSafetensorsHeader)),
           "check that this is a safetensors file, and download it again");
  if (length > room)
    refuse(name, fmt::format("the header claims {} bytes, but only {} follow", length, room));
  const std::string text = file.read_text(kLengthBytes, static_cast<int64_t>(length), "header");
  return parse_safetensors_header(text, static_cast<int64_t>(kLengthBytes + length), file.size(),
                                  name);
}

std::string format_safetensors_header(const std::vector<HeaderTensor>& tensors,
                                      const std::map<std::string, std::string>& metadata,
                                      int64_t alignment) {
  std::string text = "{";
  try {
    if (!metadata.empty()) text += fmt::format("\"{}\":{}", kMetadataKey, json(metadata).dump());
    for (const HeaderTensor& tensor : tensors) {
      if (text.size() > 1) text += ',';
      text += json(tensor.name).dump() + ":" + describe(tensor).dump();
    }
  } catch (const json::exception&) {
    throw Error(ErrorKind::kUser,
                "a tensor name or metadata value is not valid UTF-8 and cannot be stored");
  }
  text += '}';
  const auto unpadded = static_cast<int64_t>(kLengthBytes + text.size());
  text.append(static_cast<size_t>(round_up(unpadded, alignment) - unpadded), ' ');
  if (static_cast<int64_t>(text.size()) > kMaxSafetensorsHeader)
    throw Error(ErrorKind::kUser,
                fmt::format("{} tensors make a header of {}, more than {}", tensors.size(),
                            format_bytes(static_cast<int64_t>(text.size())),
                            format_bytes(kMaxSafetensorsHeader)),
                "put fewer tensors in one file");
  const uint64_t length = text.size();
  std::string result(kLengthBytes, '\0');
  std::memcpy(result.data(), &length, kLengthBytes);
  return result + text;
}

}  // namespace sluice::io
