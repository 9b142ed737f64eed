#pragma once
// JSON schemas as guides. What is understood: type, enum, const, properties, required,
// additionalProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern,
// format (date, time, date-time, uuid, ipv4, email), minimum, maximum and their exclusive forms,
// anyOf, oneOf (as anyOf), allOf, $ref within the schema, nullable. Keywords that only describe are
// passed over; any other is refused by name. Properties come in the schema's order; those that the
// schema does not name come only where additionalProperties says so. Pure.
#include <string_view>

#include "src/guide/grammar.h"

namespace sluice::guide {

/// The expression of all texts that the schema allows; its rules are added to `grammar`. Errors:
/// kUser naming the place in the schema.
ExprPtr schema_grammar(std::string_view schema_json, Grammar& grammar);

}  // namespace sluice::guide
