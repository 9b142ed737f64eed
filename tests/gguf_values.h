#pragma once
// GGUF files and their keys made in tests from JSON: texts, whole numbers (32 bits where they fit),
// reals (f32), true and false, and arrays of one of these.
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/checkpoint/gguf_metadata.h"

namespace sluice::made {

template <typename T>
std::string bytes_of_value(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

inline std::string gguf_text(const std::string& text) {
  return bytes_of_value<uint64_t>(text.size()) + text;
}

inline io::GgufType gguf_type_of(const nlohmann::json& value) {
  if (value.is_array()) return io::GgufType::kArray;
  if (value.is_string()) return io::GgufType::kText;
  if (value.is_boolean()) return io::GgufType::kBool;
  if (value.is_number_float()) return io::GgufType::kF32;
  const auto number = value.get<int64_t>();
  if (number != static_cast<int32_t>(number)) return io::GgufType::kI64;
  return number < 0 ? io::GgufType::kI32 : io::GgufType::kU32;
}

// What is in an array has the type of its first element; small numbers are i32.
inline io::GgufType gguf_element_type(const nlohmann::json& array) {
  if (array.empty()) return io::GgufType::kText;
  const io::GgufType type = gguf_type_of(array.front());
  return type == io::GgufType::kU32 ? io::GgufType::kI32 : type;
}

inline std::string gguf_value(const nlohmann::json& value, io::GgufType type) {
  switch (type) {
    case io::GgufType::kText: return gguf_text(value.get<std::string>());
    case io::GgufType::kBool: return bytes_of_value(static_cast<uint8_t>(value.get<bool>()));
    case io::GgufType::kF32: return bytes_of_value(value.get<float>());
    case io::GgufType::kI64: return bytes_of_value(value.get<int64_t>());
    case io::GgufType::kI32: return bytes_of_value(value.get<int32_t>());
    default: return bytes_of_value(value.get<uint32_t>());
  }
}

inline std::string gguf_elements(const nlohmann::json& array) {
  std::string out;
  for (const nlohmann::json& one : array) out += gguf_value(one, gguf_element_type(array));
  return out;
}

/// As read from a file.
inline io::GgufMetadata gguf_metadata(const nlohmann::json& keys) {
  io::GgufMetadata out;
  for (const auto& [key, value] : keys.items()) {
    if (value.is_array())
      out.add(key,
              io::GgufArray(gguf_element_type(value), std::ssize(value), gguf_elements(value)));
    else
      out.add(key, value);
  }
  return out;
}

inline std::string gguf_key(const std::string& key, io::GgufType type, const std::string& value) {
  return gguf_text(key) + bytes_of_value(static_cast<uint32_t>(type)) + value;
}

/// A file of version 3 with these keys (each as gguf_key() has it) and vectors of eight f32, all 0.
inline std::string gguf_file_of(const std::vector<std::string>& keys,
                                const std::vector<std::string>& tensors = {"vector"},
                                size_t alignment = 32) {
  std::string out = "GGUF" + bytes_of_value<uint32_t>(3) +
                    bytes_of_value<uint64_t>(tensors.size()) +
                    bytes_of_value<uint64_t>(keys.size());
  for (const std::string& key : keys) out += key;
  const size_t each = std::max<size_t>(alignment, 32);
  for (size_t i = 0; i < tensors.size(); ++i)
    out += gguf_text(tensors[i]) + bytes_of_value<uint32_t>(1) + bytes_of_value<uint64_t>(8) +
           bytes_of_value<uint32_t>(0) + bytes_of_value<uint64_t>(i * each);
  out.resize((out.size() + alignment - 1) / alignment * alignment + tensors.size() * each);
  return out;
}

/// Keys as a file has them.
inline std::vector<std::string> gguf_keys(const nlohmann::json& keys) {
  std::vector<std::string> out;
  for (const auto& [key, value] : keys.items()) {
    const io::GgufType type = gguf_type_of(value);
    out.push_back(gguf_key(key, type,
                           value.is_array()
                               ? bytes_of_value(static_cast<uint32_t>(gguf_element_type(value))) +
                                     bytes_of_value<uint64_t>(value.size()) + gguf_elements(value)
                               : gguf_value(value, type)));
  }
  return out;
}

inline std::string gguf_file(const nlohmann::json& keys,
                             const std::vector<std::string>& tensors = {"vector"},
                             size_t alignment = 32) {
  return gguf_file_of(gguf_keys(keys), tensors, alignment);
}

/// A file with more keys before its own; one more fills them up, so that its tensors stay aligned.
inline std::string with_gguf_keys(std::string file, const nlohmann::json& more) {
  constexpr size_t kKeyCount = 16, kFirstKey = 24, kAlignment = 32;
  std::string added;
  const std::vector<std::string> keys = gguf_keys(more);
  for (const std::string& key : keys) added += key;
  const auto filled = [&](size_t letters) {
    return added +
           gguf_key("test.filling", io::GgufType::kText, gguf_text(std::string(letters, '-')));
  };
  size_t letters = 0;
  while (filled(letters).size() % kAlignment != 0) ++letters;
  uint64_t count = 0;
  std::memcpy(&count, file.data() + kKeyCount, sizeof count);
  count += keys.size() + 1;
  std::memcpy(file.data() + kKeyCount, &count, sizeof count);
  return file.insert(kFirstKey, filled(letters));
}

}  // namespace sluice::made
