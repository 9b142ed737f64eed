#include "io/checkpoint/gguf_metadata.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/files/input_file.h"
#include "src/base/error.h"

namespace sluice::io {

namespace {
constexpr int64_t kMostElements = 1 << 22;  // the largest vocabularies have 2^18

// One after the other from a text; nothing where it ends before.
class Elements {
 public:
  explicit Elements(const std::string& content) : rest_(content) {}

  template <typename T>
  std::optional<T> number() {
    T value;
    if (rest_.size() < sizeof value) return std::nullopt;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::optional<std::string> text() {
    const auto length = number<uint64_t>();
    if (!length || *length > rest_.size()) return std::nullopt;
    std::string out(rest_.substr(0, static_cast<size_t>(*length)));
    rest_.remove_prefix(out.size());
    return out;
  }

 private:
  std::string_view rest_;
};

template <typename T, typename From>
bool put(std::optional<From> from, std::vector<T>& out) {
  if (!from) return false;
  if constexpr (std::is_same_v<T, int64_t> && std::is_same_v<From, uint64_t>)
    if (*from > static_cast<uint64_t>(INT64_MAX)) return false;
  out.push_back(static_cast<T>(*from));
  return true;
}

template <typename T>
bool put_one(GgufType type, Elements& elements, std::vector<T>& out) {
  switch (type) {
    case GgufType::kU8: return put(elements.number<uint8_t>(), out);
    case GgufType::kI8: return put(elements.number<int8_t>(), out);
    case GgufType::kU16: return put(elements.number<uint16_t>(), out);
    case GgufType::kI16: return put(elements.number<int16_t>(), out);
    case GgufType::kU32: return put(elements.number<uint32_t>(), out);
    case GgufType::kI32: return put(elements.number<int32_t>(), out);
    case GgufType::kF32: return put(elements.number<float>(), out);
    case GgufType::kBool: return put(elements.number<uint8_t>(), out);
    case GgufType::kU64: return put(elements.number<uint64_t>(), out);
    case GgufType::kI64: return put(elements.number<int64_t>(), out);
    case GgufType::kF64: return put(elements.number<double>(), out);
    case GgufType::kText:
    case GgufType::kArray: break;
  }
  return false;
}
}  // namespace

int64_t gguf_type_bytes(GgufType type) noexcept {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kText:
    case GgufType::kArray: break;
  }
  return 0;
}

bool GgufArray::is_of_integers() const noexcept {
  return is_of_numbers() && type_ != GgufType::kF32 && type_ != GgufType::kF64;
}

bool GgufArray::is_of_numbers() const noexcept {
  return gguf_type_bytes(type_) > 0 && type_ != GgufType::kBool;
}

void GgufArray::refuse(const char* problem) const {
  throw Error(ErrorKind::kFile,
              fmt::format("{}: an array of {} elements at byte {} {}", file_.string(), count_,
                          offset_, problem),
              "the file is damaged, or being written: download it again");
}

std::string GgufArray::content() const {
  if (count_ > kMostElements) refuse("is longer than any that is read");
  if (content_) return *content_;
  return InputFile(file_).read_text(offset_, bytes_, "an array of the header");
}

template <typename T>
std::vector<T> GgufArray::all() const {
  const std::string bytes = content();
  Elements elements(bytes);
  std::vector<T> out;
  out.reserve(static_cast<size_t>(count_));
  for (int64_t i = 0; i < count_; ++i)
    if (!put_one(type_, elements, out)) refuse("ends early, or holds too large a number");
  return out;
}

std::vector<std::string> GgufArray::texts() const {
  const std::string bytes = content();
  Elements elements(bytes);
  std::vector<std::string> out;
  out.reserve(static_cast<size_t>(count_));
  for (int64_t i = 0; i < count_; ++i) {
    auto text = elements.text();
    if (!text) refuse("ends early");
    out.push_back(std::move(*text));
  }
  return out;
}

std::vector<int64_t> GgufArray::integers() const { return all<int64_t>(); }
std::vector<double> GgufArray::numbers() const { return all<double>(); }
std::vector<bool> GgufArray::booleans() const { return all<bool>(); }

struct GgufMetadata::Value {
  nlohmann::json one;
  std::optional<GgufArray> array;
};

GgufMetadata::GgufMetadata() = default;
GgufMetadata::~GgufMetadata() = default;
GgufMetadata::GgufMetadata(GgufMetadata&&) noexcept = default;
GgufMetadata& GgufMetadata::operator=(GgufMetadata&&) noexcept = default;

bool GgufMetadata::add(const std::string& key, nlohmann::json value) {
  return values_.emplace(key, Value{std::move(value), std::nullopt}).second;
}

bool GgufMetadata::add(const std::string& key, GgufArray value) {
  return values_.emplace(key, Value{{}, std::move(value)}).second;
}

const nlohmann::json* GgufMetadata::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() || found->second.array ? nullptr : &found->second.one;
}

const GgufArray* GgufMetadata::find_array(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() || !found->second.array ? nullptr : &*found->second.array;
}

std::string GgufMetadata::text_or(const std::string& key, std::string fallback) const {
  const nlohmann::json* value = find(key);
  return value && value->is_string() ? value->get<std::string>() : std::move(fallback);
}

std::vector<std::string> GgufMetadata::names() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : values_) out.push_back(name);
  return out;
}

}  // namespace sluice::io
