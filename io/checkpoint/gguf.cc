#include "io/checkpoint/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "io/files/input_file.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"

static_assert(std::endian::native == std::endian::little, "GGUF files are read as little-endian");

namespace sluice::io {

namespace {

using nlohmann::json;

constexpr int64_t kMostHeaderBytes = int64_t{256} << 20;  // vocabularies are some megabytes
constexpr uint64_t kMostTensors = 1 << 20;
constexpr uint64_t kMostKeys = 1 << 16;
constexpr uint32_t kMostDimensions = 4;
constexpr const char* kDamagedMend = "the file is cut short or damaged: download it again";

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : file_(path) {}

  [[noreturn]] void refuse(const std::string& problem, const char* mend = kDamagedMend) const {
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", file_.path().string(), problem), mend);
  }

  template <typename T>
  T number() {
    T value;
    take(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  std::string text() {
    const auto length = number<uint64_t>();
    require(length, 1, "a string");
    std::string out(static_cast<size_t>(length), '\0');
    take(std::as_writable_bytes(std::span(out)));
    return out;
  }

  json value(GgufType type, const std::string& key) {
    switch (type) {
      case GgufType::kU8: return number<uint8_t>();
      case GgufType::kI8: return number<int8_t>();
      case GgufType::kU16: return number<uint16_t>();
      case GgufType::kI16: return number<int16_t>();
      case GgufType::kU32: return number<uint32_t>();
      case GgufType::kI32: return number<int32_t>();
      case GgufType::kF32: return number<float>();
      case GgufType::kBool: return number<uint8_t>() != 0;
      case GgufType::kText: return text();
      case GgufType::kU64: return number<uint64_t>();
      case GgufType::kI64: return number<int64_t>();
      case GgufType::kF64: return number<double>();
      case GgufType::kArray: break;
    }
    refuse_type(key, type);
  }

  // Where it is; its elements are passed over.
  GgufArray array(const std::string& key) {
    const auto type = static_cast<GgufType>(number<uint32_t>());
    const auto count = number<uint64_t>();
    if (type == GgufType::kArray)
      refuse(fmt::format("key {} has an array of arrays", in_quotes(key)));
    const int64_t bytes = gguf_type_bytes(type), begin = position_;
    if (bytes == 0 && type != GgufType::kText) refuse_type(key, type);
    require(count, bytes > 0 ? bytes : 8, "an array");  // a text has its length at least
    if (bytes > 0)
      skip(static_cast<int64_t>(count) * bytes);
    else
      for (uint64_t i = 0; i < count; ++i) skip_text();
    return {type, static_cast<int64_t>(count), file_.path(), begin, position_ - begin};
  }

  int64_t position() const noexcept { return position_; }
  int64_t size() const noexcept { return file_.size(); }
  bool begins_gguf(int64_t at) const {
    return at <= file_.size() - 24 && file_.read_text(at, 4, "a file behind it") == "GGUF";
  }

 private:
  [[noreturn]] void refuse_type(const std::string& key, GgufType type) const {
    refuse(fmt::format("key {} has a value of unknown type {}", in_quotes(key),
                       static_cast<uint32_t>(type)));
  }

  void skip_text() {
    const auto length = number<uint64_t>();
    require(length, 1, "a string");
    skip(static_cast<int64_t>(length));
  }

  // The caller has asked whether the header has so many.
  void skip(int64_t bytes) {
    const auto here = std::min(bytes, static_cast<int64_t>(window_.size() - at_));
    at_ += static_cast<size_t>(here);
    position_ += bytes;
    if (here == bytes) return;
    window_.clear();
    at_ = 0;
  }

  // `count` things of at least `bytes` each must still be there.
  void require(uint64_t count, int64_t bytes, const char* what) const {
    const int64_t left = std::min(file_.size(), kMostHeaderBytes) - position_;
    if (left < 0 || count > static_cast<uint64_t>(left / bytes))
      refuse(fmt::format("{} at byte {} says it has {} elements, more than there is room for", what,
                         position_, count));
  }

  void take(std::span<std::byte> to) {
    while (!to.empty()) {
      if (at_ == window_.size()) refill();
      const size_t count = std::min(to.size(), window_.size() - at_);
      std::memcpy(to.data(), window_.data() + at_, count);
      at_ += count;
      position_ += static_cast<int64_t>(count);
      to = to.subspan(count);
    }
  }

  void refill() {
    constexpr int64_t kWindow = 1 << 20;
    const int64_t bytes = std::min(kWindow, file_.size() - position_);
    if (bytes <= 0 || position_ >= kMostHeaderBytes)
      refuse(fmt::format("the header goes on past byte {}", position_));
    window_.resize(static_cast<size_t>(bytes));
    file_.read(position_, window_, "header");
    at_ = 0;
  }

  InputFile file_;
  std::vector<std::byte> window_;
  size_t at_ = 0;         // in window_
  int64_t position_ = 0;  // in the file
};

void set_type(const Reader& reader, uint32_t type, TensorEntry& tensor) {
  tensor.dtype = DType::kU8;
  if (const auto blocks = block_type(type)) {
    tensor.blocks = *blocks;
    return;
  }
  switch (type) {
    case 0: tensor.dtype = DType::kF32; return;
    case 1: tensor.dtype = DType::kF16; return;
    case 30: tensor.dtype = DType::kBF16; return;
    default: break;
  }
  reader.refuse(
      fmt::format("tensor {} is of GGUF type {}, which is not read", in_quotes(tensor.name), type),
      "read are F32, F16, BF16, Q4_0 to Q8_0, Q2_K to Q6_K, IQ1 to IQ4, TQ, MXFP4, NVFP4, Q1_0 and "
      "Q2_0: download one of these");
}

// Bytes of the tensor's data; its shape is known.
int64_t data_bytes(const Reader& reader, const TensorEntry& tensor) {
  const auto fail = [&](const std::string& problem) {
    reader.refuse(fmt::format("tensor {}: {}", in_quotes(tensor.name), problem));
  };
  const std::optional<int64_t> elements = element_count(tensor.shape);
  int64_t bytes = 0;
  if (tensor.blocks == BlockType::kNone) {
    const auto plain = tensor_bytes(tensor.shape, tensor.dtype);
    if (!plain) fail(fmt::format("shape {} is too large", format_shape(tensor.shape)));
    return *plain;
  }
  const BlockLayout& layout = block_layout(tensor.blocks);
  if (!elements || __builtin_mul_overflow(*elements / layout.elements, layout.bytes, &bytes))
    fail(fmt::format("shape {} is too large", format_shape(tensor.shape)));
  if (tensor.shape.empty() || tensor.shape.back() % layout.elements != 0)
    fail(fmt::format("shape {}: rows are not whole blocks of {}", format_shape(tensor.shape),
                     layout.elements));
  return bytes;
}

TensorEntry read_tensor(Reader& reader) {
  TensorEntry tensor;
  tensor.name = reader.text();
  const auto dimensions = reader.number<uint32_t>();
  if (dimensions > kMostDimensions)
    reader.refuse(fmt::format("tensor {} has {} dimensions", in_quotes(tensor.name), dimensions));
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = reader.number<uint64_t>();
    if (size > static_cast<uint64_t>(INT64_MAX))
      reader.refuse(fmt::format("tensor {} has a dimension of {}", in_quotes(tensor.name), size));
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  set_type(reader, reader.number<uint32_t>(), tensor);
  tensor.bytes = data_bytes(reader, tensor);
  const auto offset = reader.number<uint64_t>();
  if (offset > static_cast<uint64_t>(reader.size()))
    reader.refuse(fmt::format("tensor {} begins at byte {} of the data, past the end of the file",
                              in_quotes(tensor.name), offset));
  tensor.offset = static_cast<int64_t>(offset);  // from the start of the data, for now
  return tensor;
}

void place(const Reader& reader, int64_t data_offset, std::vector<TensorEntry>& tensors) {
  for (TensorEntry& tensor : tensors) {
    tensor.offset += data_offset;
    if (tensor.bytes > reader.size() - tensor.offset)
      reader.refuse(fmt::format("tensor {} needs bytes {} to {}, but the file has {}",
                                in_quotes(tensor.name), tensor.offset, tensor.offset + tensor.bytes,
                                reader.size()));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.offset, a.name) < std::tie(b.offset, b.name);
  });
  for (size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i - 1].offset + tensors[i - 1].bytes > tensors[i].offset)
      reader.refuse(fmt::format("tensors {} and {} overlap", in_quotes(tensors[i - 1].name),
                                in_quotes(tensors[i].name)));
}

// Of tensors' data. Writers have given it any type of integer.
int64_t alignment_of(const Reader& reader, const GgufMetadata& metadata) {
  constexpr int64_t kUnsaid = 32, kMost = 65536;
  const json* said = metadata.find("general.alignment");
  if (!said && !metadata.find_array("general.alignment")) return kUnsaid;
  if (!said || !said->is_number_integer() || (said->is_number_unsigned() && *said > kMost) ||
      said->get<int64_t>() < 1 || said->get<int64_t>() > kMost ||
      !std::has_single_bit(said->get<uint64_t>()))
    reader.refuse(fmt::format("general.alignment is no power of two up to {}", kMost));
  return said->get<int64_t>();
}

// Parts of a model one behind the other in one file: the second begins where the first ends.
void refuse_joined(const Reader& reader, const std::vector<TensorEntry>& tensors,
                   int64_t alignment) {
  int64_t end = 0;
  for (const TensorEntry& tensor : tensors) end = std::max(end, tensor.offset + tensor.bytes);
  for (const int64_t at : {end, round_up(end, alignment)})
    if (end > 0 && reader.begins_gguf(at))
      reader.refuse(
          fmt::format("another GGUF file begins at byte {}, behind this one's tensors: "
                      "parts were joined by cat",
                      at),
          "parts are read as they are, from one folder: download them again, or merge them "
          "with llama.cpp's gguf-split");
}
}  // namespace

bool is_gguf(const std::filesystem::path& path) {
  if (path_kind(path) != PathKind::kFile) return false;
  const InputFile file(path);
  return file.size() >= 4 && file.read_text(0, 4, "its first bytes") == "GGUF";
}

GgufHeader read_gguf_header(const std::filesystem::path& path) {
  Reader reader(path);
  if (reader.size() < 24 || reader.number<uint32_t>() != 0x46554747u)
    reader.refuse("not a GGUF file", "check that the download is whole and the right file");
  const auto version = reader.number<uint32_t>();
  if (version != 2 && version != 3)
    reader.refuse(fmt::format("GGUF version {} is not read", version),
                  "versions 2 and 3 are (little-endian): make the file again with today's tools");
  const auto tensor_count = reader.number<uint64_t>();
  const auto key_count = reader.number<uint64_t>();
  if (tensor_count > kMostTensors || key_count > kMostKeys)
    reader.refuse(
        fmt::format("{} tensors and {} keys are more than there can be", tensor_count, key_count));
  GgufHeader header;
  for (uint64_t i = 0; i < key_count; ++i) {
    const std::string key = reader.text();
    const auto type = static_cast<GgufType>(reader.number<uint32_t>());
    const bool is_new = type == GgufType::kArray
                            ? header.metadata.add(key, reader.array(key))
                            : header.metadata.add(key, reader.value(type, key));
    if (!is_new) reader.refuse(fmt::format("key {} is there twice", in_quotes(key)));
  }
  std::set<std::string> names;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    header.tensors.push_back(read_tensor(reader));
    if (!names.insert(header.tensors.back().name).second)
      reader.refuse(fmt::format("tensor {} is there twice", in_quotes(header.tensors.back().name)));
  }
  const int64_t alignment = alignment_of(reader, header.metadata);
  place(reader, round_up(reader.position(), alignment), header.tensors);
  refuse_joined(reader, header.tensors, alignment);
  return header;
}

}  // namespace sluice::io
