#pragma once
// JSON schemas as guides. What is understood: type, enum, const, properties, required,
// additionalProperties, patternProperties (one, beside no others), propertyNames, minProperties and
// maxProperties (of objects without named properties, or where they say nothing new),
// dependentRequired, unevaluatedProperties, items, prefixItems, lists of items with
// additionalItems, minItems, maxItems, minLength, maxLength, pattern, format (date, time,
// date-time, uuid, ipv4, email), minimum, maximum and their exclusive forms, multipleOf, anyOf,
// oneOf (as anyOf), allOf, $ref within the schema by pointer or anchor, nullable. A word that JSON
// Schema does not have, or that only describes, changes nothing. A word that JSON Schema has and
// guides don't know is refused by name, or relaxed: the rest of its schema is held. Properties come
// in the schema's order; a property without a name in the schema comes only where the schema allows
// that. Nothing that a guide lets through breaks what is held. Pure.
#include <string>
#include <string_view>
#include <vector>

#include "src/guide/grammar.h"

namespace sluice::guide {

/// What of a schema a guide does not hold: "#/properties/tags: uniqueItems".
using Relaxed = std::vector<std::string>;

/// The expression of all texts that the schema allows; its rules are added to `grammar`. With
/// `relaxed` what is not understood is added there instead of being refused. Errors: kUser naming
/// the place in the schema; GuideSizeError.
ExprPtr schema_grammar(std::string_view schema_json, Grammar& grammar, Relaxed* relaxed = nullptr);

}  // namespace sluice::guide
