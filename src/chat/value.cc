#include "src/chat/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/chat/strings.h"
#include "src/text/utf8.h"

namespace sluice::chat {

namespace {
constexpr size_t kMostCharacters = 1'000'000;  // of a text, one by one
constexpr int kMostValueDepth = 200;           // of values inside values: a list may hold itself

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // The shortest digits that read back the same, as Python prints them.
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(const std::string& text) {
  spend_on(text);
  const char quote =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (char c : text) {
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + quote;
}

void write_repr(const Value& value, int depth, TextMaker& out) {
  if (depth > kMostValueDepth) {
    out += "...";
  } else if (value.is_string()) {
    out += quoted(value.string());
  } else if (value.is_list()) {
    out += value.is_tuple() ? '(' : '[';
    for (size_t i = 0; i < value.list().size(); ++i) {
      if (i > 0) out += ", ";
      write_repr(value.list()[i], depth + 1, out);
    }
    if (value.is_tuple() && value.list().size() == 1) out += ',';
    out += value.is_tuple() ? ')' : ']';
  } else if (value.is_dict()) {
    out += '{';
    bool is_first = true;
    for (const auto& [key, item] : value.dict().entries) {
      if (!std::exchange(is_first, false)) out += ", ";
      write_repr(key, depth + 1, out);
      out += ": ";
      write_repr(item, depth + 1, out);
    }
    out += '}';
  } else {
    out += value.text();
  }
}

std::string repr_of(const Value& value) {
  TextMaker out;
  write_repr(value, 0, out);
  return out.take();
}

// Longer texts are shared, and counted one by one.
constexpr size_t kShortText = 64;
constexpr int64_t kTextBytes = 96;  // that a shared text has beside its characters

// What an item has beside what it shares.
int64_t bytes_of(const Value& value) {
  return static_cast<int64_t>(sizeof(Value)) +
         (value.is_string() ? static_cast<int64_t>(std::min(value.string().size(), kShortText))
                            : 0);
}

// A container that is counted as long as it is shared.
template <typename Container>
std::shared_ptr<Container> counted(Container container, int64_t bytes) {
  if (!Meter::of_this_thread()) return std::make_shared<Container>(std::move(container));
  struct Counted {
    Container container;
    Held held;
    Counted(Container&& of, int64_t bytes) : container(std::move(of)), held(bytes) {}
  };
  auto all = std::make_shared<Counted>(std::move(container), bytes);
  return {all, &all->container};
}

// A dictionary's key in JSON, where all are strings.
std::string key_text(const Value& key) {
  if (key.is_none()) return "null";
  if (key.is_bool()) return key.is_true() ? "true" : "false";
  if (!key.is_string() && !key.is_number())
    throw TemplateError(fmt::format("tojson: {} is no key in JSON", key.type_name()));
  return key.text();
}

bool can_be_key(const Value& value) {
  if (value.is_list())
    return value.is_tuple() && std::all_of(value.list().begin(), value.list().end(), can_be_key);
  return !value.is_dict();
}

std::string json_string(const std::string& text, bool ascii) {
  spend(static_cast<int64_t>(text.size()));  // slower than others' bytes
  return nlohmann::json(text::mend_utf8(text))
      .dump(-1, ' ', ascii, nlohmann::json::error_handler_t::replace);
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int depth) {
    spend(4);
    if (depth > kMostValueDepth)
      throw TemplateError("tojson: the value holds itself, or is too deep");
    if (value.is_string()) {
      out_ += json_string(value.string(), style_.ascii);
    } else if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.is_true() ? "true" : "false";
    } else if (value.is_number()) {
      out_ += value.text();
    } else if (value.is_list()) {
      write_all(value.list(), '[', ']', depth, [&](const Value& item) { write(item, depth + 1); });
    } else if (value.is_dict()) {
      auto entries = value.dict().entries;
      if (style_.sorts_keys)
        std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
          return compare(a.first, b.first) < 0;
        });
      write_all(entries, '{', '}', depth, [&](const auto& entry) {
        out_ += json_string(key_text(entry.first), style_.ascii);
        out_ += style_.key_separator;
        write(entry.second, depth + 1);
      });
    } else {
      throw TemplateError(fmt::format("tojson: {} has no form in JSON", value.type_name()));
    }
  }

  std::string take() { return out_.take(); }

 private:
  template <typename Items, typename Write>
  void write_all(const Items& items, char open, char close, int depth, const Write& write_item) {
    out_ += open;
    bool is_first = true;
    for (const auto& item : items) {
      if (!is_first) {
        // With an indent, Python leaves no space at the line's end.
        const bool trims = style_.indent >= 0 && style_.item_separator == ", ";
        out_ += trims ? std::string_view(",") : style_.item_separator;
      }
      is_first = false;
      break_line(depth + 1);
      write_item(item);
    }
    if (!is_first) break_line(depth);
    out_ += close;
  }
  void break_line(int depth) {
    if (style_.indent >= 0)
      out_ +=
          "\n" + std::string(static_cast<size_t>(style_.indent) * static_cast<size_t>(depth), ' ');
  }

  const JsonStyle& style_;
  TextMaker out_;
};
}  // namespace

const Value* Dict::find(std::string_view key) const {
  spend(1 + static_cast<int64_t>(entries.size() / 4));
  for (const auto& [name, value] : entries)
    if (name.is_string() && name.string() == key) return &value;
  return nullptr;
}

const Value* Dict::find_key(const Value& key) const {
  spend(1 + static_cast<int64_t>(entries.size() / 4));
  for (const auto& [name, value] : entries)
    if (name == key) return &value;
  return nullptr;
}

void Dict::set(Value key, Value value) {
  if (!can_be_key(key))
    throw TemplateError(fmt::format("a dictionary's key can't be {}", key.type_name()));
  spend(1 + static_cast<int64_t>(entries.size() / 4));
  for (auto& [name, held] : entries)
    if (name == key) {
      held = std::move(value);
      return;
    }
  entries.emplace_back(std::move(key), std::move(value));
}

const Value* Arguments::get(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

Value::Value(std::string value) {
  if (value.size() <= kShortText) {
    data_ = std::move(value);
    return;
  }
  spend_on(value);
  const auto bytes = static_cast<int64_t>(value.capacity()) + kTextBytes;
  struct Made : LongText {
    Made(std::string&& of, int64_t held) : LongText{std::move(of), Held(held)} {}
  };
  data_ = TextPtr(std::make_shared<Made>(std::move(value), bytes));
}

Value::Value(List list) {
  int64_t bytes = 0;
  if (Meter::of_this_thread())
    for (const Value& item : list) bytes += bytes_of(item);
  spend(1 + static_cast<int64_t>(list.size() / 4));
  data_ = counted(std::move(list), bytes);
}

Value::Value(Dict dict) {
  int64_t bytes = 0;
  if (Meter::of_this_thread())
    for (const auto& [key, value] : dict.entries) bytes += bytes_of(key) + bytes_of(value);
  spend(1 + static_cast<int64_t>(dict.entries.size() / 4));
  data_ = counted(std::move(dict), bytes);
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean: return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_integer: return json.get<int64_t>();
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) return json.get<double>();
      return json.get<int64_t>();
    case nlohmann::ordered_json::value_t::number_float: return json.get<double>();
    case nlohmann::ordered_json::value_t::string: return json.get<std::string>();
    case nlohmann::ordered_json::value_t::array: {
      List list;
      for (const auto& item : json) list.push_back(from_json(item));
      return list;
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items())
        dict.entries.emplace_back(Value(key), from_json(item));
      return dict;
    }
    default: return None{};
  }
}

Value Value::make_tuple(List list) {
  Value out(std::move(list));
  out.is_tuple_ = true;
  return out;
}

Value Value::make_group(Value key, List items) {
  Value out = make_tuple({std::move(key), Value(std::move(items))});
  out.is_group_ = true;
  return out;
}

int64_t Value::integer(const char* what) const {
  if (is_int()) return std::get<int64_t>(data_);
  if (is_bool()) return std::get<bool>(data_) ? 1 : 0;
  throw TemplateError(fmt::format("{} takes an integer, not {}", what, type_name()));
}

double Value::number(const char* what) const {
  if (is_float()) return std::get<double>(data_);
  if (is_number()) return static_cast<double>(integer(what));
  throw TemplateError(fmt::format("{} takes a number, not {}", what, type_name()));
}

bool Value::is_true() const {
  if (is_bool()) return std::get<bool>(data_);
  if (is_int()) return std::get<int64_t>(data_) != 0;
  if (is_float()) return std::get<double>(data_) != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return !list().empty();
  if (is_dict()) return !dict().entries.empty();
  return is_callable();
}

std::string Value::text() const {
  if (is_undefined()) return "";
  if (is_none()) return "None";
  if (is_bool()) return std::get<bool>(data_) ? "True" : "False";
  if (is_int()) return std::to_string(std::get<int64_t>(data_));
  if (is_float()) return float_text(std::get<double>(data_));
  if (is_string()) {
    spend_on(string());
    return string();
  }
  if (is_callable()) return "<" + callable().name + ">";
  return repr_of(*this);
}

std::string Value::repr() const { return repr_of(*this); }

std::string Value::type_name() const {
  if (is_undefined())
    return undefined_name().empty() ? "undefined" : "undefined '" + undefined_name() + "'";
  if (is_none()) return "none";
  if (is_bool()) return "a boolean";
  if (is_int()) return "an integer";
  if (is_float()) return "a float";
  if (is_string()) return "a string";
  if (is_list()) return "a list";
  if (is_dict()) return "a dictionary";
  return "a function";
}

int64_t Value::length() const {
  if (is_string()) return count_characters(string());
  if (is_list()) return static_cast<int64_t>(list().size());
  if (is_dict()) return static_cast<int64_t>(dict().entries.size());
  if (is_undefined()) return 0;
  throw TemplateError(type_name() + " has no length");
}

List Value::items() const {
  if (is_list()) {
    spend(1 + static_cast<int64_t>(list().size()));
    return list();
  }
  List out;
  if (is_string()) {
    for_each_character(string(), [&](std::string_view c) {
      if (out.size() == kMostCharacters) throw TemplateError("a text is too long to go over");
      out.emplace_back(std::string(c));
    });
  } else if (is_dict()) {
    for (const auto& entry : dict().entries) out.push_back(entry.first);
  } else if (!is_undefined()) {
    throw TemplateError("a loop can't go over " + type_name());
  }
  return out;
}

bool Value::operator==(const Value& other) const {
  spend(1);
  if (is_number() && other.is_number()) {
    if (is_float() || other.is_float()) return number("==") == other.number("==");
    return integer("==") == other.integer("==");
  }
  if (is_string() && other.is_string()) {
    if (string().size() == other.string().size()) spend_on(string());
    return string() == other.string();
  }
  if (data_.index() != other.data_.index()) return false;
  if (is_list()) return list() == other.list();
  if (is_callable()) return &callable() == &other.callable();
  if (!is_dict()) return true;
  if (dict().entries.size() != other.dict().entries.size()) return false;
  return std::all_of(dict().entries.begin(), dict().entries.end(), [&](const auto& entry) {
    const Value* found = other.dict().find_key(entry.first);
    return found && *found == entry.second;
  });
}

int compare(const Value& a, const Value& b) {
  spend(1);
  if (a.is_number() && b.is_number()) {
    const double x = a.number("<"), y = b.number("<");
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (a.is_string() && b.is_string()) {
    spend_on(std::string_view(a.string()).substr(0, b.string().size()));
    const int order = a.string().compare(b.string());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.is_list() && b.is_list()) {
    const List &x = a.list(), &y = b.list();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!(x[i] == y[i])) return compare(x[i], y[i]);
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  throw TemplateError(fmt::format("{} and {} have no order", a.type_name(), b.type_name()));
}

bool contains(const Value& container, const Value& value) {
  if (container.is_string()) {
    if (!value.is_string())
      throw TemplateError(
          fmt::format("'in' a string looks for a string, not {}", value.type_name()));
    return position_of(container.string(), value.string(), 0) != std::string::npos;
  }
  if (container.is_list()) {
    const List& list = container.list();
    return std::find(list.begin(), list.end(), value) != list.end();
  }
  if (container.is_dict()) return container.dict().find_key(value) != nullptr;
  if (container.is_undefined()) return false;
  throw TemplateError(fmt::format("'in' looks into {}", container.type_name()));
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return writer.take();
}

size_t character_end(std::string_view text, size_t begin) noexcept {
  const auto is_inside = [&](size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  const auto lead = static_cast<unsigned char>(text[begin]);
  const size_t most = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  size_t end = begin + 1;
  while (end - begin < most && is_inside(end)) ++end;
  return end;
}

int64_t count_characters(std::string_view text) {
  int64_t count = 0;
  for_each_character(text, [&](std::string_view) { ++count; });
  return count;
}

size_t byte_of_character(std::string_view text, int64_t index) {
  spend(1 + std::min<int64_t>(index, static_cast<int64_t>(text.size())) / 4);
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at = character_end(text, at);
  return at;
}

}  // namespace sluice::chat
