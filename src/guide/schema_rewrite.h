#pragma once
// Schemas with words that speak of what a value is not, or is only at times ("not", "if",
// "contains", "uniqueItems", "dependentSchemas"), said without them where that can be. Pure.
#include <nlohmann/json.hpp>
#include <optional>

namespace sluice::guide {

/// A schema that allows nothing which `schema`, an object, does not, and has one such word less:
/// the same values, but that what an array contains is among its first four. Nothing: it has none
/// of these words, or what they say can't be said otherwise.
std::optional<nlohmann::ordered_json> said_plainly(const nlohmann::ordered_json& schema);

/// Whether the value is of the type, or one of the types, that a schema's "type" names.
bool is_of_type(const nlohmann::ordered_json& value, const nlohmann::ordered_json& type);

}  // namespace sluice::guide
