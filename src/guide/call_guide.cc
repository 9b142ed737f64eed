#include "src/guide/call_guide.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/guide/json_grammar.h"
#include "src/guide/json_schema.h"

namespace sluice::guide {

namespace {
using nlohmann::ordered_json;

ExprPtr arguments_of(const ordered_json& call, Grammar& grammar) {
  const ordered_json& schema = call["schema"];
  if (schema.is_null() || schema.empty()) return JsonGrammar(grammar).any_object();
  Grammar with_schema = grammar;
  try {
    ExprPtr out = schema_grammar(schema.dump(), with_schema);
    grammar = std::move(with_schema);
    return out;
  } catch (const Error& error) {
    if (call["strict"].get<bool>())
      throw Error(ErrorKind::kUser, fmt::format("parameters of a strict tool ({}...): {}",
                                                call["head"].get<std::string>(), error.text()));
    return JsonGrammar(grammar).any_object();
  }
}

// Models differ in the white space before a list.
ExprPtr with_optional_space(std::string_view text) {
  const size_t first = std::min(text.find_first_not_of(" \n"), text.size());
  if (first == 0) return literal(text);
  return sequence({optional(literal(text.substr(0, first))), literal(text.substr(first))});
}
}  // namespace

CallGuide call_guide(std::string_view spec) {
  const ordered_json format = ordered_json::parse(spec);
  const auto text = [&](const char* name) { return format[name].get<std::string>(); };
  const bool is_forced = format["forced"].get<bool>(), many = format["many"].get<bool>();
  CallGuide out;
  out.marks = {text("trigger"), text("open"), text("between"), text("close"), text("next")};
  Grammar grammar;
  std::vector<ExprPtr> ways;
  for (const ordered_json& call : format["calls"]) {
    const auto head = call["head"].get<std::string>(), tail = call["tail"].get<std::string>();
    ways.push_back(sequence({literal(head), arguments_of(call, grammar), literal(tail)}));
    out.marks.push_back(head);
    out.marks.push_back(tail);
  }
  const ExprPtr call = either(std::move(ways));
  const std::string between = text("between");
  const ExprPtr calls = many && !between.empty()
                            ? sequence({call, repeat(sequence({literal(between), call}), 0)})
                            : call;
  const ExprPtr tag = sequence({with_optional_space(text("open")), calls, literal(text("close"))});
  if (!is_forced) {
    out.trigger = text("trigger");
    if (out.trigger.empty())
      for (const ordered_json& one : format["calls"])
        out.beginnings.push_back(text("open") + one["head"].get<std::string>());
    out.repeats = many;
    out.network = grammar.build(tag);
    return out;
  }
  const std::string next = text("next") + text("trigger");
  out.network = grammar.build(
      many && !next.empty() ? sequence({tag, repeat(sequence({literal(next), tag}), 0)}) : tag);
  return out;
}

}  // namespace sluice::guide
