#include "src/guide/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "src/base/error.h"
#include "src/guide/json_grammar.h"
#include "src/guide/number_ranges.h"
#include "src/guide/regex.h"

namespace sluice::guide {

namespace {
using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 100;
constexpr int32_t kMostItems = 10'000;

const std::set<std::string> kDescriptive{
    "title",    "description", "default", "example",         "examples",        "$schema",
    "$id",      "$comment",    "$defs",   "$anchor",         "definitions",     "deprecated",
    "readOnly", "writeOnly",   "strict",  "contentEncoding", "contentMediaType"};
const std::set<std::string> kUnderstood{
    "type",    "enum",     "const",    "properties", "required",         "additionalProperties",
    "items",   "minItems", "maxItems", "minLength",  "maxLength",        "prefixItems",
    "pattern", "format",   "minimum",  "maximum",    "exclusiveMinimum", "exclusiveMaximum",
    "anyOf",   "oneOf",    "allOf",    "$ref",       "nullable"};

const std::map<std::string, const char*> kFormats{
    {"date", R"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01]))"},
    {"time", R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))"},
    {"date-time",
     R"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"ipv4", R"(((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"},
    {"email", R"([A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){1,4})"}};

class Compiler {
 public:
  Compiler(const Json& root, Grammar& grammar) : root_(root), grammar_(grammar), json_(grammar) {}

  ExprPtr compile(const Json& schema, const std::string& place, int depth) {
    if (depth > kMostDepth) refuse(place, "it is nested too deep");
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) refuse(place, "it is false: nothing is allowed there");
      return json_.any_value();
    }
    if (!schema.is_object()) refuse(place, "it is no object");
    for (const auto& [keyword, value] : schema.items())
      if (!kDescriptive.contains(keyword) && !kUnderstood.contains(keyword) &&
          !keyword.starts_with("x-"))
        refuse(place, fmt::format("guides don't know its keyword \"{}\"", keyword.substr(0, 100)));
    if (schema.contains("nullable") && schema["nullable"] == true) {
      Json other = schema;
      other.erase("nullable");
      return either({compile(other, place, depth + 1), literal("null")});
    }
    if (schema.contains("allOf")) return compile(merged_all(schema, place), place, depth + 1);
    if (schema.contains("$ref")) return compile_ref(schema, place, depth);
    if (schema.contains("const")) return literal(schema["const"].dump());
    if (schema.contains("enum")) return compile_enum(schema["enum"], place);
    for (const char* keyword : {"anyOf", "oneOf"})
      if (schema.contains(keyword)) return compile_ways(schema, keyword, place, depth);
    return compile_types(schema, place, depth);
  }

 private:
  [[noreturn]] static void refuse(const std::string& place, const std::string& why) {
    throw Error(ErrorKind::kUser, fmt::format("the JSON schema at {}: {}", place, why),
                "docs/serving.md lists what guided output understands");
  }

  ExprPtr compile_enum(const Json& values, const std::string& place) const {
    if (!values.is_array() || values.empty()) refuse(place, "enum is no list of values");
    std::vector<ExprPtr> ways;
    for (const Json& value : values) ways.push_back(literal(value.dump()));
    return either(std::move(ways));
  }

  const Json& resolve(const Json& ref, const std::string& place) const {
    if (!ref.is_string()) refuse(place, "$ref is no string");
    const std::string text = ref.get<std::string>();
    if (!text.starts_with('#'))
      refuse(place, fmt::format("$ref \"{}\" leaves the schema", text.substr(0, 100)));
    try {
      return root_.at(Json::json_pointer(text.substr(1)));
    } catch (const Json::exception&) {
      refuse(place, fmt::format("$ref \"{}\" leads nowhere", text.substr(0, 100)));
    }
  }

  ExprPtr compile_ref(const Json& schema, const std::string& place, int depth) {
    const Json& target = resolve(schema["$ref"], place);
    const auto is_beside = [](const auto& item) {
      return item.key() != "$ref" && !kDescriptive.contains(item.key());
    };
    for (const auto& item : schema.items())
      if (is_beside(item)) {
        Json all{{"allOf", Json::array({target})}};
        for (const auto& other : schema.items())
          if (is_beside(other)) all[other.key()] = other.value();
        return compile(all, place, depth + 1);
      }
    const std::string name = schema["$ref"].get<std::string>();
    if (const auto known = refs_.find(name); known != refs_.end()) return call(known->second);
    const int32_t rule = grammar_.add_rule();
    refs_[name] = rule;
    grammar_.define(rule, compile(target, name, depth + 1));
    return call(rule);
  }

  // One schema that says what both say. What can't be said in one is refused.
  Json merge(Json a, const Json& b, const std::string& place) const {
    if (b.is_boolean() && b.get<bool>()) return a;
    if (!a.is_object() || !b.is_object()) refuse(place, "only objects can be combined by allOf");
    for (const auto& [keyword, value] : b.items()) {
      if (kDescriptive.contains(keyword)) continue;
      if (!a.contains(keyword) || a[keyword] == value) {
        a[keyword] = value;
      } else if (keyword == "required") {
        for (const Json& name : value)
          if (std::find(a[keyword].begin(), a[keyword].end(), name) == a[keyword].end())
            a[keyword].push_back(name);
      } else if (keyword == "properties") {
        for (const auto& [name, property] : value.items())
          a[keyword][name] = a[keyword].contains(name)
                                 ? Json{{"allOf", Json::array({a[keyword][name], property})}}
                                 : property;
      } else if (keyword == "allOf") {
        for (const Json& one : value) a[keyword].push_back(one);
      } else if (keyword == "minimum" || keyword == "minLength" || keyword == "minItems") {
        a[keyword] = std::max(a[keyword], value);
      } else if (keyword == "maximum" || keyword == "maxLength" || keyword == "maxItems") {
        a[keyword] = std::min(a[keyword], value);
      } else {
        refuse(place, fmt::format("allOf or anyOf combine different \"{}\"", keyword));
      }
    }
    return a;
  }

  Json merged_all(const Json& schema, const std::string& place) const {
    Json out = schema;
    out.erase("allOf");
    if (!schema["allOf"].is_array()) refuse(place, "allOf is no list");
    int merged = 0;
    std::vector<Json> parts(schema["allOf"].begin(), schema["allOf"].end());
    while (!parts.empty()) {
      if (++merged > kMostDepth) refuse(place, "allOf combines too many schemas, or itself");
      Json part = std::move(parts.front());
      parts.erase(parts.begin());
      if (part.is_object() && part.contains("$ref")) {
        parts.insert(parts.begin(), resolve(part["$ref"], place));
        part.erase("$ref");
      }
      if (part.is_object() && part.contains("allOf")) {
        for (const Json& inner : part["allOf"]) parts.push_back(inner);
        part.erase("allOf");
      }
      out = merge(std::move(out), part, place);
    }
    return out;
  }

  ExprPtr compile_ways(const Json& schema, const char* keyword, const std::string& place,
                       int depth) {
    const Json& list = schema[keyword];
    if (!list.is_array() || list.empty())
      refuse(place, fmt::format("{} is no list of schemas", keyword));
    Json base = schema;
    base.erase(keyword);
    const bool is_alone =
        std::all_of(base.items().begin(), base.items().end(),
                    [](const auto& one) { return kDescriptive.contains(one.key()); });
    std::vector<ExprPtr> ways;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string of_way = fmt::format("{}/{}/{}", place, keyword, i);
      if (is_alone) {
        ways.push_back(compile(list[i], of_way, depth + 1));
        continue;
      }
      Json both = base;
      if (!both.contains("allOf")) both["allOf"] = Json::array();
      both["allOf"].push_back(list[i]);
      ways.push_back(compile(both, of_way, depth + 1));
    }
    return either(std::move(ways));
  }

  static std::vector<std::string> types_of(const Json& schema, const std::string& place) {
    if (schema.contains("type")) {
      const Json& type = schema["type"];
      if (type.is_string()) return {type.get<std::string>()};
      if (!type.is_array() || type.empty() ||
          !std::all_of(type.begin(), type.end(), [](const Json& one) { return one.is_string(); }))
        refuse(place, "type is no name and no list of names");
      return type.get<std::vector<std::string>>();
    }
    const std::pair<const char*, std::vector<const char*>> signs[] = {
        {"object", {"properties", "required", "additionalProperties"}},
        {"array", {"items", "prefixItems", "minItems", "maxItems"}},
        {"string", {"minLength", "maxLength", "pattern", "format"}},
        {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}}};
    for (const auto& [type, keywords] : signs)
      for (const char* keyword : keywords)
        if (schema.contains(keyword)) return {type};
    return {};
  }

  ExprPtr compile_types(const Json& schema, const std::string& place, int depth) {
    const auto types = types_of(schema, place);
    if (types.empty()) return json_.any_value();
    std::vector<ExprPtr> ways;
    for (const std::string& type : types) {
      if (type == "object")
        ways.push_back(compile_object(schema, place, depth));
      else if (type == "array")
        ways.push_back(compile_array(schema, place, depth));
      else if (type == "string")
        ways.push_back(compile_string(schema, place));
      else if (type == "integer" || type == "number")
        ways.push_back(compile_number(schema, type == "integer", place));
      else if (type == "boolean")
        ways.push_back(either({literal("true"), literal("false")}));
      else if (type == "null")
        ways.push_back(literal("null"));
      else
        refuse(place, fmt::format("the type \"{}\" does not exist", type.substr(0, 100)));
    }
    return either(std::move(ways));
  }

  static int32_t count(const Json& schema, const char* keyword, int32_t fallback,
                       const std::string& place) {
    if (!schema.contains(keyword)) return fallback;
    const Json& value = schema[keyword];
    if (!value.is_number_integer() || value < 0 || value > kMostItems)
      refuse(place, fmt::format("{} must be a whole number from 0 to {}", keyword, kMostItems));
    return value.get<int32_t>();
  }

  ExprPtr compile_string(const Json& schema, const std::string& place) const {
    const int32_t least = count(schema, "minLength", 0, place);
    const int32_t most = count(schema, "maxLength", -1, place);
    if (most >= 0 && most < least) refuse(place, "maxLength is below minLength");
    const bool has_lengths = schema.contains("minLength") || schema.contains("maxLength");
    const auto format = schema.contains("format") && schema["format"].is_string()
                            ? kFormats.find(schema["format"].get<std::string>())
                            : kFormats.end();
    if (schema.contains("pattern")) {
      if (!schema["pattern"].is_string()) refuse(place, "pattern is no string");
      if (has_lengths || format != kFormats.end())
        refuse(place, "pattern can't be combined with lengths or format: put them into it");
      return quoted(
          parse_regex(schema["pattern"].get<std::string>(), Anchoring::kSearch, Spelling::kJson));
    }
    if (format == kFormats.end()) return json_.string(least, most);
    if (has_lengths) refuse(place, "format can't be combined with lengths");
    return quoted(parse_regex(format->second));
  }

  static std::optional<int64_t> bound(const Json& schema, const char* keyword, int64_t direction,
                                      bool is_integer, const std::string& place) {
    std::optional<int64_t> out;
    const std::string exclusive = direction > 0 ? "exclusiveMinimum" : "exclusiveMaximum";
    for (const std::string& name : {std::string(keyword), exclusive}) {
      if (!schema.contains(name)) continue;
      if (!schema[name].is_number()) refuse(place, name + " must be a number");
      const double value = schema[name].get<double>();
      if (std::abs(value) > static_cast<double>(kLargestInteger))
        refuse(place, fmt::format("{} must be within {}", name, kLargestInteger));
      const bool is_whole = value == std::floor(value);
      if (!is_integer && (!is_whole || name == exclusive))
        refuse(place, fmt::format("{} of a number that need not be whole must be a whole number, "
                                  "and inclusive",
                                  name));
      auto whole = static_cast<int64_t>(direction > 0 ? std::ceil(value) : std::floor(value));
      if (name == exclusive && is_whole) whole += direction;
      const bool is_tighter = !out || (direction > 0 ? whole > *out : whole < *out);
      if (is_tighter) out = whole;
    }
    return out;
  }

  static ExprPtr compile_number(const Json& schema, bool is_integer, const std::string& place) {
    const auto least = bound(schema, "minimum", 1, is_integer, place);
    const auto most = bound(schema, "maximum", -1, is_integer, place);
    return is_integer ? integers(least, most) : numbers(least, most);
  }

  ExprPtr compile_array(const Json& schema, const std::string& place, int depth) {
    const int32_t least = count(schema, "minItems", 0, place);
    const int32_t most = count(schema, "maxItems", -1, place);
    if (most >= 0 && most < least) refuse(place, "maxItems is below minItems");
    std::vector<ExprPtr> first;
    if (schema.contains("prefixItems")) {
      if (!schema["prefixItems"].is_array()) refuse(place, "prefixItems is no list");
      for (const Json& item : schema["prefixItems"])
        first.push_back(
            compile(item, fmt::format("{}/prefixItems/{}", place, first.size()), depth + 1));
    }
    const bool has_rest = !(schema.contains("items") && schema["items"] == false);
    ExprPtr rest = !has_rest ? nullptr
                   : !schema.contains("items")
                       ? json_.any_value()
                       : compile(schema["items"], place + "/items", depth + 1);
    if (!has_rest && least > static_cast<int32_t>(first.size()))
      refuse(place, "minItems asks for more items than it allows");
    const auto fixed = static_cast<int32_t>(first.size());
    const auto after_comma = [&](const ExprPtr& item) {
      return sequence({literal(","), json_.space(), item});
    };
    // From the last item on: what may follow when `index` items are there.
    ExprPtr tail = sequence({});
    if (rest) {
      const int32_t from = std::max<int32_t>(fixed, 1);
      const int32_t most_more = most < 0 ? -1 : std::max(most - from, 0);
      tail = repeat(after_comma(rest), std::max(least - from, 0), most_more);
    }
    for (int32_t index = fixed - 1; index >= 1; --index) {
      if (most >= 0 && index >= most) continue;
      tail = sequence({after_comma(first[static_cast<size_t>(index)]), tail});
      if (index >= least) tail = optional(tail);
    }
    ExprPtr content = sequence({});
    if (most != 0 && (fixed > 0 || rest)) {
      content = sequence({fixed > 0 ? first.front() : rest, tail, json_.space()});
      if (least == 0) content = optional(content);
    }
    return sequence({literal("["), json_.space(), content, literal("]")});
  }

  ExprPtr compile_object(const Json& schema, const std::string& place, int depth) {
    struct Property {
      ExprPtr member;
      bool is_required;
    };
    std::vector<Property> properties;
    std::vector<std::string> names;
    std::set<std::string> required;
    if (schema.contains("required")) {
      if (!schema["required"].is_array()) refuse(place, "required is no list of names");
      for (const Json& name : schema["required"]) {
        if (!name.is_string()) refuse(place, "required is no list of names");
        required.insert(name.get<std::string>());
      }
    }
    const auto add = [&](const std::string& name, const Json& of) {
      const auto value = compile(of, fmt::format("{}/properties/{}", place, name), depth + 1);
      properties.push_back(
          {sequence({literal(Json(name).dump()), literal(":"), json_.space(), value}),
           required.contains(name)});
      names.push_back(name);
    };
    const bool has_properties = schema.contains("properties");
    if (has_properties) {
      if (!schema["properties"].is_object()) refuse(place, "properties is no object");
      for (const auto& [name, of] : schema["properties"].items()) add(name, of);
    }
    for (const std::string& name : required)
      if (std::find(names.begin(), names.end(), name) == names.end()) add(name, true);
    ExprPtr extra;
    const bool has_extra = schema.contains("additionalProperties")
                               ? schema["additionalProperties"] != false
                               : names.empty() && !has_properties;
    if (has_extra) {
      const Json of = schema.value("additionalProperties", Json(true));
      const auto value = compile(of, place + "/additionalProperties", depth + 1);
      extra = sequence({names.empty() ? json_.string() : key_other_than(names), literal(":"),
                        json_.space(), value});
    }
    return sequence({literal("{"), json_.space(), members(properties, extra), literal("}")});
  }

  // The members in order, optional ones left out at will. A rule for what follows member i, when
  // there has been one before it and when there has not.
  template <typename Properties>
  ExprPtr members(const Properties& properties, const ExprPtr& extra) {
    const auto comma = sequence({literal(","), json_.space()});
    ExprPtr after_one = json_.space(), after_none = sequence({});
    if (extra) {
      const auto more = repeat(sequence({comma, extra}), 0);
      after_one = sequence({more, json_.space()});
      after_none = optional(sequence({extra, more, json_.space()}));
    }
    for (auto property = properties.rbegin(); property != properties.rend(); ++property) {
      const int32_t rule = grammar_.add_rule();
      grammar_.define(rule, after_one);
      const ExprPtr rest = call(rule);
      ExprPtr one = sequence({comma, property->member, rest});
      ExprPtr none = sequence({property->member, rest});
      if (!property->is_required) {
        one = either({one, rest});
        none = either({none, after_none});
      }
      after_one = one;
      after_none = none;
    }
    return after_none;
  }

  const Json& root_;
  Grammar& grammar_;
  JsonGrammar json_;
  std::map<std::string, int32_t> refs_;
};
}  // namespace

ExprPtr schema_grammar(std::string_view schema_json, Grammar& grammar) {
  const Json schema = Json::parse(schema_json, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded())
    throw Error(ErrorKind::kUser, "the JSON schema is not valid JSON",
                "check its quotes and commas");
  return Compiler(schema, grammar).compile(schema, "#", 0);
}

}  // namespace sluice::guide
