#include "src/guide/schema_rewrite.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sluice::guide {

namespace {
using Json = nlohmann::ordered_json;
using Plain = std::optional<Json>;

constexpr size_t kMostPlaces = 4;     // of an array, where what it contains may be
constexpr size_t kMostUnique = 4;     // values of which no two are the same: 65 arrays
constexpr size_t kMostNegated = 8;    // parts of what must not hold
constexpr size_t kMostDependent = 4;  // properties that have schemas of their own: 16 ways

const std::set<std::string> kAnnotations{"title",    "description", "$comment", "default",
                                         "examples", "$schema",     "$id"};

bool is_empty(const Json& schema) {
  if (schema == true) return true;
  if (!schema.is_object()) return false;
  return std::all_of(schema.items().begin(), schema.items().end(),
                     [](const auto& item) { return kAnnotations.contains(item.key()); });
}

// Whether the schema has no words but `words` and annotations, which say nothing of a document.
bool has_only(const Json& schema, const std::set<std::string>& words) {
  if (!schema.is_object()) return false;
  return std::all_of(schema.items().begin(), schema.items().end(), [&](const auto& item) {
    return words.contains(item.key()) || kAnnotations.contains(item.key());
  });
}

Json without(Json schema, const char* word) {
  schema.erase(word);
  return schema;
}

Json both(Json a, Json b) {
  Json all = Json::array();
  all.push_back(std::move(a));
  all.push_back(std::move(b));
  return Json{{"allOf", std::move(all)}};
}

bool is_type(const Json& schema, const char* type) {
  return schema.contains("type") && schema["type"] == type;
}

// Whether values of this type are what the schema is about, also where words of the type alone say
// so (as guides have it).
bool is_about(const Json& schema, const char* type, const char* word, const char* other) {
  if (schema.contains("type")) return is_type(schema, type);
  return schema.contains(word) || schema.contains(other);
}
bool is_about_objects(const Json& schema) {
  return is_about(schema, "object", "properties", "required");
}
bool is_about_arrays(const Json& schema) { return is_about(schema, "array", "items", "contains"); }

std::vector<std::string> types_of(const Json& type) {
  std::vector<std::string> out;
  if (type.is_string()) out.push_back(type);
  if (type.is_array())
    for (const Json& one : type)
      if (one.is_string()) out.push_back(one);
  return out;
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  if (type != "integer" || !value.is_number()) return false;
  return value.is_number_integer() ||
         value.get<double>() == static_cast<double>(static_cast<int64_t>(value.get<double>()));
}

bool has_some_type(const Json& value, const std::vector<std::string>& types) {
  return std::any_of(types.begin(), types.end(),
                     [&](const std::string& type) { return has_type(value, type); });
}

// The values that a schema of one value or some names; nothing: it has other words too.
Plain values_of(const Json& schema) {
  if (has_only(schema, {"const", "type"}) && schema.contains("const"))
    return Json::array({schema["const"]});
  if (has_only(schema, {"enum", "type"}) && schema.contains("enum") && schema["enum"].is_array())
    return schema["enum"];
  if (has_only(schema, {"type"}) && is_type(schema, "boolean")) return Json::array({true, false});
  return std::nullopt;
}

bool is_in(const Json& values, const Json& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// `base` less the values that `keeps` refuses; nothing: it does not name its values.
template <typename Keeps>
Plain filtered(const Json& base, const Keeps& keeps) {
  Json values;
  if (base.contains("const"))
    values = Json::array({base["const"]});
  else if (base.contains("enum") && base["enum"].is_array())
    values = base["enum"];
  else if (is_type(base, "boolean"))
    values = Json::array({true, false});
  else
    return std::nullopt;
  Json kept = Json::array();
  for (const Json& value : values)
    if (keeps(value)) kept.push_back(value);
  if (kept.empty()) return Json(false);
  Json out = without(base, "const");
  out["enum"] = std::move(kept);
  return out;
}

Plain not_of_types(const Json& base, const std::vector<std::string>& types) {
  if (auto some = filtered(base, [&](const Json& value) { return !has_some_type(value, types); }))
    return some;
  std::vector<std::string> left =
      base.contains("type")
          ? types_of(base["type"])
          : std::vector<std::string>{"object", "array", "string", "number", "boolean", "null"};
  const auto gone = [&](const char* type) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  const auto is_left = [&](const char* type) {
    return std::find(left.begin(), left.end(), type) != left.end();
  };
  if (gone("integer") && !gone("number") && is_left("number")) return std::nullopt;
  std::erase_if(left, [&](const std::string& type) {
    return gone(type.c_str()) || (type == "integer" && gone("number"));
  });
  if (left.empty()) return Json(false);
  Json out = base;
  out["type"] = left;
  return out;
}

Plain not_of_values(const Json& base, const Json& values) {
  if (auto some = filtered(base, [&](const Json& value) { return !is_in(values, value); }))
    return some;
  if (!base.contains("type")) return std::nullopt;
  const std::vector<std::string> types = types_of(base["type"]);
  Json out = base;
  for (const Json& value : values) {
    if (!has_some_type(value, types)) continue;
    if (value.is_null()) {
      auto some = not_of_types(out, {"null"});
      if (!some || !some->is_object()) return some;
      out = std::move(*some);
    } else if (value == "" && types.size() == 1) {
      const Json least = out.value("minLength", Json(0));
      if (!least.is_number_integer()) return std::nullopt;
      out["minLength"] = std::max<int64_t>(least.get<int64_t>(), 1);
    } else {
      return std::nullopt;
    }
  }
  return out;
}

Json with_property(const Json& base, const std::string& name, Json property, bool is_required) {
  Json more{{"type", "object"}};
  more["properties"][name] = std::move(property);
  if (is_required) more["required"] = Json::array({name});
  return both(base, std::move(more));
}

// The ways in which an object of `base` is none of `refused`, which speaks of properties alone.
std::optional<std::vector<Json>> ways_not(const Json& base, const Json& refused) {
  if (!is_about_objects(base) || !has_only(refused, {"properties", "required", "type"}) ||
      (refused.contains("type") && !is_type(refused, "object")))
    return std::nullopt;
  const Json names = refused.value("required", Json::array());
  const Json properties = refused.value("properties", Json::object());
  if (!names.is_array() || !properties.is_object() ||
      names.size() + properties.size() > kMostNegated)
    return std::nullopt;
  const Json needed = base.value("required", Json::array());
  std::vector<Json> out;
  for (const Json& name : names) {
    if (!name.is_string()) return std::nullopt;
    if (!needed.is_array() || !is_in(needed, name))
      out.push_back(with_property(base, name, false, false));
  }
  for (const auto& [name, property] : properties.items())
    if (!is_empty(property))
      out.push_back(with_property(base, name, Json{{"not", property}}, true));
  return out;
}

Json any_of(std::vector<Json> ways) {
  if (ways.empty()) return Json(false);
  if (ways.size() == 1) return std::move(ways.front());
  return Json{{"anyOf", std::move(ways)}};
}

// `base` and not `refused`.
Plain negated(const Json& base, const Json& refused) {
  if (is_empty(refused)) return Json(false);
  if (refused == false) return base;
  if (!refused.is_object()) return std::nullopt;
  if (has_only(refused, {"not"})) return both(base, refused["not"]);
  if (has_only(refused, {"anyOf"}) && refused["anyOf"].is_array() &&
      refused["anyOf"].size() <= kMostNegated) {
    Json out = base;
    for (const Json& one : refused["anyOf"]) {
      auto some = negated(out, one);
      if (!some || !some->is_object()) return some;
      out = std::move(*some);
    }
    return out;
  }
  if (has_only(refused, {"type"})) return not_of_types(base, types_of(refused["type"]));
  if (const Plain values = values_of(refused); values && !refused.contains("type"))
    return not_of_values(base, *values);
  if (auto ways = ways_not(base, refused)) return any_of(std::move(*ways));
  return std::nullopt;
}

Plain conditional(const Json& schema) {
  const Json condition = schema["if"];
  const Json then = schema.value("then", Json(true)), otherwise = schema.value("else", Json(true));
  Json base = schema;
  for (const char* word : {"if", "then", "else"}) base.erase(word);
  if (is_empty(condition)) return both(std::move(base), then);
  if (condition == false) return both(std::move(base), otherwise);
  auto other = negated(base, condition);
  if (!other) return std::nullopt;
  std::vector<Json> ways{both(both(base, condition), then)};
  if (*other != false) ways.push_back(both(std::move(*other), otherwise));
  return any_of(std::move(ways));
}

// The length that an array may have at most; nothing: no bound that is a number.
std::optional<size_t> bound_of(const Json& schema, const char* word) {
  if (!schema.contains(word) || !schema[word].is_number_unsigned()) return std::nullopt;
  return schema[word].get<size_t>();
}

// An array that has the element it must contain at one of its first places; other elements are
// `items`.
Plain containing(const Json& schema) {
  Json base = schema;
  for (const char* word : {"contains", "minContains", "maxContains"}) base.erase(word);
  if (schema.value("minContains", Json(1)) == 0 && !schema.contains("maxContains")) return base;
  if (schema.contains("maxContains") || schema.value("minContains", Json(1)) != 1) return {};
  if (!is_about_arrays(schema) || schema.contains("prefixItems")) return std::nullopt;
  const Json items = schema.value("items", Json(true));
  if (items.is_array()) return std::nullopt;
  const size_t places = std::min(bound_of(schema, "maxItems").value_or(kMostPlaces), kMostPlaces);
  std::vector<Json> ways;
  for (size_t place = 0; place < places; ++place) {
    Json first = Json::array();
    for (size_t i = 0; i < place; ++i) first.push_back(items);
    first.push_back(both(items, schema["contains"]));
    Json way = base;
    way["type"] = "array";
    way["prefixItems"] = std::move(first);
    way["minItems"] = std::max(bound_of(base, "minItems").value_or(0), place + 1);
    ways.push_back(std::move(way));
  }
  return any_of(std::move(ways));
}

// Adds the arrays that begin with `first` and go on with some of `values`, each at most once.
void add_arrays(const Json& values, size_t least, size_t most, Json first, std::vector<Json>& out) {
  if (first.size() >= least) out.push_back(first);
  if (first.size() >= most) return;
  for (const Json& value : values) {
    if (is_in(first, value)) continue;
    Json more = first;
    more.push_back(value);
    add_arrays(values, least, most, std::move(more), out);
  }
}

Plain unique(const Json& schema) {
  const auto most = bound_of(schema, "maxItems");
  if (most && *most <= 1) return without(schema, "uniqueItems");
  if (!is_about_arrays(schema) || !schema.contains("items") ||
      !has_only(schema, {"type", "items", "uniqueItems", "minItems", "maxItems"}))
    return std::nullopt;
  const Plain given = values_of(schema["items"]);
  if (!given) return std::nullopt;
  Json values = Json::array();
  for (const Json& value : *given)
    if (!is_in(values, value)) values.push_back(value);
  if (values.size() > kMostUnique) return std::nullopt;
  std::vector<Json> arrays;
  add_arrays(values, bound_of(schema, "minItems").value_or(0), most.value_or(values.size()),
             Json::array(), arrays);
  if (arrays.empty()) return Json(false);
  return Json{{"enum", std::move(arrays)}};
}

// A schema for objects that have a property.
Plain dependent(const Json& schema, const char* word) {
  if (!schema[word].is_object() || schema[word].empty() || schema[word].size() > kMostDependent)
    return std::nullopt;
  const auto [name, needs] = std::pair(schema[word].begin().key(), schema[word].begin().value());
  Json base = schema;
  base[word].erase(name);
  if (base[word].empty()) base.erase(word);
  if (schema.contains("type") && !is_type(schema, "object")) return std::nullopt;
  return any_of({with_property(base, name, false, false),
                 both(with_property(base, name, true, true),
                      needs.is_array() ? Json{{"required", needs}} : needs)});
}
}  // namespace

bool is_of_type(const Json& value, const Json& type) {
  return has_some_type(value, types_of(type));
}

std::optional<Json> said_plainly(const Json& schema) {
  if (schema.contains("not")) return negated(without(schema, "not"), schema["not"]);
  if (schema.contains("if") && (schema.contains("then") || schema.contains("else")))
    return conditional(schema);
  if (schema.contains("contains")) return containing(schema);
  if (schema.contains("uniqueItems") && schema["uniqueItems"] == true) return unique(schema);
  for (const char* word : {"dependentSchemas", "dependencies"})
    if (schema.contains(word)) return dependent(schema, word);
  return std::nullopt;
}

}  // namespace sluice::guide
