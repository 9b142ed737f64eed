#pragma once
// Values of a chat template, as Python has them: what `{{ }}` prints, what tests and filters see.
// Lists and dictionaries are shared, as Python's references are; strings are UTF-8 and indexed by
// character. Not thread safe.
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/chat/meter.h"

namespace sluice::chat {

/// What is wrong with a template or with what it was given; the line is of the template.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
/// The template refused its input itself: raise_exception("...").
class TemplateRefusal : public TemplateError {
 public:
  using TemplateError::TemplateError;
};

class Value;
using List = std::vector<Value>;

/// In the order of insertion. Keys are as Python has them: strings, numbers, booleans, none and
/// tuples; 1, 1.0 and true are one key.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  bool is_namespace = false;  ///< the only thing whose attributes a template may set

  const Value* find(std::string_view key) const;
  const Value* find_key(const Value& key) const;
  /// Errors: TemplateError for a key that Python could not hash.
  void set(Value key, Value value);
};

/// Arguments of a call.
struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;

  /// By position or else by name; null when absent.
  const Value* get(size_t position, std::string_view name) const;
};

/// A function that templates may call.
struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
};

/// What a name that means nothing is: it prints as nothing and is false.
struct Undefined {
  std::string name;  ///< what was looked for
};

/// Python's None.
struct None {};

class Value {
 public:
  using ListPtr = std::shared_ptr<List>;
  using DictPtr = std::shared_ptr<Dict>;
  using CallablePtr = std::shared_ptr<Callable>;
  /// A text that is shared rather than copied.
  struct LongText {
    std::string text;
    Held held;
  };
  using TextPtr = std::shared_ptr<const LongText>;

  Value() : data_(Undefined{}) {}
  Value(None) : data_(None{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string value);
  Value(const char* value) : Value(std::string(value)) {}
  Value(List list);
  Value(Dict dict);
  Value(Callable callable) : data_(std::make_shared<Callable>(std::move(callable))) {}
  /// Objects keep their order only as an ordered_json has it.
  static Value from_json(const nlohmann::ordered_json& json);
  static Value make_tuple(List list);
  /// What groupby gives: a tuple of the key and its items, which `grouper` and `list` name too.
  static Value make_group(Value key, List items);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  bool is_string() const {
    return std::holds_alternative<std::string>(data_) || std::holds_alternative<TextPtr>(data_);
  }
  bool is_list() const { return std::holds_alternative<ListPtr>(data_); }
  bool is_dict() const { return std::holds_alternative<DictPtr>(data_); }
  bool is_callable() const { return std::holds_alternative<CallablePtr>(data_); }
  bool is_tuple() const { return is_tuple_; }
  bool is_group() const { return is_group_; }

  const std::string& string() const {
    if (const auto* text = std::get_if<TextPtr>(&data_)) return (*text)->text;
    return std::get<std::string>(data_);
  }
  List& list() const { return *std::get<ListPtr>(data_); }
  Dict& dict() const { return *std::get<DictPtr>(data_); }
  const Callable& callable() const { return *std::get<CallablePtr>(data_); }
  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  /// Of a number: exact for integers and booleans. Errors: TemplateError for anything else.
  int64_t integer(const char* what) const;
  double number(const char* what) const;

  /// Python's truth: empty, zero, none and undefined are false.
  bool is_true() const;
  /// As {{ }} prints it.
  std::string text() const;
  /// Python's repr(): strings in quotes.
  std::string repr() const;
  /// "a string", "a list": for messages.
  std::string type_name() const;
  /// Characters, items or entries. Errors: TemplateError for what has no length.
  int64_t length() const;
  /// What a for loop goes over: items, keys, characters. Errors: TemplateError.
  List items() const;

  bool operator==(const Value& other) const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::string, TextPtr, ListPtr, DictPtr,
               CallablePtr>
      data_;
  bool is_tuple_ = false, is_group_ = false;
};

/// -1, 0, 1 as Python orders them; lists item by item. Errors: TemplateError for what has no order.
int compare(const Value& a, const Value& b);
/// Whether `container` holds `value`: part of a string, item of a list, key of a dictionary.
bool contains(const Value& container, const Value& value);

/// How tojson writes.
struct JsonStyle {
  int indent = -1;  ///< -1: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sorts_keys = false;
  bool ascii = false;
};
/// As Python's json.dumps. Errors: TemplateError for what JSON has no form for.
std::string to_json(const Value& value, const JsonStyle& style);

/// Where the character that begins at `begin` ends, of valid or invalid UTF-8 (an ill-formed byte
/// counts as one).
size_t character_end(std::string_view text, size_t begin) noexcept;
/// Gives each character. Counts as work.
template <typename Use>
void for_each_character(std::string_view text, const Use& use) {
  spend(1 + static_cast<int64_t>(text.size() / 4));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = character_end(text, begin);
    use(text.substr(begin, end - begin));
    begin = end;
  }
}
int64_t count_characters(std::string_view text);
/// The byte that character `index` begins at, from 0; the text's size where there are fewer.
size_t byte_of_character(std::string_view text, int64_t index);

}  // namespace sluice::chat
