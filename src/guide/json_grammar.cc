#include "src/guide/json_grammar.h"

#include <map>

#include "src/guide/number_ranges.h"

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

std::vector<uint32_t> characters_of(std::string_view text) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<uint8_t>(text[i]);
    const size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    uint32_t c = length == 1 ? first : first & (0xFFu >> (length + 1));
    for (size_t tail = 1; tail < length && i + tail < text.size(); ++tail)
      c = c << 6 | (static_cast<uint8_t>(text[i + tail]) & 0x3F);
    out.push_back(c);
    i += length;
  }
  return out;
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
    : value_(grammar.add_rule()),
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

ExprPtr JsonGrammar::string(int32_t least, int32_t most) const {
  return quoted(repeat(character_, least, most));
}

ExprPtr quoted(const ExprPtr& content) { return sequence({literal("\""), content, literal("\"")}); }

ExprPtr key_other_than(const std::vector<std::string>& names) {
  NameTree tree;
  for (const std::string& name : names) {
    NameTree* at = &tree;
    for (uint32_t c : characters_of(name)) at = &at->below[c];
    at->is_name = true;
  }
  return quoted(other_than(tree));
}

}  // namespace sluice::guide
