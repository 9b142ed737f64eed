#include "src/guide/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "src/base/error.h"
#include "src/guide/json_grammar.h"
#include "src/guide/number_ranges.h"
#include "src/guide/regex.h"
#include "src/guide/schema_rewrite.h"

namespace sluice::guide {

namespace {
using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 100;
constexpr int32_t kMostItems = 1'000'000;
constexpr size_t kMostRelaxed = 20;  // that are told
constexpr int kMostRewritten = 500;  // parts with "not", "if" and the like: they multiply

// Words of JSON Schema (drafts 4 to 2020-12) that assert something here; what is no word of it, or
// only describes, changes nothing.
const std::set<std::string> kUnderstood{"type",
                                        "enum",
                                        "const",
                                        "properties",
                                        "required",
                                        "items",
                                        "minItems",
                                        "additionalProperties",
                                        "maxItems",
                                        "minLength",
                                        "maxLength",
                                        "prefixItems",
                                        "pattern",
                                        "format",
                                        "minimum",
                                        "maximum",
                                        "anyOf",
                                        "oneOf",
                                        "allOf",
                                        "exclusiveMinimum",
                                        "$ref",
                                        "nullable",
                                        "multipleOf",
                                        "exclusiveMaximum",
                                        "propertyNames",
                                        "minProperties",
                                        "maxProperties",
                                        "patternProperties",
                                        "additionalItems",
                                        "dependentRequired",
                                        "unevaluatedItems",
                                        "unevaluatedProperties"};
const std::set<std::string> kNotUnderstood{
    "not",         "if",           "then",        "else",         "contains",
    "minContains", "maxContains",  "uniqueItems", "dependencies", "dependentSchemas",
    "$dynamicRef", "$recursiveRef"};

const std::map<std::string, const char*> kFormats{
    {"date", R"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01]))"},
    {"time", R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))"},
    {"date-time",
     R"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"ipv4", R"(((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"},
    {"email", R"([A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){1,4})"}};

// No text is what the schema says: nothing can be held in its place.
struct Unsatisfiable : Error {
  using Error::Error;
};

bool is_descriptive(const std::string& keyword) {
  return !kUnderstood.contains(keyword) && !kNotUnderstood.contains(keyword);
}

class Compiler {
 public:
  Compiler(const Json& root, Grammar& grammar, Relaxed* relaxed)
      : root_(root), grammar_(grammar), json_(grammar), relaxed_(relaxed) {}

  // Where a part can't be said at all any value of its type is allowed there, if that may be.
  ExprPtr compile(const Json& schema, const std::string& place, int depth) {
    if (!relaxed_) return compile_part(schema, place, depth);
    try {
      return compile_part(schema, place, depth);
    } catch (const GuideSizeError&) {
      throw;
    } catch (const Unsatisfiable&) {
      throw;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUser || depth > kMostDepth) throw;
      relax(place, error.text());
      return any_of_type(schema);
    }
  }

 private:
  ExprPtr any_of_type(const Json& schema) {
    const Json type = schema.is_object() ? schema.value("type", Json()) : Json();
    if (type == "object") return json_.any_object();
    if (type == "array") return json_.any_array();
    if (type == "string") return json_.string();
    if (type == "integer") return integers({}, {});
    if (type == "number") return numbers({}, {});
    return json_.any_value();
  }

  ExprPtr compile_part(const Json& schema, const std::string& place, int depth) {
    if (depth > kMostDepth) refuse(place, "it is nested too deep");
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) nothing(place);
      return json_.any_value();
    }
    if (!schema.is_object()) refuse(place, "it is no object");
    if (const auto plain = rewritten_ < kMostRewritten ? said_plainly(schema) : std::nullopt)
      if (auto whole = compile_plain(*plain, place, depth)) return std::move(*whole);
    for (const auto& [keyword, value] : schema.items())
      if (kNotUnderstood.contains(keyword) && !says_nothing(schema, keyword))
        give_up(place, keyword, fmt::format("guides don't know its keyword \"{}\"", keyword));
    if (schema.contains("nullable") && schema["nullable"] == true) {
      Json other = schema;
      other.erase("nullable");
      return either({compile(other, place, depth + 1), literal("null")});
    }
    if (schema.contains("allOf")) return compile(merged_all(schema, place), place, depth + 1);
    if (schema.contains("$ref")) return compile_ref(schema, place, depth);
    if (schema.contains("const") || schema.contains("enum")) return compile_values(schema, place);
    for (const char* keyword : {"anyOf", "oneOf"})
      if (schema.contains(keyword)) return compile_ways(schema, keyword, place, depth);
    return compile_types(schema, place, depth);
  }

  // What a schema with "not", "if" and the like comes to; nothing where that can't be held whole:
  // then those words are what is not held of it.
  std::optional<ExprPtr> compile_plain(const Json& plain, const std::string& place, int depth) {
    ++rewritten_;
    if (!relaxed_) return compile(plain, place, depth + 1);
    Relaxed* const told = std::exchange(relaxed_, nullptr);
    const auto refs = refs_;
    std::optional<ExprPtr> out;
    try {
      out = compile(plain, place, depth + 1);
    } catch (const GuideSizeError&) {
      relaxed_ = told;
      throw;
    } catch (const Unsatisfiable&) {
      relaxed_ = told;
      throw;
    } catch (const Error& error) {
      relaxed_ = told;
      if (error.kind() != ErrorKind::kUser) throw;
      refs_ = refs;
    }
    relaxed_ = told;
    return out;
  }

  // Words that hold whatever comes.
  static bool says_nothing(const Json& schema, const std::string& keyword) {
    const Json& value = schema[keyword];
    if (keyword == "uniqueItems") return value == false;
    if (keyword == "then" || keyword == "else") return !schema.contains("if");
    if (keyword == "if") return !schema.contains("then") && !schema.contains("else");
    if (keyword == "minContains" || keyword == "maxContains") return !schema.contains("contains");
    return (keyword == "dependencies" || keyword == "dependentSchemas") && value.empty();
  }

  void relax(const std::string& place, const std::string& what) {
    if (relaxed_->size() < kMostRelaxed) relaxed_->push_back(place + ": " + what);
  }
  // What `keyword` says is not held; refused, where that must not be.
  void give_up(const std::string& place, const std::string& keyword, const std::string& why) {
    if (!relaxed_) refuse(place, why);
    relax(place, keyword);
  }

  [[noreturn]] static void refuse(const std::string& place, const std::string& why) {
    throw Error(ErrorKind::kUser, fmt::format("the JSON schema at {}: {}", place, why),
                "docs/serving.md lists what guided output understands");
  }

  // Of the values that "const" and "enum" name, those that the type allows.
  ExprPtr compile_values(const Json& schema, const std::string& place) {
    const bool is_enum = schema.contains("enum");
    if (is_enum && (!schema["enum"].is_array() || schema["enum"].empty()))
      refuse(place, "enum is no list of values");
    const Json values =
        schema.contains("const") ? Json::array({schema["const"]}) : Json(schema["enum"]);
    std::vector<ExprPtr> ways;
    for (const Json& value : values) {
      const bool is_named = !is_enum || std::find(schema["enum"].begin(), schema["enum"].end(),
                                                  value) != schema["enum"].end();
      if (is_named && (!schema.contains("type") || is_of_type(value, schema["type"])))
        ways.push_back(literal(value.dump()));
    }
    if (ways.empty() && relaxed_ && schema.contains("type")) {
      relax(place, "type");  // numbers in quotes, say: the values are what is meant
      Json other = schema;
      other.erase("type");
      return compile_values(other, place);
    }
    if (ways.empty()) nothing(place);
    return either(std::move(ways));
  }

  const Json& resolve(const Json& ref, const std::string& place) const {
    if (!ref.is_string()) refuse(place, "$ref is no string");
    const std::string text = ref.get<std::string>();
    if (!text.starts_with('#'))
      refuse(place, fmt::format("$ref \"{}\" leaves the schema", text.substr(0, 100)));
    if (text.size() > 1 && text[1] != '/') {
      if (const Json* found = anchored(root_, text.substr(1), 0)) return *found;
      refuse(place, fmt::format("$ref \"{}\" leads nowhere", text.substr(0, 100)));
    }
    try {
      return root_.at(Json::json_pointer(unescaped(text.substr(1))));
    } catch (const Json::exception&) {
      refuse(place, fmt::format("$ref \"{}\" leads nowhere", text.substr(0, 100)));
    }
  }

  // "%25" is "%" in a URI.
  static std::string unescaped(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool is_escape = text[i] == '%' && i + 2 < text.size() &&
                             std::isxdigit(static_cast<unsigned char>(text[i + 1])) &&
                             std::isxdigit(static_cast<unsigned char>(text[i + 2]));
      out += is_escape ? static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16)) : text[i];
      if (is_escape) i += 2;
    }
    return out;
  }

  static const Json* anchored(const Json& in, const std::string& name, int depth) {
    if (depth > kMostDepth || !in.is_structured()) return nullptr;
    if (in.is_object() && in.contains("$anchor") && in["$anchor"] == name) return &in;
    for (const Json& inner : in)
      if (const Json* found = anchored(inner, name, depth + 1)) return found;
    return nullptr;
  }

  ExprPtr compile_ref(const Json& schema, const std::string& place, int depth) {
    const Json& target = resolve(schema["$ref"], place);
    const auto is_beside = [](const auto& item) {
      return item.key() != "$ref" && !is_descriptive(item.key());
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
    ExprPtr what;
    try {
      what = compile(target, name, depth + 1);
    } catch (const Error&) {
      grammar_.define(rule, json_.any_value());  // somebody may call it already
      throw;
    }
    grammar_.define(rule, std::move(what));
    return call(rule);
  }

  [[noreturn]] static void nothing(const std::string& place) {
    throw Unsatisfiable(
        ErrorKind::kUser,
        fmt::format("the JSON schema at {}: it is false: nothing is allowed there", place));
  }

  // Words that speak of what their own schema leaves over, or has beside them: in one schema with
  // another's they would say something else.
  static void check_apart(const Json& outer, const Json& inner, const std::string& place) {
    for (const char* keyword : {"unevaluatedProperties", "unevaluatedItems"})
      if (inner.contains(keyword) && inner[keyword] != true)
        refuse(place, fmt::format("allOf or anyOf hold {}", keyword));
    const auto has_rest = [](const Json& one) {
      return one.contains("items") || one.contains("additionalItems");
    };
    const auto has_first = [](const Json& one) {
      return one.contains("prefixItems") || (one.contains("items") && one["items"].is_array());
    };
    if ((has_rest(outer) && has_first(inner)) || (has_first(outer) && has_rest(inner)) ||
        (has_first(outer) && has_first(inner)))
      refuse(place, "allOf or anyOf combine items and prefixItems");
  }

  // A property that `to` alone names has to be what `from` says of properties without a name.
  static void close_to(const Json& from, Json& to, const std::string& place) {
    if (!from.contains("additionalProperties") || from["additionalProperties"] == true) return;
    if (from.contains("patternProperties") || to.contains("patternProperties"))
      refuse(place, "allOf or anyOf combine patternProperties and additionalProperties");
    if (!to.contains("properties") || !to["properties"].is_object()) return;
    for (auto& [name, property] : to["properties"].items()) {
      const bool is_named = from.contains("properties") && from["properties"].contains(name);
      if (is_named) continue;
      if (from["additionalProperties"] == false)
        property = false;
      else
        property = Json{{"allOf", Json::array({property, from["additionalProperties"]})}};
    }
  }

  // One schema that says what both say. What can't be said in one is refused.
  Json merge(Json a, const Json& part, const std::string& place) const {
    Json other = part;
    const Json& b = other;
    if (b.is_boolean() && b.get<bool>()) return a;
    if (b.is_boolean()) nothing(place);
    if (!a.is_object() || !b.is_object()) refuse(place, "only objects can be combined by allOf");
    check_apart(a, b, place);
    for (auto [from, to] : {std::pair(&a, &other), {&other, &a}}) close_to(*from, *to, place);
    for (const auto& [keyword, value] : b.items()) {
      if (is_descriptive(keyword)) continue;
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
      } else if (keyword == "enum" && value.is_array() && a[keyword].is_array()) {
        Json in_both = Json::array();
        for (const Json& one : a[keyword])
          if (std::find(value.begin(), value.end(), one) != value.end()) in_both.push_back(one);
        if (in_both.empty()) nothing(place);
        a[keyword] = std::move(in_both);
      } else if (keyword == "allOf") {
        for (const Json& one : value) a[keyword].push_back(one);
      } else if (keyword == "additionalProperties" && (value == false || a[keyword] == true)) {
        a[keyword] = value;
      } else if (keyword == "additionalProperties" && (value == true || a[keyword] == false)) {
        continue;
      } else if (keyword == "minimum" || keyword == "minLength" || keyword == "minItems" ||
                 keyword == "exclusiveMinimum" || keyword == "minProperties") {
        a[keyword] = std::max(a[keyword], value);
      } else if (keyword == "maximum" || keyword == "maxLength" || keyword == "maxItems" ||
                 keyword == "exclusiveMaximum" || keyword == "maxProperties") {
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
    const auto holds_always = std::count_if(list.begin(), list.end(), [](const Json& one) {
      return one == true || (one.is_object() && one.empty());
    });
    if (std::string_view(keyword) == "oneOf" && holds_always > 0 && list.size() > 1) {
      if (holds_always > 1) nothing(place);
      const bool is_alone = std::count(list.begin(), list.end(), Json(false)) + 1 ==
                            static_cast<int64_t>(list.size());
      if (!is_alone) refuse(place, "oneOf has a schema that everything is, and another");
    }
    Json base = schema;
    base.erase(keyword);
    const bool is_alone = std::all_of(base.items().begin(), base.items().end(),
                                      [](const auto& one) { return is_descriptive(one.key()); });
    std::vector<ExprPtr> ways;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string of_way = fmt::format("{}/{}/{}", place, keyword, i);
      Json both = is_alone ? list[i] : base;
      if (!is_alone) {
        if (!both.contains("allOf")) both["allOf"] = Json::array();
        both["allOf"].push_back(list[i]);
      }
      try {
        ways.push_back(compile(both, of_way, depth + 1));
      } catch (const Unsatisfiable&) {
        if (i + 1 == list.size() && ways.empty()) throw;
      }
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
        {"object",
         {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
          "minProperties", "maxProperties", "dependentRequired", "unevaluatedProperties"}},
        {"array",
         {"items", "prefixItems", "minItems", "maxItems", "additionalItems", "unevaluatedItems"}},
        {"string", {"minLength", "maxLength", "pattern", "format"}},
        {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
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
    const double value = schema[keyword].is_number() ? schema[keyword].get<double>() : -1;
    if (value < 0 || value > kMostItems || value != std::floor(value))
      refuse(place, fmt::format("{} must be a whole number from 0 to {}", keyword, kMostItems));
    return static_cast<int32_t>(value);
  }

  // Where what a pattern and lengths say together can't be found, the pattern holds alone.
  ExprPtr compile_pattern(const std::string& pattern, Anchoring anchoring, int32_t least,
                          int32_t most, const std::string& place) {
    const ExprPtr spelled = parse_regex(pattern, anchoring, Spelling::kJson);
    const ExprPtr within =
        within_lengths(spelled, parse_regex(pattern, anchoring, Spelling::kPlain), least, most);
    if (within) return quoted(within);
    give_up(place, "minLength, maxLength",
            "no text has both the lengths and the pattern, or guides don't find any");
    return quoted(spelled);
  }

  ExprPtr compile_string(const Json& schema, const std::string& place) {
    const int32_t least = count(schema, "minLength", 0, place);
    const int32_t most = count(schema, "maxLength", -1, place);
    if (most >= 0 && most < least) refuse(place, "maxLength is below minLength");
    const auto format = schema.contains("format") && schema["format"].is_string()
                            ? kFormats.find(schema["format"].get<std::string>())
                            : kFormats.end();
    if (schema.contains("pattern")) {
      if (!schema["pattern"].is_string()) refuse(place, "pattern is no string");
      if (format != kFormats.end())
        give_up(place, "format", "pattern can't be combined with format: put it into it");
      try {
        return compile_pattern(schema["pattern"].get<std::string>(), Anchoring::kSearch, least,
                               most, place);
      } catch (const GuideSizeError&) {
        throw;
      } catch (const Error& error) {
        give_up(place, "pattern", error.text());
        return json_.string(least, most);
      }
    }
    if (format == kFormats.end()) return json_.string(least, most);
    return compile_pattern(format->second, Anchoring::kWhole, least, most, place);
  }

  // The tighter of a bound and its exclusive form; of draft 4 that one is a flag.
  static std::optional<Decimal> bound(const Json& schema, const char* keyword,
                                      const char* exclusive, int direction,
                                      const std::string& place) {
    std::optional<Decimal> out;
    double value = 0;
    const auto take = [&](const char* name, bool is_excluded) {
      if (!schema[name].is_number()) refuse(place, fmt::format("{} must be a number", name));
      const auto one = schema[name].get<double>();
      auto parsed = Decimal::parse(schema[name].dump());
      // Beyond what guides write: no bound on that side.
      if (!parsed && one * direction < 0) return;
      if (!parsed) refuse(place, fmt::format("{} is beyond {}", name, kLargestInteger));
      parsed->is_excluded = is_excluded;
      if (out && (one - value) * direction < 0) return;
      if (out && one == value) parsed->is_excluded = true;
      out = std::move(parsed);
      value = one;
    };
    const bool has_flag = schema.contains(exclusive) && schema[exclusive].is_boolean();
    if (schema.contains(keyword)) take(keyword, has_flag && schema[exclusive] == true);
    if (schema.contains(exclusive) && !has_flag) take(exclusive, true);
    return out;
  }

  // The whole number nearest to a bound on its inside.
  static std::optional<int64_t> whole(const std::optional<Decimal>& bound, int64_t direction) {
    if (!bound) return std::nullopt;
    const int64_t value = bound->is_negative ? -bound->whole : bound->whole;
    if (bound->fraction.empty()) return bound->is_excluded ? value + direction : value;
    const bool is_outside = bound->is_negative == (direction < 0);
    return is_outside ? value + direction : value;
  }

  // "multipleOf": the whole number, or how many digits behind the point there may be.
  struct Multiple {
    int64_t of = 1;
    int32_t digits = 15;
  };
  std::optional<Multiple> multiple_of(const Json& schema, const std::string& place) {
    if (!schema.contains("multipleOf")) return std::nullopt;
    const Json& value = schema["multipleOf"];
    if (!value.is_number() || value.get<double>() <= 0)
      refuse(place, "multipleOf must be a number above 0");
    const auto parsed = Decimal::parse(value.dump());
    if (parsed && parsed->fraction.empty() && parsed->whole <= kMostMultiple)
      return Multiple{parsed->whole, 0};
    const bool is_power = parsed && parsed->whole == 0 && parsed->fraction.size() <= 15 &&
                          parsed->fraction.find_first_not_of('0') + 1 == parsed->fraction.size() &&
                          parsed->fraction.back() == '1';
    if (is_power) return Multiple{0, static_cast<int32_t>(parsed->fraction.size())};
    give_up(place, "multipleOf",
            "multipleOf is neither a whole number up to 1000 nor 0.1, 0.01, ...");
    return std::nullopt;
  }

  ExprPtr compile_number(const Json& schema, bool is_integer, const std::string& place) {
    const auto least = bound(schema, "minimum", "exclusiveMinimum", 1, place);
    const auto most = bound(schema, "maximum", "exclusiveMaximum", -1, place);
    const auto multiple = multiple_of(schema, place);
    if (!is_integer && !(multiple && multiple->of > 0))
      return numbers(least, most, multiple ? multiple->digits : 15);
    const auto from = whole(least, 1), to = whole(most, -1);
    if (!multiple || multiple->of <= 1) return integers(from, to);
    if (ExprPtr out = multiples(multiple->of, from, to, grammar_)) return out;
    give_up(place, "multipleOf", "multipleOf can't be combined with these bounds");
    return integers(from, to);
  }

  ExprPtr compile_array(const Json& schema, const std::string& place, int depth) {
    if (schema.contains("items") && schema["items"].is_array()) {  // up to draft 2019-09
      Json other = schema;
      other["prefixItems"] = schema["items"];
      other.erase("items");
      other.erase("additionalItems");
      if (schema.contains("additionalItems")) other["items"] = schema["additionalItems"];
      return compile_array(other, place, depth);
    }
    if (schema.contains("unevaluatedItems") && !schema.contains("items")) {
      Json other = schema;
      other["items"] = schema["unevaluatedItems"];
      other.erase("unevaluatedItems");
      return compile_array(other, place, depth);
    }
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
      tail = grammar_.repeat_many(after_comma(rest), std::max(least - from, 0), most_more);
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
    // Of what others need all comes always.
    if (schema.contains("dependentRequired") && schema["dependentRequired"].is_object())
      for (const auto& [name, needs] : schema["dependentRequired"].items())
        if (needs.is_array())
          for (const Json& need : needs)
            if (need.is_string()) required.insert(need.get<std::string>());
    const auto add = [&](const std::string& name, const Json& of) {
      names.push_back(name);
      ExprPtr value;
      try {
        value = compile(of, fmt::format("{}/properties/{}", place, name), depth + 1);
      } catch (const Unsatisfiable&) {
        if (required.contains(name)) throw;
        return;  // it must not come
      }
      properties.push_back(
          {sequence({literal(Json(name).dump()), literal(":"), json_.space(), value}),
           required.contains(name)});
    };
    const bool has_properties = schema.contains("properties");
    if (has_properties) {
      if (!schema["properties"].is_object()) refuse(place, "properties is no object");
      for (const auto& [name, of] : schema["properties"].items()) add(name, of);
    }
    for (const std::string& name : required)
      if (std::find(names.begin(), names.end(), name) == names.end())
        add(name, schema.value("additionalProperties",
                               schema.value("unevaluatedProperties", Json(true))));
    const ExprPtr extra = other_member(schema, names, has_properties, place, depth);
    const auto [least, most] =
        member_counts(schema, required.size(), names.size(), extra != nullptr, place);
    return sequence(
        {literal("{"), json_.space(), members(properties, extra, least, most), literal("}")});
  }

  // A member that no property names; null: none may come.
  ExprPtr other_member(const Json& schema, const std::vector<std::string>& names,
                       bool has_properties, const std::string& place, int depth) {
    const bool has_patterns = schema.contains("patternProperties") &&
                              schema["patternProperties"].is_object() &&
                              !schema["patternProperties"].empty();
    const char* rest =
        schema.contains("additionalProperties") ? "additionalProperties" : "unevaluatedProperties";
    const bool says = schema.contains(rest);
    ExprPtr key;
    if (schema.contains("propertyNames") && schema["propertyNames"].is_object() && names.empty()) {
      Json of = schema["propertyNames"];
      of["type"] = "string";
      key = compile(of, place + "/propertyNames", depth + 1);
    } else if (schema.contains("propertyNames") && schema["propertyNames"] == false) {
      return nullptr;
    } else if (schema.contains("propertyNames") && schema["propertyNames"] != true) {
      give_up(place, "propertyNames", "propertyNames can't be combined with properties");
    }
    if (has_patterns) {
      const Json& patterns = schema["patternProperties"];
      if (patterns.size() == 1 && names.empty() && !key) {
        const auto pattern = patterns.items().begin();
        const std::string of = fmt::format("{}/patternProperties/{}", place, pattern.key());
        return sequence({quoted(parse_regex(pattern.key(), Anchoring::kSearch, Spelling::kJson)),
                         literal(":"), json_.space(), compile(pattern.value(), of, depth + 1)});
      }
      // No member that a pattern speaks of comes.
      if (!names.empty()) {
        give_up(place, "patternProperties", "patternProperties can't be combined with properties");
        return nullptr;
      }
      refuse(place, "guides know one of patternProperties alone");
    }
    if (says ? schema[rest] == false : has_properties || !names.empty()) return nullptr;
    const auto value =
        compile(schema.value(rest, Json(true)), fmt::format("{}/{}", place, rest), depth + 1);
    if (!key) key = names.empty() ? json_.string() : key_other_than(names);
    return sequence({key, literal(":"), json_.space(), value});
  }

  // How many members no property names may come (-1: any number).
  std::pair<int32_t, int32_t> member_counts(const Json& schema, size_t required, size_t named,
                                            bool has_extra, const std::string& place) {
    const int32_t least = count(schema, "minProperties", 0, place);
    const int32_t most = count(schema, "maxProperties", -1, place);
    if (most >= 0 && most < least) refuse(place, "maxProperties is below minProperties");
    if (named == 0) return {least, has_extra ? most : 0};
    if (least > static_cast<int32_t>(required))
      give_up(place, "minProperties", "minProperties asks for more than is required");
    const bool is_held = most < 0 || (!has_extra && most >= static_cast<int32_t>(named));
    if (is_held) return {0, -1};
    if (most < static_cast<int32_t>(named))
      give_up(place, "maxProperties", "maxProperties is below the number of properties");
    return {0, std::max(most - static_cast<int32_t>(named), 0)};
  }

  // The members in order, optional ones left out at will. A rule for what follows member i, when
  // there has been one before it and when there has not.
  // `least` to `most` (-1: any number) others come behind them.
  template <typename Properties>
  ExprPtr members(const Properties& properties, const ExprPtr& extra, int32_t least, int32_t most) {
    const auto comma = sequence({literal(","), json_.space()});
    ExprPtr after_one = json_.space(), after_none = sequence({});
    if (extra && most != 0) {
      const auto one = sequence({comma, extra});
      after_one = sequence({grammar_.repeat_many(one, least, most), json_.space()});
      const auto more = grammar_.repeat_many(one, std::max(least - 1, 0), most < 0 ? -1 : most - 1);
      after_none = sequence({extra, more, json_.space()});
      if (least == 0) after_none = optional(after_none);
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
  Relaxed* relaxed_;  // null: what is not understood is refused
  std::map<std::string, int32_t> refs_;
  int rewritten_ = 0;
};
}  // namespace

ExprPtr schema_grammar(std::string_view schema_json, Grammar& grammar, Relaxed* relaxed) {
  const Json schema = Json::parse(schema_json, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded())
    throw Error(ErrorKind::kUser, "the JSON schema is not valid JSON",
                "check its quotes and commas");
  return Compiler(schema, grammar, relaxed).compile(schema, "#", 0);
}

}  // namespace sluice::guide
