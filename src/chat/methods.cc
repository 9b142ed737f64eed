// What follows a dot: methods of strings, lists and dictionaries.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <map>

#include "src/chat/builtins.h"
#include "src/chat/strings.h"

namespace sluice::chat {

namespace {
using StringMethod = Value (*)(const std::string& self, const Arguments& arguments);

const std::string& string_argument(const Arguments& arguments, size_t position, const char* name) {
  const Value* value = arguments.get(position, name);
  if (!value || !value->is_string())
    throw TemplateError(
        fmt::format("the method takes a string as its argument {} ({})", position + 1, name));
  return value->string();
}

// strip(), lstrip(), rstrip(): blanks, or the characters given.
template <bool kLeft, bool kRight>
Value strip_method(const std::string& self, const Arguments& arguments) {
  const Value* chars = arguments.get(0, "chars");
  const bool has_chars = chars && chars->is_string();
  return strip(self, has_chars ? &chars->string() : nullptr, kLeft, kRight);
}

// Whether `self` begins (or ends) with the string or one of the tuple given.
template <bool kAtEnd>
Value affix_method(const std::string& self, const Arguments& arguments) {
  const Value* affix = arguments.get(0, kAtEnd ? "suffix" : "prefix");
  const auto has = [&](const Value& value) {
    if (!value.is_string()) throw TemplateError("startswith and endswith take strings");
    return kAtEnd ? self.ends_with(value.string()) : self.starts_with(value.string());
  };
  if (!affix) throw TemplateError("startswith and endswith take an argument");
  if (!affix->is_list()) return has(*affix);
  return std::any_of(affix->list().begin(), affix->list().end(), has);
}

Value split_method(const std::string& self, const Arguments& arguments, bool from_right) {
  const Value* separator = arguments.get(0, "sep");
  const Value* most = arguments.get(1, "maxsplit");
  const int64_t limit = most ? most->integer("maxsplit") : -1;
  const bool by_blanks = !separator || separator->is_none();
  if (!by_blanks && (!separator->is_string() || separator->string().empty()))
    throw TemplateError("split takes a separator that is a string and not empty");
  List out;
  for (std::string& part :
       split(self, by_blanks ? nullptr : &separator->string(), limit, from_right))
    out.emplace_back(std::move(part));
  return out;
}

Value find_method(const std::string& self, const Arguments& arguments, bool from_right,
                  bool is_required) {
  const std::string& part = string_argument(arguments, 0, "sub");
  const size_t at = from_right ? last_position_of(self, part) : position_of(self, part, 0);
  if (at != std::string::npos) return count_characters(std::string_view(self).substr(0, at));
  if (is_required) throw TemplateError("index: the string does not hold " + Value(part).repr());
  return int64_t{-1};
}

template <typename Is>
Value all_characters(const std::string& self, const Is& is) {
  bool are_all = !self.empty();
  for_each_character(self, [&](std::string_view c) {
    utf8proc_int32_t point = 0;
    utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(c.data()),
                     static_cast<utf8proc_ssize_t>(c.size()), &point);
    are_all = are_all && point >= 0 && is(point, utf8proc_category(point));
  });
  return are_all;
}

// "{} and {name}".format(...): positions, names; no conversions.
Value format_method(const std::string& self, const Arguments& arguments) {
  TextMaker out;
  size_t next = 0;
  for (size_t i = 0; i < self.size(); ++i) {
    const char c = self[i];
    if ((c == '{' || c == '}') && i + 1 < self.size() && self[i + 1] == c) {
      out += c;
      ++i;
    } else if (c == '{') {
      const size_t end = self.find('}', i);
      if (end == std::string::npos) throw TemplateError("format: a '{' has no '}'");
      const std::string field = self.substr(i + 1, end - i - 1);
      const bool is_number =
          !field.empty() && field.find_first_not_of("0123456789") == std::string::npos;
      const Value* value = field.empty() ? arguments.get(next++, "")
                           : is_number   ? arguments.get(std::stoul(field.substr(0, 6)), "")
                                         : arguments.get(SIZE_MAX, field);
      if (!value) throw TemplateError(fmt::format("format: nothing was given for {{{}}}", field));
      out += value->text();
      i = end;
    } else {
      out += c;
    }
  }
  return out.take();
}

Value splitlines_method(const std::string& s, const Arguments& a) {
  const Value* keeps = a.get(0, "keepends");
  List out;
  for (std::string& line : split_lines(s, keeps && keeps->is_true()))
    out.emplace_back(std::move(line));
  return out;
}

Value replace_method(const std::string& s, const Arguments& a) {
  const Value* most = a.get(2, "count");
  return replace(s, string_argument(a, 0, "old"), string_argument(a, 1, "new"),
                 most ? most->integer("count") : -1);
}

Value count_method(const std::string& s, const Arguments& a) {
  const std::string& part = string_argument(a, 0, "sub");
  int64_t count = 0;
  if (part.empty()) return count_characters(s) + 1;
  for (size_t at = position_of(s, part, 0); at != std::string::npos;
       at = position_of(s, part, at + part.size()))
    ++count;
  return count;
}

Value join_method(const std::string& s, const Arguments& a) {
  const Value* list = a.get(0, "iterable");
  if (!list) throw TemplateError("join takes a list");
  TextMaker out;
  bool is_first = true;
  for (const Value& part : list->items()) {
    if (!part.is_string()) throw TemplateError("join takes strings, not " + part.type_name());
    if (!std::exchange(is_first, false)) out += s;
    out += part.string();
  }
  return out.take();
}

Value removeprefix_method(const std::string& s, const Arguments& a) {
  const std::string& affix = string_argument(a, 0, "prefix");
  return s.starts_with(affix) ? s.substr(affix.size()) : s;
}

Value removesuffix_method(const std::string& s, const Arguments& a) {
  const std::string& affix = string_argument(a, 0, "suffix");
  return s.ends_with(affix) ? s.substr(0, s.size() - affix.size()) : s;
}

Value zfill_method(const std::string& s, const Arguments& a) {
  const Value* width = a.get(0, "width");
  const int64_t wanted = std::min<int64_t>(width ? width->integer("width") : 0, 4096);
  const bool has_sign = !s.empty() && (s[0] == '-' || s[0] == '+');
  const int64_t length = count_characters(s);
  const std::string zeros(static_cast<size_t>(std::max<int64_t>(wanted - length, 0)), '0');
  return has_sign ? s.substr(0, 1) + zeros + s.substr(1) : zeros + s;
}

const std::map<std::string_view, StringMethod>& string_methods() {
  static const std::map<std::string_view, StringMethod> methods = {
      {"strip", strip_method<true, true>},
      {"lstrip", strip_method<true, false>},
      {"rstrip", strip_method<false, true>},
      {"startswith", affix_method<false>},
      {"endswith", affix_method<true>},
      {"split", [](const std::string& s, const Arguments& a) { return split_method(s, a, false); }},
      {"rsplit", [](const std::string& s, const Arguments& a) { return split_method(s, a, true); }},
      {"splitlines", splitlines_method},
      {"upper", [](const std::string& s, const Arguments&) -> Value { return upper(s); }},
      {"lower", [](const std::string& s, const Arguments&) -> Value { return lower(s); }},
      {"title", [](const std::string& s, const Arguments&) -> Value { return title(s); }},
      {"capitalize", [](const std::string& s, const Arguments&) -> Value { return capitalise(s); }},
      {"replace", replace_method},
      {"find",
       [](const std::string& s, const Arguments& a) { return find_method(s, a, false, false); }},
      {"rfind",
       [](const std::string& s, const Arguments& a) { return find_method(s, a, true, false); }},
      {"index",
       [](const std::string& s, const Arguments& a) { return find_method(s, a, false, true); }},
      {"count", count_method},
      {"join", join_method},
      {"format", format_method},
      {"removeprefix", removeprefix_method},
      {"removesuffix", removesuffix_method},
      {"isdigit",
       [](const std::string& s, const Arguments&) {
         return all_characters(
             s, [](int32_t, utf8proc_category_t c) { return c == UTF8PROC_CATEGORY_ND; });
       }},
      {"isalpha",
       [](const std::string& s, const Arguments&) {
         return all_characters(s, [](int32_t, utf8proc_category_t c) {
           return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
         });
       }},
      {"isalnum",
       [](const std::string& s, const Arguments&) {
         return all_characters(s, [](int32_t, utf8proc_category_t c) {
           return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
                  (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
         });
       }},
      {"isspace",
       [](const std::string& s, const Arguments&) {
         return all_characters(s, [](int32_t point, utf8proc_category_t c) {
           return is_blank(point) || (c >= UTF8PROC_CATEGORY_ZS && c <= UTF8PROC_CATEGORY_ZP);
         });
       }},
      {"isupper",
       [](const std::string& s, const Arguments&) -> Value {
         return s != lower(s) && s == upper(s);
       }},
      {"islower",
       [](const std::string& s, const Arguments&) -> Value {
         return s != upper(s) && s == lower(s);
       }},
      {"zfill", zfill_method},
  };
  return methods;
}

Value bound(const std::string& name, std::function<Value(const Arguments&)> call) {
  return Callable{name, std::move(call)};
}

[[noreturn]] void refuse_change(const std::string& name) {
  throw TemplateError(name + "() changes its value, which a chat template may not");
}

// Empty when there is no such method.
std::function<Value(const Arguments&)> dict_method(const Value& self, const std::string& name) {
  if (name == "items")
    return [self](const Arguments&) -> Value {
      List out;
      for (const auto& [key, value] : self.dict().entries)
        out.push_back(Value::make_tuple({key, value}));
      return out;
    };
  if (name == "keys") return [self](const Arguments&) -> Value { return self.items(); };
  if (name == "values")
    return [self](const Arguments&) -> Value {
      List out;
      for (const auto& entry : self.dict().entries) out.push_back(entry.second);
      return out;
    };
  if (name == "get")
    return [self](const Arguments& arguments) -> Value {
      const Value* key = arguments.get(0, "key");
      if (!key) throw TemplateError("get takes a key");
      const Value* found = self.dict().find_key(*key);
      if (found) return *found;
      const Value* fallback = arguments.get(1, "default");
      return fallback ? *fallback : Value(None{});
    };
  if (name == "copy") return [self](const Arguments&) -> Value { return Dict(self.dict()); };
  for (const char* changing : {"update", "pop", "popitem", "setdefault", "clear"})
    if (name == changing) refuse_change(name);
  return {};
}

std::function<Value(const Arguments&)> list_method(const Value& self, const std::string& name) {
  if (name == "index" || name == "count")
    return [self, name](const Arguments& arguments) -> Value {
      const Value* wanted = arguments.get(0, "value");
      if (!wanted) throw TemplateError(name + " takes a value");
      const List& list = self.list();
      if (name == "count") return int64_t{std::count(list.begin(), list.end(), *wanted)};
      const auto at = std::find(list.begin(), list.end(), *wanted);
      if (at == list.end()) throw TemplateError("index: the list does not hold " + wanted->repr());
      return int64_t{at - list.begin()};
    };
  if (name == "copy") return [self](const Arguments&) -> Value { return List(self.list()); };
  for (const char* changing :
       {"append", "extend", "insert", "remove", "pop", "sort", "reverse", "clear"})
    if (name == changing) refuse_change(name);
  return {};
}
}  // namespace

Value attribute(const Value& value, const std::string& name) {
  if (value.is_undefined())
    throw TemplateError(
        fmt::format("'{}' is undefined: it has no '{}'", value.undefined_name(), name));
  if (value.is_string()) {
    const auto found = string_methods().find(name);
    if (found == string_methods().end()) return Undefined{name};
    const StringMethod method = found->second;
    return bound(name, [self = value, method](const Arguments& arguments) {
      return method(self.string(), arguments);
    });
  }
  if (value.is_dict()) {
    if (!value.dict().is_namespace)
      if (auto method = dict_method(value, name)) return bound(name, std::move(method));
    const Value* found = value.dict().find(name);
    return found ? *found : Value(Undefined{name});
  }
  if (value.is_group() && (name == "grouper" || name == "list"))
    return value.list()[name == "list" ? 1 : 0];
  if (value.is_list())
    if (auto method = list_method(value, name)) return bound(name, std::move(method));
  return Undefined{name};
}

Value item(const Value& value, const Value& index) {
  if (value.is_undefined())
    throw TemplateError(fmt::format("'{}' is undefined: it has no items", value.undefined_name()));
  if (value.is_dict()) {
    const Value* found = value.dict().find_key(index);
    if (found) return *found;
    return index.is_string() ? attribute(value, index.string()) : Value(Undefined{index.text()});
  }
  if (index.is_int() && (value.is_list() || value.is_string())) {
    const int64_t length = value.length();
    const int64_t at = index.integer("[]") + (index.integer("[]") < 0 ? length : 0);
    if (at < 0 || at >= length) return Undefined{fmt::format("[{}]", index.text())};
    if (value.is_list()) return value.list()[static_cast<size_t>(at)];
    const std::string_view text = value.string();
    const size_t begin = byte_of_character(text, at);
    return std::string(text.substr(begin, character_end(text, begin) - begin));
  }
  return index.is_string() ? attribute(value, index.string()) : Value(Undefined{index.text()});
}

}  // namespace sluice::chat
