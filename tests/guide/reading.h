#pragma once
// Whole texts against grammars, and masks.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "src/guide/automaton.h"
#include "src/guide/grammar.h"
#include "src/guide/json_schema.h"
#include "src/guide/regex.h"

namespace sluice::guide {

inline Automaton automaton_of_regex(std::string_view pattern) {
  return Automaton(Grammar().build(parse_regex(pattern)));
}
inline Automaton automaton_of_schema(std::string_view schema) {
  Grammar grammar;
  const ExprPtr start = schema_grammar(schema, grammar);
  return Automaton(grammar.build(start));
}

/// Where `text` leads; kDead when it can't be read to its end.
inline Automaton::State read(Automaton& automaton, std::string_view text) {
  Automaton::State state = automaton.start();
  for (char c : text) {
    state = automaton.after(state, static_cast<uint8_t>(c));
    if (state == Automaton::kDead) break;
  }
  return state;
}

/// Whether a guide's mask has the token's bit.
inline bool is_allowed(std::span<const uint64_t> mask, int32_t token) {
  const auto word = static_cast<size_t>(token) / 64;
  return word < mask.size() && (mask[word] >> token % 64 & 1) != 0;
}

inline bool matches(Automaton& automaton, std::string_view text) {
  const auto state = read(automaton, text);
  return state != Automaton::kDead && automaton.is_accepting(state);
}

}  // namespace sluice::guide
