#include "src/guide/call_guide.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/guide/characters.h"
#include "src/guide/json_grammar.h"
#include "src/guide/json_schema.h"

namespace sluice::guide {

namespace {
using nlohmann::ordered_json;

// What a schema of a tool allows; `whose` is how messages call it. Of a strict tool all is held, of
// any other what guides know, and what they don't is told in `relaxed`.
ExprPtr tools_schema(const ordered_json& schema, bool is_strict, const std::string& whose,
                     const std::function<ExprPtr(JsonGrammar&)>& fallback, Grammar& grammar,
                     Relaxed& relaxed) {
  Grammar with_schema = grammar;
  Relaxed found;
  try {
    ExprPtr out = schema_grammar(schema.dump(), with_schema, is_strict ? nullptr : &found);
    grammar = std::move(with_schema);
    for (const std::string& one : found) relaxed.push_back(whose + one);
    return out;
  } catch (const GuideSizeError&) {
    throw;
  } catch (const Error& error) {
    if (is_strict) throw Error(ErrorKind::kUser, whose + error.text());
    relaxed.push_back(whose + error.text());
    JsonGrammar json(grammar);
    return fallback(json);
  }
}

std::string whose(const ordered_json& call) {
  return fmt::format("parameters of a {}tool ({}...): ",
                     call["strict"].get<bool>() ? "strict " : "", call["head"].get<std::string>());
}

ExprPtr arguments_of(const ordered_json& call, Grammar& grammar, Relaxed& relaxed) {
  const ordered_json& schema = call["schema"];
  if (schema.is_null() || schema.empty()) return JsonGrammar(grammar).any_object();
  return tools_schema(
      schema, call["strict"].get<bool>(), whose(call),
      [](JsonGrammar& json) { return json.any_object(); }, grammar, relaxed);
}

// Arguments that are no JSON, between marks of their own.
class TaggedArguments {
 public:
  TaggedArguments(const ordered_json& marks, Grammar& grammar, Relaxed& relaxed)
      : marks_(marks), grammar_(grammar), relaxed_(relaxed) {}

  /// The parameters in the schema's order; those that it does not name don't come.
  ExprPtr of(const ordered_json& call) {
    const ordered_json& schema = call["schema"];
    const bool has_names =
        schema.is_object() && schema.contains("properties") && schema["properties"].is_object();
    if (!has_names) return repeat(any_argument(), 0);
    std::vector<std::string> required;
    if (schema.contains("required") && schema["required"].is_array())
      for (const ordered_json& name : schema["required"])
        if (name.is_string()) required.push_back(name.get<std::string>());
    std::vector<ExprPtr> parts;
    for (const auto& [name, property] : schema["properties"].items()) {
      const ExprPtr argument =
          sequence({literal(text("key_begin") + name + text("key_end") + text("after_key") +
                            text("value_begin") + text("around")),
                    value_of(call, name, property), literal(text("after"))});
      const bool must_come = std::find(required.begin(), required.end(), name) != required.end();
      parts.push_back(must_come ? argument : optional(argument));
    }
    return sequence(std::move(parts));
  }

 private:
  std::string text(const char* name) const { return marks_[name].get<std::string>(); }
  std::string end() const { return text("around") + text("value_end"); }

  ExprPtr any_argument() {
    const ExprPtr name = repeat(utf8_of({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}), 1, 64);
    return sequence(
        {literal(text("key_begin")), name,
         literal(text("key_end") + text("after_key") + text("value_begin") + text("around")),
         any_text(), literal(text("after"))});
  }

  // With what ends it.
  ExprPtr value_of(const ordered_json& call, const std::string& name,
                   const ordered_json& property) {
    if (is_written_as_text(property)) {
      if (call["strict"].get<bool>())
        for (const char* word : {"pattern", "minLength", "maxLength"})
          if (property.contains(word))
            throw Error(ErrorKind::kUser,
                        fmt::format("parameter \"{}\" of a strict tool ({}...): {} does not hold a "
                                    "text that is written without quotes, as this model's are",
                                    name, call["head"].get<std::string>(), word));
      if (!property.contains("enum") || !property["enum"].is_array()) return any_text();
      std::vector<ExprPtr> ways;
      for (const ordered_json& one : property["enum"])
        if (one.is_string()) ways.push_back(literal(one.get<std::string>() + end()));
      return ways.empty() ? any_text() : either(std::move(ways));
    }
    ordered_json schema = property;
    for (const char* shared : {"$defs", "definitions"})
      if (schema.is_object() && call["schema"].contains(shared))
        schema[shared] = call["schema"][shared];
    ExprPtr value = schema_value(call, name, schema);
    return sequence({std::move(value), literal(end())});
  }

  ExprPtr schema_value(const ordered_json& call, const std::string& name,
                       const ordered_json& schema) {
    const std::string of =
        fmt::format("parameter \"{}\" of a {}tool ({}...): ", name,
                    call["strict"].get<bool>() ? "strict " : "", call["head"].get<std::string>());
    return tools_schema(
        schema, call["strict"].get<bool>(), of, [](JsonGrammar& json) { return json.any_value(); },
        grammar_, relaxed_);
  }

  static bool is_written_as_text(const ordered_json& property) {
    if (!property.is_object()) return false;
    const auto is_text = [](const ordered_json& type) { return type == "string"; };
    if (property.contains("type")) {
      const ordered_json& type = property["type"];
      return type.is_array() ? std::any_of(type.begin(), type.end(), is_text) : is_text(type);
    }
    return property.contains("enum") && property["enum"].is_array() && !property["enum"].empty() &&
           std::all_of(property["enum"].begin(), property["enum"].end(),
                       [](const ordered_json& value) { return value.is_string(); });
  }

  // Any text up to the first `end()`, and that: a rule for each beginning of the end that the text
  // may have at its own end (as Knuth, Morris and Pratt find a word), each going on with the next.
  ExprPtr any_text() {
    if (text_rule_ >= 0) return guide::call(text_rule_);
    const std::string mark = end();
    std::vector<int32_t> rules;
    for (size_t i = 0; i < mark.size(); ++i) rules.push_back(grammar_.add_rule());
    const auto after = [&](size_t matched, char c) {
      std::string seen = mark.substr(0, matched) + c;
      while (!mark.starts_with(seen)) seen.erase(0, 1);
      return seen.size();
    };
    CharacterSet in_mark;
    for (const char c : mark) in_mark.add(static_cast<uint8_t>(c), static_cast<uint8_t>(c));
    for (size_t matched = 0; matched < mark.size(); ++matched) {
      std::vector<ExprPtr> ways{
          sequence({utf8_of(in_mark.inverted()), guide::call(rules.front())})};
      for (const auto& [first, last] : in_mark.ranges())
        for (uint32_t c = first; c <= last; ++c) {
          const size_t next = after(matched, static_cast<char>(c));
          const ExprPtr read = utf8_of({{c, c}});
          ways.push_back(next == mark.size() ? read : sequence({read, guide::call(rules[next])}));
        }
      grammar_.define(rules[matched], either(std::move(ways)));
    }
    text_rule_ = rules.front();
    return guide::call(text_rule_);
  }

  const ordered_json& marks_;
  Grammar& grammar_;
  Relaxed& relaxed_;
  int32_t text_rule_ = -1;
};

// Models differ in the white space before a list.
ExprPtr with_optional_space(std::string_view text) {
  const size_t first = std::min(text.find_first_not_of(" \n"), text.size());
  if (first == 0) return literal(text);
  return sequence({optional(literal(text.substr(0, first))), literal(text.substr(first))});
}

// ":" and which call of the conversation it is.
ExprPtr call_number() {
  constexpr int kMostDigits = 4;
  const ExprPtr digit = utf8_of({{'0', '9'}});
  const ExprPtr other = sequence({utf8_of({{'1', '9'}}), repeat(digit, 0, kMostDigits - 1)});
  return sequence({literal(":"), either({literal("0"), other})});
}
}  // namespace

CallGuide call_guide(std::string_view spec) {
  const ExprBudget budget(spec);
  const ordered_json format = ordered_json::parse(spec);
  const auto text = [&](const char* name) { return format[name].get<std::string>(); };
  const bool is_forced = format["forced"].get<bool>(), many = format["many"].get<bool>();
  CallGuide out;
  out.marks = {text("trigger"), text("open"), text("between"), text("close"), text("next")};
  Grammar grammar;
  std::vector<ExprPtr> ways;
  const ordered_json& tags = format["tagged"];
  TaggedArguments tagged(tags, grammar, out.relaxed);
  if (tags.is_object())
    for (const auto& [name, mark] : tags.items()) out.marks.push_back(mark.get<std::string>());
  for (const ordered_json& call : format["calls"]) {
    const auto head = call["head"].get<std::string>(), tail = call["tail"].get<std::string>();
    ExprPtr arguments =
        tags.is_object() ? tagged.of(call) : arguments_of(call, grammar, out.relaxed);
    std::vector<ExprPtr> parts{literal(head)};
    out.marks.push_back(head);
    if (const auto behind = call.find("behind_number"); behind != call.end()) {
      parts.push_back(call_number());
      parts.push_back(literal(behind->get<std::string>()));
      out.marks.push_back(behind->get<std::string>());
    }
    parts.push_back(std::move(arguments));
    parts.push_back(literal(tail));
    ways.push_back(sequence(std::move(parts)));
    out.marks.push_back(tail);
  }
  const ExprPtr call = either(std::move(ways));
  const std::string between = text("between");
  const bool is_list = !between.empty() || format["list"].get<bool>();
  const ExprPtr calls =
      many && is_list ? sequence({call, repeat(sequence({literal(between), call}), 0)}) : call;
  const ExprPtr tag = sequence({with_optional_space(text("open")), calls, literal(text("close"))});
  const std::string next = text("next") + text("trigger");
  const ExprPtr several =
      many && !next.empty() ? sequence({tag, repeat(sequence({literal(next), tag}), 0)}) : tag;
  if (!is_forced && format.contains("otherwise")) {
    const ordered_json& other = format["otherwise"];
    const ExprPtr answer = tools_schema(
        other["schema"], other["strict"].get<bool>(),
        "the answer's format: ", [](JsonGrammar& json) { return json.any_object(); }, grammar,
        out.relaxed);
    out.network = grammar.build(either({sequence({literal(text("trigger")), several}), answer}));
    return out;
  }
  if (!is_forced) {
    out.trigger = text("trigger");
    if (out.trigger.empty())
      for (const ordered_json& one : format["calls"])
        out.beginnings.push_back(text("open") + one["head"].get<std::string>());
    out.repeats = many;
    out.network = grammar.build(tag);
    return out;
  }
  out.network = grammar.build(several);
  return out;
}

}  // namespace sluice::guide
