#include "src/model/foreign/gguf_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "io/files/input_file.h"
#include "src/base/error.h"
#include "src/model/foreign/gguf_ends.h"

namespace sluice {

namespace {
constexpr int64_t kMostValues = 4096;
}  // namespace

GgufKeys::GgufKeys(const io::Checkpoint& checkpoint)
    : checkpoint_(checkpoint),
      where_(checkpoint.files().front().path.string()),
      architecture_(text_or("general.architecture", "")) {}

void GgufKeys::refuse(const std::string& problem, const std::string& mend) const {
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", where_, problem), mend);
}

void GgufKeys::wrong(const std::string& key, const char* wanted) const {
  refuse(fmt::format("key {} is not {}", key, wanted), "download the file again");
}

const nlohmann::json* GgufKeys::find(const std::string& key, const char* wanted) const {
  if (checkpoint_.gguf_metadata().find_array(key)) wrong(key, wanted);
  return checkpoint_.gguf_metadata().find(key);
}

std::vector<std::string> GgufKeys::names() const { return checkpoint_.gguf_metadata().names(); }

bool GgufKeys::has(const std::string& key) const {
  const io::GgufMetadata& metadata = checkpoint_.gguf_metadata();
  return metadata.find(key) || metadata.find_array(key);
}

std::string GgufKeys::text_or(const std::string& key, std::string fallback) const {
  const nlohmann::json* value = find(key, "a text");
  if (!value) return fallback;
  if (!value->is_string()) wrong(key, "a text");
  return value->get<std::string>();
}

int64_t GgufKeys::number_of(const std::string& key, const nlohmann::json& value) const {
  if (!value.is_number_integer()) wrong(key, "a whole number");
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT32_MAX})
    wrong(key, "a number below 2^31");
  return value.get<int64_t>();
}

std::vector<int64_t> GgufKeys::of_array(const std::string& key, const io::GgufArray& array) const {
  if (!array.is_of_integers()) wrong(key, "a whole number");
  std::vector<int64_t> out = array.integers();
  for (const int64_t one : out)
    if (one > INT32_MAX) wrong(key, "a number below 2^31");
  return out;
}

std::vector<int64_t> GgufKeys::integers(const std::string& key, int64_t count) const {
  if (const io::GgufArray* array = checkpoint_.gguf_metadata().find_array(key)) {
    if (array->size() != count) wrong(key, "a number for each layer");
    return of_array(key, *array);
  }
  const nlohmann::json* value = checkpoint_.gguf_metadata().find(key);
  if (!value) return {};
  return std::vector<int64_t>(static_cast<size_t>(count), number_of(key, *value));
}

std::vector<bool> GgufKeys::booleans(const std::string& key, int64_t count) const {
  const char* const wanted = "true or false for each layer";
  if (const io::GgufArray* array = checkpoint_.gguf_metadata().find_array(key)) {
    if (!array->is_of_booleans() || array->size() < count) wrong(key, wanted);
    std::vector<bool> out = array->booleans();
    out.resize(static_cast<size_t>(count));
    return out;
  }
  const nlohmann::json* value = checkpoint_.gguf_metadata().find(key);
  if (!value) return {};
  if (!value->is_boolean()) wrong(key, wanted);
  return std::vector<bool>(static_cast<size_t>(count), value->get<bool>());
}

std::optional<int64_t> GgufKeys::integer(const std::string& key) const {
  if (const io::GgufArray* array = checkpoint_.gguf_metadata().find_array(key)) {
    if (array->size() == 0) wrong(key, "a whole number");
    const std::vector<int64_t> all = of_array(key, *array);
    if (std::count(all.begin(), all.end(), all.front()) != std::ssize(all))
      refuse(fmt::format("{} differs from layer to layer", key), "such models are not read");
    return all.front();
  }
  const nlohmann::json* value = checkpoint_.gguf_metadata().find(key);
  if (!value) return std::nullopt;
  return number_of(key, *value);
}

int64_t GgufKeys::need_integer(const std::string& key) const {
  const auto value = integer(key);
  if (!value) refuse(fmt::format("key {} is missing", key), "download the file again");
  return *value;
}

int64_t GgufKeys::need_size(const char* own) const {
  constexpr int64_t kMost = 1 << 20;
  const std::string key = prefix() + own;
  const int64_t size = need_integer(key);
  if (size < 1 || size > kMost)
    refuse(fmt::format("key {} is {}, outside 1..{}", key, size, kMost), "download the file again");
  return size;
}

std::optional<bool> GgufKeys::boolean(const std::string& key) const {
  const nlohmann::json* value = find(key, "true or false");
  if (!value) return std::nullopt;
  if (!value->is_boolean()) wrong(key, "true or false");
  return value->get<bool>();
}

std::optional<double> GgufKeys::number(const std::string& key) const {
  const nlohmann::json* value = find(key, "a number");
  if (!value) return std::nullopt;
  if (!value->is_number()) wrong(key, "a number");
  return value->get<double>();
}

void GgufKeys::add_ends(nlohmann::json& config) const {
  const io::GgufMetadata& metadata = checkpoint_.gguf_metadata();
  if (const auto begin = gguf_begin_token(metadata)) config["bos_token_id"] = *begin;
  std::vector<int32_t> ids;
  for (const EndToken& end : gguf_end_tokens(metadata)) ids.push_back(end.id);
  if (ids.size() == 1) config["eos_token_id"] = ids.front();
  if (ids.size() > 1) config["eos_token_id"] = ids;
}

bool GgufKeys::has_attention_bias(int64_t layer) const {
  return tensor(fmt::format("blk.{}.attn_q.bias", layer)) ||
         tensor(fmt::format("blk.{}.attn_qkv.bias", layer));
}

std::vector<float> GgufKeys::read_vector(const io::TensorEntry& tensor, int64_t count) const {
  if (tensor.dtype != DType::kF32 || tensor.shape != std::vector<int64_t>{count} ||
      count > kMostValues)
    refuse(fmt::format("{} is no f32 vector of {}", io::in_quotes(tensor.name), count),
           "download the file again");
  std::vector<float> values(static_cast<size_t>(count));
  const io::InputFile file(checkpoint_.files()[static_cast<size_t>(tensor.file_index)].path);
  file.read(tensor.offset, std::as_writable_bytes(std::span(values)), "a small tensor");
  return values;
}

}  // namespace sluice
