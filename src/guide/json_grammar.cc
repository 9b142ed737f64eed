#include "src/guide/json_grammar.h"

#include <map>

#include "src/guide/number_ranges.h"
#include "src/text/utf8.h"

namespace sluice::guide {

namespace {
ExprPtr hex_digit() { return either({range('0', '9'), range('a', 'f'), range('A', 'F')}); }

// A character of a string: itself, or escaped in any way that is no lone surrogate.
ExprPtr string_character() {
  const auto hex = [](int32_t count) { return repeat(hex_digit(), count, count); };
  const auto no_d =
      either({range('0', '9'), range('a', 'c'), range('A', 'C'), range('e', 'f'), range('E', 'F')});
  const auto code =
      either({sequence({no_d, hex(3)}),
              sequence({either({literal("d"), literal("D")}), range('0', '7'), hex(2)})});
  const CharacterSet raw = CharacterSet{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}.inverted();
  std::vector<ExprPtr> escapes;
  for (char c : std::string_view("\"\\/bfnrt")) escapes.push_back(literal({&c, 1}));
  escapes.push_back(sequence({literal("u"), code}));
  return either({utf8_of(raw), sequence({literal("\\"), either(std::move(escapes))})});
}

struct NameTree {
  std::map<uint32_t, NameTree> below;
  bool is_name = false;
};

// Texts that are not in the tree.
ExprPtr other_than(const NameTree& tree) {
  CharacterSet known;
  std::vector<ExprPtr> ways;
  for (const auto& [character, below] : tree.below) {
    known.add(character, character);
    ways.push_back(
        sequence({character_of({{character, character}}, Spelling::kJson), other_than(below)}));
  }
  const auto any = repeat(character_of(CharacterSet::all(), Spelling::kJson), 0);
  ways.push_back(
      sequence({character_of(CharacterSet::all().without(known), Spelling::kJson), any}));
  if (!tree.is_name) ways.push_back(sequence({}));
  return either(std::move(ways));
}
}  // namespace

JsonGrammar::JsonGrammar(Grammar& grammar)
    : grammar_(grammar),
      value_(grammar.add_rule()),
      object_(grammar.add_rule()),
      array_(grammar.add_rule()),
      space_(optional(either(
          {literal(" "),
           sequence({literal("\n"), repeat(either({literal(" "), literal("\t")}), 0, 20)})}))),
      character_(string_character()) {
  const auto list_of = [&](const char* open, const ExprPtr& one, const char* close) {
    const auto more = repeat(sequence({literal(","), space_, one}), 0);
    return sequence(
        {literal(open), space_, optional(sequence({one, more, space_})), literal(close)});
  };
  const auto member = sequence({string(), literal(":"), space_, any_value()});
  grammar.define(object_, list_of("{", member, "}"));
  grammar.define(array_, list_of("[", any_value(), "]"));
  grammar.define(value_, either({any_object(), any_array(), string(), numbers({}, {}),
                                 literal("true"), literal("false"), literal("null")}));
}

ExprPtr JsonGrammar::string(int32_t least, int32_t most) {
  return quoted(grammar_.repeat_many(character_, least, most));
}

ExprPtr quoted(const ExprPtr& content) { return sequence({literal("\""), content, literal("\"")}); }

ExprPtr key_other_than(const std::vector<std::string>& names) {
  NameTree tree;
  for (const std::string& name : names) {
    NameTree* at = &tree;
    for (std::string_view rest = name; !rest.empty();) at = &at->below[text::take_character(rest)];
    at->is_name = true;
  }
  return quoted(other_than(tree));
}

}  // namespace sluice::guide
