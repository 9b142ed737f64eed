#pragma once
// What a GGUF file says in keys. Values by themselves are in memory; arrays, which may be of any
// length, stay in the file until somebody asks for what is in them. Immutable once read, so any
// number of threads may read.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::io {

/// The types of values, as files number them.
enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64
};

/// Bytes of one; 0 for texts, arrays and what is none.
int64_t gguf_type_bytes(GgufType type) noexcept;

/// An array of a file's key: where it is, and its elements when they are asked for.
class GgufArray {
 public:
  /// `count` elements in `bytes` at `offset` of `file`.
  GgufArray(GgufType type, int64_t count, std::filesystem::path file, int64_t offset, int64_t bytes)
      : type_(type), count_(count), file_(std::move(file)), offset_(offset), bytes_(bytes) {}
  /// Elements in memory, as a file would have them.
  GgufArray(GgufType type, int64_t count, std::string content)
      : type_(type), count_(count), content_(std::make_shared<std::string>(std::move(content))) {}

  int64_t size() const noexcept { return count_; }
  bool is_of_texts() const noexcept { return type_ == GgufType::kText; }
  bool is_of_booleans() const noexcept { return type_ == GgufType::kBool; }
  bool is_of_integers() const noexcept;
  bool is_of_numbers() const noexcept;  ///< integers, or reals

  /// The elements; the caller has asked what they are. Errors: kFile when there are more than 2^22,
  /// when the file is no longer what it was, and for an integer of 2^63 and more.
  std::vector<std::string> texts() const;
  std::vector<int64_t> integers() const;
  std::vector<double> numbers() const;
  std::vector<bool> booleans() const;

 private:
  std::string content() const;
  [[noreturn]] void refuse(const char* problem) const;
  template <typename T>
  std::vector<T> all() const;

  GgufType type_;
  int64_t count_;
  std::filesystem::path file_;
  int64_t offset_ = 0, bytes_ = 0;
  std::shared_ptr<const std::string> content_;
};

/// A file's keys.
class GgufMetadata {
 public:
  GgufMetadata();
  ~GgufMetadata();
  GgufMetadata(GgufMetadata&&) noexcept;
  GgufMetadata& operator=(GgufMetadata&&) noexcept;

  /// False, and nothing is changed, where the key is there.
  bool add(const std::string& key, nlohmann::json value);
  bool add(const std::string& key, GgufArray value);

  /// The value of a key that has one: a number, a text (bytes, UTF-8 or not), true or false. Null
  /// for arrays and where there is no such key.
  const nlohmann::json* find(const std::string& key) const;
  /// Null for values by themselves and where there is no such key.
  const GgufArray* find_array(const std::string& key) const;
  /// A text, or `fallback` for all else.
  std::string text_or(const std::string& key, std::string fallback) const;
  /// All keys in order.
  std::vector<std::string> names() const;

 private:
  struct Value;
  std::map<std::string, Value> values_;
};

}  // namespace sluice::io
