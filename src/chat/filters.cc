// What follows a bar, and what follows "is".
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "src/chat/builtins.h"
#include "src/chat/strings.h"

namespace sluice::chat {

namespace {
using Filter = Value (*)(const Value& value, const Arguments& arguments);
using Test = bool (*)(const Value& value, const Arguments& arguments);

const Value& need(const Arguments& arguments, size_t position, const char* name, const char* who) {
  const Value* value = arguments.get(position, name);
  if (!value) throw TemplateError(fmt::format("{} needs its argument '{}'", who, name));
  return *value;
}
bool flag(const Arguments& arguments, size_t position, const char* name, bool fallback) {
  const Value* value = arguments.get(position, name);
  return value ? value->is_true() : fallback;
}
std::string text_or(const Arguments& arguments, size_t position, const char* name,
                    std::string fallback) {
  const Value* value = arguments.get(position, name);
  return value ? value->text() : fallback;
}

// "a.b" or 0: the attribute of an attribute, as map(attribute=...) takes it.
Value deep_attribute(const Value& value, const Value& path) {
  if (path.is_int()) return item(value, path);
  Value out = value;
  const std::string dot = ".";
  for (const std::string& part : split(path.text(), &dot, -1, false)) {
    const bool is_number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    out = item(out, is_number ? Value(int64_t{std::stol(part.substr(0, 9))}) : Value(part));
  }
  return out;
}

Arguments rest_of(const Arguments& arguments, size_t from) {
  Arguments out;
  if (from < arguments.positional.size())
    out.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(from),
                          arguments.positional.end());
  return out;
}

// select, reject, selectattr, rejectattr.
template <bool kByAttribute, bool kKeeps>
Value choose(const Value& value, const Arguments& arguments) {
  constexpr size_t kTest = kByAttribute ? 1 : 0;
  const Value* path = kByAttribute ? &need(arguments, 0, "attribute", "selectattr") : nullptr;
  const bool has_test = arguments.positional.size() > kTest;
  const std::string test = has_test ? arguments.positional[kTest].text() : "";
  const Arguments rest = rest_of(arguments, kTest + 1);
  List out;
  for (const Value& one : value.items()) {
    const Value subject = path ? deep_attribute(one, *path) : one;
    const bool holds = has_test ? apply_test(test, subject, rest) : subject.is_true();
    if (holds == kKeeps) out.push_back(one);
  }
  return out;
}

Value map_filter(const Value& value, const Arguments& arguments) {
  const Value* path = arguments.get(SIZE_MAX, "attribute");
  const Value* fallback = arguments.get(SIZE_MAX, "default");
  List out;
  for (const Value& one : value.items()) {
    if (path) {
      Value found = deep_attribute(one, *path);
      out.push_back(found.is_undefined() && fallback ? *fallback : std::move(found));
    } else {
      const std::string filter = need(arguments, 0, "filter", "map").text();
      out.push_back(apply_filter(filter, one, rest_of(arguments, 1)));
    }
  }
  return out;
}

Value key_of(const Value& value, const Arguments& arguments, size_t position) {
  const Value* path = arguments.get(position, "attribute");
  Value key = path && !path->is_none() ? deep_attribute(value, *path) : value;
  return key.is_string() ? Value(lower(key.string())) : key;
}

Value sort_filter(const Value& value, const Arguments& arguments) {
  List out = value.items();
  const bool is_reversed = flag(arguments, 0, "reverse", false);
  const bool has_case = flag(arguments, 1, "case_sensitive", false);
  const Value* path = arguments.get(2, "attribute");
  const auto key = [&](const Value& one) {
    Value found = path && !path->is_none() ? deep_attribute(one, *path) : one;
    return found.is_string() && !has_case ? Value(lower(found.string())) : found;
  };
  std::stable_sort(out.begin(), out.end(), [&](const Value& a, const Value& b) {
    return is_reversed ? compare(key(b), key(a)) < 0 : compare(key(a), key(b)) < 0;
  });
  return out;
}

Value dictsort_filter(const Value& value, const Arguments& arguments) {
  if (!value.is_dict())
    throw TemplateError("dictsort sorts a dictionary, not " + value.type_name());
  const bool has_case = flag(arguments, 0, "case_sensitive", false);
  const bool by_value = text_or(arguments, 1, "by", "key") == "value";
  const bool is_reversed = flag(arguments, 2, "reverse", false);
  auto entries = value.dict().entries;
  const auto key = [&](const auto& entry) {
    Value found = by_value ? entry.second : entry.first;
    return found.is_string() && !has_case ? Value(lower(found.string())) : found;
  };
  std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
    return is_reversed ? compare(key(b), key(a)) < 0 : compare(key(a), key(b)) < 0;
  });
  List out;
  for (const auto& [name, held] : entries) out.push_back(Value::make_tuple({name, held}));
  return out;
}

Value groupby_filter(const Value& value, const Arguments& arguments) {
  const Value& path = need(arguments, 0, "attribute", "groupby");
  List sorted = value.items();
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Value& a, const Value& b) {
    return compare(deep_attribute(a, path), deep_attribute(b, path)) < 0;
  });
  List out;
  for (const Value& one : sorted) {
    const Value key = deep_attribute(one, path);
    if (out.empty() || !(out.back().list()[0] == key)) out.push_back(Value::make_group(key, {}));
    out.back().list()[1].list().push_back(one);
  }
  return out;
}

Value tojson_filter(const Value& value, const Arguments& arguments) {
  JsonStyle style;
  const Value* indent = arguments.get(1, "indent");
  style.ascii = flag(arguments, 0, "ensure_ascii", false);
  if (indent && !indent->is_none())
    style.indent = static_cast<int>(std::clamp<int64_t>(indent->integer("indent"), 0, 64));
  const Value* separators = arguments.get(2, "separators");
  if (separators && separators->is_list() && separators->list().size() == 2) {
    style.item_separator = separators->list()[0].text();
    style.key_separator = separators->list()[1].text();
  }
  style.sorts_keys = flag(arguments, 3, "sort_keys", false);
  return to_json(value, style);
}

Value indent_filter(const Value& value, const Arguments& arguments) {
  const Value* width = arguments.get(0, "width");
  const std::string blanks =
      !width ? std::string(4, ' ')
      : width->is_int()
          ? std::string(static_cast<size_t>(std::clamp<int64_t>(width->integer("indent"), 0, 256)),
                        ' ')
          : width->text();
  const bool first = flag(arguments, 1, "first", false);
  const bool blank = flag(arguments, 2, "blank", false);
  const std::string text = value.text();
  TextMaker out;
  size_t begin = 0;
  for (bool is_first = true; begin <= text.size(); is_first = false) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (!is_first) out += '\n';
    if ((!is_first || first) && (blank || !line.empty())) out += blanks;
    out += line;
    begin = end + 1;
  }
  return out.take();
}

Value join_filter(const Value& value, const Arguments& arguments) {
  const std::string between = text_or(arguments, 0, "d", "");
  const Value* path = arguments.get(1, "attribute");
  TextMaker out;
  bool is_first = true;
  for (const Value& one : value.items()) {
    if (!std::exchange(is_first, false)) out += between;
    out += (path ? deep_attribute(one, *path) : one).text();
  }
  return out.take();
}

Value int_filter(const Value& value, const Arguments& arguments) {
  const Value* fallback = arguments.get(0, "default");
  if (value.is_float()) return static_cast<int64_t>(value.number("int"));
  if (value.is_number()) return value.integer("int");
  if (value.is_string()) {
    const std::string text = strip(value.string(), nullptr, true, true);
    try {
      size_t used = 0;
      const double number = std::stod(text, &used);
      if (used == text.size() && std::abs(number) < 9e15) {
        if (text.find_first_of(".eE") != std::string::npos) return static_cast<int64_t>(number);
        return int64_t{std::stoll(text)};
      }
    } catch (const std::exception&) {  // no number: the default
    }
  }
  return fallback ? *fallback : Value(int64_t{0});
}

Value float_filter(const Value& value, const Arguments& arguments) {
  if (value.is_number()) return value.number("float");
  if (value.is_string()) {
    try {
      return std::stod(value.string());
    } catch (const std::exception&) {  // no number: the default
    }
  }
  const Value* fallback = arguments.get(0, "default");
  return fallback ? *fallback : Value(0.0);
}

Value round_filter(const Value& value, const Arguments& arguments) {
  const Value* precision = arguments.get(0, "precision");
  const std::string method = text_or(arguments, 1, "method", "common");
  const double scale = std::pow(10.0, precision ? precision->number("round") : 0);
  const double scaled = value.number("round") * scale;
  return (method == "ceil"    ? std::ceil(scaled)
          : method == "floor" ? std::floor(scaled)
                              : std::nearbyint(scaled)) /
         scale;
}

template <int kSign>
Value extreme_filter(const Value& value, const Arguments& arguments) {
  const List items = value.items();
  if (items.empty()) return Undefined{"an item of an empty list"};
  const auto best =
      std::max_element(items.begin(), items.end(), [&](const Value& a, const Value& b) {
        return kSign * compare(key_of(a, arguments, 1), key_of(b, arguments, 1)) < 0;
      });
  return *best;
}

Value unique_filter(const Value& value, const Arguments& arguments) {
  List out, keys;
  for (const Value& one : value.items()) {
    Value key = key_of(one, arguments, 1);
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    keys.push_back(std::move(key));
    out.push_back(one);
  }
  return out;
}

Value sum_filter(const Value& value, const Arguments& arguments) {
  const Value* path = arguments.get(0, "attribute");
  double sum = 0;
  bool is_whole = true;
  for (const Value& one : value.items()) {
    const Value held = path && !path->is_none() ? deep_attribute(one, *path) : one;
    is_whole = is_whole && !held.is_float();
    sum += held.number("sum");
  }
  return is_whole ? Value(static_cast<int64_t>(sum)) : Value(sum);
}

Value batch_filter(const Value& value, const Arguments& arguments) {
  const int64_t size = need(arguments, 0, "linecount", "batch").integer("batch");
  if (size < 1) throw TemplateError("batch takes a size of 1 or more");
  List out;
  for (const Value& one : value.items()) {
    if (out.empty() || out.back().length() == size) out.emplace_back(List{});
    out.back().list().push_back(one);
  }
  return out;
}

Value default_filter(const Value& value, const Arguments& arguments) {
  const bool takes_false = flag(arguments, 1, "boolean", false);
  if (!value.is_undefined() && (!takes_false || value.is_true())) return value;
  const Value* fallback = arguments.get(0, "default_value");
  return fallback ? *fallback : Value("");
}

Value escape_filter(const Value& value, const Arguments&) {
  TextMaker out;
  for (char c : value.text()) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out.take();
}

Value reverse_filter(const Value& value, const Arguments&) {
  if (value.is_string()) {
    std::string out(value.string().size(), ' ');
    size_t place = out.size();
    for_each_character(value.string(), [&](std::string_view c) {
      place -= c.size();
      std::copy(c.begin(), c.end(), out.begin() + static_cast<std::ptrdiff_t>(place));
    });
    return out;
  }
  List items = value.items();
  std::reverse(items.begin(), items.end());
  return items;
}

Value replace_filter(const Value& value, const Arguments& arguments) {
  const Value* most = arguments.get(2, "count");
  return replace(value.text(), need(arguments, 0, "old", "replace").text(),
                 need(arguments, 1, "new", "replace").text(),
                 most && !most->is_none() ? most->integer("count") : -1);
}

Value trim_filter(const Value& value, const Arguments& arguments) {
  const Value* chars = arguments.get(0, "chars");
  const bool has_chars = chars && chars->is_string();
  return strip(value.text(), has_chars ? &chars->string() : nullptr, true, true);
}

Value items_filter(const Value& value, const Arguments&) {
  if (value.is_undefined()) return List{};
  if (!value.is_dict()) throw TemplateError("items takes a dictionary, not " + value.type_name());
  List out;
  for (const auto& [key, held] : value.dict().entries)
    out.push_back(Value::make_tuple({key, held}));
  return out;
}

Value abs_filter(const Value& value, const Arguments&) {
  if (value.is_float()) return std::abs(value.number("abs"));
  const int64_t number = value.integer("abs");
  return number < 0 ? -number : number;
}

Value first_filter(const Value& value, const Arguments&) {
  const List items = value.items();
  return items.empty() ? Value(Undefined{"the first of an empty list"}) : items.front();
}
Value last_filter(const Value& value, const Arguments&) {
  const List items = value.items();
  return items.empty() ? Value(Undefined{"the last of an empty list"}) : items.back();
}
Value length_filter(const Value& value, const Arguments&) { return value.length(); }
Value text_filter(const Value& value, const Arguments&) { return value.text(); }
Value list_filter(const Value& value, const Arguments&) { return value.items(); }

Value truncate_filter(const Value& value, const Arguments& arguments) {
  const Value* length = arguments.get(0, "length");
  const int64_t most = length ? length->integer("truncate") : 255;
  const std::string end = text_or(arguments, 2, "end", "...");
  const std::string text = value.text();
  if (count_characters(text) <= most + 5) return text;
  const int64_t kept = std::max<int64_t>(most - count_characters(end), 0);
  std::string out = text.substr(0, byte_of_character(text, kept));
  if (!flag(arguments, 1, "killwords", false)) out = out.substr(0, out.rfind(' '));
  return out + end;
}

const std::map<std::string_view, Filter>& filters() {
  static const std::map<std::string_view, Filter> all = {
      {"abs", abs_filter},
      {"attr", [](const Value& v,
                  const Arguments& a) { return attribute(v, need(a, 0, "name", "attr").text()); }},
      {"batch", batch_filter},
      {"capitalize",
       [](const Value& v, const Arguments&) -> Value { return capitalise(v.text()); }},
      {"count", length_filter},
      {"d", default_filter},
      {"default", default_filter},
      {"dictsort", dictsort_filter},
      {"e", escape_filter},
      {"escape", escape_filter},
      {"first", first_filter},
      {"float", float_filter},
      {"format",
       [](const Value& v, const Arguments& a) -> Value {
         return percent_format(v.text(), a.positional);
       }},
      {"groupby", groupby_filter},
      {"indent", indent_filter},
      {"int", int_filter},
      {"items", items_filter},
      {"join", join_filter},
      {"last", last_filter},
      {"length", length_filter},
      {"list", list_filter},
      {"lower", [](const Value& v, const Arguments&) -> Value { return lower(v.text()); }},
      {"map", map_filter},
      {"max", extreme_filter<1>},
      {"min", extreme_filter<-1>},
      {"reject", choose<false, false>},
      {"rejectattr", choose<true, false>},
      {"replace", replace_filter},
      {"reverse", reverse_filter},
      {"round", round_filter},
      {"safe", text_filter},
      {"select", choose<false, true>},
      {"selectattr", choose<true, true>},
      {"sort", sort_filter},
      {"string", text_filter},
      {"sum", sum_filter},
      {"title", [](const Value& v, const Arguments&) -> Value { return title(v.text()); }},
      {"tojson", tojson_filter},
      {"trim", trim_filter},
      {"truncate", truncate_filter},
      {"unique", unique_filter},
      {"upper", [](const Value& v, const Arguments&) -> Value { return upper(v.text()); }},
  };
  return all;
}

template <typename Holds>
bool compares(const Value& value, const Arguments& arguments, const Holds& holds) {
  return holds(compare(value, need(arguments, 0, "other", "the test")));
}

bool divides(const Value& value, const Arguments& arguments) {
  const int64_t by = need(arguments, 0, "num", "divisibleby").integer("divisibleby");
  if (by == 0) throw TemplateError("divisibleby 0");
  return value.integer("divisibleby") % by == 0;
}

bool is_equal(const Value& value, const Arguments& arguments) {
  return value == need(arguments, 0, "other", "the test");
}

const std::map<std::string_view, Test>& tests() {
  static const std::map<std::string_view, Test> all = {
      {"boolean", [](const Value& v, const Arguments&) { return v.is_bool(); }},
      {"callable", [](const Value& v, const Arguments&) { return v.is_callable(); }},
      {"defined", [](const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v, const Arguments&) { return v.is_undefined(); }},
      {"divisibleby", divides},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"sameas", is_equal},
      {"==", is_equal},
      {"ne", [](const Value& v, const Arguments& a) { return !is_equal(v, a); }},
      {"!=", [](const Value& v, const Arguments& a) { return !is_equal(v, a); }},
      {"even", [](const Value& v, const Arguments&) { return v.integer("even") % 2 == 0; }},
      {"odd", [](const Value& v, const Arguments&) { return v.integer("odd") % 2 != 0; }},
      {"true", [](const Value& v, const Arguments&) { return v.is_bool() && v.is_true(); }},
      {"false", [](const Value& v, const Arguments&) { return v.is_bool() && !v.is_true(); }},
      {"float", [](const Value& v, const Arguments&) { return v.is_float(); }},
      {"integer", [](const Value& v, const Arguments&) { return v.is_int(); }},
      {"number", [](const Value& v, const Arguments&) { return v.is_number(); }},
      {"in",
       [](const Value& v, const Arguments& a) { return contains(need(a, 0, "seq", "in"), v); }},
      {"iterable",
       [](const Value& v, const Arguments&) {
         return v.is_list() || v.is_dict() || v.is_string() || v.is_undefined();
       }},
      {"sequence",
       [](const Value& v, const Arguments&) {
         return v.is_list() || v.is_dict() || v.is_string() || v.is_undefined();
       }},
      {"mapping", [](const Value& v, const Arguments&) { return v.is_dict(); }},
      {"none", [](const Value& v, const Arguments&) { return v.is_none(); }},
      {"string", [](const Value& v, const Arguments&) { return v.is_string(); }},
      {"lower",
       [](const Value& v, const Arguments&) {
         return v.text() == lower(v.text()) && v.text() != upper(v.text());
       }},
      {"upper",
       [](const Value& v, const Arguments&) {
         return v.text() == upper(v.text()) && v.text() != lower(v.text());
       }},
      {"lt", [](const Value& v,
                const Arguments& a) { return compares(v, a, [](int c) { return c < 0; }); }},
      {"lessthan", [](const Value& v,
                      const Arguments& a) { return compares(v, a, [](int c) { return c < 0; }); }},
      {"le", [](const Value& v,
                const Arguments& a) { return compares(v, a, [](int c) { return c <= 0; }); }},
      {"gt", [](const Value& v,
                const Arguments& a) { return compares(v, a, [](int c) { return c > 0; }); }},
      {"greaterthan",
       [](const Value& v, const Arguments& a) {
         return compares(v, a, [](int c) { return c > 0; });
       }},
      {"ge", [](const Value& v,
                const Arguments& a) { return compares(v, a, [](int c) { return c >= 0; }); }},
  };
  return all;
}
}  // namespace

std::string percent_format(const std::string& format, const List& values) {
  TextMaker out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    size_t end = i + 1;
    while (end < format.size() &&
           std::string_view("0123456789.-+ #").find(format[end]) != std::string_view::npos)
      ++end;
    if (end >= format.size()) throw TemplateError("format: a % at the end");
    const char kind = format[end];
    std::string flags = format.substr(i + 1, end - i - 1);
    i = end;
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (std::count_if(flags.begin(), flags.end(), [](char c) { return c >= '0' && c <= '9'; }) > 4)
      throw TemplateError("format: too wide a field");
    if (next >= values.size()) throw TemplateError("format: fewer values than fields");
    const Value& value = values[next++];
    // Python's '-' is '<' here; strings stand right by default there, left here.
    const bool is_left = flags.starts_with('-');
    if (is_left) flags.erase(0, 1);
    const std::string spec = (is_left ? "<" : ">") + flags;
    const auto write = [&](const auto& argument, const std::string& type) {
      out += fmt::format(fmt::runtime(fmt::format("{{:{}{}}}", flags.empty() ? "" : spec, type)),
                         argument);
    };
    switch (kind) {
      case 's': write(value.text(), ""); break;
      case 'r': write(value.repr(), ""); break;
      case 'd':
      case 'i':
        write(value.is_float() ? static_cast<int64_t>(value.number("%d")) : value.integer("%d"),
              "d");
        break;
      case 'x': write(value.integer("%x"), "x"); break;
      case 'f':
        write(value.number("%f"), flags.find('.') == std::string::npos ? ".6f" : "f");
        break;
      default: throw TemplateError(fmt::format("format: %{} is not supported", kind));
    }
  }
  return out.take();
}

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = filters().find(name);
  if (found == filters().end()) throw TemplateError(fmt::format("there is no filter '{}'", name));
  return found->second(value, arguments);
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = tests().find(name);
  if (found == tests().end()) throw TemplateError(fmt::format("there is no test '{}'", name));
  return found->second(value, arguments);
}

}  // namespace sluice::chat
